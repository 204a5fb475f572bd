"""The command ``mikasa``: what it prints, what it loads, how it hands over."""

import ast
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tool_helpers import OWN_ID, own_task

import mikasa_robo
from mikasa_base.factory import missing_dependency
from mikasa_base.registry import VARIANTS, Variant
from mikasa_robo.baselines.registry import ALGORITHMS
from mikasa_robo.catalog import CATALOG
from mikasa_robo.moved_modules import MOVED_MODULES
from mikasa_robo.tools import cli
from mikasa_robo.tools.extras import TRAIN_MODULES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["own_task"]  # a fixture

HEAVY = ("torch", "sapien", "mani_skill")


def ids(out: str) -> list[str]:
    return [word for line in out.splitlines() for word in line.split() if word.endswith("-v0")]


def test_list_shows_every_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    out = capsys.readouterr().out
    assert ids(out) == list(CATALOG)
    assert out.splitlines()[-1] == f"{len(CATALOG)} of {len(CATALOG)} tasks"


def test_a_reader_of_the_list_may_leave() -> None:
    listing = subprocess.Popen(
        [sys.executable, "-m", "mikasa_robo.tools.cli", "list"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert listing.stdout is not None
    assert listing.stderr is not None
    listing.stdout.close()  # before anything is written to it
    with listing.stderr as stderr:
        assert stderr.read() == ""
    assert listing.wait() == 0


def test_list_puts_everything_into_columns(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["list"])
    header, *rows, _ = capsys.readouterr().out.splitlines()
    for name, show in (
        ("ID", lambda row: row.id),
        ("T ", lambda row: str(row.horizon)),
        ("memory", lambda row: row.memory),
        ("oracle", lambda row: row.oracle),
        ("prompt", lambda row: row.prompt or "-"),
    ):
        start = header.index(name)
        for line, row in zip(rows, CATALOG.values(), strict=True):
            assert line[start:].startswith(show(row)), (name, line)
            assert start == 0 or line[start - 1] == " "
    by_id = dict(zip(CATALOG, rows, strict=True))
    assert " 15/5 " in by_id["ChainOfColors3-v0"]
    assert " always on view " in by_id["InterceptSlow-v0"]
    assert " hidden until slowed " in by_id["InterceptFastHidden-v0"]
    assert " 120 (held 150) " in by_id["ChainOfColors5-v0"]
    assert "(7)" in by_id["BunchOfColors7-v0"]


@pytest.mark.parametrize(
    ("options", "family", "memory"),
    [
        (["--family", "TakeItBack"], "TakeItBack", None),
        (["--family", "RememberColor"], "RememberColor", None),
        (["--memory", "sequential"], None, "sequential"),
        (["--memory", "object", "--existing"], None, "object"),
        (["--existing"], None, None),
        (["--family", "ShellGame", "--memory", "spatial"], "ShellGame", "spatial"),
    ],
)
def test_list_filters(
    options: list[str], family: str | None, memory: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = [row for row in CATALOG.values() if family in (None, row.family) and memory in (None, row.memory)]
    assert cli.main(["list", *options]) == 0
    out = capsys.readouterr().out
    assert ids(out) == [row.id for row in wanted]
    assert out.splitlines()[-1] == f"{len(wanted)} of {len(CATALOG)} tasks"


def test_an_unknown_family_is_named_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--family", "RememberColour"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "--family RememberColour: no such family" in captured.err
    assert "RememberColor," in captured.err


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ([], lambda variant: True),
        (["--family", "MemoryLength"], lambda variant: variant.row.name == "MemoryLength"),
        (["--memory", "capacity"], lambda variant: "capacity" in variant.row.memory),
        (["--tier", "diagnostic"], lambda variant: variant.row.tier == "diagnostic"),
        (["--tier", "complex", "--memory", "object"], lambda v: v.row.tier == "complex" and "object" in v.row.memory),
        (["--existing"], lambda variant: missing_dependency(variant.row) is None),
    ],
)
def test_list_of_the_base_suite(
    options: list[str], wanted: Callable[[Variant], bool], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["list", "--suite", "base", *options]) == 0
    *table, total = capsys.readouterr().out.splitlines()
    chosen = [variant for variant in VARIANTS.values() if wanted(variant)]
    assert ids("\n".join(table)) == [variant.id for variant in chosen]
    # `--existing` hides rows, and the last line counts them too.
    counted = VARIANTS.values() if "--existing" in options else chosen
    usable = [variant.id for variant in counted if missing_dependency(variant.row) is None]
    assert total == f"{len(usable)} of {len(counted)} environments can be made with what is installed"
    assert ids("\n".join(line for line in table if line.startswith("yes"))) == usable


def test_list_of_the_base_suite_tells_what_the_registry_holds(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["list", "--suite", "base", "--family", "MemoryCards"])
    header, *rows, _ = capsys.readouterr().out.splitlines()
    assert header.split() == ["installed", "ID", "T", "memory", "tier", "perfect/memoryless", "extra", "weak"]
    assert rows[2].split() == ["yes", "MemoryCardsMedium-v0", "200", "capacity", "diagnostic", "-14.2/-90", "-"]


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["--tier", "complex"], "--tier is for --suite base"),
        (["--suite", "base", "--family", "MemoryCard"], "MemoryCards,"),
    ],
)
def test_options_of_the_wrong_suite_are_named(argv: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", *argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert hint in captured.err


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["bogus"], "bogus"),
        ([], "list"),
        (["train"], "algorithm"),
        (["list", "--memory", "bogus"], "bogus"),
        (["list", "--suite", "bogus"], "bogus"),
        (["list", "--bogus"], "--bogus"),
    ],
)
def test_wrong_use_exits_with_2_and_says_what_is_wrong(
    argv: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    assert end.value.code == 2
    assert hint in capsys.readouterr().err


def test_an_unknown_algorithm_is_named_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "bogus", "--env-id", "RememberColor3-v0"]) == 2
    assert (
        "there is no algorithm 'bogus'; use one of ppo-mlp, ppo-lstm, ppo, dagger, bc, sac, dt, rate, iql, or module:NAME"
        in capsys.readouterr().err
    )


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"mikasa {mikasa_robo.__version__}\n"


def test_help_and_list_load_neither_torch_nor_the_simulator() -> None:
    """All in one process: what one of them loaded would still be there after the next."""
    commands = [[name, "--help"] for name in ("train", "list", *cli._MODULES)]
    commands += [["train", name, "--help"] for name in ALGORITHMS]
    commands += [["--help"], ["--version"], ["list"], ["list", "--suite", "base"]]
    code = (
        "import sys\n"
        "from mikasa_robo.tools.cli import main\n"
        f"for argv in {commands!r}:\n"
        "    try:\n"
        "        assert main(argv) == 0\n"
        "    except SystemExit as end:\n"
        "        assert not end.code, (argv, end.code)\n"
        f"    loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "    assert not loaded, (argv, loaded)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 100


def test_no_module_of_the_library_imports_the_tools() -> None:
    """They stand above everything else. Not by importing: an import inside a function counts, too."""
    root = Path(__file__).parent.parent
    found = []
    for folder, package in (
        ("baselines", "mikasa_robo.baselines"),
        ("mikasa_base", "mikasa_base"),
        ("mikasa_robo", "mikasa_robo"),
        ("wrappers", "mikasa_robo.utils.wrappers"),
    ):
        for path in sorted((root / folder).rglob("*.py")):
            inside = path.relative_to(root / folder).parent.parts
            found += [
                f"{path.relative_to(root)} imports {name}"
                for name in imported_modules(path, ".".join((package, *inside)))
                if f"{name}.".startswith(("mikasa_robo.tools.", "tools."))
            ]
    assert not found


def imported_modules(path: Path, package: str) -> Iterator[str]:
    """All that a file of ``package`` imports, by absolute names; for `from a import b`, a and a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: 1 - node.level] if node.level > 1 else package.split(".")
            home = ".".join([*(parts if node.level else []), *([node.module] if node.module else [])])
            yield home
            yield from (f"{home}.{alias.name}" for alias in node.names)


def test_imports_are_read_from_any_place(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("def f():\n    from ..tools import cli\n    import tools.x\nfrom .b import c\nfrom . import d\n")
    assert set(imported_modules(path, "mikasa_robo.core")) == {
        "mikasa_robo.tools", "mikasa_robo.tools.cli", "tools.x", "mikasa_robo.core.b", "mikasa_robo.core.b.c",
        "mikasa_robo.core", "mikasa_robo.core.d",
    }  # fmt: skip


def test_the_current_folder_is_searched_last_for_modules_of_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As from the console script, whose sys.path has no current folder."""
    (tmp_path / "tyro.py").write_text("raise AssertionError('a file of the user hides a library')\n")
    (tmp_path / "my_tasks_of_cli.py").write_text("print('imported')\n")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    monkeypatch.chdir(tmp_path)
    assert cli.main(["expert", "--env-id", "my_tasks_of_cli:Mine-v0"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "imported\n"
    assert "--env-id Mine-v0 is not registered" in captured.err
    assert sys.path[-1] == str(tmp_path)
    del sys.modules["my_tasks_of_cli"]


def test_the_expert_of_a_task_of_ones_own_is_run(own_task: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["expert", "--env-id", own_task, "--episodes", "2", "--num-envs", "2"]) == 0
    assert capsys.readouterr().out.startswith(f"{OWN_ID} expert: success 100.0%")


# ---------------------------------------------------------------------- modules that have moved
def test_a_module_that_moved_is_the_same_under_its_old_name() -> None:
    sys.modules.pop("mikasa_robo.recording", None)
    with pytest.warns(DeprecationWarning, match=r"mikasa_robo.recording is deprecated; use mikasa_robo.tools.record"):
        old = importlib.import_module("mikasa_robo.recording")
    assert old is importlib.import_module("mikasa_robo.tools.record")
    assert old.__spec__ is not None
    assert old.__spec__.name == "mikasa_robo.tools.record"


@pytest.mark.parametrize(
    ("old", "new"), [("View", "mikasa_robo.catalog:CameraView"), ("play", "mikasa_robo.tools.playing:play")]
)
def test_names_of_a_module_that_moved_are_found(old: str, new: str) -> None:
    home, _, name = new.partition(":")
    with pytest.warns(DeprecationWarning, match=rf"{old} is deprecated; use {new.replace(':', '.')}"):
        found = getattr(importlib.import_module("mikasa_robo.tools.record"), old)
    assert found is getattr(importlib.import_module(home), name)


@pytest.mark.parametrize(("old", "new"), MOVED_MODULES.items())
def test_every_module_that_moved_is_found(old: str, new: str) -> None:
    found, target = importlib.util.find_spec(old), importlib.util.find_spec(new)
    assert found is not None
    assert target is not None
    assert found.origin == target.origin


def test_a_module_that_moved_can_be_run() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mikasa_robo.cli", "list", "--family", "TakeItBack"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ids(done.stdout) == ["TakeItBack-v0", "TakeItBackReplaced-v0"]
    assert "mikasa_robo.cli is deprecated; use mikasa_robo.tools.cli" in done.stderr


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (3, 3)])
def test_train_hands_the_rest_over_untouched(returned: int | None, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[list[str]] = []

    def trainer(algorithm: str, argv: Sequence[str]) -> int | None:
        got.append([algorithm, *argv])
        return returned

    module = types.ModuleType("mikasa_robo.baselines.command")
    monkeypatch.setattr(module, "main", trainer, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    rest = ["--env-id", "RememberColor3-v0", "--help"]
    assert cli.main(["train", "ppo-mlp", *rest]) == code
    assert got == [["ppo-mlp", *rest]]


def test_train_ppo_mlp_help_is_that_of_the_algorithm() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mikasa_robo.tools.cli", "train", "ppo-mlp", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--env-id" in done.stdout


def test_a_missing_train_extra_is_one_line_with_the_way_to_get_it() -> None:
    """Of a real import: None in sys.modules is a module that Python does not find."""
    code = (
        "import sys\n"
        "sys.modules['tensorboard'] = None\n"
        "from mikasa_robo.tools.cli import main\n"
        "sys.exit(main(['train', 'ppo-mlp']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == (
        "mikasa train needs tensorboard, which is not installed: pip install 'mikasa-suite[train]'"
    )
    assert "Traceback" not in done.stderr


def test_a_missing_wandb_comes_out_before_there_is_a_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr(
        importlib.import_module("mikasa_robo.baselines.training"), "train", lambda args, *_: args.check()
    )
    argv = ["train", "ppo-mlp", "--run-dir", str(tmp_path / "run")]
    assert cli.main([*argv, "--track"]) == 2
    assert "mikasa train needs wandb, which is not installed" in capsys.readouterr().err
    assert cli.main(argv) == 0, "without --track nobody needs it"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["somebody_elses", "tensorboard.broken", None])
def test_another_missing_module_is_an_error_like_any_other(name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def trainer(algorithm: str, argv: Sequence[str]) -> None:
        raise ModuleNotFoundError("No module", name=name)

    module = types.ModuleType("mikasa_robo.baselines.command")
    monkeypatch.setattr(module, "main", trainer, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["train", "ppo-mlp"])


def test_the_modules_of_the_train_extra_are_those_of_pyproject() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    named = {name for line in project["optional-dependencies"]["train"] for name in re.findall(r"^\w+", line)}
    assert set(TRAIN_MODULES) == {*named, "imageio_ffmpeg"}, "imageio[ffmpeg] stands for two"


@pytest.mark.parametrize(
    ("words", "code"), [(["list"], 0), (["--version"], 0), (["attack"], 141), (["sweep", "a.toml"], 141)]
)
def test_a_reader_that_ends_early_is_a_failure_where_work_was_left(
    words: list[str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(args: list[str]) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(cli, "_dispatch", breaks)
    monkeypatch.setattr(os, "dup2", lambda *_: None)  # the output of pytest itself
    assert cli.main(words) == code
