"""``mikasa data``: check, show, replay or export a dataset that `mikasa collect` made."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import tyro

import mikasa_suite
from mikasa_robo.baselines.files import why_not_writable
from mikasa_robo.data.checking import count_problems, find_problems, unlisted_files
from mikasa_robo.data.dataset import MANIFEST, Dataset, export, locked
from mikasa_robo.data.formats import FORMATS, FormatError, find_format
from mikasa_robo.data.store import DataError
from mikasa_robo.terminal import printable

from .env_ids import OptionError, resolve_env_id
from .output import require_new_file
from .progress import say

__all__ = ["main"]

MOST_LINES = 20
"""Lines of a list that are printed."""


@dataclass
class Check:
    """Compare a dataset with its manifest: checksums, counts, shapes, finite numbers. Exit code 1 if anything is wrong."""

    folder: tyro.conf.Positional[Path]
    """The folder of the dataset."""


@dataclass
class Show:
    """Print what is in a dataset, and draw it: lengths, success, actions, and images where there are any."""

    folder: tyro.conf.Positional[Path]
    """The folder of the dataset."""
    out: Path | None = None
    """The figure, a new PNG file; by default show.png in the folder, which is replaced."""
    figure: bool = True
    """Draw the figure."""


@dataclass
class Replay:
    """Play the actions of an episode again and say whether all is the same to the bit. Exit code 1 if it is not."""

    folder: tyro.conf.Positional[Path]
    """The folder of the dataset."""
    episode: int = 0
    """Which episode."""
    env_id: str | None = None
    """The task of the dataset. Only needed for a task of your own, as module:ID: a module is imported only where you name
    it."""


@dataclass
class Export:
    """Write a dataset in another format, to a new folder inside of its own."""

    folder: tyro.conf.Positional[Path]
    """The folder of the dataset."""
    format: str
    """One of `mikasa data formats`, or module:Class for a writer of your own."""


@dataclass
class Formats:
    """List the formats, and what has to be installed for each."""


_Command = (
    Annotated[Check, tyro.conf.subcommand("check")]
    | Annotated[Show, tyro.conf.subcommand("show")]
    | Annotated[Replay, tyro.conf.subcommand("replay")]
    | Annotated[Export, tyro.conf.subcommand("export")]
    | Annotated[Formats, tyro.conf.subcommand("formats")]
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv`` and return its exit code."""
    # Any: tyro takes a union of commands, for which typing has no name.
    command_type: Any = _Command
    command = tyro.cli(command_type, args=argv, prog="mikasa data", description="Datasets of `mikasa collect`.")
    try:
        if isinstance(command, Formats):
            return _formats()
        dataset = Dataset.open(command.folder)
        if isinstance(command, Check):
            return _check(dataset)
        if isinstance(command, Show):
            return _show(dataset, command)
        if isinstance(command, Replay):
            return _replay(dataset, command.episode, command.env_id)
        return _export(dataset, command.format)
    except BrokenPipeError:
        raise
    except (DataError, FormatError, IndexError, OptionError, OSError) as error:
        print(printable(str(error)), file=sys.stderr)
        return 2


def _formats() -> int:
    for name, kind in FORMATS.items():
        try:
            kind.writer()
            needs = ""
        except FormatError as error:
            needs = f" ({error})"
        print(f"{name}: {kind.description}{needs}")
    print("module:Class: a writer of your own, see mikasa_robo.data.episode.EpisodeWriter")
    return 0


def _check(dataset: Dataset) -> int:
    count = 0
    for problem in find_problems(dataset):
        count += 1
        if count <= MOST_LINES:
            print(printable(problem))
    if count > MOST_LINES:
        print(f"and {count - MOST_LINES} more")
    if unlisted := unlisted_files(dataset):  # nobody can say whether they are as they were written
        count += len(unlisted)
        more = f" and {len(unlisted) - 3} more" if len(unlisted) > 3 else ""
        print(printable(f"not in the manifest: {', '.join(unlisted[:3])}{more}"))
    for name in dataset.unlisted_formats():
        fix = "if an export was stopped, the same `mikasa data export` adds them; move a folder of your own elsewhere"
        print(printable(f"no file of {name} is in the manifest; {fix}"))
    files = (dataset.manifest or {})["files"]
    verdict = f"{count} problems" if count else "as its manifest says"
    print(f"{dataset.folder}: {len(dataset)} episodes, {len(files)} files: {verdict}")
    return 1 if count else 0


def _show(dataset: Dataset, options: Show) -> int:
    from . import data_figure
    from .data_table import describe

    out = dataset.folder / "show.png" if options.out is None else options.out
    if options.out is not None:
        dataset.require_native()
        require_new_file(options.out)
    elif options.figure and (problem := why_not_writable(dataset.folder, out.name)) is not None:
        raise OptionError(f"{dataset.folder}: {problem}; name a file elsewhere with --out, or add --no-figure")
    if (problem := next(count_problems(dataset), None)) is not None:  # figures of such counts would mean nothing
        raise DataError(f"{dataset.folder}: {problem}; see `mikasa data check {dataset.folder}`")
    for line in describe(dataset):
        print(printable(line))
    if options.figure and not dataset.native:
        print("no figure: there are no native episodes (--no-keep-native)")
    elif options.figure:
        from mikasa_robo.baselines.files import write_atomically

        try:
            write_atomically(out, data_figure.draw(dataset))
        except ModuleNotFoundError as error:
            from .extras import missing_module_message

            print(missing_module_message("the figure", str(error.name), "report"), file=sys.stderr)
            return 2
        print(f"figure: {out}")
    return 0


def _resolve_env_id(dataset: Dataset, asked: str | None) -> None:
    """Have the task of a dataset registered. A module is imported only where the user names it, in ``asked``.

    Raises:
        OptionError: ``asked`` is another task, or none was asked for and that of the dataset is not registered.
    """
    env_id = dataset.info.env_id
    if asked is not None:
        if asked.rpartition(":")[2] != env_id:  # before its module is imported
            raise OptionError(
                f"--env-id {asked}: {dataset.folder} is of {env_id}; name that one, as module:ID, or leave it out"
            )
        resolve_env_id(asked)
        return
    module = str(dataset.arguments.get("env_id", "")).rpartition(":")[0]
    if module and env_id not in gym.registry:
        raise OptionError(
            f"{dataset.folder} is of {env_id} of the module {module}, which is not imported unless you name it: add "
            f"--env-id {module}:{env_id}"
        )
    resolve_env_id(env_id, f"{dataset.folder}: the task")


def _replay(dataset: Dataset, index: int, env_id: str | None) -> int:
    episode = dataset.read(index)
    _resolve_env_id(dataset, env_id)
    say("loading the simulator")
    from mikasa_robo.data.replaying import compared_parts, replay
    from mikasa_robo.sim.render import RenderingUnavailableError

    try:
        differences = replay(dataset.info, episode, states=bool(dataset.arguments.get("states")))
    except (RenderingUnavailableError, RuntimeError, TypeError, ValueError) as error:
        print(printable(f"{dataset.folder} cannot be replayed here: {error}"), file=sys.stderr)
        return 2
    parts, left_out = compared_parts(episode)
    compared = f"{', '.join(parts[:-1])} and {parts[-1]}"
    where = f"episode {index} (seed {episode.seed}, {episode.length} steps)"
    if not differences:
        print(f"{where}: {compared} agree to the bit" + (f" (not compared: {'; '.join(left_out)})" if left_out else ""))
        return 0
    print(f"{where}: {compared} do not all agree")
    for difference in differences[:MOST_LINES]:
        told = f"  {difference.name}: from step {difference.first_row} on, by at most {difference.largest:.3g}"
        print(printable(told))
    found, now = dataset.info.versions, _versions()
    for name in found:
        if name in now and now[name] != found[name]:
            print(printable(f"  recorded with {name} {found[name]}, replayed with {now[name]}"))
    return 1


def _versions() -> dict[str, str]:
    from mikasa_robo.baselines.loggers import provenance

    versions: dict[str, str] = provenance(())["versions"]
    return versions


def _export(dataset: Dataset, name: str) -> int:
    from .collect import folder_sizes

    kind = find_format(name)
    kind.writer()
    dataset.rows()  # refuses one that is not complete
    problem = why_not_writable(dataset.folder, MANIFEST)
    if problem is not None:
        raise OptionError(f"{dataset.folder}: {problem}; an export goes into the dataset: copy it, and export the copy")
    with locked(dataset.folder):
        if kind.name in dataset.unlisted_formats():  # an export was killed before its files had checksums
            target = dataset.folder / kind.name
        else:
            dataset.require_native()
            try:
                target = export(dataset, kind, dataset.numbers())
            except DataError:  # no problem of the format
                raise
            except ValueError as error:
                raise OptionError(f"--format {name}: {error}") from error
        manifest = dataset.refresh([kind.name]).manifest or {}
    size = dict(folder_sizes(manifest["files"])).get(kind.name, 0)  # a writer may have left no file
    print(f"{target}: {len(dataset)} episodes, {size / 1e6:.1f} MB, {size / len(dataset) / 1e3:.0f} kB an episode")
    return 0


if __name__ == "__main__":
    sys.exit(mikasa_suite.run(main))
