"""The tree in the README is the tree on disk, and links between pages lead somewhere."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def listed() -> set[str]:
    """Paths of the tree under "Layout", folders with a slash at the end."""
    text = (ROOT / "README.md").read_text()
    block = re.search(r"## Layout\n\n```\n(.*?)```", text, re.DOTALL)
    assert block is not None
    paths: set[str] = set()
    parent = ""
    for line in block.group(1).splitlines():
        name = line.split()[0]
        if line.startswith(" "):
            paths.add(parent + name)
        else:
            parent = name
            paths.add(name)
    return paths


def test_every_path_of_the_tree_exists() -> None:
    for path in listed():
        assert (ROOT / path).exists(), path
        assert (ROOT / path).is_dir() == path.endswith("/"), path


def test_every_folder_with_code_is_in_the_tree() -> None:
    packages = {path.parent.relative_to(ROOT) for path in ROOT.glob("*/**/__init__.py")}
    shown = {str(path) + "/" for path in packages if len(path.parts) <= 2 and not path.parts[0].startswith(".")}
    top = {path.name + "/" for path in ROOT.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    folders = listed()
    assert shown | top <= folders, sorted((shown | top) - folders)


# ---------------------------------------------------------------------- links
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "integrations").rglob("*.md"))]


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What GitHub names the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_link_leads_to_a_file_or_a_heading() -> None:
    broken, found = [], 0
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
            if target.startswith("http"):
                continue
            found += 1
            file, _, anchor = target.partition("#")
            there = page.parent / file if file else page
            if not there.exists() or (anchor and anchor not in anchors(there)):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert found > 300, "the pattern finds no links any more"
    assert not broken
