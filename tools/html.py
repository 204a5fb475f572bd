"""A report as one HTML file that needs no other file."""

from __future__ import annotations

import base64
import re
from pathlib import Path

__all__ = ["to_html"]

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


def to_html(text: str, folder: Path) -> str:
    """Convert Markdown to a page with the PNG files of ``folder`` that it shows inside it.

    Raises:
        ModuleNotFoundError: Python-Markdown is not installed.
    """
    import markdown

    converter = markdown.Markdown(extensions=["tables"])
    # Text of the user's, such as the name of a file, must not be taken for HTML.
    converter.preprocessors.deregister("html_block")
    converter.inlinePatterns.deregister("html")
    body = converter.convert(text)

    def embed(match: re.Match[str]) -> str:
        data = base64.b64encode((folder / match[1]).read_bytes()).decode()
        return f'src="data:image/png;base64,{data}"'

    title = next((line[2:] for line in text.splitlines() if line.startswith("# ")), "Report")
    return PAGE.format(title=title, body=re.sub(r'src="([^":/]+\.png)"', embed, body))
