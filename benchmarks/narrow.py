"""What a drain on SQLite would take with narrow tables for waiting and for held jobs: `python -m benchmarks.narrow`.

Statements only, in one thread, both layouts in turns: settle what was claimed last, claim the next, commit, and a
checkpoint now and then. Decision 10 says why Tenure keeps one wide table all the same.

Example:
    python -m benchmarks.narrow --rounds 7 --folder /var/tmp
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.bare import sqlite_row, statement

JOBS = 20_400
BATCH = 340
CHECKPOINT_EVERY = 14


def main(argv: Sequence[str] | None = None) -> None:
    """Measure both and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.narrow", description="Compare two layouts on SQLite.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=None, help="on which disk; if not said, the temporary one")
    parser.add_argument("--jobs", type=int, default=JOBS)
    options = parser.parse_args(argv)
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in LAYOUTS}
    for _ in range(options.rounds):
        for name, layout in LAYOUTS.items():
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                found[name].append(drain(Path(folder) / "bare.db", options.jobs, *layout))
    for name, samples in found.items():
        times = [seconds / options.jobs * 1e6 for seconds, _ in samples]
        spread = f"{statistics.median(times):.1f} µs a job ({min(times):.1f} to {max(times):.1f})"
        print(f"{name}: {spread}, {samples[0][1]:,} pages through the WAL")


def _settle_wide(connection: sqlite3.Connection, jobs: str, now: int) -> int:
    return connection.execute(statement("narrow_wide_settle"), {"jobs": jobs, "now": now}).rowcount


def _claim_wide(connection: sqlite3.Connection, now: int) -> str:
    [jobs, _] = connection.execute(statement("narrow_wide_pick"), {"limit": BATCH}).fetchone()
    connection.execute(statement("narrow_wide_grant"), {"jobs": jobs, "now": now})
    return str(jobs)


def _settle_narrow(connection: sqlite3.Connection, jobs: str, now: int) -> int:
    ended = connection.execute(statement("narrow_settle"), {"jobs": jobs, "now": now}).rowcount
    connection.execute(statement("narrow_unhold"), {"jobs": jobs})
    return ended


def _claim_narrow(connection: sqlite3.Connection, now: int) -> str:
    [jobs, _] = connection.execute(statement("narrow_pick"), {"limit": BATCH}).fetchone()
    connection.execute(statement("narrow_hold"), {"jobs": jobs, "now": now})
    connection.execute(statement("narrow_unready"), {"limit": BATCH})
    return str(jobs)


Settle = Callable[[sqlite3.Connection, str, int], int]
Claim = Callable[[sqlite3.Connection, int], str]
LAYOUTS: dict[str, tuple[str, Settle, Claim]] = {
    "one wide table": ("narrow_wide_schema", _settle_wide, _claim_wide),
    "narrow tables beside it": ("narrow_schema", _settle_narrow, _claim_narrow),
}


def drain(path: Path, jobs: int, schema: str, settle: Settle, claim: Claim) -> tuple[float, int]:
    """Claim and settle all jobs; gives the seconds, and the pages that went through the WAL."""
    connection = sqlite3.connect(path, isolation_level=None)
    for setting in ("journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 0", "cache_size = -16384"):
        connection.execute(f"PRAGMA {setting}")
    _fill(connection, jobs, schema)
    done = commits = pages = 0
    held = "[]"
    begun = time.monotonic()
    while done < jobs:
        now = time.time_ns() // 1_000
        connection.execute("BEGIN IMMEDIATE")
        ended = settle(connection, held, now)
        assert ended == len(json.loads(held)), "an end was not taken in"
        done += ended
        held = claim(connection, now)
        connection.execute("COMMIT")
        commits += 1
        if commits % CHECKPOINT_EVERY == 0 or done == jobs:
            pages += connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
    seconds = time.monotonic() - begun
    connection.close()
    return seconds, pages


def _fill(connection: sqlite3.Connection, jobs: int, schema: str) -> None:
    connection.executescript(statement("sqlite_schema"))
    connection.execute("BEGIN")
    connection.executemany(statement("sqlite_insert"), (sqlite_row(i) for i in range(jobs)))
    connection.execute("COMMIT")
    connection.executescript(statement(schema))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


if __name__ == "__main__":
    main()
