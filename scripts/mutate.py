"""Checks that the tests notice errors: makes one small error at a time and runs the tests that must fail.

    python scripts/mutate.py                     # all mutations of scripts/mutations.py; prints a table
    python scripts/mutate.py --list              # their names and places
    python scripts/mutate.py --only reward-sign  # some of them

Each mutation replaces one piece of source text in a temporary copy of the repository and runs the tests that it declares.
The checkout itself is never changed. A mutation is

- caught, if one of its tests fails,
- SURVIVED, if they pass: a test is missing,
- STALE, if its text does not occur exactly once in its file, because the code has changed,
- BROKEN, if its tests also fail without the mutation, or cannot run (they are skipped, or a file cannot be imported).

The exit status is 0 if all are caught and 1 if not.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from mutation import Mutation
from mutations import MUTATIONS

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 1800.0
"""Time limit of one call of pytest."""
INSTALLED_FOLDERS = {
    "mikasa_robo/baselines": "baselines",
    "mikasa_robo/tools": "tools",
    "mikasa_robo/utils/wrappers": "wrappers",
}
"""Packages that are installed under another name than their folder has; in the copy they are links."""

Verdict = Literal["caught", "SURVIVED", "STALE", "BROKEN"]


def is_stale(mutation: Mutation, root: Path) -> bool:
    """Whether the text of ``mutation`` does not occur exactly once below ``root``."""
    path = root / mutation.file
    return not path.is_file() or path.read_text(encoding="utf-8").count(mutation.old) != 1


def copy_repository(root: Path, target: Path) -> None:
    """Copies all files of ``root`` that git tracks or does not ignore, with their uncommitted changes."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        source = root / name
        if source.is_file():  # not one that was deleted
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)
    for link, folder in INSTALLED_FOLDERS.items():
        if (target / folder).is_dir() and (target / link).parent.is_dir():
            (target / link).symlink_to(target / folder)


def run_tests(tests: Iterable[str], root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs pytest in ``root``, by default until the first failure; the return code is 124 after the time limit."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *options, *tests]
    # the bytecode of a file could be taken for that of its mutation, which may have the same size and time
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    try:
        return subprocess.run(
            command,
            cwd=root,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, f"stopped after {TIMEOUT_S:g} s", "")


def check(mutation: Mutation, root: Path) -> Verdict:
    """Makes the error in the copy ``root``, runs its tests and takes it back."""
    if is_stale(mutation, root):
        return "STALE"
    path = root / mutation.file
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        done = run_tests(mutation.tests, root)
    finally:
        path.write_text(before, encoding="utf-8")
    if done.returncode == 0 and " passed" in done.stdout:
        return "SURVIVED"
    return "caught" if done.returncode == 1 else "BROKEN"


def find_broken(mutations: Sequence[Mutation], root: Path) -> dict[str, str]:
    """The mutations whose tests do not pass in the unchanged copy, by name, with the output of pytest."""
    tests = dict.fromkeys(test for mutation in mutations for test in mutation.tests)
    if not tests:
        return {}
    together = run_tests(tests, root, "--maxfail=0")
    if together.returncode == 0:
        return {}
    if together.returncode == 1:
        failed = [line.split()[1] for line in together.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        return {m.name: together.stdout for m in mutations if any(f.startswith(t) for f in failed for t in m.tests)}
    # a file that cannot be imported keeps pytest from running the others
    runs = {chosen: run_tests(chosen, root) for chosen in dict.fromkeys(mutation.tests for mutation in mutations)}
    return {m.name: runs[m.tests].stdout + runs[m.tests].stderr for m in mutations if runs[m.tests].returncode}


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="python scripts/mutate.py"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="make only these mutations")
    parser.add_argument("--list", action="store_true", help="print the mutations and make none")
    asked = parser.parse_args(argv)
    by_name = {mutation.name: mutation for mutation in MUTATIONS}
    unknown = [name for name in asked.only or () if name not in by_name]
    if unknown:
        parser.error(f"--only {' '.join(unknown)}: no such mutation; --list prints all")
    chosen = [by_name[name] for name in asked.only] if asked.only else list(MUTATIONS)
    width = max(len(mutation.name) for mutation in chosen)
    if asked.list:
        for mutation in chosen:
            print(f"{mutation.name:{width}}  {mutation.file}: {mutation.old.strip()!r} -> {mutation.new.strip()!r}")
        return 0
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="mikasa-mutate-") as folder:
        root = Path(folder)
        copy_repository(ROOT, root)
        broken = find_broken([mutation for mutation in chosen if not is_stale(mutation, root)], root)
        for mutation in chosen:
            start = time.monotonic()
            verdicts.append("BROKEN" if mutation.name in broken else check(mutation, root))
            seconds = time.monotonic() - start
            print(f"{mutation.name:{width}}  {verdicts[-1]:8}  {seconds:5.1f} s  {mutation.file}", flush=True)
    for name, output in broken.items():
        print(f"\n{name}: its tests fail without the mutation\n{output}", file=sys.stderr)
    caught = verdicts.count("caught")
    print(f"{caught} of {len(verdicts)} mutations caught")
    return 0 if caught == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
