"""The figure of a probe: four panels, from the content of its JSON file."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["draw"]

FOLLOWED = {
    "followed_memory": ("the other's\n(memory)", "C0"),
    "followed_sight": ("its own\n(what it saw)", "C1"),
    "neither": ("neither", "0.6"),
}
PHASE_COLORS = {"cue": "C2", "delay": "0.5"}


def draw(content: Mapping[str, Any]) -> bytes:
    """A PNG image of what `mikasa probe` found.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(11, 7.6), layout="constrained")
    arm = f', arm="{content["arm"]}"' if content["arm"] else ""
    figure.suptitle(
        f"{content['env_id']}, {content['policy']}{arm}: {_percent(content['undisturbed'])} of "
        f"{content['undisturbed']['episodes']} episodes undisturbed"
    )
    panels = {"swap": _draw_swap, "interventions": _draw_interventions, "readout": _draw_readout, "arms": _draw_arms}
    titles = {
        "swap": "(a) causal swap: whose cue it follows",
        "interventions": "(b) reset and freeze at t",
        "readout": "(c) linear read-out of the cue at t",
        "arms": "(d) what the body contributes",
    }
    for panel, (name, draw_panel) in zip(axes.flat, panels.items(), strict=True):
        panel.set_title(titles[name], loc="left", fontsize="medium")
        if "skipped" in content[name]:
            panel.set_axis_off()
            reason = textwrap.fill(content[name]["skipped"], 48)
            panel.text(0.5, 0.5, reason, ha="center", va="center", transform=panel.transAxes)
            continue
        draw_panel(panel, content)
        panel.grid(alpha=0.3)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    plt.close(figure)
    return file.getvalue()


def _percent(rate: Mapping[str, Any]) -> str:
    return "none" if rate["rate"] is None else f"{100 * rate['rate']:.0f} %"


def _bars(axes: Any, rates: Sequence[Mapping[str, Any]], names: Sequence[str], colors: Sequence[str]) -> None:
    """Bars with their intervals; a share of no episodes has none."""
    for x, (found, color) in enumerate(zip(rates, colors, strict=True)):
        if found["rate"] is None:
            continue
        # rounding may put an end of the interval on the wrong side of the share
        below, above = (max(0.0, d) for d in (found["rate"] - found["low"], found["high"] - found["rate"]))
        axes.bar(x, found["rate"], color=color, width=0.6, yerr=[[below], [above]], capsize=4)
        axes.text(x + 0.05, min(found["rate"] + 0.02, 0.95), _percent(found), ha="left", va="bottom")
    axes.set_xticks(range(len(names)), names)
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("share of episodes")


def _draw_swap(axes: Any, content: Mapping[str, Any]) -> None:
    swap = content["swap"]
    names, colors = zip(*FOLLOWED.values(), strict=True)
    _bars(axes, [swap[name] for name in FOLLOWED], names, colors)
    axes.set_xlabel(f"states exchanged at t = {swap['at']} in {swap['neither']['episodes']} episodes")


def _draw_interventions(axes: Any, content: Mapping[str, Any]) -> None:
    _shade_phases(axes, content)
    whole = content["undisturbed"]["rate"]
    axes.axhline(whole, color="0.3", linestyle=":", label="undisturbed")
    for name, color, label in (("reset", "C3", "state reset at t"), ("freeze", "C4", "state frozen from t on")):
        curve = content["interventions"][name]
        t = [row["t"] for row in curve]
        axes.plot(t, [row["rate"] for row in curve], color=color, marker="o", markersize=3, label=label)
        axes.fill_between(t, [row["low"] for row in curve], [row["high"] for row in curve], color=color, alpha=0.15)
    running = content["interventions"]["running"]
    axes.plot(
        [row["t"] for row in running],
        [row["share"] for row in running],
        color="0.6",
        linewidth=1,
        label="episodes still running",
    )
    axes.set(xlabel="t of the intervention, control steps", ylabel="success rate", ylim=(-0.02, 1.05))
    axes.legend(fontsize="small")


def _draw_readout(axes: Any, content: Mapping[str, Any]) -> None:
    _shade_phases(axes, content)
    for k, part in enumerate(content["readout"]["parts"]):
        curve = part["curve"]
        if not curve:
            continue
        t, color = [row["t"] for row in curve], f"C{k}"
        label = f"{part['cue']}: {'accuracy' if part['score'] == 'accuracy' else 'R²'}"
        axes.plot(t, [row["state"] for row in curve], color=color, marker="o", markersize=3, label=label)
        if "low" in curve[0]:
            axes.fill_between(t, [row["low"] for row in curve], [row["high"] for row in curve], color=color, alpha=0.15)
        axes.plot(
            t, [row["observation"] for row in curve], color=color, linestyle="--", label="  … from the observation"
        )
        axes.plot(
            t, [row["shuffled"] for row in curve], color=color, linestyle=":", linewidth=1, label="  … cues shuffled"
        )
        if part["score"] == "accuracy":
            majority = [row["majority"] for row in curve]
            axes.plot(t, majority, color="0.4", linestyle="-.", linewidth=1, label="  … most frequent class")
    axes.set(xlabel="t, control steps", ylabel="score on episodes left out", ylim=(-0.1, 1.05))
    if axes.lines:
        axes.legend(fontsize="small")
    else:
        axes.text(0.5, 0.5, "too few episodes, or all alike", ha="center", va="center", transform=axes.transAxes)


def _draw_arms(axes: Any, content: Mapping[str, Any]) -> None:
    arms = content["arms"]
    rates = [arms["free"], arms["held"], arms["survives"]]
    names = ['arm="free"', 'arm="held"', "held, of those\nthat succeed free"]
    _bars(axes, rates, names, ["C5", "C0", "C9"])


def _shade_phases(axes: Any, content: Mapping[str, Any]) -> None:
    start = 0
    for name, color in PHASE_COLORS.items():
        steps = content["phases"][name]
        if steps and content["phases"]["response"]:
            axes.axvspan(start - 0.5, start + steps - 0.5, color=color, alpha=0.12, linewidth=0)
            axes.text(start - 0.3, 1.05, name, fontsize="small", va="top")
        start += steps
