"""What is in a dataset, as lines of text."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from mikasa_robo.data.dataset import Dataset
from mikasa_robo.statistics import wilson_interval

from .collect import folder_sizes

__all__ = ["describe"]


def describe(dataset: Dataset) -> Iterator[str]:
    """Lines on the episodes, the arrays of each, the formats and the versions."""
    info, rows, manifest = dataset.info, dataset.rows(), dataset.manifest or {}
    low, high = wilson_interval(manifest["summary"]["successes"], len(rows))
    lengths = [row["length"] for row in rows]
    seeds = [row["seed"] for row in rows]
    yield f"task          {info.env_id}: {info.instruction}"
    yield f"policy        {info.policy}, noise {info.noise:g} on average"
    yield f"seeds         {min(seeds)} to {max(seeds)} ({info.split})"
    left_out = f", {len(manifest['left_out'])} without success left out" if info.only_success else ""
    yield f"episodes      {len(rows)}{left_out}"
    yield f"success       {manifest['summary']['successes'] / len(rows):.1%} (95 % interval {low:.1%} to {high:.1%})"
    yield f"mistakes      in {manifest['summary']['failures']} of {len(rows)} episodes"
    yield (
        f"steps         {sum(lengths)}; an episode has {min(lengths)} to {max(lengths)}, median "
        f"{statistics.median(lengths):g}, of at most {info.max_episode_steps} at {info.control_freq} Hz"
    )
    if manifest["native"]:
        episode = dataset.read(0)
        for group in ("observations", "columns", "step_columns"):
            for name, array in getattr(episode, group).items():
                yield f"  {group}/{name:<14} {array.dtype} {array.shape[1:]}"
        width = sum(array[0].size for array in episode.states.values())
        yield f"  states         {len(episode.states)} arrays, {width} numbers at each step"
    for name, size in folder_sizes(manifest["files"]):
        yield f"size          {name}: {size / 1e6:.1f} MB, {size / len(rows) / 1e3:.0f} kB an episode"
    yield f"versions      {', '.join(f'{name} {version}' for name, version in info.versions.items())}"
    yield f"revision      {info.revision or 'not known'}"
    yield f"command       {manifest['command']}"
