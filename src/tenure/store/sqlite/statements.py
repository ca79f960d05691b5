"""The SQL files, each read once: named queries, `-- name: claim` above each."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

FOLDER: Final = Path(__file__).parent / "sql"
_NAME: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@cache
def load(file: str) -> Mapping[str, str]:
    """The statements of `sql/FILE.sql` by name."""
    _, *parts = _NAME.split(text(file))
    return MappingProxyType(dict(zip(parts[::2], (part.strip() for part in parts[1::2]), strict=True)))


@cache
def text(file: str) -> str:
    """The whole of `sql/FILE.sql`."""
    return (FOLDER / f"{file}.sql").read_text(encoding="utf-8")


def split(script: str) -> list[str]:
    """The single statements of a script. `executescript` would commit the open transaction first."""
    found, part = [], ""
    for line in script.splitlines(keepends=True):
        part += line
        if sqlite3.complete_statement(part):
            found.append(part)
            part = ""
    return found
