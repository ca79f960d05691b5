"""The SQL files, each read once."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "sql"


@cache
def load(name: str) -> str:
    """The text of `sql/NAME.sql`."""
    return (FOLDER / f"{name}.sql").read_text(encoding="utf-8")


@cache
def migrations() -> tuple[tuple[int, str, str], ...]:
    """Every migration as number, name and text, in order."""
    found = sorted(path.name for path in (FOLDER / "migrations").iterdir() if path.name.endswith(".sql"))
    return tuple((int(name[:4]), name.removesuffix(".sql"), load(f"migrations/{name[:-4]}")) for name in found)
