"""Does a memory still hold the cue in episodes that training never saw? Read-outs of a sweep play new episodes.

    mikasa sweep docs/results/memory-table/table.toml --only 'ChainOfColors7*'
    python benchmarks/told_in_new_episodes.py runs/memory-table/ChainOfColors7*

A run of `mikasa train dagger` or `bc` with ``--oracle-weight`` logs how often a linear read-out of the memory tells the cue,
but in its training data. A large memory can learn that by heart, or it can read the cue from how the expert moves. So this
script takes the read-outs from the newest resume file of a run, plays the episodes of its final evaluation twice, and counts
the steps at which they are right: once the policy acts, and once the expert, while the policy's memory looks on. Steps count
from the end of the cue to the end of the episode. The CSV is continued: a policy that it holds is not played again. The
table is made from the CSV alone.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from memory_table import rate_in_words
from tables import read_records, write_records, write_text
from torch import Tensor

from mikasa_robo.baselines.arguments import ArgumentError
from mikasa_robo.baselines.checkpoints import CheckpointError, Checkpoints
from mikasa_robo.baselines.dagger import Labeler
from mikasa_robo.baselines.evaluation import find_horizon
from mikasa_robo.baselines.loggers import provenance, short_revision
from mikasa_robo.baselines.readouts import CountedReadout, OracleReadout, make_oracle_readout
from mikasa_robo.baselines.spaces import State
from mikasa_robo.rollouts import EpisodeTotals, play_episodes
from mikasa_robo.tools.checkpoint import Checkpoint, read_checkpoint
from mikasa_robo.tools.env_ids import OptionError
from mikasa_robo.tools.playing import CheckpointPlayer, make_player_env

RESULTS = Path("docs/results/memory-table")


@dataclass
class Options:
    """Ask the read-outs of memories in new episodes."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Folders of finished runs of dagger or bc with --oracle-weight; none makes the table of what the CSV holds."""
    episodes: int = 100
    """Episodes for each policy, played at a time."""
    csv: Path = RESULTS / "told_in_new_episodes.csv"
    """The CSV of the results, which is continued."""
    markdown: Path = RESULTS / "told_in_new_episodes.md"
    """The Markdown file of the table, which is replaced."""


@dataclass(frozen=True)
class Row:
    """A policy in new episodes."""

    env_id: str
    memory: str
    seed: int
    told_in_training: float
    """Share of the steps of the last minibatches of training at which the cue was told, as progress.csv has it."""
    episodes: int
    steps: int
    """Steps of all episodes from the end of the cue on."""
    told: int
    """Of these, the steps at which all of the cue was told."""
    touched_told: int
    """The steps at which the targets touched so far were told; -1 without ``--counted-weight``."""
    expert_steps: int
    """As ``steps``, in the same episodes where the expert acts, without noise."""
    expert_told: int
    """Of these, the steps at which all of the cue was told."""
    successes: int
    mistakes: int
    """Episodes with a failure."""
    sha256: str
    """Of the checkpoint."""
    revision: str


def read_rows(path: Path) -> list[Row]:
    """The rows of the CSV; none if it is not there."""
    return read_records(path, Row)


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write the CSV, sorted by task, memory and seed."""
    write_records(path, sorted(rows, key=lambda r: (r.env_id, r.memory, r.seed)))


def require_read_out(checkpoint: Checkpoint) -> None:
    """Raises OptionError where a policy was trained without a read-out of the cue."""
    if checkpoint.algorithm not in ("dagger", "bc") or not checkpoint.args.oracle_weight:
        raise OptionError(
            f"{checkpoint.path} has no read-out; name runs of `mikasa train dagger` or `bc` with --oracle-weight"
        )


def told_in_training(run: Path) -> float:
    """The last figure of the read-out in progress.csv. Raises OptionError where there is none."""
    path = run / "progress.csv"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            told = [line["imitation/oracle_told"] for line in csv.DictReader(file) if line.get("imitation/oracle_told")]
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}") from error
    if not told:
        raise OptionError(f"{path} has no figure imitation/oracle_told; name runs that took gradient steps")
    return float(told[-1])


def load_read_outs(run: Path, player: CheckpointPlayer, task: Any) -> tuple[OracleReadout, CountedReadout | None]:
    """The read-outs of a finished run, as its last gradient step left them.

    Args:
        run: the folder.
        player: of its checkpoint.
        task: a batch of its task that has been reset.

    Raises:
        OptionError: there is no resume file, or its policy is not that of the checkpoint.
    """
    try:
        payload = Checkpoints.load_newest(run)
    except CheckpointError as error:
        raise OptionError(str(error).removeprefix("--resume ")) from error
    network, args = player.network, player.checkpoint.args
    policy: Mapping[str, Tensor] = payload["policy"]
    if any(not torch.equal(value, policy[name]) for name, value in network.state_dict().items()):
        raise OptionError(f"{run} has a newer resume file than its checkpoint.pt; let the run end first")
    state, width = payload["algorithm_state"], network.memory.output_size
    readout = make_oracle_readout(args, task, task.get_info()["oracle_info"], width)
    readout.load_state_dict(state["readout"])
    counted = None
    if state["counted_readout"]:
        counted = CountedReadout(width, len(task.objects))
        counted.load_state_dict(state["counted_readout"])
    return readout, counted


class Asked:
    """A policy whose memory is read out at each step of a batch of episodes.

    Args:
        player: of the policy.
        task: the environments.
        readout, counted: what is asked.
    """

    def __init__(
        self, player: CheckpointPlayer, task: Any, readout: OracleReadout, counted: CountedReadout | None
    ) -> None:
        self._network, self._task = player.network.to(task.device), task
        self._readout = readout.to(task.device)
        self._counted = None if counted is None else counted.to(task.device)
        self._state: State | None = None
        self.right = self.touched_right = self.known = torch.zeros(0, dtype=torch.bool)
        """(N,) bool, of the last step: the cue is told, the touched targets are told, the cue is over."""

    def on_episode_start(self) -> None:
        """New episodes begin with the next observation."""
        self._state = None

    def act(self, obs: Any, info: Mapping[str, Any]) -> Tensor:
        """The most likely actions (N, A)."""
        network, task = self._network, self._task
        state = network.initial_state(task.num_envs) if self._state is None else self._state
        starts = torch.zeros(task.num_envs, dtype=torch.bool, device=task.device)
        distribution, _, self._state, y = network.forward_memory(network.normalize(obs), state, starts)
        self.known = task.elapsed_steps >= task.timeline.known_from
        self.right = self._readout(y, info["oracle_info"])[1].bool()
        if self._counted is not None:
            self.touched_right = self._counted(y, info["counted"])[1].bool()
        actions: Tensor = network.action.to_env(distribution.mode())
        return actions


class Counts(EpisodeTotals):
    """How often read-outs are right in a batch of episodes, from the end of the cue on."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = self.told = self.touched = 0

    def ask(self, step: Any, asked: Asked) -> None:
        """Add a step of `play_episodes` and what the read-outs told before it."""
        self.add(step)
        if step.t:
            counts = step.running & asked.known
            self.steps += int(counts.sum())
            self.told += int((counts & asked.right).sum())
            self.touched += int((counts & asked.touched_right).sum()) if len(asked.touched_right) else 0


def play(run: Path, checkpoint: Checkpoint, in_training: float, episodes: int) -> Row:
    """Ask the read-outs of a run in the first ``episodes`` episodes of its final evaluation.

    Args:
        run: the folder.
        checkpoint: of its policy.
        in_training: see `told_in_training`.
        episodes: how many, at a time.

    Raises:
        OptionError: see `load_read_outs`.
        ArgumentError: the task has no expert.
    """
    player, args = CheckpointPlayer(checkpoint.path), checkpoint.args
    env = make_player_env(checkpoint.env_id, episodes, player.settings, None)
    task = env.unwrapped
    try:
        player.require_fit(env)
        env.reset(seed=args.final_eval_seed)
        asked = Asked(player, task, *load_read_outs(run, player, task))
        expert = Labeler(checkpoint.env_id, task, args.seed)

        def act_as_expert(obs: Any, info: Mapping[str, Any]) -> Tensor:
            asked.act(obs, info)  # the memory looks on
            return expert.label(obs, info)

        seeds = [args.final_eval_seed + k for k in range(episodes)]
        own, experts = Counts(), Counts()
        for counts, act in ((own, asked.act), (experts, act_as_expert)):
            asked.on_episode_start()
            expert.reset(torch.ones(episodes, dtype=torch.bool, device=task.device))
            for step in play_episodes(env, act, seeds, find_horizon(env)):
                counts.ask(step, asked)
    finally:
        env.close()
    return Row(
        env_id=checkpoint.env_id,
        memory=str(args.memory),
        seed=args.seed,
        told_in_training=in_training,
        episodes=episodes,
        steps=own.steps,
        told=own.told,
        touched_told=own.touched if args.counted_weight else -1,
        expert_steps=experts.steps,
        expert_told=experts.told,
        successes=int(own.success_once.sum()),
        mistakes=int(own.fail_once.sum()),
        sha256=checkpoint.sha256,
        revision=short_revision(provenance(())["git"]),
    )


def document(rows: Sequence[Row]) -> str:
    """The page: a line for each policy."""
    head = "| ID | memory | seed | cue told in training | cue told | expert acts | touched told | success | mistakes |"
    lines = []
    for row in sorted(rows, key=lambda r: (r.env_id, -r.told / r.steps, r.memory, r.seed)):
        touched = "-" if row.touched_told < 0 else f"{100 * row.touched_told / row.steps:.0f}"
        by_expert = f"{100 * row.expert_told / row.expert_steps:.1f}"
        told = f"{100 * row.told_in_training:.1f} | {100 * row.told / row.steps:.1f} | {by_expert} | {touched}"
        result = f"{rate_in_words(row.successes, row.episodes)} | {rate_in_words(row.mistakes, row.episodes)}"
        lines.append(f"| `{row.env_id}` | {row.memory} | {row.seed} | {told} | {result} |")
    episodes = ", ".join(map(str, sorted({row.episodes for row in rows})))
    return "\n".join(
        [
            "# What memories tell in new episodes",
            "",
            "In per cent. A linear read-out of the memory tells the cue: all of it, and where the read-out has an order, in "
            "this order; numbers with a squared error below a tenth of their variance. Another read-out tells the targets "
            "that have been touched so far. *Cue told in training*: of the steps of the last minibatches of training. *Cue "
            "told* and *touched told*: of the steps after the cue in the episodes of the final evaluation, which training "
            "never saw, where the policy acts. *Expert acts*: the cue is told in the same episodes, but the expert acts, "
            "without noise, and the policy's memory looks on. *Success* and *mistakes*: of the episodes in which the policy "
            "acts, with the 95 % Wilson interval. Episodes for each "
            f"policy: {episodes}. Made by `benchmarks/told_in_new_episodes.py`.",
            "",
            head,
            "|---|---|---:|---:|---:|---:|---:|---:|---:|",
            *lines,
            "",
        ]
    )


def measure(options: Options) -> list[Row]:
    """Ask the policies that the CSV lacks, and write it after each.

    Raises:
        OptionError: a run cannot be used.
    """
    rows = read_rows(options.csv)
    known = {row.sha256 for row in rows}
    found = []
    for run in options.runs:
        checkpoint = read_checkpoint(run)
        require_read_out(checkpoint)
        found.append((run, checkpoint, told_in_training(run)))
    for run, checkpoint, in_training in found:
        if checkpoint.sha256 not in known:
            row = play(run, checkpoint, in_training, options.episodes)
            rows.append(row)
            write_rows(options.csv, rows)
            print(f"{row.env_id}, {row.memory}: the cue is told in {row.told} of {row.steps} steps", flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    options = tyro.cli(Options, args=argv)
    try:
        rows = measure(options)
    except (OptionError, ArgumentError, CheckpointError, FileNotFoundError) as error:
        raise SystemExit(str(error)) from error
    if not rows:
        raise SystemExit(f"{options.csv} holds nothing yet, and no run is named; name runs of `mikasa train dagger`")
    write_text(options.markdown, document(rows))
    print(f"{len(rows)} rows: {options.csv}, {options.markdown}")


if __name__ == "__main__":
    main()
