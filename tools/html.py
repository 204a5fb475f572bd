"""A report as one HTML file that needs no other file."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping
from pathlib import Path

from mikasa_robo.terminal import printable

__all__ = ["as_code", "as_text", "to_html"]

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #222; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; margin: 1rem 0; font-variant-numeric: tabular-nums; }}
th, td {{ border-bottom: 1px solid #ccc; padding: 0.3rem 0.7rem; white-space: nowrap; }}
th {{ border-bottom: 2px solid #888; text-align: left; }}
img {{ max-width: 100%; }}
code {{ font-size: 0.9em; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


LINKS = ("reference", "link", "image_reference", "short_reference", "short_image_ref", "autolink", "automail")
"""Of Markdown: all that lead elsewhere. A report has no links, but the texts in it may be somebody else's."""


def as_text(text: str) -> str:
    """``text`` from a file as Markdown that shows it as it is, also in a cell: no link, no image, no other column."""
    text = _one_line(text)
    text = re.sub(r"[\\`*\[\]|]|(?<!\w)_|_(?!\w)", r"\\\g<0>", text)  # within a word, an underscore means nothing
    return re.sub(r"&(?=#?\w+;)", "&amp;", text).replace("<", "&lt;")


def as_code(text: str) -> str:
    """``text`` from a file as Markdown in the type of code. It is plain text where code cannot hold it in a cell."""
    line = _one_line(text)
    return as_text(line) if not line or set(line) & set("`|") else f"`{line}`"


def _one_line(text: str) -> str:
    """``text`` without line breaks, control characters, and bytes that were not UTF-8, such as of a path."""
    text = " ".join(text.encode(errors="backslashreplace").decode().split())
    return printable(text)


def to_html(text: str, pictures: Path | Mapping[str, bytes]) -> str:
    """Convert Markdown to a page that holds the pictures which it shows. Nothing in it is a link.

    Args:
        text: the Markdown.
        pictures: the folder of the PNG files, or their contents by name.

    Raises:
        ModuleNotFoundError: Python-Markdown is not installed.
    """
    import markdown

    converter = markdown.Markdown(extensions=["tables"])
    # Text of the user's, such as the name of a file, must not be taken for HTML.
    converter.preprocessors.deregister("html_block")
    converter.inlinePatterns.deregister("html")
    for name in LINKS:
        converter.inlinePatterns.deregister(name)
    body = converter.convert(text)

    def embed(match: re.Match[str]) -> str:
        """An image of the report with its data. One from elsewhere, which a text of somebody's names, is not loaded."""
        found = dict(re.findall(r'(\w+)="([^"]*)"', match[0]))
        name = html.unescape(found.get("src", ""))
        if isinstance(pictures, Path):
            file = pictures / name
            data = file.read_bytes() if name.endswith(".png") and name == file.name and file.is_file() else None
        else:
            data = pictures.get(name)
        if data is None:
            return found.get("alt", "")
        return match[0].replace(
            f'src="{found["src"]}"', f'src="data:image/png;base64,{base64.b64encode(data).decode()}"'
        )

    title = next((line[2:] for line in text.splitlines() if line.startswith("# ")), "Report")
    return PAGE.format(title=title, body=re.sub(r"<img [^>]*>", embed, body))
