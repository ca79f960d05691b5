"""Heartbeat and start: extend what is held, never revive what is lost."""

from __future__ import annotations

from datetime import timedelta

from tenure.model.ids import Token, new_job_id
from tenure.model.job import Grant
from tenure.model.outcome import Beat, Released, Suspended
from tenure.model.state import State
from tenure.model.step import NewStep
from tenure.store.contract import Heartbeat, Hold, Start
from tenure.store.flow import RecordSteps
from tests.conformance.acts import (
    NO_BACKOFF,
    Subject,
    claim,
    claim_one,
    complete,
    enqueue,
    enqueue_many,
    fail,
    get,
    hold,
    make_queue,
    settle,
)
from tests.conformance.engines import SteeredClock

DOORS = ("do", "ado")


def test_a_heartbeat_extends_the_lease_to_now_plus_the_queues_lease(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)
    clock.advance(40)

    beat = store.do(Heartbeat([hold(grant)]))

    assert beat == Beat()
    assert get(store, job_id).lease_until == clock.now() + timedelta(seconds=60)


def test_a_heartbeat_extends_by_the_callers_length(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)

    store.do(Heartbeat([hold(grant)], lease_seconds=300))

    assert get(store, job_id).lease_until == clock.now() + timedelta(seconds=300)


def test_a_heartbeat_never_shortens_a_lease(store: Subject) -> None:
    job_id = enqueue(store)
    grant = claim_one(store, lease_seconds=600)

    store.do(Heartbeat([hold(grant)], lease_seconds=5))

    assert get(store, job_id).lease_until == grant.lease_until


def test_a_heartbeat_never_extends_beyond_what_the_queue_allows(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, lease_seconds=10, lease_max_seconds=20)
    job_id = enqueue(store, queue="q")
    grant = claim_one(store, queue="q")

    store.do(Heartbeat([hold(grant)], lease_seconds=1000))

    assert get(store, job_id).lease_until == clock.now() + timedelta(seconds=20)


def test_jobs_of_several_queues_get_each_their_queues_lease(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, "short", lease_seconds=10)
    make_queue(store, "long", lease_seconds=100)
    grants = []
    for queue in ("short", "long"):
        enqueue(store, queue=queue)
        grants.append(claim_one(store, queue=queue))
    clock.advance(5)

    store.do(Heartbeat([hold(grant) for grant in grants]))

    assert [get(store, grant.id).lease_until for grant in grants] == [
        clock.now() + timedelta(seconds=10),
        clock.now() + timedelta(seconds=100),
    ]


def test_a_lease_that_ran_out_is_not_revived_even_if_nobody_took_the_job(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store)
    grant = claim_one(store, lease_seconds=10)
    clock.advance(10)
    before = get(store, job_id)

    beat = store.do(Heartbeat([hold(grant, progress='{"late": true}')]))

    assert beat.lost == {job_id}
    assert get(store, job_id) == before


def test_a_job_that_passed_on_is_reported_lost_and_left_alone(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, backoff=NO_BACKOFF)
    job_id = enqueue(store, queue="q")
    old = claim_one(store, "w1", "q", lease_seconds=10)
    clock.advance(11)
    claim_one(store, "w2", "q")
    before = get(store, job_id)

    assert store.do(Heartbeat([hold(old, progress="1")])).lost == {job_id}

    assert get(store, job_id) == before


def test_what_is_lost_does_not_keep_the_rest_from_being_extended(store: Subject, clock: SteeredClock) -> None:
    enqueue_many(store, 3)
    one, two, three = claim(store, 3)
    complete(store, two)
    clock.advance(30)

    beat = store.do(Heartbeat([hold(one), hold(two), Hold(new_job_id(), Token(1)), hold(three)]))

    assert two.id in beat.lost
    assert len(beat.lost) == 2
    for grant in (one, three):
        assert get(store, grant.id).lease_until == clock.now() + timedelta(seconds=60)


def test_progress_is_stored_and_left_when_none_is_given(store: Subject) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)

    store.do(Heartbeat([hold(grant, progress='{"done": 3, "of": 10}')]))
    store.do(Heartbeat([hold(grant)]))

    assert get(store, job_id).progress == {"done": 3, "of": 10}


def test_progress_outlives_a_failed_attempt(store: Subject, clock: SteeredClock) -> None:
    enqueue(store)
    grant = claim_one(store)
    store.do(Heartbeat([hold(grant, progress="[1, 2]")]))
    fail(store, grant)
    clock.advance(3600)

    assert claim_one(store).extra("progress") == [1, 2]


def test_a_heartbeat_moves_a_leased_job_to_running_when_it_says_so(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, start_on_claim=False)
    job_id = enqueue(store, queue="q")
    grant = claim_one(store, queue="q")

    store.do(Heartbeat([hold(grant, started=False)]))
    assert (get(store, job_id).state, get(store, job_id).started_at) == (State.LEASED, None)

    clock.advance(1)
    store.do(Heartbeat([hold(grant, started=True)]))
    assert (get(store, job_id).state, get(store, job_id).started_at) == (State.RUNNING, clock.now())


def test_a_heartbeat_of_nothing_is_answered(store: Subject) -> None:
    assert store.do(Heartbeat([])) == Beat()


def test_a_start_moves_leased_to_running(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, start_on_claim=False)
    job_id = enqueue(store, queue="q")
    grant = claim_one(store, queue="q")
    clock.advance(2)

    [answer] = store.do(Start([hold(grant)]))

    assert (answer.job_id, answer.state) == (job_id, "running")
    job = get(store, job_id)
    assert (job.state, job.started_at, job.lease_until) == (State.RUNNING, clock.now(), grant.lease_until)


def test_a_running_job_stays_so_when_it_is_started_again(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)
    before = get(store, job_id)
    clock.advance(1)

    [answer] = store.do(Start([hold(grant)]))

    assert answer.state == "running"
    assert (get(store, job_id).state, get(store, job_id).started_at) == (State.RUNNING, before.started_at)


def test_a_start_with_an_old_token_or_after_the_lease_is_lost(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, start_on_claim=False)
    job_id = enqueue(store, queue="q")
    grant = claim_one(store, queue="q", lease_seconds=10)
    before = get(store, job_id)

    [wrong] = store.do(Start([Hold(job_id, Token(grant.token + 1))]))
    clock.advance(10)
    [late] = store.do(Start([hold(grant)]))

    assert wrong.lost
    assert late.lost
    assert get(store, job_id) == before


def test_started_at_tells_of_the_first_start(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store)
    fail(store, claim_one(store))
    first = get(store, job_id).started_at
    clock.advance(3600)

    claim_one(store)

    assert get(store, job_id).started_at == first


# --- deadlines of durable jobs


def with_deadline(store: Subject, *more: NewStep) -> Grant:
    """A held job whose deadline passes in ten seconds."""
    enqueue(store)
    grant = claim_one(store)
    deadline = NewStep("$deadline", "sleep", "open", due_seconds=10)
    store.do(RecordSteps(grant.id, grant.token, (deadline, *more)))
    return grant


def test_a_heartbeat_tells_that_the_deadline_of_a_durable_job_has_passed(store: Subject, clock: SteeredClock) -> None:
    grant = with_deadline(store)
    plain = enqueue(store)
    other = claim_one(store)
    clock.advance(9)
    assert store.do(Heartbeat([hold(grant), hold(other)])) == Beat()
    clock.advance(1)

    assert store.do(Heartbeat([hold(other), hold(grant)])) == Beat(overdue=frozenset({grant.id}))

    assert plain == other.id


def test_the_deadline_does_not_stop_a_job_that_is_being_undone(store: Subject, clock: SteeredClock) -> None:
    grant = with_deadline(store, NewStep("undo/a", "undo", "armed"))
    store.do(RecordSteps(grant.id, grant.token, [NewStep("$undoing", value='{"end": "failed"}')]))
    clock.advance(20)

    assert store.do(Heartbeat([hold(grant)])) == Beat()


def test_the_deadline_ends_a_wait_that_does_not_name_it(store: Subject, clock: SteeredClock) -> None:
    """As of a worker that knows only the functions: its suspends name what they wait for."""
    first = with_deadline(store)
    wait = NewStep("paid", "signal", "open", awaits="signal:paid")
    settle(store, Released(first.id, first.token))
    grant = claim_one(store)

    assert settle(store, Suspended(grant.id, grant.token, "paid", steps=(wait,))).state == "waiting"

    clock.advance(10)
    again = claim_one(store)
    assert {step.key: step.state for step in again.steps} == {"$deadline": "done", "paid": "open"}
    assert settle(store, Suspended(again.id, again.token, "paid", steps=(wait,))).state == "failed", "it was told"
    assert get(store, again.id).failure_class == "deadline"
