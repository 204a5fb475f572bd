"""The figure of a dataset: lengths, returns, actions, and images of some episodes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from mikasa_robo.data.dataset import Dataset
from mikasa_robo.data.episode import Array, Episode

__all__ = ["draw"]

SHOWN = 6
"""Episodes of which images are shown."""
MOMENTS = 8
"""Images of each."""
READ = 200
"""Episodes whose actions are drawn, spread evenly over the dataset."""


def draw(dataset: Dataset) -> bytes:
    """A PNG image. Reads one episode at a time.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows, info = dataset.rows(), dataset.info
    chosen = sorted({*np.linspace(0, len(rows) - 1, min(READ, len(rows))).round().astype(int).tolist()})
    returns, actions, sheet = [], [], []
    for k, index in enumerate(chosen):
        episode = dataset.read(index)
        returns.append(float(episode.rewards.sum()))
        actions.append(episode.actions)
        if k < SHOWN and "rgb" in episode.observations:
            sheet.append((episode, list(_moments(dataset, episode))))
    figure = plt.figure(figsize=(11, 3.4 + 1.4 * len(sheet)), layout="constrained")
    grid = figure.add_gridspec(1 + len(sheet), 1, height_ratios=[3.2, *[1.3] * len(sheet)])
    plots: Any = grid[0].subgridspec(1, 3).subplots()
    figure.suptitle(f"{info.env_id}, {info.policy}, {len(rows)} episodes")
    _draw_lengths(plots[0], dataset)
    plots[1].hist(returns, bins=20, color="C0")
    plots[1].set_title("return", loc="left", fontsize="medium")
    _draw_actions(plots[2], np.concatenate(actions), info.names.get("actions", ()))
    for k, (episode, images) in enumerate(sheet, start=1):
        panels: Any = grid[k].subgridspec(1, MOMENTS).subplots()
        for panel, (t, image) in zip(panels, images, strict=False):
            panel.imshow(image)
            panel.set_title(f"t = {t}", fontsize="x-small", pad=2)
            panel.set_axis_off()
            if t == 0:
                label = f"{episode.index} {'success' if episode.success else 'no success'}"
                panel.text(-0.1, 0.5, label, rotation=90, va="center", fontsize="x-small", transform=panel.transAxes)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    plt.close(figure)
    return file.getvalue()


def _moments(dataset: Dataset, episode: Episode) -> Iterator[tuple[int, Array]]:
    """Control steps and images (H, W, 3) of the first camera, spread evenly over an episode."""
    images = next(iter(dataset.info.split_cameras(episode.observations["rgb"]).values()))
    for t in np.linspace(0, episode.length, MOMENTS).round().astype(int).tolist():
        yield t, images[t].copy()


def _draw_lengths(panel: Any, dataset: Dataset) -> None:
    rows = dataset.rows()
    groups = {
        "success": [row["length"] for row in rows if row["success"]],
        "mistake": [row["length"] for row in rows if row["fail"] and not row["success"]],
        "neither": [row["length"] for row in rows if not row["fail"] and not row["success"]],
    }
    bins = np.linspace(0, dataset.info.max_episode_steps, 21)
    labels = [f"{name} ({len(lengths)})" for name, lengths in groups.items()]
    panel.hist(list(groups.values()), bins=bins, stacked=True, label=labels, color=["C2", "C3", "0.6"])
    panel.set_title("control steps", loc="left", fontsize="medium")
    panel.legend(fontsize="small")


def _draw_actions(panel: Any, actions: Array, names: tuple[str, ...]) -> None:
    quantiles = np.quantile(actions, (0.01, 0.25, 0.5, 0.75, 0.99), axis=0)
    places = np.arange(actions.shape[1])
    panel.vlines(places, quantiles[0], quantiles[4], color="C0")
    panel.vlines(places, quantiles[1], quantiles[3], color="C0", linewidth=6)
    panel.plot(places, quantiles[2], "o", color="white", markeredgecolor="C0", markersize=4)
    panel.set_xticks(
        places, [name.removeprefix("delta_panda_") for name in names] or places, rotation=60, fontsize="small"
    )
    panel.set_title("actions: 1, 25, 50, 75, 99 %", loc="left", fontsize="medium")
