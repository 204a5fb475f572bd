"""How far does a memory carry beyond the delay that it learnt? Policies of a sweep of delays play longer ones, as they are.

    mikasa sweep docs/results/memory-table/delays.toml
    python benchmarks/longer_delays.py runs/memory-delays/*-delay100__1

Each policy plays the evaluation episodes of `mikasa eval` with each delay of ``--delays``. The CSV is continued: what it
holds already is not played again, so the script can be stopped at any time. Table and figure are drawn from the CSV alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from memory_table import rate_in_words
from tables import read_records, write_records, write_text

from mikasa_robo.baselines.checkpoints import CheckpointError
from mikasa_robo.baselines.loggers import short_revision
from mikasa_robo.baselines.option_words import read_env_kwargs
from mikasa_robo.catalog import CATALOG
from mikasa_robo.experts.chance import chance
from mikasa_robo.tools.checkpoint import Checkpoint, read_checkpoint
from mikasa_robo.tools.env_ids import OptionError
from mikasa_robo.tools.evaluate import Args as EvalArgs
from mikasa_robo.tools.evaluate import evaluate_checkpoints

RESULTS = Path("docs/results/memory-table")


@dataclass
class Options:
    """Let policies play longer delays than they learnt."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Folders of runs that were trained with delay_steps among their --env-kwargs; none draws what the CSV holds."""
    delays: tuple[int, ...] = (50, 100, 200, 400, 800)
    """Delays to play, in control steps; also shorter ones and the policy's own."""
    episodes: int = 100
    """Episodes for each policy and delay."""
    num_envs: int = 100
    """Episodes that run at a time."""
    csv: Path = RESULTS / "longer_delays.csv"
    """The CSV of the results, which is continued."""
    markdown: Path = RESULTS / "longer_delays.md"
    """The Markdown file of the tables, which is replaced."""
    picture: Path = RESULTS / "longer_delays.png"
    """The PNG file of the figure, which is replaced."""


@dataclass(frozen=True)
class Row:
    """A policy in a delay."""

    env_id: str
    memory: str
    seed: int
    learnt: int
    """The delay that it was trained with, in control steps."""
    delay: int
    """The delay that it played."""
    episodes: int
    successes: int
    mistakes: int
    """Episodes with a failure."""
    sha256: str
    """Of the checkpoint."""
    revision: str

    @property
    def key(self) -> tuple[str, int]:
        """What is played once."""
        return self.sha256, self.delay


def read_rows(path: Path) -> list[Row]:
    """The rows of the CSV; none if it is not there."""
    return read_records(path, Row)


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write the CSV, sorted by task, learnt delay, memory, seed and delay."""
    write_records(path, sorted(rows, key=lambda r: (r.env_id, r.learnt, r.memory, r.seed, r.delay)))


def learnt_delay(checkpoint: Checkpoint) -> int:
    """``delay_steps`` of training. Raises OptionError where training did not set it."""
    delay = read_env_kwargs(checkpoint.args.env_kwargs).get("delay_steps")
    if delay is None:
        raise OptionError(f"{checkpoint.path} was trained without delay_steps; name runs of a sweep of delays")
    return int(delay)


def require_comparable(rows: Sequence[Row], checkpoints: Sequence[Checkpoint]) -> None:
    """Raises OptionError where two policies of one seed would be averaged, as if they were seeds of one agent."""
    known = {(row.env_id, row.memory, row.learnt, row.seed): (row.sha256, "a policy in the CSV") for row in rows}
    for checkpoint in checkpoints:
        key = checkpoint.env_id, memory_of(checkpoint), learnt_delay(checkpoint), checkpoint.args.seed
        sha256, where = known.setdefault(key, (checkpoint.sha256, str(checkpoint.path)))
        if sha256 != checkpoint.sha256:
            raise OptionError(
                f"{checkpoint.path} and {where} both have the memory {key[1]}, the delay {key[2]} and the seed {key[3]} on "
                f"{key[0]}, and a cell holds one policy of each seed; leave one out, or name another --csv"
            )


def memory_of(checkpoint: Checkpoint) -> str:
    """The memory of a policy."""
    return str(getattr(checkpoint.args, "memory", "none"))


def play(checkpoint: Checkpoint, delay: int, options: Options) -> Row:
    """Evaluate a policy in a delay."""
    with tempfile.TemporaryDirectory() as folder:
        content = evaluate_checkpoints(
            EvalArgs(
                (checkpoint.path,),
                env_kwargs=(f"delay_steps={delay}",),
                episodes=options.episodes,
                num_envs=options.num_envs,
                out=Path(folder, "eval.json"),
            )
        )
    (run,) = content["runs"]
    return Row(
        env_id=checkpoint.env_id,
        memory=memory_of(checkpoint),
        seed=checkpoint.args.seed,
        learnt=learnt_delay(checkpoint),
        delay=delay,
        episodes=options.episodes,
        successes=sum(run["episodes"]["success_once"]),
        mistakes=sum(run["episodes"]["fail_once"]),
        sha256=run["sha256"],
        revision=short_revision(content["git"]),
    )


def cell(rows: Sequence[Row]) -> str:
    """Success in per cent with its 95 % interval over the episodes of all seeds."""
    if not rows:
        return "-"
    return rate_in_words(sum(row.successes for row in rows), sum(row.episodes for row in rows))


def groups_of(rows: Sequence[Row]) -> list[tuple[str, int]]:
    """Tasks and learnt delays."""
    return sorted({(row.env_id, row.learnt) for row in rows})


def document(rows: Sequence[Row], picture: Path) -> str:
    """The page: a table for each task and learnt delay."""
    seeds = ", ".join(map(str, sorted({row.seed for row in rows})))
    parts = [
        "# Longer delays than in training",
        "",
        "Success in per cent, with the 95 % Wilson interval over the episodes of all seeds. Each policy learnt one delay, "
        "and plays others as it is, without further training. Delays are in control steps. Seeds of training: "
        f"{seeds}. A dash was not measured. Made by `benchmarks/longer_delays.py`.",
        "",
    ]
    for env_id, learnt in groups_of(rows):
        own = [row for row in rows if (row.env_id, row.learnt) == (env_id, learnt)]
        delays = sorted({row.delay for row in own})
        memories = list(dict.fromkeys(row.memory for row in sorted(own, key=lambda r: -mean_success(own, r.memory))))
        table = [
            [memory, *(cell([r for r in own if (r.memory, r.delay) == (memory, delay)]) for delay in delays)]
            for memory in memories
        ]
        bound = chance(CATALOG[env_id]) if env_id in CATALOG else None
        told = "" if bound is None else f" A guess succeeds in {100 * bound:.0f} %."
        parts += [f"## `{env_id}`, trained with a delay of {learnt}", "", f"Columns: the delay played.{told}", ""]
        head = f"| memory | {' | '.join(map(str, delays))} |"
        parts += [head, "|---|" + "---:|" * len(delays), *(f"| {' | '.join(line)} |" for line in table), ""]
    return "\n".join([*parts, f"![Success against the delay that is played]({picture.name})", ""])


def mean_success(rows: Sequence[Row], memory: str) -> float:
    """Of a memory over all that it played."""
    own = [row for row in rows if row.memory == memory]
    return sum(row.successes for row in own) / sum(row.episodes for row in own)


def draw(rows: Sequence[Row], path: Path) -> None:
    """A panel for each task and learnt delay: success against the delay that is played."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    groups = groups_of(rows)
    figure, grid = plt.subplots(1, len(groups), figsize=(5 * len(groups) + 1, 4), squeeze=False, sharey=True)
    memories = sorted({row.memory for row in rows})
    for axes, (env_id, learnt) in zip(grid[0], groups, strict=True):
        own = [row for row in rows if (row.env_id, row.learnt) == (env_id, learnt)]
        delays = sorted({row.delay for row in own})
        for place, memory in enumerate(memories):
            points = []
            for delay in delays:
                found = [row for row in own if (row.memory, row.delay) == (memory, delay)]
                if found:
                    # side by side, or memories that do equally well would hide each other
                    aside = 1.02 ** (place - (len(memories) - 1) / 2)
                    points.append((delay * aside, sum(r.successes for r in found) / sum(r.episodes for r in found)))
            style = ("-", "--")[place // 10 % 2]
            axes.plot(*zip(*points, strict=True), style, marker="o", ms=4, color=f"C{place % 10}", label=memory)
        bound = chance(CATALOG[env_id]) if env_id in CATALOG else None
        if bound is not None:
            axes.axhline(bound, color="grey", linestyle=":", label="a guess")
        axes.axvline(learnt, color="grey", linewidth=8, alpha=0.2, label="as in training")
        axes.set(title=f"{env_id}, trained with {learnt}", xlabel="delay played, control steps (points side by side)")
        axes.set(xscale="log", ylim=(-0.03, 1.03))
        axes.set_xticks(delays, list(map(str, delays)))
        axes.minorticks_off()
    grid[0, 0].set_ylabel("success")
    grid[0, -1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def measure(options: Options) -> list[Row]:
    """Play what the CSV lacks, and write it after each evaluation.

    Raises:
        OptionError: a run or a delay cannot be used.
    """
    rows = read_rows(options.csv)
    checkpoints = [read_checkpoint(path) for path in options.runs]
    for checkpoint in checkpoints:
        learnt_delay(checkpoint)
    require_comparable(rows, checkpoints)
    known = {row.key for row in rows}
    for checkpoint in checkpoints:
        for delay in options.delays:
            if (checkpoint.sha256, delay) not in known:
                row = play(checkpoint, delay, options)
                rows.append(row)
                write_rows(options.csv, rows)
                print(
                    f"{row.memory}, trained with {row.learnt}, plays {delay}: {row.successes} of {row.episodes}",
                    flush=True,
                )
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    options = tyro.cli(Options, args=argv)
    try:
        rows = measure(options)
    except (OptionError, CheckpointError, FileNotFoundError) as error:
        raise SystemExit(str(error)) from error
    if not rows:
        raise SystemExit(f"{options.csv} holds nothing yet, and no run is named; name runs of a sweep of delays")
    write_text(options.markdown, document(rows, options.picture))
    draw(rows, options.picture)
    print(f"{len(rows)} rows: {options.csv}, {options.markdown}, {options.picture}")


if __name__ == "__main__":
    main()
