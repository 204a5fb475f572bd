"""Turns the docstring of an environment class into Markdown, for the pages that list environments.

The class is found in its source, so nothing is imported: not the simulator, and no library that an extra installs.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

WIDTH = 128  # characters of a line
LABELS = (
    "Task",
    "Cue",
    "Randomisations",
    "Success",
    "Failure",
    "Oracle",
    "Prompt",
    "Perception",
    "Observation",
    "Actions",
    "Reward",
    "End",
    "Source",
    "Dense reward",
)
"""What a line of a docstring may begin with, followed by a colon, also several of them: "Success, failure and oracle"."""
_ONE = "|".join(LABELS)
_LABEL = re.compile(rf"((?:{_ONE})(?:(?:, | and )(?:{_ONE}))*): ", re.IGNORECASE)
_ARGUMENT = re.compile(r" {4}(\S.*?): ")
_UNBROKEN = "\0"  # stands for a space that no line may end at


@functools.cache
def _module(name: str) -> ast.Module:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ValueError(f"{name!r}: no such module")
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def docstring_of(entry_point: str) -> str:
    """The docstring of ``module:Class``, without its indentation; the module may import the class from another one.

    Raises:
        ValueError: there is no such class, or it has no docstring.
    """
    module, _, cls = entry_point.partition(":")
    for node in _module(module).body:
        if isinstance(node, ast.ClassDef) and node.name == cls:
            doc = ast.get_docstring(node)
            if doc:
                return doc
        if isinstance(node, ast.ImportFrom) and node.module and any(cls == alias.name for alias in node.names):
            source = "." * node.level + node.module
            return docstring_of(f"{importlib.util.resolve_name(source, module.rpartition('.')[0])}:{cls}")
    raise ValueError(f"{entry_point}: there is no such class, or it has no docstring")


def _inline(text: str, links: Mapping[str, str]) -> str:
    """Docstring markup as Markdown: double backticks become single ones, and the name of a class in ``links`` a link."""
    marked = re.sub(r"``(.+?)``", "\1\\1\1", text)
    marked = re.sub(r"`(\w+)`", lambda m: f"[`{m[1]}`]({links[m[1]]})" if m[1] in links else m[0], marked)
    return marked.replace("\1", "`")


def wrapped(text: str, first: str = "", later: str = "") -> str:
    """A paragraph of lines of at most `WIDTH` characters. None begins with a character that would make it a list."""
    kept = re.sub(r" ([-+*]) ", rf"{_UNBROKEN}\1{_UNBROKEN}", " ".join(text.split())).replace(" %", f"{_UNBROKEN}%")
    lines = textwrap.wrap(
        kept, WIDTH, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines).replace(_UNBROKEN, " ")


def _capitalised(text: str) -> str:
    """The same with a capital at its beginning, unless it begins with a formula ("t < 5") or a dtype."""
    return text if re.match(r"\w+ [<≤=]|u?int\d|float\d", text) else text[0].upper() + text[1:]


def _blocks(doc: str) -> Iterator[tuple[str, str]]:
    """The parts of a docstring before its "Args:", each a kind and its text.

    The kinds are "paragraph", "item" (of a list) and the labels that a line begins with.
    """
    kind, lines = "paragraph", list[str]()
    for line in [*doc.splitlines(), ""]:
        label = _LABEL.match(line)
        item = line.startswith("- ")
        ends_item = kind == "item" and line and not line.startswith((" ", "- "))
        if not line.strip() or label or item or ends_item:
            if lines:
                yield kind, " ".join(lines)
            kind, lines = "paragraph", []
        if line in ("Args:", "Raises:"):
            return
        if label:
            kind, line = label[1], line[label.end() :]
        elif item:
            kind, line = "item", line[2:]
        if line.strip():
            lines.append(line.strip())


def labelled(doc: str, label: str) -> str:
    """The text that a docstring has for one of `LABELS`; empty if it has none."""
    return next((text for kind, text in _blocks(doc) if kind == label), "")


def arguments_of(doc: str) -> Iterator[tuple[str, str]]:
    """Names and text of the "Args:" of a docstring."""
    name, lines, inside = "", list[str](), False
    for line in [*doc.splitlines(), "End:"]:
        inside_now = line == "Args:" or (inside and (not line or line.startswith(" ")))
        argument = _ARGUMENT.match(line) if inside_now else None
        if name and (argument or not inside_now):
            yield name, " ".join(lines).strip()
            name, lines = "", []
        if argument:
            name, lines = argument[1], [line[argument.end() :].strip()]
        elif inside_now and name:
            lines.append(line.strip())
        inside = inside_now


def to_markdown(
    doc: str,
    links: Mapping[str, str],
    *,
    without: Collection[str] = (),
    without_arguments: Collection[str] = (),
) -> str:
    """A docstring as Markdown: its summary, its labelled parts as a list, its other paragraphs and its arguments.

    Args:
        doc: of a class, see `docstring_of`.
        links: where the classes that it names are described, such as ``{"Rotate": "#rotate"}``.
        without: labels that are left out.
        without_arguments: arguments that are left out. ``**kwargs`` always is if it only names another class.
    """
    parts = list[str]()
    last, in_label = "paragraph", False  # the kind of the last part, and whether a label began its list
    for kind, text in _blocks(doc):
        if kind in without:
            continue
        text = _inline(text, links)
        gap = "\n" if parts and "paragraph" in (kind, last) else ""
        if kind == "paragraph":
            parts.append(gap + wrapped(text))
            in_label = False
        elif kind == "item":
            parts.append(gap + wrapped(text, *(("  - ", "    ") if in_label else ("- ", "  "))))
        else:
            parts.append(gap + wrapped(f"**{kind}.** {_capitalised(text)}", "- ", "  "))
            in_label = True
        last = kind
    given = list[str]()
    for name, text in arguments_of(doc):
        names = [part for part in name.split(", ") if part not in without_arguments]
        plain_rest = re.fullmatch(r"see `\w+`\.", text) is not None
        if "**kwargs" in names and (len(names) > 1 or plain_rest):
            names.remove("**kwargs")
        if names:
            told = ", ".join("all others" if part == "**kwargs" else f"`{part}`" for part in names)
            given.append(wrapped(f"{told}: {_inline(text, links)}", "- ", "  "))
    if given:
        parts += ["\nArguments:\n", *given]
    return "\n".join(parts)
