"""Tables as the benchmarks of mikasa_base print and write them: rows of cells, the first one being the header."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["in_markdown", "plain", "publish", "read_records", "write_csv", "write_records", "write_text"]

Rows = Sequence[Sequence[str]]
Record = TypeVar("Record")
KINDS = {"int": int, "float": float, "str": str}


def plain(rows: Rows) -> str:
    """The table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def in_markdown(rows: Rows, text_columns: int = 1) -> str:
    """The table in Markdown; all columns but the first ``text_columns`` and the last are numbers."""
    numbers = len(rows[0]) - text_columns - 1
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * text_columns + "---:|" * numbers + "---|", *lines[1:]])


def write_csv(path: Path, rows: Rows) -> None:
    """The table as comma-separated values; an existing file is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


def read_records(path: Path, kind: type[Record]) -> list[Record]:
    """The rows of a CSV that `write_records` wrote, as dataclasses of ``kind``; none if it is not there."""
    if not path.exists():
        return []
    types: dict[str, Any] = {f.name: KINDS[str(f.type)] for f in fields(kind)}  # type: ignore[arg-type]
    with path.open(encoding="utf-8", newline="") as file:
        return [kind(**{name: types[name](value) for name, value in line.items()}) for line in csv.DictReader(file)]


def write_records(path: Path, records: Sequence[Any]) -> None:
    """Dataclasses of one kind, whose fields are int, float or str, as a CSV with a column for each field."""
    names = list(asdict(records[0]))
    write_csv(path, [names, *([str(value) for value in asdict(record).values()] for record in records)])


def write_text(path: Path, text: str) -> None:
    """A text; an existing file is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def publish(told: str, rows: Rows, csv: Path | None, markdown: Path | None) -> None:
    """Print a table under what is told of it, and write it where a path is given; existing files are replaced."""
    print(f"{told}\n\n{plain(rows)}")
    if csv is not None:
        write_csv(csv, rows)
    if markdown is not None:
        write_text(markdown, f"{told}\n\n{in_markdown(rows)}\n")
