"""docs/tasks.md is what the catalog and the docstrings of the task classes say."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest

from docs.docstrings import WIDTH, docstring_of, labelled, to_markdown
from docs.make_tasks_page import PAGE, SHARED, anchor, class_name, families, page
from mikasa_robo.catalog import CATALOG

DOC = """Do a thing.

Task: t < 5: look at ``n`` objects, see `Other` and `Unknown`. It
takes 3 - 1 steps.
Success, failure: see `Other`.
Source: a paper. Ours:
- One thing,
  over two lines.
- Another one.
Text after a list.

Dense reward: ``reach`` pays.

Args:
    n, m: how many
        of them.
    render_mode: None.
    **kwargs: see `Other`.

Raises:
    ValueError: never.
"""


def test_the_page_is_that_of_the_tasks() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m docs.make_tasks_page`"


def test_the_page_names_every_id_with_its_phases() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for row in CATALOG.values():
        if row.cues == 1 and not row.entry_point.startswith("tests"):
            assert re.search(rf"\| `{row.id}` \|.*\| {row.cue} \| {row.delay} \| {row.response} \|", text)
    assert "| `SeqOfColors5-v0` | `n=5` | 5 x 5 | 5 | 90 | 120; held: 150 | 0.794 % |" in text


@pytest.mark.parametrize("family", list(families()))
def test_every_family_says_what_succeeds_fails_and_pays(family: str) -> None:
    """In its own section, or in that of a class that it names."""
    text = PAGE.read_text(encoding="utf-8")
    part = text.partition(f"\n## {family}\n")[2].partition("\n## ")[0]
    named = [name for name in map(class_name, SHARED) if f"({anchor(name)})" in part]
    for name in [*named]:  # a shared class may name another
        shared = text.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
        named += [other for other in map(class_name, SHARED) if f"({anchor(other)})" in shared]
    told = part + "".join(text.partition(f"\n### {name}\n")[2].partition("\n### ")[0] for name in named)
    labels = {label for bold in re.findall(r"\*\*(.+?)\.\*\*", told) for label in re.split(", | and ", bold.lower())}
    assert labels >= {"task", "randomisations", "success", "oracle", "dense reward"}
    assert "failure" in labels or "There is no failure." in told.replace("\n ", "")


@pytest.mark.parametrize("entry_point", [*SHARED, *(rows[0].entry_point for rows in families().values())])
def test_a_docstring_is_read_without_importing_its_class(entry_point: str) -> None:
    module, _, cls = entry_point.partition(":")
    assert docstring_of(entry_point) == inspect.getdoc(getattr(importlib.import_module(module), cls))


def test_a_docstring_as_markdown() -> None:
    assert to_markdown(DOC, {"Other": "#other"}, without_arguments=("render_mode",)) == (
        "Do a thing.\n\n"
        "- **Task.** t < 5: look at `n` objects, see [`Other`](#other) and `Unknown`. It takes 3 - 1 steps.\n"
        "- **Success, failure.** See [`Other`](#other).\n"
        "- **Source.** A paper. Ours:\n"
        "  - One thing, over two lines.\n"
        "  - Another one.\n\n"
        "Text after a list.\n\n"
        "- **Dense reward.** `reach` pays.\n\n"
        "Arguments:\n\n"
        "- `n`, `m`: how many of them."
    )


def test_labels_can_be_asked_for_and_left_out() -> None:
    assert labelled(DOC, "Dense reward") == "``reach`` pays."
    assert labelled(DOC, "Oracle") == ""
    assert "Dense" not in to_markdown(DOC, {}, without=("Dense reward",))


def test_no_line_is_long_or_becomes_a_list() -> None:
    words = " ".join(["word"] * 23 + ["- 1"] * 10 + ["word"] * 20 + ["50 %"] * 20)
    lines = to_markdown(words, {}).splitlines()
    assert len(lines) > 2
    assert all(len(line) <= WIDTH and not line.startswith(("-", "%")) for line in lines)


def test_a_class_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"mikasa_robo\.catalog:Nothing: there is no such class"):
        docstring_of("mikasa_robo.catalog:Nothing")
    with pytest.raises(ValueError, match=r"'mikasa_robo\.nothing': no such module"):
        docstring_of("mikasa_robo.nothing:Nothing")
