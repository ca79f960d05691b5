"""The SQL files of this engine."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "sql"
FUNCTIONS: Final = ("queries", "enqueue", "transitions", "exchange", "heartbeat", "admin", "maintenance", "profiles")
"""The files in `functions/`."""


def statement(name: str) -> bytes:
    """A statement of statements.sql, by its name."""
    return _statements()[name]


def schema_script() -> str:
    """Everything that an empty database needs: tables, then functions, then roles.

    Functions call each other across files, so their bodies are checked when they are first called, as pg_dump does.
    """
    files = [FOLDER / "schema.sql", *(FOLDER / "functions" / f"{name}.sql" for name in FUNCTIONS), FOLDER / "roles.sql"]
    return "\n".join(["SET LOCAL check_function_bodies = off;", *(path.read_text(encoding="utf-8") for path in files)])


@cache
def _statements() -> dict[str, bytes]:
    text = (FOLDER / "statements.sql").read_text(encoding="utf-8")
    _, *parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return {name: body.strip().encode() for name, body in zip(parts[::2], parts[1::2], strict=True)}
