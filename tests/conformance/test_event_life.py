"""A queue that asks for events tells the whole life of its jobs, in the same words on every engine: each move once,
with where the job stands after it."""

from __future__ import annotations

from typing import Any

from tenure.model.event import NewEvent
from tenure.model.ids import JobId, new_job_id
from tenure.model.outcome import Completed
from tenure.store.contract import Clone, Heartbeat, Settle, Start, Wake
from tenure.store.queries import ListEvents
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
    hold,
    make_queue,
    new_job,
    reap,
    reject,
    release,
    revive,
    stop,
    suspend,
)
from tests.conformance.engines import SteeredClock

DOORS = ("do", "ado")

Told = tuple[str, str, int, int, str | None, str | None]
"""kind of the event, then of its data: state, attempt, token, worker, class."""


def life(store: Subject, job_id: JobId) -> list[Told]:
    """All lifecycle events of a job. Their data has these keys and no others."""
    events = store.do(ListEvents(job_id=job_id))
    assert {event.queue for event in events} == {"q"}
    return [_told(event.kind, dict(event.data)) for event in events]


def _told(kind: str, data: dict[str, Any]) -> Told:
    assert data.pop("kind") == "work"
    told = (kind, *(data.pop(key) for key in ("state", "attempt", "token", "worker", "class")))
    assert data == {}
    return told


def test_a_long_life_is_told_move_by_move(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, events=True, backoff=NO_BACKOFF, start_on_claim=False, lease_seconds=60, max_attempts=10)
    job_id = enqueue(store, queue="q")
    grant = claim_one(store, queue="q")
    store.do(Heartbeat([hold(grant, started=False)]))
    store.do(Heartbeat([hold(grant, '{"done": 1}')]))
    store.do(Heartbeat([hold(grant)]))
    suspend(store, grant, delay_seconds=10)
    clock.advance(10)
    grant = claim_one(store, queue="q")
    store.do(Start([hold(grant)]))
    store.do(Start([hold(grant)]))
    suspend(store, grant)
    store.do(Wake([job_id]))
    release(store, claim_one(store, queue="q"))
    fail(store, claim_one(store, queue="q"))
    claim_one(store, queue="q")
    clock.advance(60)
    reap(store)
    reject(store, claim_one(store, worker="w2", queue="q"))
    revive(store, job_id)
    grant = claim_one(store, queue="q")
    cancel(store, job_id)
    complete(store, grant)

    assert life(store, job_id) == [
        ("queued", "queued", 0, 0, None, None),
        ("claimed", "leased", 1, 1, "w1", None),
        ("started", "running", 1, 1, "w1", None),
        ("progress", "running", 1, 1, "w1", None),
        ("suspended", "waiting", 0, 1, None, None),
        ("woken", "queued", 0, 1, None, None),
        ("claimed", "leased", 1, 2, "w1", None),
        ("started", "running", 1, 2, "w1", None),
        ("suspended", "waiting", 0, 2, None, None),
        ("woken", "queued", 0, 2, None, None),
        ("claimed", "leased", 1, 3, "w1", None),
        ("released", "queued", 0, 3, None, None),
        ("claimed", "leased", 1, 4, "w1", None),
        ("retried", "queued", 1, 4, None, "error"),
        ("claimed", "leased", 2, 5, "w1", None),
        ("reclaimed", "queued", 2, 5, None, "crash"),
        ("claimed", "leased", 3, 6, "w2", None),
        ("failed", "failed", 3, 6, None, "permanent"),
        ("revived", "queued", 0, 6, None, None),
        ("claimed", "leased", 1, 7, "w1", None),
        ("cancel_requested", "leased", 1, 7, "w1", None),
        ("cancelled", "cancelled", 1, 7, None, "cancelled"),
    ]


def test_jobs_that_start_with_their_claim_say_so_each_time(store: Subject) -> None:
    make_queue(store, events=True, backoff=NO_BACKOFF, max_attempts=2)
    ids = enqueue_many(store, 3, queue="q")
    one, two, three = claim(store, 3, queues=["q"])
    store.do(Heartbeat([hold(grant) for grant in (one, two, three)]))
    store.do(Settle([Completed(one.id, one.token), Completed(two.id, two.token)]))
    fail(store, three)
    fail(store, claim_one(store, queue="q"))

    begun: list[Told] = [
        ("queued", "queued", 0, 0, None, None),
        ("claimed", "running", 1, 1, "w1", None),
        ("started", "running", 1, 1, "w1", None),
    ]
    done: list[Told] = [*begun, ("completed", "succeeded", 1, 1, None, None)]
    assert [life(store, one.id), life(store, two.id)] == [done, done]
    assert life(store, three.id) == [
        *begun,
        ("retried", "queued", 1, 1, None, "error"),
        ("claimed", "running", 2, 2, "w1", None),
        ("started", "running", 2, 2, "w1", None),
        ("dead", "dead", 2, 2, None, "error"),
    ]
    assert {one.id, two.id, three.id} == set(ids)


def test_what_people_and_handlers_do_is_told_too(store: Subject) -> None:
    make_queue(store, events=True)
    job_id = enqueue(store, queue="q")
    follow = new_job(queue="q")
    complete(store, claim_one(store, queue="q"), jobs=(follow,), events=(NewEvent("custom", '{"n": 1}', job_id),))
    cancel(store, follow.id)
    copy = new_job_id()
    store.do(Clone({job_id: copy}, actor="ops", reason="again"))
    stop(store, claim_one(store, queue="q"))

    told = [(event.kind, event.data) for event in store.do(ListEvents(job_id=job_id, kinds=["custom", "completed"]))]
    assert [kind for kind, _ in told] == ["custom", "completed"]
    assert told[0][1] == {"n": 1}
    assert life(store, follow.id) == [
        ("queued", "queued", 0, 0, None, None),
        ("cancelled", "cancelled", 0, 0, None, "cancelled"),
    ]
    assert life(store, copy) == [
        ("queued", "queued", 0, 0, None, None),
        ("claimed", "running", 1, 1, "w1", None),
        ("started", "running", 1, 1, "w1", None),
        ("cancelled", "cancelled", 1, 1, None, "cancelled"),
    ]
