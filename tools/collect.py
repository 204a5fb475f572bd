"""``mikasa collect``: a dataset of episodes that a policy plays, in any number of file formats."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

import mikasa_suite
from mikasa_robo.baselines.files import find_policy_file
from mikasa_robo.data.checking import file_problems
from mikasa_robo.data.dataset import BEGUN, MANIFEST, Dataset, abort_writer, checksum, export, locked
from mikasa_robo.data.episode import IMAGE_PARTS, DatasetInfo, name_simulator
from mikasa_robo.data.formats import FormatError, find_format
from mikasa_robo.data.manifest import EPISODES
from mikasa_robo.data.seeds import SPLIT_SIZE, SPLITS
from mikasa_robo.data.store import DataError
from mikasa_robo.experts.makers import POLICY_NAMES
from mikasa_robo.partial_files import PREFIX
from mikasa_robo.terminal import print_error

from .env_ids import OptionError, resolve_env_id
from .output import require_folder
from .progress import Progress, say

if TYPE_CHECKING:  # torch and the simulator are loaded once the options are known to be good
    from .collecting import Collector

__all__ = ["Options", "collect", "main"]

MOST_ENVS = 65_536
MOST_TRIES = 100
"""Episodes that --only-success plays for each success that is wanted, before it gives up."""


@dataclass
class Options:
    """Record episodes of a policy, for learning from data.

    Starting the same command again goes on where it was stopped. docs/data.md describes the folder and the formats.
    """

    env_id: str
    """The task; module:ID imports the module first, for a task of your own."""
    out: Path
    """The folder of the dataset: a new one, or one that this command has begun."""
    episodes: int = 250
    """Episodes to record; with --only-success, successes."""
    policy: str = "expert"
    """Who acts: a scripted policy of `mikasa expert`, a checkpoint, or the folder of a run."""
    algorithm: str | None = None
    """Only needed for a checkpoint of an algorithm of your own, as module:NAME."""
    network: str | None = None
    """Likewise for a network of your own."""
    memory: str | None = None
    """Likewise for a memory of your own, as module:Class."""
    noise: float = 0.1
    """The actions are carried out with Gaussian noise. In each episode its standard deviation is drawn from 0 to twice
    this. The column expert_action has the actions without it."""
    obs: str = "objects+joints"
    """What is observed, joined with +: rgb, depth, segmentation, objects, joints, state, time, oracle."""
    format: tuple[str, ...] = ()
    """Formats to write besides the native one, separated by commas or spaces; or module:Class for a writer of your own.
    `mikasa data formats` lists them."""
    split: Literal["train", "validation", "test"] = "train"
    """Which of the published seeds to play. Evaluations play none of them."""
    start: int = 0
    """Begin with this seed of the split. Two datasets of one split share no episode if their ranges do not overlap. A range
    has --episodes seeds, or up to a hundred times as many with --only-success."""
    only_success: bool = False
    """Go on through the seeds until there are as many successes as --episodes, and leave the other episodes out of all
    formats. The native folder keeps them, and the manifest lists them."""
    num_envs: int | None = None
    """Episodes that are played at a time, by default 64, or 16 with images. They are the same whatever this is, except that
    one at a time is simulated on the CPU, also where a GPU simulates more."""
    keep_native: bool = True
    """Keep the native episodes when the formats are written. `mikasa train bc --dataset`, `mikasa data replay` and
    `mikasa data export` read them."""
    states: bool = True
    """Record the states of the simulator too."""
    arm: Literal["free", "held"] | None = None
    """held keeps the arm still until the response phase; by default as the policy was trained; free for a scripted one."""
    env_kwargs: tuple[str, ...] = ()
    """Arguments of the task as NAME=VALUE."""
    sim_backend: str = "auto"
    """Where to simulate, as in `mikasa train`."""

    @property
    def formats(self) -> list[str]:
        """The names in ``format``."""
        return [name for word in self.format for name in word.split(",") if name]

    @property
    def images(self) -> bool:
        """Whether images are observed."""
        return bool({*IMAGE_PARTS} & {part.strip() for part in self.obs.split("+")})

    def arguments(self) -> dict[str, Any]:
        """What decides what the episodes are, by the names of the options. Raises FileNotFoundError for no checkpoint."""
        skipped = ("out", "format", "num_envs", "keep_native", "env_kwargs", "algorithm", "network", "memory")
        values = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name not in skipped
        }
        values["env_kwargs"] = list(self.env_kwargs)
        if self.arm is None and self.policy in POLICY_NAMES:
            values["arm"] = "free"  # the default; None stands for what a checkpoint was trained with
        if self.policy not in POLICY_NAMES:
            values["policy_sha256"] = checksum(find_policy_file(Path(self.policy)))
        return _with_one_arm(values)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv`` and return its exit code."""
    options = tyro.cli(Options, args=argv, prog="mikasa collect")
    try:
        _check(options)
        begun = _find_begun(options)
        for name in options.formats:
            there = options.out / find_format(name).name
            if begun is not None and ":" in name and there.exists():  # maybe by another class of this name
                told = f"{there} is there already and stays as it is; move it away to write it with {name}"
                print(told, file=sys.stderr)
        if begun is not None and begun.manifest is not None and not _missing_formats(begun, options):
            with locked(options.out):
                begun.remove_dropped()  # it may have been killed before it could
                names = [find_format(name).name for name in options.formats]
                if {*names} & {*begun.unlisted_formats()}:  # or before it could checksum a format
                    begun = begun.refresh(names)
                begun, problems = _drop_native(begun, options)
            lacks_native = options.keep_native and not begun.native
            print(f"{options.out} is complete{', without native episodes (--no-keep-native)' if lacks_native else ''}")
            _report(begun)
            return _say_problems(problems)
        env_id = resolve_env_id(options.env_id)
        say("loading the simulator")
        from mikasa_robo.baselines.arguments import ArgumentError
        from mikasa_robo.baselines.checkpoints import CheckpointError
        from mikasa_robo.baselines.networks import NaNPolicyError
        from mikasa_robo.sim.render import RenderingUnavailableError

        from .checkpoint import import_foreign
        from .collecting import Collector
        from .playing import UnsuitablePolicyError

        import_foreign(options.algorithm, options.network, options.memory)
    except (OptionError, DataError, FileNotFoundError, FormatError) as error:
        print_error(error)
        return 2
    try:
        command = sys.argv[1:] if argv is None else argv
        return collect(options, lambda num_envs: Collector(options, env_id, num_envs), command)
    except (
        ArgumentError,
        CheckpointError,
        DataError,
        FileNotFoundError,
        FormatError,
        NaNPolicyError,
        OptionError,
        RenderingUnavailableError,
        UnsuitablePolicyError,
    ) as error:
        print_error(error)
        return 2
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO):
            raise
        print(f"{error}; make room, then start the same command again", file=sys.stderr)
        return 2


def collect(options: Options, make_collector: Callable[[int], Collector], command: Sequence[str]) -> int:
    """Record what is missing, write the formats that are missing, then the manifest. Returns the exit code.

    Args:
        options: checked.
        make_collector: makes what plays episodes, for a number of environments.
        command: the arguments of the command, for the manifest.

    Raises:
        DataError, FormatError, OptionError: as the message says.
    """
    from mikasa_robo.baselines.loggers import provenance

    begun = _find_begun(options)
    if begun is not None and begun.manifest is not None:
        with locked(options.out):
            problems = _export(begun, _missing_formats(begun, options), begun.numbers())
            dataset = begun.refresh([find_format(name).name for name in options.formats])
            if not problems:
                dataset, problems = _drop_native(dataset, options)
        _report(dataset)
        return _say_problems(problems)

    with contextlib.closing(make_collector(_environments(options))) as collector:
        _require_holding(options.formats if begun is None else _missing_formats(begun, options), collector.info)
        options.out.mkdir(parents=True, exist_ok=True)
        with locked(options.out):
            arguments = options.arguments()
            if arguments.get("policy_sha256") != collector.policy_sha256:
                raise OptionError(
                    f"--policy {options.policy} was written anew while it was loaded; copy it to a place where nothing "
                    "changes it, such as another folder, and name the copy"
                )
            begun = _find_begun(options, arguments)  # again: another process may have begun it
            dataset = Dataset.begin(options.out, collector.info, arguments) if begun is None else begun
            _require_same_versions(dataset, collector.info.versions, collector.info.revision)
            _require_same_task(dataset, collector.info)
            for problem in dataset.remove_broken() if dataset.manifest is None else ():
                print(f"{problem}; it is recorded again", file=sys.stderr)
            _record(dataset, collector, options)
            chosen, left_out = dataset.select(options.episodes)
            problems = _export(dataset, _missing_formats(dataset, options), chosen)
            native = options.keep_native or bool(problems)
            facts, names = (
                provenance(["mikasa", "collect", *command]),
                [find_format(name).name for name in options.formats],
            )
            dataset = dataset.complete(chosen, left_out, facts, native, names)
    _report(dataset)
    return _say_problems(problems)


def _environments(options: Options) -> int:
    """How many environments play. Those that are asked for may be more than the successes that are wanted."""
    if options.num_envs is None:
        return min(16 if options.images else 64, options.episodes)
    return min(options.num_envs, options.episodes * (MOST_TRIES if options.only_success else 1))


def _require_holding(names: Sequence[str], info: DatasetInfo) -> None:
    """Raises OptionError for a format that cannot hold such data, before anything is recorded for it."""
    for name in names:
        with tempfile.TemporaryDirectory() as place:
            try:
                abort_writer(find_format(name).writer()(Path(place, "dataset"), info))
            except ValueError as error:
                raise OptionError(f"--format {name}: {error}") from error


def _record(dataset: Dataset, collector: Collector, options: Options) -> None:
    """Play until all episodes are there, and remove those beyond the last success that is wanted."""
    recorded = {number: bool(facts["success"]) for number, facts in dataset.recorded().items()}
    batches = -(-max(options.episodes - len(recorded), 0) // collector.num_envs)
    # how many episodes it takes until enough of them succeed is not known
    total, what = (None, "successes") if options.only_success else (batches * collector.horizon, "episodes")
    with Progress(total, f"recording {options.episodes} {what}") as progress:
        done = 0
        while numbers := _next_numbers(recorded, options, collector.num_envs):
            episodes = list(collector.play(numbers, lambda t: progress.to(done + t)))  # noqa: B023  used at once
            dataset.write(episodes)
            recorded |= {episode.index: episode.success for episode in episodes}
            del episodes  # or two batches would be in memory
            done += collector.horizon
    for number in [number for number in recorded if number >= _end(recorded, options)]:
        dataset.path(number).unlink()


def _end(recorded: Mapping[int, bool], options: Options) -> int:
    """The number after that of the last episode, as far as it is known."""
    if not options.only_success:
        return options.episodes
    successes = sorted(number for number, success in recorded.items() if success)
    if len(successes) >= options.episodes:
        return successes[options.episodes - 1] + 1
    return min(MOST_TRIES * options.episodes, SPLIT_SIZE - options.start)


def _next_numbers(recorded: Mapping[int, bool], options: Options, most: int) -> list[int]:
    """The first numbers that are not recorded. Raises OptionError where --only-success has to give up."""
    end, numbers = _end(recorded, options), []
    for number in range(end):
        if number not in recorded:
            numbers.append(number)
            if len(numbers) == most:
                break
    if not numbers and options.only_success and (found := sum(recorded.values())) < options.episodes:
        raise OptionError(
            f"--only-success: {found} of {len(recorded)} episodes succeeded, and {options.episodes} successes are wanted; "
            f"all are in {options.out}; ask for fewer in another folder, or use a better --policy or less --noise"
        )
    return numbers


# ---------------------------------------------------------------------- formats
def _missing_formats(dataset: Dataset, options: Options) -> list[str]:
    """The names of the formats that were asked for and are not there. Raises DataError where they cannot be made."""
    missing = []
    for name in options.formats:
        folder = dataset.folder / find_format(name).name
        if not folder.is_dir():
            missing.append(name)
        elif not any(path.is_file() for path in folder.rglob("*")):
            raise DataError(f"{folder} has no files; remove it, so that the format can be written")
    if missing:
        dataset.require_native()
    return missing


def _export(dataset: Dataset, names: Sequence[str], numbers: Sequence[int]) -> list[str]:
    """Write the formats, and return what went wrong: a format that cannot hold the data is no reason to lose the others.

    Raises:
        DataError: an episode cannot be read, which is no problem of a format.
    """
    problems = []
    for name in names:
        say(f"writing {name}")
        try:
            export(dataset, find_format(name), numbers)
        except DataError:
            raise
        except ValueError as error:
            problems.append(f"--format {name}: {error}")
    return problems


def _drop_native(dataset: Dataset, options: Options) -> tuple[Dataset, list[str]]:
    """Carry out --no-keep-native where the episodes are still there: an earlier command kept them.

    Returns:
        The dataset, and what is wrong with the files of the formats that were asked for. Then the episodes are kept: without
        them these files are all there is.
    """
    assert dataset.manifest is not None
    if not dataset.native or options.keep_native:
        return dataset, []
    names = {find_format(name).name for name in options.formats}
    files = {name: entry for name, entry in dataset.manifest["files"].items() if name.split("/")[0] in names}
    problems = [
        f"{dataset.folder / problem}; the native episodes are kept: move that format away, so that it is written anew"
        for problem in file_problems(dataset, files)
    ]
    return (dataset, problems) if problems else (dataset.drop_native(), [])


def _say_problems(problems: Sequence[str]) -> int:
    for problem in problems:
        print(problem, file=sys.stderr)
    return 2 if problems else 0


# ---------------------------------------------------------------------- checks
def _check(options: Options) -> None:
    """Check what does not depend on the task. Raises OptionError or FormatError."""
    for name, low, high in (("episodes", 1, SPLIT_SIZE), ("start", 0, SPLIT_SIZE - 1), ("num_envs", 1, MOST_ENVS)):
        value = getattr(options, name)
        if value is not None and not low <= value <= high:
            raise OptionError(f"--{name.replace('_', '-')} {value} must be from {low} to {high}")
    if options.start + options.episodes > SPLIT_SIZE:
        raise OptionError(
            f"--start {options.start} with --episodes {options.episodes}: a split has {SPLIT_SIZE} seeds; use fewer"
        )
    if not 0.0 <= options.noise <= 1.0:
        raise OptionError(f"--noise {options.noise} must be from 0 to 1, as actions are from -1 to 1")
    if options.policy not in POLICY_NAMES and not os.path.exists(options.policy):
        raise OptionError(
            f"--policy {options.policy} is not a file; give a checkpoint, or one of {', '.join(POLICY_NAMES)}"
        )
    word = next((word for word in options.env_kwargs if word.partition("=")[0] == "arm"), None)
    if options.arm is not None and word is not None:
        raise OptionError(f"--env-kwargs {word} with --arm {options.arm}: both set the arm; leave one out")
    kinds = [find_format(name) for name in options.formats]
    for kind in kinds:
        kind.writer()
    names = [kind.name for kind in kinds]
    if EPISODES in names:
        raise OptionError(
            f"--format {' '.join(options.format)}: the folder {EPISODES!r} is that of the native episodes; give the class "
            "another name"
        )
    if len(names) != len({*names}):
        raise OptionError(f"--format {' '.join(options.format)} names a format twice; name each once")
    if not options.keep_native and not names:
        raise OptionError("--no-keep-native would keep nothing: name a --format, or leave it out")
    for name in (MANIFEST, BEGUN):
        outer = options.out.absolute().parent
        if (outer / name).is_file():
            raise OptionError(
                f"--out {options.out} would lie in the dataset {outer} ({name}); choose a folder that is in no dataset"
            )
    require_folder(options.out, longest_name=MANIFEST)


def _find_begun(options: Options, arguments: Mapping[str, Any] | None = None) -> Dataset | None:
    """The dataset in ``out``; None if that folder is new or empty. Raises OptionError where it is of no use.

    Args:
        options: of the command.
        arguments: `Options.arguments`, where they are known already.
    """
    out = options.out
    if not out.exists() or all(path.name.startswith(PREFIX) for path in out.iterdir()):
        return None
    if not (out / MANIFEST).exists() and not (out / BEGUN).exists():
        raise OptionError(f"--out {out} has files that are no dataset; choose another folder, or an empty one")
    dataset = Dataset.open(out)
    recorded = _with_one_arm(dataset.arguments)
    for name, asked in (options.arguments() if arguments is None else arguments).items():
        found = recorded.get(name)
        if name == "policy_sha256" and None not in (found, asked) and found != asked:
            raise OptionError(
                f"--out {out} was begun with another file at --policy {options.policy} (its SHA-256 was {found}, and is "
                f"{asked}); put the former back, or choose another folder"
            )
        if found != asked:
            raise OptionError(
                f"--out {out} was begun with --{name.replace('_', '-')} {_word(found)}, not {_word(asked)}; give the "
                "arguments that it was begun with, or choose another folder"
            )
    return dataset


def _with_one_arm(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a dataset, in which ``--env-kwargs arm=held`` is the same as ``--arm held``."""
    words = [str(word) for word in arguments.get("env_kwargs") or ()]
    arms = [word for word in words if word.partition("=")[0] == "arm"]
    if not arms:
        return dict(arguments)
    others = [word for word in words if word not in arms]
    return {**arguments, "arm": arms[-1].partition("=")[2], "env_kwargs": others}


def _word(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "nothing"
    return "nothing" if value is None else str(value)


def _require_same_versions(dataset: Dataset, versions: Mapping[str, str], revision: str | None) -> None:
    """Raises OptionError where the episodes that are there were recorded with other versions."""
    now = {**versions, "revision of MIKASA": revision}
    then = {**dataset.info.versions, "revision of MIKASA": dataset.info.revision}
    if "simulator" in then:  # folders that were begun earlier may have the other name of the same physics
        then["simulator"] = name_simulator(str(then["simulator"]))
    for name, found in then.items():
        if now.get(name) != found:
            raise OptionError(
                f"--out {dataset.folder} was begun with {name} {found}, and now it is {now.get(name)}: the episodes might "
                "differ; go on with the former, or choose another folder"
            )


def _require_same_task(dataset: Dataset, info: DatasetInfo) -> None:
    """Raises OptionError where the task is not that of the episodes that are there, such as one of the user's own."""

    def facts(of: DatasetInfo) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(of)))
        return {name: value for name, value in values.items() if name not in ("versions", "revision")}

    then, now = facts(dataset.info), facts(info)
    for name, found in then.items():
        if now[name] != found and not (name == "image_size" and found is None):  # which older versions did not note
            raise OptionError(
                f"--out {dataset.folder} was begun where the {name.replace('_', ' ')} was {found!r}, and now it is "
                f"{now[name]!r}: the task has changed since; go on with the former, or choose another folder"
            )


# ---------------------------------------------------------------------- report
def _report(dataset: Dataset) -> None:
    assert dataset.manifest is not None
    summary, files = dataset.manifest["summary"], dataset.manifest["files"]
    left_out = len(dataset.manifest["left_out"])
    print(
        f"{dataset.folder}: {summary['episodes']} episodes of {dataset.info.env_id} by {dataset.info.policy}, "
        f"{summary['successes']} with success, {summary['failures']} with a mistake, {summary['steps']} steps"
        + (f"; {left_out} without success are left out" if left_out else "")
    )
    if dataset.info.only_success:
        played = [row["seed"] for row in (*dataset.manifest["episodes"], *dataset.manifest["left_out"])]
        following = max(played) + 1 - SPLITS[dataset.info.split]
        print(f"  another part shares no episode with it from --start {following} on")
    for name, size in folder_sizes(files):
        print(f"  {name}: {size / 1e6:.1f} MB, {size / max(summary['episodes'], 1) / 1e3:.0f} kB an episode")


def folder_sizes(files: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, int]]:
    """The folders of a dataset and their sizes in bytes, from the "files" of its manifest."""
    for folder in sorted({name.split("/")[0] for name in files}):
        yield folder, sum(entry["bytes"] for name, entry in files.items() if name.startswith(f"{folder}/"))


if __name__ == "__main__":
    sys.exit(mikasa_suite.run(main))
