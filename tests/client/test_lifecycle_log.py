"""M10: each move of a job is told once, at info or above, by the process that made it."""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from typing import Final

import psycopg
import pytest

import tenure
from tenure.model.ids import WorkerId
from tenure.store.contract import Claim

MOVES: Final = frozenset(
    {"queued", "claimed", "started", "completed", "failed", "retried", "reclaimed", "dead", "cancelled"}
)


def moves(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Event and job of every line that tells a move."""
    found = []
    for record in caplog.records:
        fields = dict(part.split("=", 1) for part in record.getMessage().split() if "=" in part)
        if fields.get("event") in MOVES and "job" in fields and record.levelno >= logging.INFO:
            found.append((fields["event"], fields["job"]))
    return found


def run(app: tenure.App) -> None:
    app.run_worker(drain=True, handle_signals=False)


def let_leases_run_out(app: tenure.App) -> None:
    """As time would: the holder is gone, and its lease is over."""
    if app.url.startswith("sqlite"):
        with sqlite3.connect(app.url.removeprefix("sqlite:///")) as connection:
            connection.execute("UPDATE tenure_job SET lease_until = 1 WHERE lease_until IS NOT NULL")
        connection.close()
        return
    with psycopg.connect(app.url, autocommit=True) as server:
        server.execute("UPDATE tenure.job SET lease_until = clock_timestamp() WHERE lease_until IS NOT NULL")
        server.execute(  # no grace after the server's start: it may have started just now
            "CREATE OR REPLACE FUNCTION tenure.expiry_cutoff(p_now timestamptz) RETURNS timestamptz LANGUAGE sql "
            "VOLATILE AS $$ SELECT p_now $$"
        )


def test_a_good_life_and_what_follows_it(app: tenure.App, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tenure")
    made: list[str] = []

    @app.job
    def second() -> None: ...

    @app.job
    def first(ctx: tenure.Context) -> None:
        made.append(ctx.enqueue(second))

    job = first.enqueue()
    run(app)

    assert Counter(moves(caplog)) == Counter(
        (event, one) for one in (job.id, made[0]) for event in ("queued", "claimed", "started", "completed")
    )


def test_failures_retries_deaths_and_cancels(app: tenure.App, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tenure")

    @app.job(max_attempts=2, backoff=tenure.Backoff(shape="none"))
    def doomed() -> None:
        raise ValueError("no")

    @app.job
    def refused() -> None:
        raise tenure.Permanent("never")

    @app.job
    def idle() -> None: ...

    dead, failed, cancelled = doomed.enqueue(), refused.enqueue(), idle.enqueue()
    app.cancel(cancelled.id, reason="not wanted")
    app.cancel(cancelled.id, reason="again")
    run(app)
    run(app)

    seen = Counter(moves(caplog))
    assert {event: number for (event, job), number in seen.items() if job == dead.id} == {
        "queued": 1,
        "claimed": 2,
        "started": 2,
        "retried": 1,
        "dead": 1,
    }
    assert {event: number for (event, job), number in seen.items() if job == failed.id} == {
        "queued": 1,
        "claimed": 1,
        "started": 1,
        "failed": 1,
    }
    assert {event: number for (event, job), number in seen.items() if job == cancelled.id} == {
        "queued": 1,
        "cancelled": 1,
    }


def test_a_reclaim_is_told_by_the_worker_whose_claim_made_it(app: tenure.App, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tenure")

    @app.job(max_attempts=3)
    def work() -> None: ...

    job = work.enqueue()
    app.store.do(Claim(WorkerId("ghost-1"), ["default"], lease_seconds=60))
    let_leases_run_out(app)
    run(app)

    assert Counter(event for event, one in moves(caplog) if one == job.id) == Counter(
        ("queued", "reclaimed", "claimed", "started", "completed")
    )


def test_the_death_of_a_job_whose_worker_is_gone_is_told(app: tenure.App, caplog: pytest.LogCaptureFixture) -> None:
    """A poison job's death appeared in no log."""
    caplog.set_level(logging.INFO, "tenure")

    @app.job(max_attempts=1)
    def poison() -> None: ...

    job = poison.enqueue()
    app.store.do(
        Claim(WorkerId("ghost-1"), ["default"], lease_seconds=60)
    )  # it held nothing else, so the crash is its own
    let_leases_run_out(app)
    run(app)

    assert app.get(job.id).state == "dead"
    assert [event for event, one in moves(caplog) if one == job.id][-1] == "dead"
