"""Tenure's own tables, past its API: fills of a million rows in one statement, and counts that cost little."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.harness import sqlite_path
from benchmarks.protocol import payload

SQL = Path(__file__).parent / "sql"
COPIED = ("jobs", "attempts", "letters")


class Tables:
    """A connection of its own, kept between calls."""

    def __init__(self, url: str) -> None:
        self._sqlite: sqlite3.Connection | None = None
        if url.startswith("sqlite"):
            self._sqlite = sqlite3.connect(sqlite_path(url), isolation_level=None, timeout=30)
        else:
            import psycopg

            self._postgres = psycopg.connect(url, autocommit=True, cursor_factory=psycopg.RawCursor)

    def count(self, name: str) -> int:
        """Run one of the counting statements."""
        row = self._run(name, (), {}).fetchone()
        assert row is not None
        return int(row[0])

    def fill_history(self, jobs: int) -> None:
        """Write finished rows."""
        self._run("history", [jobs], {"jobs": jobs, "past": _now() - 3_600_000_000})

    def fill_backlog(self, jobs: int, *, priorities: int = 1, delay: int = 0) -> None:
        """Write waiting rows; `delay` in seconds makes them due later."""
        named = {"jobs": jobs, "priorities": priorities, "delay": delay * 1_000_000, "now": _now()}
        self._run("backlog", [jobs, priorities, delay], named | {"pad": payload(0)["pad"]})

    def copy_history(self, jobs: int, told: Callable[[int], None]) -> None:
        """Make the ended jobs of queue `scale` so many, with copies of those that are there."""
        if self._sqlite is not None:
            self._sqlite.create_function("earlier", 2, _earlier, deterministic=True)
        else:
            self._run("earlier", (), {})
        for what in COPIED:
            self._run(f"take_{what}", (), {})
        there = step = self.count("copied")
        ms = self.count("span")
        while there < jobs:
            self._run("begin", (), {})
            for what in COPIED:
                self._run(f"shift_{what}", [ms], {"ms": ms})
                self._run(f"put_{what}", (), {})
            self._run("commit", (), {})
            if self._sqlite is None:
                self._run("vacuum_copied", (), {})
            there += step
            told(there)

    def close(self) -> None:
        """Close the connection."""
        (self._sqlite or self._postgres).close()

    def _run(self, name: str, numbered: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if self._sqlite is not None:
            return self._sqlite.execute(statement("sqlite", name), named)
        return self._postgres.execute(statement("postgres", name).encode(), numbered)


def statement(engine: str, name: str) -> str:
    """One of the statements in `sql/`."""
    parts = (SQL / f"{engine}.sql").read_text(encoding="utf-8").split("-- name: ")
    return next(body for part in parts if (body := part.removeprefix(f"{name}\n")) != part)


def _earlier(job_id: str, ms: int) -> str:
    """The id of an earlier moment: the first 48 bits are its milliseconds."""
    digits = job_id.replace("-", "")
    return str(uuid.UUID(f"{int(digits[:12], 16) - ms:012x}{digits[12:]}"))


def _now() -> int:
    return time.time_ns() // 1000
