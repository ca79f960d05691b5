"""Low-water marks: a claim under a held snapshot does not walk again what earlier claims have taken."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tenure.model.ids import JobId, WorkerId, new_job_id
from tenure.model.job import NewJob
from tenure.store.contract import Claim, Enqueue
from tenure.store.postgres.marks import MOST_FILTERS, Marks
from tenure.store.postgres.store import PostgresStore
from tests.postgres.conftest import new_database
from tests.waiting import wait_until


def claim(limit: int = 100, **filters: Any) -> Claim:
    return Claim(worker=WorkerId("w"), queues=["default"], limit=limit, **filters)


def answer(*run_ats: int, again: int = 0, extras: dict[str, str] | None = None, suspicion: int = 0) -> dict[str, Any]:
    """An answer of tenure.exchange that grants jobs of rank 0 with these times, in one line."""
    rows = [[str(new_job_id()), "k", 1, 1, 3, "{}", 0, 0, 0, run_at, extras, suspicion, None] for run_at in run_ats]
    return {"lines": [["default", 1, True, rows]], "again": again, "expired": 1, "due": 1}


@pytest.mark.parametrize("filters", [{}, {"kinds": ["a", "b"]}, {"affinity": [None, "k"]}])
def test_a_claim_starts_where_the_last_one_with_the_same_filter_stopped(filters: dict[str, Any]) -> None:
    marks = Marks()
    marks.take(claim(**filters), answer(5, 7), marks.give(claim(**filters)))

    same, other = marks.give(claim(**filters)), marks.give(claim(kinds=["z"]))

    assert not same.is_full
    assert '"default": [[0, 7,' in same.json
    assert "[0, 5," not in same.json
    assert other.is_full
    assert "default" not in other.json


@pytest.mark.parametrize("other", [{"again": 1}, {"extras": {"limiter": "api"}}, {"suspicion": 2}])
def test_jobs_of_other_lists_than_the_plain_one_leave_no_marks(other: dict[str, Any]) -> None:
    """Granted again, with a limiter, to run alone: a mark taken from one would pass over jobs of the plain list."""
    marks = Marks()
    marks.take(claim(), answer(7, **other), marks.give(claim()))

    assert "[0, 7," not in marks.give(claim()).json


def test_a_caller_with_ever_new_filters_keeps_a_bounded_number_of_marks() -> None:
    marks = Marks()
    for number in range(3 * MOST_FILTERS):
        asked = claim(kinds=[str(number)])
        marks.take(asked, answer(1), marks.give(asked))

    assert len(marks._books) <= MOST_FILTERS


@new_database
@pytest.mark.postgres
def test_claims_by_kind_walk_each_job_once_while_a_snapshot_is_held(url: str, admin: psycopg.Connection) -> None:
    """A worker claims the kinds it has handlers for. Its claims went without marks, so beside a held snapshot each one
    walked all the index entries of the jobs before it: the rate fell to a third within 120,000 jobs (W7)."""
    batch, rounds = 100, 20
    store = PostgresStore(url)
    store.do(Enqueue([NewJob(id=JobId(new_job_id()), kind="k") for _ in range(batch * rounds)]))
    with psycopg.connect(url) as holder:
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("SELECT 1 FROM pg_class LIMIT 1")
        granted = sum(len(store.do(claim(batch, kinds=["k"]))) for _ in range(rounds))
        store.close()  # A server process reports its statistics when it ends.
        walked = _index_entries_read(admin, at_least=granted)
        holder.rollback()

    assert granted == batch * rounds
    # Walking all before it each time would be rounds / 2 times as many; some looks are full, once a second.
    assert walked <= 4 * granted


def _index_entries_read(admin: psycopg.Connection, at_least: int) -> int:
    query = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'job_claim_idx'"

    def read() -> int:
        row = admin.execute(query).fetchone()
        assert row is not None
        return int(row[0])

    wait_until(lambda: read() >= at_least)
    return read()
