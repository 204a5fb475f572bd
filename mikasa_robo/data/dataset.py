"""A dataset on disk: a folder with native episodes, other formats, and a manifest.

    DIR/
      collect.json            what is being collected, until the manifest is written
      episodes/00000042.npz   the native episodes, each under its number among the seeds; see `store`
      <format>/…              one folder for each other format
      manifest.json           written last: what was recorded, and the checksum of every file

Which episodes are there says how far a collection is; there is no other record of it that could disagree. So a process that
was killed loses the batch that it was playing, and nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mikasa_robo.locks import take_lock
from mikasa_robo.partial_files import PREFIX, PartialFile, remove_leftovers

from .episode import DatasetInfo, Episode, EpisodeWriter
from .formats import DataFormat
from .manifest import EPISODES, episode_file, read_info, why_malformed
from .store import DataError, read_episode, read_facts, write_episodes

__all__ = ["FORMAT", "Dataset", "abort_writer", "export", "locked", "write_json"]

FORMAT = "mikasa/data/1"
"""The "format" entry of both JSON files."""
BEGUN, MANIFEST = "collect.json", "manifest.json"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Be the only process that writes to the dataset in ``folder``, and remove what a killed process left half done there.

    Raises:
        DataError: another process writes there.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            take_lock(handle)
        except BlockingIOError as error:
            raise DataError(f"another process is writing to {folder}; wait for it, or choose another folder") from error
        for place in (folder, folder / EPISODES):
            remove_leftovers(place)
        for path in folder.glob(f"{PREFIX}*"):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
        yield
    finally:
        os.close(handle)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write ``path``, which appears when it is complete, and replaces a file of that name."""
    with PartialFile(path) as partial:
        with open(partial.handle, "w", closefd=False, encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace()


@dataclass(frozen=True)
class Dataset:
    """A dataset, begun or complete."""

    folder: Path
    info: DatasetInfo
    arguments: Mapping[str, Any]
    """What `mikasa collect` was asked for, as far as it decides what the episodes are."""
    manifest: Mapping[str, Any] | None
    """The content of the manifest; None where the dataset is not complete yet."""

    @classmethod
    def begin(cls, folder: Path, info: DatasetInfo, arguments: Mapping[str, Any]) -> Dataset:
        """Begin a dataset in a folder that exists and is empty."""
        write_json(folder / BEGUN, {"format": FORMAT, "info": dataclasses.asdict(info), "arguments": dict(arguments)})
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> Dataset:
        """The dataset in ``folder``. Raises DataError where there is none, or its manifest cannot be read."""
        name = next((name for name in (MANIFEST, BEGUN) if (folder / name).is_file()), None)
        if name is None:
            raise DataError(f"{folder} holds no dataset; name a folder that `mikasa collect` made")
        path = folder / name
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(content, dict) or content.get("format") != FORMAT:
                found = content.get("format") if isinstance(content, dict) else content
                raise DataError(
                    f"{path}: its format is {found!r}, not {FORMAT!r}; read it with the version that made it"
                )
            problem = why_malformed(content, complete=name == MANIFEST)
            if problem is not None:
                raise DataError(f"{path}: {problem}; restore the file, or collect the dataset anew")
            info = read_info(content["info"])
            return cls(folder, info, content["arguments"], content if name == MANIFEST else None)
        except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{path} cannot be read ({type(error).__name__}: {error})") from error

    # ------------------------------------------------------------------ episodes
    def path(self, number: int) -> Path:
        """The file of the episode with the seed ``info.first_seed + number``."""
        return self.folder / episode_file(number)

    def recorded(self) -> dict[int, dict[str, Any]]:
        """What is known of the native episodes that are there, by number, in order; see `store.read_facts`.

        Raises:
            DataError: a file is broken, or holds another episode than its name says.
        """
        found = {}
        for path in sorted((self.folder / EPISODES).glob("[0-9]*.npz")):
            facts = read_facts(path)
            if not path.stem.isdecimal() or facts["seed"] != self.info.first_seed + int(path.stem):
                raise DataError(
                    f"{path} holds the episode with the seed {facts['seed']}, which has another name; remove it"
                )
            found[int(path.stem)] = facts
        return found

    def remove_broken(self) -> list[str]:
        """Remove the native episodes that cannot be read, and return what is wrong with each.

        Reads all of them. Of a dataset that is not complete: its episodes can be recorded again.

        Raises:
            DataError: the system does not let a file be read, which says nothing about its content.
        """
        assert self.manifest is None
        problems = []
        for path in sorted((self.folder / EPISODES).glob("[0-9]*.npz")):
            problem = _why_broken(path)
            if problem is not None:
                path.unlink()
                problems.append(problem)
        return problems

    def write(self, episodes: Iterable[Episode]) -> None:
        """Add episodes to those that are there. Holds a few at a time."""
        (self.folder / EPISODES).mkdir(exist_ok=True)
        write_episodes((self.path(episode.seed - self.info.first_seed), episode) for episode in episodes)

    def rows(self) -> list[dict[str, Any]]:
        """The episodes of the manifest, in order. Raises DataError where the dataset is not complete."""
        return list(self._listed())

    def _listed(self) -> Sequence[dict[str, Any]]:
        """`rows` as they are in the manifest: to copy all of them for each episode would take long."""
        if self.manifest is None:
            raise DataError(
                f"{self.folder} is not complete; start the `mikasa collect` that made it again, and it goes on"
            )
        episodes: Sequence[dict[str, Any]] = self.manifest["episodes"]
        return episodes

    def numbers(self) -> list[int]:
        """The numbers of the episodes of the manifest: seed - ``info.first_seed``."""
        return [row["seed"] - self.info.first_seed for row in self.rows()]

    def __len__(self) -> int:
        """Number of episodes in the manifest."""
        return len(self._listed())

    def read(self, index: int) -> Episode:
        """Episode ``index``.

        Raises:
            IndexError: there is no such episode; the message says which there are.
            DataError: the dataset is not complete, or its native episodes were not kept.
        """
        rows = self._listed()
        if not 0 <= index < len(rows):
            raise IndexError(f"there is no episode {index}; {self.folder} has the episodes 0 to {len(rows) - 1}")
        self.require_native()
        return read_episode(self.folder / rows[index]["file"], index)

    @property
    def native(self) -> bool:
        """Whether the native episodes are there, or will be."""
        return self.manifest is None or bool(self.manifest["native"])

    def require_native(self) -> None:
        """Raises DataError where the native episodes were not kept."""
        if not self.native:
            raise DataError(
                f"{self.folder} has no native episodes (--no-keep-native); collect them anew, or use the formats that it has"
            )

    def episodes(self) -> Iterator[Episode]:
        """All episodes, in order, one at a time."""
        return (self.read(index) for index in range(len(self)))

    # ------------------------------------------------------------------ completing
    def select(self, episodes: int) -> tuple[list[int], list[int]]:
        """The numbers of the episodes that count, and of those that were left out, once all are recorded."""
        recorded = self.recorded()
        if not self.info.only_success:
            return list(recorded), []
        successes = [number for number, facts in recorded.items() if facts["success"]][:episodes]
        chosen = set(successes)
        return successes, [number for number in recorded if number not in chosen]

    def complete(
        self,
        chosen: Sequence[int],
        left_out: Sequence[int],
        facts: Mapping[str, Any],
        native: bool,
        formats: Collection[str] = (),
    ) -> Dataset:
        """Write the manifest.

        Args:
            chosen: numbers of the episodes of the dataset, in order.
            left_out: numbers of the episodes that were played and are not part of it.
            facts: what else the manifest is to hold, such as the command.
            native: whether the native episodes stay. If not, they are removed once the manifest is written.
            formats: the formats whose folders it lists, if they are there.
        """
        recorded = self.recorded()

        def row(number: int) -> dict[str, Any]:
            known = {name: value for name, value in recorded[number].items() if name != "instruction"}
            return known | ({"file": episode_file(number)} if native else {})

        rows = [{"index": index, **row(number)} for index, number in enumerate(chosen)]
        content = {
            "format": FORMAT,
            **facts,
            "info": dataclasses.asdict(self.info),
            "arguments": dict(self.arguments),
            "native": native,
            "summary": _summary(rows),
            "episodes": rows,
            "left_out": [row(number) for number in left_out],
        }
        self._write_manifest(content, {EPISODES, *formats})
        (self.folder / BEGUN).unlink(missing_ok=True)
        complete = Dataset.open(self.folder)
        complete.remove_dropped()
        return complete

    def drop_native(self) -> Dataset:
        """Remove the native episodes of a complete dataset; what is left are its formats."""
        content = Dataset.open(self.folder).manifest
        assert content is not None

        def rows(key: str) -> list[dict[str, Any]]:
            return [{name: value for name, value in row.items() if name != "file"} for row in content[key]]

        self._write_manifest({**content, "native": False, "episodes": rows("episodes"), "left_out": rows("left_out")})
        dropped = Dataset.open(self.folder)
        dropped.remove_dropped()
        return dropped

    def remove_dropped(self) -> None:
        """Remove the native episodes where the manifest says that they are not kept; nothing else, which may be a user's."""
        place = self.folder / EPISODES
        if self.native or not place.is_dir():
            return
        for path in place.glob("[0-9]*.npz"):
            if path.stem.isdecimal() and self.path(int(path.stem)) == path:
                path.unlink()
        remove_leftovers(place)
        with contextlib.suppress(OSError):  # there is something else
            place.rmdir()

    def refresh(self, formats: Collection[str] = ()) -> Dataset:
        """Write the manifest anew, after ``formats`` were added, or a format was moved away.

        The folders of ``formats`` are added, with checksums, unless it lists them, and folders that are gone are left out.
        In a folder that it lists nothing changes: a file that was lost from it is still said to be missing. Another folder,
        which may be the user's own, is not added.
        """
        written = Dataset.open(self.folder).manifest  # not self.manifest: `export` may have written it since
        assert written is not None
        self._write_manifest(written, formats)
        return Dataset.open(self.folder)

    def unlisted_formats(self) -> list[str]:
        """The folders with files, besides that of the episodes, that the manifest does not list.

        An export that was killed before `refresh` leaves one: it is complete, and has no checksums. Others are the user's.
        """
        assert self.manifest is not None
        folders = {path.relative_to(self.folder).parts[0] for path in self.files((EPISODES,))}
        return sorted(folders - {*self.manifest["formats"]})

    def _write_manifest(self, content: Mapping[str, Any], added: Collection[str] = ()) -> None:
        """Write ``content`` with the files of the folders that it lists, and of those ``added``."""
        skipped = () if content["native"] else (EPISODES,)
        known: Mapping[str, Any] = content.get("files", {})
        listed = {name.split("/")[0] for name in known}
        kept = {top for top in listed if top not in skipped and (self.folder / top).is_dir()}
        files = {name: entry for name, entry in known.items() if name.split("/")[0] in kept}
        for path in self.files(skipped):
            name = path.relative_to(self.folder).as_posix()
            if name.split("/")[0] in {*added} - listed:
                files[name] = {"bytes": path.stat().st_size, "sha256": checksum(path)}
        files = dict(sorted(files.items()))
        formats = sorted({name.split("/")[0] for name in files if "/" in name} - {EPISODES})
        write_json(self.folder / MANIFEST, {**content, "formats": formats, "files": files})

    def files(self, skipped: Sequence[str] = ()) -> Iterator[Path]:
        """The files of the dataset besides those that describe it, sorted: all that is in a folder of it.

        Args:
            skipped: names of folders to leave out.
        """
        for folder in sorted(self.folder.iterdir()):
            if folder.is_dir() and not folder.name.startswith(".") and folder.name not in skipped:
                # os.path.isfile: a folder without permission is no reason to end here
                yield from sorted(path for path in folder.rglob("*") if os.path.isfile(path))


def checksum(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    return {
        "episodes": len(rows),
        "successes": sum(row["success"] for row in rows),
        "failures": sum(row["fail"] for row in rows),
        "steps": sum(row["length"] for row in rows),
    }


def abort_writer(writer: EpisodeWriter) -> None:
    """Have a writer close its files, whose folder is to be removed. Errors are dropped, as the user needs the first one."""
    abort = getattr(writer, "abort", None)  # writers of users may have none
    if abort is not None:
        with contextlib.suppress(Exception):
            abort()


def _sync(path: Path) -> None:
    """Wait until a file or folder is on the disk. Raises OSError where a file cannot be written there."""
    if not path.is_dir() and not os.path.isfile(path):
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        if not path.is_dir():  # some file systems have no such thing for folders
            raise
    finally:
        os.close(handle)


def _why_broken(path: Path) -> str | None:
    """Why a file is no episode; None if it is one. Raises DataError where the system does not let it be read."""
    try:
        read_episode(path, 0)
    except DataError as error:
        if isinstance(error.__cause__, OSError):
            raise
        return str(error)
    return None


def _read_to_export(dataset: Dataset, number: int, index: int) -> Episode:
    try:
        return read_episode(dataset.path(number), index)
    except DataError as error:
        fix = "start the same command again, which records it anew"
        if dataset.manifest is not None:
            fix = "restore the file, or collect the dataset anew in another folder"
        raise DataError(f"{error}; {fix}") from error


def export(dataset: Dataset, kind: DataFormat, numbers: Sequence[int]) -> Path:
    """Write a dataset in another format, to a folder of its own that appears when it is complete.

    Args:
        dataset: with native episodes; the caller has it `locked`.
        kind: the format.
        numbers: of the episodes, in order.

    Returns:
        The folder.

    Raises:
        DataError: there is such a folder, or an episode cannot be read.
        FormatError: a package is missing.
        ValueError: the format cannot hold such data.
    """
    target = dataset.folder / kind.name
    if os.path.lexists(target):
        raise DataError(f"{target} exists already; move it away to write it anew")
    if dataset.manifest is not None and kind.name in dataset.manifest["formats"]:
        dataset.refresh()  # the folder of that name was moved away: its checksums are not those of the new one
    # absolute: to ffmpeg, a colon in a relative path ends the name of a protocol
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=dataset.folder.absolute()) as place:
        out = Path(place) / kind.name
        writer = kind.writer()(out, dataset.info)
        try:
            for index, number in enumerate(numbers):
                writer.add(_read_to_export(dataset, number, index))
            writer.finish()
        except BaseException:
            abort_writer(writer)
            raise
        for path in out.rglob("*"):
            _sync(path)
        _sync(out)
        os.rename(out, target)
    _sync(dataset.folder)  # the native episodes may be removed now
    return target
