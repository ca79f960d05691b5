"""What people ask of the whole: Summary, Standing, Inspect, Prunable. Both engines count alike, and change nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tenure.errors import InvalidArgument
from tenure.model.event import NewEvent
from tenure.model.ids import JobId, new_job_id
from tenure.model.job import Grant
from tenure.store.contract import Prune
from tenure.store.queries import ListJobs
from tenure.store.summary import Backlog, Inspect, Prunable, Repeated, Standing, Stuck, Summary
from tests.conformance.acts import (
    NO_BACKOFF,
    Subject,
    cancel,
    claim,
    claim_one,
    complete,
    enqueue,
    enqueue_many,
    fail,
    get,
    make_queue,
    reap,
    reject,
    suspend,
)
from tests.conformance.engines import SteeredClock


def run_for(store: Subject, clock: SteeredClock, seconds: float, kind: str = "work", queue: str = "default") -> JobId:
    """A job that waits for 2 s and then runs for so long."""
    job_id = enqueue(store, kind, queue=queue)
    clock.advance(2.0)
    grant = claim_one(store, queue=queue)
    clock.advance(seconds)
    complete(store, grant)
    return job_id


def test_an_empty_store_sums_up_to_nothing(store: Subject, clock: SteeredClock) -> None:
    summed = store.do(Summary())

    assert (summed.ran, summed.stuck, summed.stuck_count, summed.backlog, summed.repeated) == ([], [], 0, [], [])
    assert summed.at == clock.now()
    assert summed.window_seconds == 3600.0


def test_percentiles_are_the_smallest_value_that_covers_their_share(store: Subject, clock: SteeredClock) -> None:
    for seconds in (1.0, 2.0, 3.0, 4.0, 10.0):
        run_for(store, clock, seconds)

    [ran] = store.do(Summary()).ran

    assert (ran.succeeded, ran.failed, ran.dead, ran.cancelled) == (5, 0, 0, 0)
    assert ran.run_average == pytest.approx(4.0)
    assert (ran.run_p50, ran.run_p95, ran.run_max) == pytest.approx((3.0, 10.0, 10.0))
    assert ran.wait_p50 == pytest.approx(2.0)
    assert ran.last_at == clock.now()


def test_ends_are_counted_by_queue_kind_and_state_and_only_success_has_a_duration(
    store: Subject, clock: SteeredClock
) -> None:
    make_queue(store, "mail", max_attempts=1, backoff=NO_BACKOFF)
    enqueue_many(store, 2, "send", queue="mail")
    first, second = claim(store, 2, queues=["mail"])
    fail(store, first)
    reject(store, second)
    cancel(store, enqueue(store, "send", queue="mail"))
    run_for(store, clock, 1.0, "work")

    by_kind = {(one.queue, one.kind): one for one in store.do(Summary()).ran}

    sent = by_kind["mail", "send"]
    assert (sent.succeeded, sent.failed, sent.dead, sent.cancelled) == (0, 1, 1, 1)
    assert (sent.run_average, sent.run_p50, sent.run_p95, sent.run_max, sent.wait_p50) == (None,) * 5
    assert by_kind["default", "work"].succeeded == 1
    assert [one.queue for one in store.do(Summary(queues=["mail"])).ran] == ["mail"]


def test_what_ended_before_the_window_or_was_cleaned_does_not_count(store: Subject, clock: SteeredClock) -> None:
    run_for(store, clock, 1.0, "old")
    clock.advance(100.0)
    run_for(store, clock, 1.0, "new")

    assert [one.kind for one in store.do(Summary(window_seconds=50)).ran] == ["new"]
    store.do(Prune(older_than_seconds=0))
    assert store.do(Summary(window_seconds=50)).ran == []


def test_a_scan_lets_the_window_begin_later(store: Subject, clock: SteeredClock) -> None:
    """Millions may have ended within an hour; a page that is asked for every few seconds looks at the newest."""
    for kind in ("one", "two", "three"):
        run_for(store, clock, 1.0, kind)
    complete(store, _enqueue_and_claim(store, "key"))
    newest = enqueue(store, key="key")

    whole, cut = store.do(Summary(scan=4)), store.do(Summary(scan=3))

    assert (whole.is_whole, whole.window_seconds) == (True, 3600.0)
    assert whole == store.do(Summary())
    assert (cut.is_whole, cut.window_seconds) == (False, 6.0)  # a job is ended three seconds after the one before
    assert sorted(one.kind for one in cut.ran) == ["three", "two", "work"]
    assert [one.newest_id for one in cut.repeated] == [newest]
    assert store.do(Summary(scan=3, queues=["elsewhere"])).is_whole is False
    for scan in (0, -1):
        with pytest.raises(InvalidArgument, match="scan"):
            store.do(Summary(scan=scan))


def test_a_lease_that_ran_out_is_stuck_until_somebody_takes_it_back(store: Subject, clock: SteeredClock) -> None:
    enqueue_many(store, 3)
    long, *short = [claim_one(store, lease_seconds=seconds) for seconds in (1000.0, 20.0, 10.0)]
    clock.advance(30.0)

    summed = store.do(Summary(limit=1))

    assert summed.stuck_count == 2
    oldest = short[1]
    assert summed.stuck == [
        Stuck(oldest.id, "default", "work", "running", oldest.worker, 1, clock.now() - timedelta(seconds=20))
    ]
    reap(store)
    assert store.do(Summary()).stuck_count == 0
    assert get(store, long.id).state == "running"


def test_the_backlog_tells_due_delayed_retrying_held_and_waiting_apart(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, "q", backoff=NO_BACKOFF)
    make_queue(store, "only_held")
    make_queue(store, "idle")
    enqueue_many(store, 4, queue="q")
    begun = clock.now()
    held, failed, suspended, _later = claim(store, 4, queues=["q"])
    fail(store, failed, retry_after_seconds=60)
    suspend(store, suspended)
    fail(store, _later)
    clock.advance(5.0)
    enqueue(store, queue="q", delay_seconds=100)
    enqueue(store, queue="q")
    enqueue(store, queue="only_held")
    claim_one(store, queue="only_held")

    backlog = store.do(Summary()).backlog

    assert held.queue == "q"
    assert backlog == [
        Backlog("only_held", due=0, delayed=0, retrying=0, held=1, waiting=0, oldest_due_at=None),
        Backlog("q", due=2, delayed=2, retrying=2, held=1, waiting=1, oldest_due_at=begun),
    ]


def test_a_key_that_several_jobs_carry_is_repeated(store: Subject) -> None:
    make_queue(store, "free", key_scope="none")
    for _ in range(3):
        newest = enqueue(store, queue="free", key="often")
    enqueue(store, queue="free", key="once")
    complete(store, claim_one(store, queue="free"))
    complete(store, _enqueue_and_claim(store, "again"))
    last = enqueue(store, key="again")

    repeated = store.do(Summary()).repeated

    assert repeated == [
        Repeated("free", "work", "often", jobs=3, active=2, newest_id=newest),
        Repeated("default", "work", "again", jobs=2, active=1, newest_id=last),
    ]
    assert len(store.do(Summary(limit=1)).repeated) == 1


def test_a_jobs_standing_counts_who_comes_before_it(store: Subject) -> None:
    make_queue(store, "q", concurrency_per_key=5)
    make_queue(store, "other")
    first, second = enqueue_many(store, 2, queue="q")
    urgent = enqueue(store, queue="q", priority=5)
    later = enqueue(store, queue="q", delay_seconds=60)
    enqueue_many(store, 3, queue="other")

    def ahead(job_id: JobId, cap: int = 100) -> int:
        stood = store.do(Standing(job_id, cap=cap))
        assert stood is not None
        return stood.ahead

    assert [ahead(one) for one in (urgent, first, second)] == [0, 1, 2]
    assert ahead(second, cap=1) == 1
    assert ahead(later) in {0, 3}
    assert store.do(Standing(new_job_id())) is None


def test_a_jobs_standing_counts_what_is_held_beside_it(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, "q")
    for key in ("a", "a", "b", None):
        enqueue(store, queue="q", concurrency_key=key)
    claim(store, 4, queues=["q"])
    with_key, without = (enqueue(store, queue="q", concurrency_key=key) for key in ("a", None))

    stood, other = (store.do(Standing(one)) for one in (with_key, without))

    assert stood is not None
    assert other is not None
    assert (stood.held_in_queue, stood.held_with_key, stood.at) == (4, 2, clock.now())
    assert (other.held_in_queue, other.held_with_key) == (4, 0)


def test_a_jobs_standing_names_its_newest_event(store: Subject) -> None:
    make_queue(store, "loud", events=True)
    job_id, quiet = enqueue(store, queue="loud"), enqueue(store)
    complete(store, claim_one(store, queue="loud"), events=(NewEvent("log", "{}"),))

    stood, silent = store.do(Standing(job_id)), store.do(Standing(quiet))

    assert stood is not None
    assert stood.last_event == "completed"
    assert silent is not None
    assert silent.last_event is None


def test_an_inspection_names_the_engine_and_its_schema(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store)

    found = store.do(Inspect())

    assert found.engine == {"sqlite": "sqlite", "postgres": "postgresql"}[store.engine]
    assert found.version[0].isdigit()
    assert found.schema_version == found.schema_wanted == store.store.schema_version()
    assert found.at == clock.now()
    assert found.newest_created_at == get(store, job_id).created_at
    assert found.last_event == 0
    assert found.database_bytes is not None
    assert found.database_bytes > 0


def test_an_inspection_knows_the_newest_event(store: Subject) -> None:
    make_queue(store, "loud", events=True)
    enqueue_many(store, 3, queue="loud")

    assert store.do(Inspect()).last_event >= 3


@pytest.mark.parametrize(
    "prune",
    [
        Prune(),
        Prune(older_than_seconds=0),
        Prune(older_than_seconds=15),
        Prune(delete_after_seconds=0),
        Prune(older_than_seconds=0, delete_after_seconds=0),
    ],
)
def test_what_could_be_pruned_is_what_a_prune_takes(store: Subject, clock: SteeredClock, prune: Prune) -> None:
    make_queue(store, "loud", events=True, max_attempts=1)
    for _ in range(2):
        run_for(store, clock, 1.0)
        run_for(store, clock, 1.0, queue="loud")
        clock.advance(10.0)
    enqueue(store, queue="loud")
    fail(store, claim_one(store, queue="loud"))
    store.do(Prune(older_than_seconds=20))
    before = store.do(ListJobs(limit=100))

    could = store.do(Prunable(prune))

    assert store.do(ListJobs(limit=100)) == before
    took = store.do(prune)
    assert (could.cleaned, could.deleted, could.workers) == (took.cleaned, took.deleted, took.workers)
    assert could.events == took.events
    assert not could.more


def _enqueue_and_claim(store: Subject, key: str) -> Grant:
    enqueue(store, key=key)
    return claim_one(store)
