"""A dashboard's looks at a profile's views read a handful of pages, however many jobs are queued or dead."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tenure import App
from tests.conformance.engines import scratch_folder, sqlite_url
from tests.profiles.ground import PROFILES
from tests.profiles.test_views import FILL, MAIN, profile_of, steps

SIZES: Final = (1_000, 10_000)
ENDED: Final = {"agent_queue": "finished_at", "automechanica": "updated_at", "substrate": "finished_at"}
"""What a view calls the moment of the end; the others say completed_at."""

FEW_PAGES: Final = 60
FEW_STEPS: Final = 9_000


def looks(name: str, some_id: str) -> dict[str, str]:
    """By state, by kind, one id, oldest queued; in the words of the view."""
    main, words = MAIN[name], dict(profile_of(name).words)
    rows = f"SELECT * FROM {main.view} WHERE"
    queued, retried, dead = (f"{main.status} = '{words[stage]}'" for stage in ("due", "retry", "dead"))
    ended = ENDED.get(name, "completed_at")
    return {
        "queued": f"{rows} {queued} LIMIT 50",
        "to be tried again": f"{rows} {retried} LIMIT 50",
        "dead": f"{rows} {dead} LIMIT 50",
        "newest dead": f"{rows} {dead} ORDER BY {ended} DESC LIMIT 50",
        "newest completed": f"{rows} {main.status} = '{words['succeeded']}' ORDER BY {ended} DESC LIMIT 50",
        "by kind": f"{rows} {main.kind} = 'kind3' LIMIT 50",
        "by kind, rare": f"{rows} {main.kind} = 'rare' LIMIT 50",
        "by kind, none": f"{rows} {main.kind} = 'never' LIMIT 50",
        "by kind and state": f"{rows} {main.kind} = 'rare' AND {queued} LIMIT 50",
        "one id": f"{rows} {main.id} = '{some_id}'",
        "oldest queued": f"SELECT {main.id}, {main.kind}, created_at FROM {main.view} WHERE {queued} "
        "ORDER BY created_at LIMIT 1",
        "oldest queued, whole": f"{rows} {queued} ORDER BY created_at LIMIT 1",
        "oldest to be tried again": f"{rows} {retried} ORDER BY created_at LIMIT 1",
    }


# Of ten jobs that ended well, five are made due, two to be tried again, one dead; and nobody holds any.
SHARES: Final = """
UPDATE {job} SET state = 'queued', is_due = {true}, attempt = 0, finished_at = NULL
WHERE state = 'succeeded' AND cleaned_at IS NULL AND {number} % 10 < 5;
UPDATE {job} SET state = 'queued', is_due = {false}, attempt = 1, failure_class = 'error', finished_at = NULL
WHERE state = 'succeeded' AND cleaned_at IS NULL AND {number} % 10 IN (5, 6);
UPDATE {job} SET state = 'dead' WHERE state = 'succeeded' AND cleaned_at IS NULL AND {number} % 10 = 7;
DELETE FROM {job} WHERE state IN ('leased', 'running');
"""


# --- SQLite ---


@pytest.fixture(scope="module")
def files() -> Iterator[list[sqlite3.Connection]]:
    """The same in two files."""
    with scratch_folder() as folder:
        made = [_file(folder / f"{rows}.db", rows) for rows in SIZES]
        try:
            yield made
        finally:
            for connection in made:
                connection.close()


def _file(path: Path, rows: int) -> sqlite3.Connection:
    with App(sqlite_url(path)) as app:
        for name in PROFILES:
            app.profiles.install(name)
    connection = sqlite3.connect(path, isolation_level=None)
    for name in PROFILES:
        values = {"rows": rows, "queue": name, "profile": name, "now": int(time.time() * 1e6)}
        connection.execute((FILL / "profile_fill_sqlite.sql").read_text(), values)
    words = {"job": "tenure_job", "true": 1, "false": 0, "number": "CAST(substr(idempotency_key, 5) AS INTEGER)"}
    connection.executescript(SHARES.format_map(words))
    return connection


@pytest.mark.parametrize("name", PROFILES)
def test_on_sqlite_a_look_takes_as_few_steps_when_ten_times_as_many_jobs_are_queued(
    files: list[sqlite3.Connection], name: str
) -> None:
    view = MAIN[name].view
    read: list[dict[str, int]] = []
    for connection in files:
        some_id = connection.execute("SELECT id FROM tenure_job WHERE profile = ?", [name]).fetchone()[0]
        asked = {what: told.replace(view, view.replace(".", "_")) for what, told in looks(name, some_id).items()}
        read.append({what: steps(connection, statement) for what, statement in asked.items()})

    few, many = read
    for what in few:
        assert many[what] <= min(2 * few[what] + 2_000, FEW_STEPS), (what, few, many)


@pytest.mark.parametrize("name", PROFILES)
def test_on_sqlite_every_look_goes_by_an_index(files: list[sqlite3.Connection], name: str) -> None:
    view = MAIN[name].view

    for what, told in looks(name, "0192f0c1-2b3c-7def-8123-456789abcdef").items():
        statement = told.replace(view, view.replace(".", "_"))
        for *_, line in files[1].execute(f"EXPLAIN QUERY PLAN {statement}").fetchall():
            assert line.startswith("SEARCH") or "INDEX" in line or "SCAN" not in line, (what, line)
