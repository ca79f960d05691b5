"""The SQL files of this engine."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

from tenure.store.migrations import SCHEMAS

FOLDER: Final = Path(__file__).parent / "sql"
FUNCTIONS: Final = (
    "logins",
    "queries",
    "enqueue",
    "transitions",
    "exchange",
    "heartbeat",
    "flow",
    "admin",
    "maintenance",
    "profiles",
    "memory",
    "metrics",
    "access",
    "browsing",
    "workflow_start",
    "workflow_fold",
    "workflow_fan_out",
    "workflow_pages",
    "workflow_judging",
    "workflow_acts",
    "workflow_reading",
    "move",
    "streams",
    "approvals",
    "budgets",
    "usage",
    "limits",
    "gauges",
    "memo",
)
"""The files in `functions/`."""


def statement(name: str) -> bytes:
    """A statement of statements.sql, by its name."""
    return _statements()[name]


def schema_script() -> str:
    """Everything that an empty database needs: tables, then functions, then roles.

    Functions call each other across files, so their bodies are checked when they are first called, as pg_dump does.
    """
    tables = [(FOLDER / f"{name}.sql").read_text(encoding="utf-8") for name in SCHEMAS]
    return "\n".join(["SET LOCAL check_function_bodies = off;", *tables, _functions()])


def functions_script() -> str:
    """All functions and roles, which every migration brings anew behind its change of the tables."""
    return f"SET LOCAL check_function_bodies = off;\n{_functions()}"


def _functions() -> str:
    files = [*(FOLDER / "functions" / f"{name}.sql" for name in FUNCTIONS), FOLDER / "roles.sql"]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


@cache
def load(file: str) -> dict[str, str]:
    """The named statements of a file."""
    text = (FOLDER / f"{file}.sql").read_text(encoding="utf-8")
    _, *parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return {name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}


@cache
def _statements() -> dict[str, bytes]:
    return {name: body.encode() for name, body in load("statements").items()}
