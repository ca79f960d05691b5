"""Edit: another payload or priority for a job that waits in its queue, fenced by what the editor has read."""

from __future__ import annotations

import hashlib
import json
import threading

import pytest

from tenure.errors import ForbiddenKey, IllegalMove, InvalidArgument, KeyConflict, NotFound, Outdated, TenureError
from tenure.model.ids import JobId, new_job_id
from tenure.model.job import Job
from tenure.model.state import State
from tenure.model.step import NewStep
from tenure.store.contract import EditJob, Enqueue
from tenure.store.flow import ForgetSteps, RecordSteps
from tenure.store.queries import ListAudit, ListEvents
from tests.conformance.acts import (
    Subject,
    bring,
    cancel,
    claim,
    claim_one,
    enqueue,
    fail,
    get,
    make_queue,
    new_job,
    offer,
)
from tests.conformance.engines import SteeredClock


def edit(
    store: Subject, job_id: JobId, payload: object = None, priority: int | None = None, version: str | None = None
) -> Job:
    text = None if payload is None else json.dumps(payload)
    return store.do(EditJob(job_id, "ann", "wrong address", text, priority, version))


def test_an_edited_job_is_claimed_with_its_new_payload(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store, payload={"to": "a"}, key="k")
    before = get(store, job_id)
    clock.advance(5)

    after = edit(store, job_id, {"to": "b"}, version=before.version)

    assert after == get(store, job_id)
    assert (after.payload, after.key, after.state, after.token) == ({"to": "b"}, "k", State.QUEUED, before.token)
    assert (after.created_at, after.run_at, after.priority) == (before.created_at, before.run_at, before.priority)
    assert after.payload_hash != before.payload_hash
    assert after.version != before.version
    assert claim_one(store).payload == {"to": "b"}


def test_a_job_with_a_new_priority_is_claimed_in_its_new_place(store: Subject) -> None:
    first, second, third = (enqueue(store, priority=5) for _ in range(3))

    assert edit(store, third, priority=9).priority == 9
    assert edit(store, first, priority=1).priority == 1

    assert [grant.id for grant in claim(store, 3)] == [third, second, first]


def test_with_aging_a_new_priority_counts_from_the_moment_of_creation(store: Subject, clock: SteeredClock) -> None:
    queue = make_queue(store, aging_seconds=10.0)
    old = enqueue(store, queue=queue, priority=0)
    clock.advance(25)
    young = enqueue(store, queue=queue, priority=0)

    edit(store, young, priority=2)  # worth 20 s of waiting, and the other has waited 25 s more
    assert claim_one(store, queue=queue).id == old
    edit(store, young, priority=3)
    later = enqueue(store, queue=queue, priority=5)

    assert [grant.id for grant in claim(store, 2, queues=[queue])] == [later, young]


@pytest.mark.parametrize("state", sorted(set(State) - {State.QUEUED, State.LEASED}))
@pytest.mark.parametrize("what", [{"payload": {"new": 1}}, {"priority": 7}])
def test_a_job_that_does_not_wait_in_its_queue_is_left_alone(
    store: Subject, state: State, what: dict[str, object]
) -> None:
    job = bring(store, state)

    with pytest.raises(IllegalMove, match=f"is {job.state}"):
        edit(store, job.id, **what)  # type: ignore[arg-type]

    assert get(store, job.id) == job


def test_a_leased_job_is_left_alone(store: Subject) -> None:
    queue = make_queue(store, start_on_claim=False)
    job = bring(store, State.LEASED, queue)

    with pytest.raises(IllegalMove, match="is leased"):
        edit(store, job.id, priority=7)

    assert get(store, job.id) == job


def test_a_job_that_waits_to_be_tried_again_can_be_edited(store: Subject) -> None:
    job_id = enqueue(store, payload={"to": "a"})
    fail(store, claim_one(store))

    after = edit(store, job_id, {"to": "b"})

    assert (after.shown_state, after.payload, after.attempt) == ("retry_waiting", {"to": "b"}, 1)


def test_of_two_editors_that_read_the_same_job_the_second_is_refused(store: Subject) -> None:
    """The clock stands still, so that both edits fall into one tick of it."""
    job_id = enqueue(store, payload={"n": 0})
    read = get(store, job_id)

    first = edit(store, job_id, {"n": 1}, version=read.version)
    with pytest.raises(Outdated, match="has changed since it was read"):
        edit(store, job_id, {"n": 2}, version=read.version)
    with pytest.raises(Outdated):
        edit(store, job_id, priority=3, version=read.version)

    assert get(store, job_id) == first
    assert edit(store, job_id, {"n": 2}, version=first.version).payload == {"n": 2}


def test_of_many_editors_at_once_one_wins_and_every_other_is_told(store: Subject) -> None:
    job_id = enqueue(store, payload={"n": -1})
    version = get(store, job_id).version
    start = threading.Barrier(6)
    told: list[str] = []

    def one(n: int) -> None:
        start.wait(30)
        try:
            edit(store, job_id, {"n": n}, version=version)
        except Outdated as exc:
            told.append(exc.code)
        else:
            told.append(f"won {n}")

    threads = [threading.Thread(target=one, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    [winner] = [one for one in told if one.startswith("won")]
    assert sorted(told) == sorted(["outdated"] * 5 + [winner])
    assert winner == f"won {get(store, job_id).payload['n']}"


def test_a_repeated_edit_answers_as_the_first_and_writes_nothing(store: Subject) -> None:
    job_id = enqueue(store, payload={"n": 0})
    version = get(store, job_id).version
    first = edit(store, job_id, {"n": 1}, 4, version)

    assert edit(store, job_id, {"n": 1}, 4, version) == first
    claim_one(store)
    held = get(store, job_id)

    assert edit(store, job_id, {"n": 1}, 4, version) == held
    assert len([row for row in audit(store, job_id) if row["act"] == "edit"]) == 1


def test_an_enqueue_that_is_repeated_after_an_edit_counts_as_created(store: Subject) -> None:
    """Its reply was lost, and an operator edited the job before the producer asked again."""
    job = new_job(payload={"n": 0})
    store.do(Enqueue([job]))
    edit(store, job.id, {"n": 1})

    [again] = store.do(Enqueue([job]))

    assert (again.id, again.duplicate) == (job.id, False)
    assert get(store, job.id).payload == {"n": 1}


def test_a_key_is_compared_with_the_payload_that_its_job_carries_now(store: Subject) -> None:
    job_id = enqueue(store, payload={"n": 0}, key="k")
    edit(store, job_id, {"n": 1})

    assert offer(store, payload={"n": 1}, key="k").id == job_id
    with pytest.raises(KeyConflict):
        offer(store, payload={"n": 0}, key="k")


def test_the_payload_guard_of_the_queue_holds_for_an_edit(store: Subject) -> None:
    queue = make_queue(store)
    job_id = enqueue(store, queue=queue, payload={"ref": 1})
    make_queue(store, queue, forbidden_keys=("password",))
    before = get(store, job_id)

    with pytest.raises(ForbiddenKey):
        edit(store, job_id, {"deep": [{"Password": "x"}]})

    assert get(store, job_id) == before
    assert edit(store, job_id, priority=3).priority == 3


@pytest.mark.parametrize("priority", [2**31, -(2**31) - 1])
def test_a_priority_beyond_32_bits_is_refused(store: Subject, priority: int) -> None:
    job_id = enqueue(store)

    with pytest.raises(InvalidArgument):
        edit(store, job_id, priority=priority)


@pytest.mark.parametrize("text", ["{", "[1", '"\0"'])
def test_what_is_no_json_that_both_engines_hold_is_refused(store: Subject, text: str) -> None:
    job_id = enqueue(store, payload={"n": 0}, key="k")

    with pytest.raises(TenureError):
        store.do(EditJob(job_id, "ann", "why", text))

    assert get(store, job_id).payload == {"n": 0}


def test_a_job_with_recorded_steps_keeps_its_payload_but_not_its_priority(store: Subject) -> None:
    job_id = enqueue(store, payload={"n": 0})
    grant = claim_one(store)
    store.do(RecordSteps(job_id, grant.token, [NewStep("read", value="1")]))
    fail(store, grant)

    with pytest.raises(IllegalMove, match="recorded steps"):
        edit(store, job_id, {"n": 1})

    assert edit(store, job_id, priority=2).priority == 2


def test_a_job_whose_steps_were_forgotten_takes_a_new_payload(store: Subject) -> None:
    """The refusal says to forget the steps first, and was the same afterwards."""
    job_id = enqueue(store, payload={"n": 0})
    grant = claim_one(store)
    store.do(RecordSteps(job_id, grant.token, [NewStep("read", value="1")]))
    fail(store, grant)
    store.do(ForgetSteps(job_id, "read", "ann", "wrong payload"))

    assert edit(store, job_id, {"n": 1}).payload == {"n": 1}


def test_an_edit_leaves_an_audit_row_with_digests_and_no_payload(store: Subject) -> None:
    job_id = enqueue(store, payload={"canary": "geheim"})
    before, after = '{"canary": "geheim"}', '{"canary": "anders"}'

    store.do(EditJob(job_id, "ann", "wrong address", after, 4))

    [row] = audit(store, job_id)
    assert (row["actor"], row["act"], row["reason"]) == ("ann", "edit", "wrong address")
    assert row["detail"] == {
        "from": {"payload": hashlib.sha256(before.encode()).hexdigest(), "priority": 0},
        "to": {"payload": hashlib.sha256(after.encode()).hexdigest(), "priority": 4},
    }
    assert "geheim" not in str(row)


def test_an_edit_is_told_as_an_event_where_the_queue_keeps_them(store: Subject) -> None:
    queue = make_queue(store, events=True)
    job_id = enqueue(store, queue=queue)

    edit(store, job_id, priority=4)

    events = store.do(ListEvents(job_id=job_id))
    assert [(event.kind, event.data["state"]) for event in events] == [("queued", "queued"), ("edited", "queued")]


def test_a_job_that_is_not_there_is_not_found(store: Subject) -> None:
    with pytest.raises(NotFound):
        edit(store, new_job_id(), priority=1)


def test_an_edit_needs_an_actor(store: Subject) -> None:
    job_id = enqueue(store)

    with pytest.raises(InvalidArgument):
        store.do(EditJob(job_id, " ", "why", None, 3))

    assert get(store, job_id).priority == 0


def test_a_cancelled_job_stays_as_it_was(store: Subject) -> None:
    job_id = enqueue(store, payload={"n": 0})
    version = get(store, job_id).version
    cancel(store, job_id)

    with pytest.raises(IllegalMove, match="is cancelled"):
        edit(store, job_id, {"n": 1}, version=version)


def audit(store: Subject, job_id: JobId) -> list[dict[str, object]]:
    rows = store.do(ListAudit(subject=job_id))
    return [{"actor": row.actor, "act": row.act, "reason": row.reason, "detail": row.detail} for row in rows]
