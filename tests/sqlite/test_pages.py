"""What a claim and a settle touch, by count of pages, does not depend on what else lies in the file.

Pages are counted by the kernel: the page cache of the connection is emptied, and what the thread then reads and writes
is divided by the size of a page. No timing decides anything here. `TENURE_LONG=1` puts 1,000,000 rows beside.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tenure.model.outcome import Completed
from tenure.model.policy import QueuePolicy
from tenure.store.admin import SetQueues
from tenure.store.contract import Claim, Exchange
from tenure.store.sqlite.store import SqliteStore
from tests.fault.scale import TIMEOUT, scaled
from tests.sqlite.bed import WORKER

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT)]

PAGE = 4096
BASE = 20_000
ROWS = scaled(40_000, 1_000_000)
BATCHES = (1, 100, 1000)
QUEUES = tuple(f"q{number}" for number in range(5))

_FILL = """
WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < :rows)
INSERT INTO tenure_job (
    id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, state, queue, kind, profile, payload,
    finished_at, token, attempt
)
SELECT printf('0190%04x-%04x-7000-8000-%012x', :group, n >> 12, n), -(n % :priorities),
    CASE WHEN :is_due THEN 1000 + n ELSE 9000000000000000 + n END, 1000, 1000, n % :priorities, 3, :is_due, :state,
    :queue, 'work', 'default', '{"text": "some two hundred bytes of payload, of which this is a part"}',
    CASE WHEN :state = 'succeeded' THEN 2000 + n END, :state = 'succeeded', :state = 'succeeded'
FROM number
"""

# What lies beside 20,000 due jobs: an id for the group, then how its rows differ from a due job of `default`.
BESIDE: dict[str, tuple[int, dict[str, Any]]] = {
    "a longer backlog": (9, {}),
    "finished rows": (1, {"state": "succeeded"}),
    "jobs due tomorrow at every priority": (9, {"is_due": 0, "priorities": 100}),
}


def fill(path: Path, group: int, rows: int, **differing: Any) -> None:
    """Put jobs straight into the table; ids of a higher group are younger."""
    values = {"queue": "default", "state": "queued", "is_due": 1, "priorities": 1, "group": group, "rows": rows}
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -200000")
    connection.execute(_FILL, values | differing)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    connection.close()


@contextmanager
def opened(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(f"sqlite:///{path}")
    store.migrate()
    store.do(SetQueues({queue: QueuePolicy() for queue in QUEUES}, actor="test"))
    yield store
    store.close()


def pages(store: SqliteStore, request: Any) -> tuple[Any, int]:
    """What the store answers, and the pages that this read or wrote."""
    connection = store._database.writer.writing.connection
    assert connection is not None
    connection.execute("PRAGMA shrink_memory").fetchone()
    before = _moved(store)
    answer = store.do(request)
    return answer, (_moved(store) - before) // PAGE


def _moved(store: SqliteStore) -> int:
    """Bytes that the writer thread has read and written so far, once it is at rest."""
    writer = store._database.writer
    assert writer.pause(10)
    writer.go_on()
    assert writer._thread is not None
    told = Path(f"/proc/self/task/{writer._thread.native_id}/io").read_text()
    lines = dict(line.split(": ") for line in told.splitlines())
    return int(lines["rchar"]) + int(lines["wchar"])


def costs(store: SqliteStore, queues: tuple[str, ...] = ("default",)) -> list[int]:
    """Pages of a claim and of the settle after it, for each size of batch."""
    found = []
    for batch in BATCHES:
        claimed, claim_pages = pages(store, Exchange([], Claim(WORKER, queues, batch)))
        assert len(claimed.grants) == batch
        done = [Completed(grant.id, grant.token) for grant in claimed.grants]
        found += [claim_pages, pages(store, Exchange(done, None))[1]]
    return found


def compare(few: list[int], many: list[int]) -> None:
    """A deeper tree costs a few pages for each index; reading the table would cost thousands."""
    print(f"pages of claim, settle at batches of {BATCHES}: {few} beside nothing, {many} beside {ROWS} rows")
    assert [more for less, more in zip(few, many, strict=True) if more > 1.3 * less + 15] == []


@pytest.mark.parametrize("beside", BESIDE)
def test_a_claim_and_a_settle_touch_as_many_pages_beside_many_other_rows(tmp_path: Path, beside: str) -> None:
    group, differing = BESIDE[beside]
    with opened(tmp_path / "few.db") as store:
        fill(tmp_path / "few.db", 5, BASE)
        few = costs(store)
    with opened(tmp_path / "many.db") as store:
        fill(tmp_path / "many.db", 5, BASE)
        fill(tmp_path / "many.db", group, ROWS, **differing)

        compare(few, costs(store))


def test_a_claim_over_five_queues_touches_as_many_pages_whatever_lies_in_them(tmp_path: Path) -> None:
    found = []
    for name, rows in (("few", BASE), ("many", ROWS)):
        with opened(tmp_path / f"{name}.db") as store:
            for number, queue in enumerate(QUEUES):
                fill(tmp_path / f"{name}.db", number, rows // len(QUEUES), queue=queue)
            found.append(costs(store, QUEUES))

    compare(*found)


def test_an_idle_claim_touches_nothing_of_a_future_backlog(tmp_path: Path) -> None:
    with opened(tmp_path / "jobs.db") as store:
        pages(store, Claim(WORKER, ["default"], 100))
        _, empty = pages(store, Claim(WORKER, ["default"], 100))
        fill(tmp_path / "jobs.db", 5, ROWS, is_due=0, priorities=100)
        pages(store, Claim(WORKER, ["default"], 100))
        _, idle = pages(store, Claim(WORKER, ["default"], 100))

    print(f"pages of an idle claim: {empty} beside nothing, {idle} beside {ROWS} jobs due tomorrow")
    assert idle <= empty + 10
