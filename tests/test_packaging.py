"""What a user gets: the right packages in the wheel, under the right names, and nothing else."""

import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from mikasa_robo.catalog import CATALOG

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent

# Names of the distribution by the folders they come from.
FOLDERS = {
    "mikasa_base": "mikasa_base",
    "mikasa_lifelong": "mikasa_lifelong",
    "mikasa_robo": "mikasa_robo",
    "mikasa_robo.utils.wrappers": "wrappers",
    "mikasa_robo.baselines": "baselines",
    "mikasa_robo.tools": "tools",
}


def packages_on_disk() -> set[str]:
    found = set()
    for name, folder in FOLDERS.items():
        top = ROOT / folder
        for init in top.rglob("__init__.py"):
            found.add(".".join((name, *init.parent.relative_to(top).parts)))
    return found


def test_pyproject_lists_every_package_on_disk() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert listed == sorted(set(listed)), "keep `packages` in pyproject.toml sorted, each name once"
    assert packages_on_disk() >= set(FOLDERS)
    assert set(listed) == packages_on_disk(), "`packages` under [tool.setuptools] in pyproject.toml is out of date"


def test_every_folder_with_code_is_a_package() -> None:
    # A folder without __init__.py works in a checkout and is missing from the wheel.
    for folder in FOLDERS.values():
        for module in (ROOT / folder).rglob("*.py"):
            assert (module.parent / "__init__.py").is_file(), f"{module.parent} has no __init__.py"


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that was built from it: a file missing from the one is missing from the other."""
    # From a copy of the sources alone: setuptools also packs whatever an older build has left behind in the checkout.
    source = tmp_path_factory.mktemp("source")
    folder = tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "README.md", "LICENSE", "mikasa_suite.py"):
        shutil.copy(ROOT / name, source)
    for name in {"tests", *(Path(folder).parts[0] for folder in FOLDERS.values())}:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    # Without isolation, so that no network is needed; setuptools is one of the development tools.
    build = (sys.executable, "-m", "build", "--no-isolation", source, "--outdir")
    run(*build, folder, cwd=folder)
    run(*build, folder / "direct", "--wheel", cwd=folder)
    (sdist,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    (direct,) = folder.glob("direct/*.whl")
    assert sorted(zipfile.ZipFile(wheel).namelist()) == sorted(zipfile.ZipFile(direct).namelist())
    return sdist, wheel


@pytest.mark.slow
def test_the_wheel_holds_our_packages_and_claims_no_other_name(built: tuple[Path, Path]) -> None:
    sdist, wheel = built
    assert wheel.name == "mikasa_suite-0.1.0-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {
        "mikasa_base",
        "mikasa_lifelong",
        "mikasa_robo",
        "mikasa_suite.py",
        "mikasa_suite-0.1.0.dist-info",
    }
    assert {"mikasa_robo/py.typed", "mikasa_base/py.typed", "mikasa_lifelong/py.typed"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    modules = {
        "/".join((*name.split("."), *module.relative_to(ROOT / folder).parts))
        for name, folder in FOLDERS.items()
        for module in (ROOT / folder).rglob("*.py")
    }
    assert modules | {"mikasa_suite.py"} == {name for name in names if name.endswith(".py")}
    with tarfile.open(sdist) as archive:
        members = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "wrappers/__init__.py", "baselines/__init__.py"} <= members


@pytest.mark.slow
def test_the_wheel_works_in_a_new_environment(built: tuple[Path, Path], tmp_path: Path) -> None:
    _, wheel = built
    home = tmp_path / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel, cwd=tmp_path)

    # Before the dependencies are lent: nothing but our wheel is there.
    spec = "import importlib.util as u; print([n for n in {} if u.find_spec(n) is not None])"
    for name in ("wrappers", "baselines", "tests", "scripts"):
        assert run(python, "-c", spec.format([name]), cwd=tmp_path).strip() == "[]"
    assert run(python, "-c", spec.format(["mikasa_base"]), cwd=tmp_path).strip() == "['mikasa_base']"

    # The heavy dependencies are borrowed. A path in a .pth file adds that folder and runs no .pth file in it, so that
    # this checkout's editable install stays out.
    (site,) = home.glob("lib/python*/site-packages")
    lent = [entry for entry in sys.path if entry.endswith("site-packages")]
    assert lent
    (site / "lent.pth").write_text("\n".join(lent) + "\n")

    listing = run(home / "bin" / "mikasa", "list", cwd=tmp_path)
    assert listing.splitlines()[-1] == f"{len(CATALOG)} of {len(CATALOG)} tasks"
    where = (
        "import mikasa_robo, mikasa_robo.baselines, mikasa_robo.utils.wrappers as w; "
        "print(mikasa_robo.__version__, *[m.__file__ for m in (mikasa_robo, mikasa_robo.baselines, w)], sep='\\n')"
    )
    version, *files = run(python, "-c", where, cwd=tmp_path).split()
    assert version == "0.1.0"
    assert [Path(file).relative_to(site).parent.as_posix() for file in files] == [
        "mikasa_robo",
        "mikasa_robo/baselines",
        "mikasa_robo/utils/wrappers",
    ]


@pytest.mark.parametrize("inside", [True, False])
def test_the_installed_names_can_be_imported_from_anywhere(inside: bool, tmp_path: Path) -> None:
    # In a checkout this is about the editable install, whose finder has to know the folders of other names.
    code = f"import importlib.util as u\nfor name in {[*FOLDERS]!r}:\n    print(name, u.find_spec(name).origin)"
    found = run(sys.executable, "-c", code, cwd=ROOT if inside else tmp_path).splitlines()
    assert found == [f"{name} {ROOT / folder / '__init__.py'}" for name, folder in FOLDERS.items()]
