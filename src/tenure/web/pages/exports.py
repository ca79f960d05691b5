"""Rows as files: JSON lines, or CSV whose cells no spreadsheet takes for a formula. Both are written row by row."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from tenure.model.visible import visible
from tenure.web.pages.visit import Sent

FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""First characters that make a spreadsheet run a cell."""


def sent(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], name: str, wanted: str) -> Sent:
    """The rows as a file, as CSV if that is `wanted`, else as JSON lines."""
    if wanted == "csv":
        return Sent(_csv(rows, columns), "text/csv; charset=utf-8", f"{name}.csv")
    return Sent(_json_lines(rows), "application/x-ndjson", f"{name}.jsonl")


def _json_lines(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        yield json.dumps(row, ensure_ascii=True, default=str) + "\n"


def _csv(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> Iterator[str]:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row[name]) for name in columns])
        yield out.getvalue()
        out.seek(0)
        out.truncate()
    yield out.getvalue()


def _cell(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula."""
    if value is None or isinstance(value, int | float):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=True, default=str)
    text = visible(text)
    return f"'{text}" if text.startswith(FORMULA) else text
