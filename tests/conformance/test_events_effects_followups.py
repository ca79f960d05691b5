"""What is handed to `complete` is committed with it or not at all; events and effects of a held job are fenced."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tenure.errors import KeyConflict, TenureError, UnknownQueue
from tenure.model.event import NewEvent
from tenure.model.job import Grant
from tenure.model.outcome import Completed, EffectRecord
from tenure.model.state import State
from tenure.store.admin import AppendEvents, RecordEffect
from tenure.store.contract import Settle
from tenure.store.queries import ListEffects, ListEvents
from tests.conformance.acts import (
    NO_BACKOFF,
    Subject,
    cancel,
    claim,
    claim_one,
    complete,
    enqueue,
    enqueue_many,
    exists,
    fail,
    get,
    make_queue,
    new_job,
    reap,
    with_token,
)
from tests.conformance.engines import SteeredClock


def test_follow_up_jobs_events_and_effects_are_there_when_the_job_has_succeeded(store: Subject) -> None:
    job_id = enqueue(store)
    follow = new_job("next", {"n": 1}, parent_id=job_id)

    complete(
        store,
        claim_one(store),
        jobs=(follow,),
        events=(NewEvent("custom", '{"said": "hello"}', job_id),),
        effects=(EffectRecord("mail", "confirmed", step="send", args='{"to": 7}', result='{"id": "m1"}'),),
    )

    after = get(store, follow.id)
    assert (after.state, after.kind, after.payload, after.parent_id) == (State.QUEUED, "next", {"n": 1}, job_id)
    [event] = store.do(ListEvents(kinds=["custom"]))
    assert (event.job_id, event.data) == (job_id, {"said": "hello"})
    [effect] = store.do(ListEffects(job_id=job_id)).items
    assert (effect.step, effect.name, effect.state) == ("send", "mail", "confirmed")
    assert (effect.args, effect.result, effect.token) == ({"to": 7}, {"id": "m1"}, 1)


def refuse_by_token(store: Subject, clock: SteeredClock) -> Grant:
    return with_token(claim_one(store), 99)


def refuse_by_time(store: Subject, clock: SteeredClock) -> Grant:
    grant = claim_one(store, lease_seconds=10)
    clock.advance(10)
    return grant


def refuse_by_takeover(store: Subject, clock: SteeredClock) -> Grant:
    grant = claim_one(store, "w1", lease_seconds=10)
    clock.advance(3600)
    reap(store)
    clock.advance(3600)
    claim_one(store, "w2")
    return grant


REFUSALS: dict[str, Callable[[Subject, SteeredClock], Grant]] = {
    "wrong token": refuse_by_token,
    "lease ran out": refuse_by_time,
    "another worker has it": refuse_by_takeover,
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_nothing_of_it_is_there_when_the_completion_was_refused(
    store: Subject, clock: SteeredClock, refusal: str
) -> None:
    job_id = enqueue(store)
    grant = REFUSALS[refusal](store, clock)
    follow = new_job("next")

    answer = complete(
        store,
        grant,
        jobs=(follow,),
        events=(NewEvent("custom", "{}", job_id),),
        effects=(EffectRecord("mail", "confirmed"),),
    )

    assert answer.lost
    assert not exists(store, follow.id)
    assert store.do(ListEvents(kinds=["custom"])) == []
    assert store.do(ListEffects(job_id=job_id)).items == []


def test_nothing_of_it_is_there_when_the_job_was_asked_to_stop(store: Subject) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)
    cancel(store, job_id)
    follow = new_job("next")

    assert complete(store, grant, jobs=(follow,)).state == "cancelled"

    assert not exists(store, follow.id)


def test_a_follow_up_that_cannot_be_enqueued_keeps_the_whole_settle_from_happening(store: Subject) -> None:
    first, second = enqueue_many(store, 2)
    one, two = claim(store, 2)
    good, bad = new_job("next"), new_job("next", queue="no-such-queue")

    with pytest.raises(UnknownQueue):
        store.do(Settle([Completed(one.id, one.token, jobs=(good,)), Completed(two.id, two.token, jobs=(bad,))]))

    assert (get(store, first).state, get(store, second).state) == (State.RUNNING, State.RUNNING)
    assert not exists(store, good.id)
    assert complete(store, one).state == "succeeded"


def test_a_follow_up_whose_key_is_taken_for_another_payload_keeps_the_settle_from_happening(store: Subject) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)
    enqueue(store, payload={"n": 1}, key="k")

    with pytest.raises(KeyConflict):
        complete(store, grant, jobs=(new_job(payload={"n": 2}, key="k"),))

    assert get(store, job_id).state is State.RUNNING


def test_a_follow_up_whose_key_is_taken_is_not_made_twice(store: Subject) -> None:
    enqueue(store)
    grant = claim_one(store)
    enqueue(store, key="k")
    follow = new_job(key="k")

    assert complete(store, grant, jobs=(follow,)).state == "succeeded"

    assert not exists(store, follow.id)


def test_a_follow_up_may_take_the_key_that_its_parent_held(store: Subject) -> None:
    enqueue(store, key="k")
    grant = claim_one(store)
    follow = new_job(key="k")

    complete(store, grant, jobs=(follow,))

    assert get(store, follow.id).state is State.QUEUED


def test_follow_ups_of_a_repeated_completion_are_there_once(store: Subject) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)
    request = Settle(
        [
            Completed(
                job_id,
                grant.token,
                jobs=(new_job("next"),),
                events=(NewEvent("custom", "{}", job_id),),
                effects=(EffectRecord("mail", "confirmed"),),
            )
        ]
    )

    assert store.do(request) == store.do(request)

    assert len(claim(store, 10)) == 1
    assert len(store.do(ListEvents(kinds=["custom"]))) == 1
    assert len(store.do(ListEffects(job_id=job_id)).items) == 1


def test_a_queue_that_asks_for_events_tells_the_life_of_its_jobs(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, events=True, backoff=NO_BACKOFF)
    job_id = enqueue(store, queue="q")
    fail(store, claim_one(store, queue="q"))
    complete(store, claim_one(store, queue="q"))

    events = store.do(ListEvents(job_id=job_id))

    told = [event.kind for event in events if event.kind != "started"]
    assert told == ["queued", "claimed", "retried", "claimed", "completed"]
    assert {event.queue for event in events} == {"q"}
    assert {event.at for event in events} == {clock.now()}
    assert [event.seq for event in events] == sorted(event.seq for event in events)


def test_a_queue_that_does_not_ask_writes_none(store: Subject) -> None:
    enqueue(store)
    complete(store, claim_one(store))

    assert store.do(ListEvents()) == []


def test_events_of_a_held_job_are_appended_in_order(store: Subject) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)

    accepted = store.do(
        AppendEvents(job_id, grant.token, [NewEvent("log", '{"n": 1}'), NewEvent("stdout", '{"n": 2}')])
    )

    assert accepted is True
    events = store.do(ListEvents(job_id=job_id))
    assert [(event.kind, event.data, event.job_id) for event in events] == [
        ("log", {"n": 1}, job_id),
        ("stdout", {"n": 2}, job_id),
    ]


def test_a_follower_asks_for_what_lies_above_the_last_it_saw(store: Subject) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)
    store.do(AppendEvents(job_id, grant.token, [NewEvent("log", f'{{"n": {n}}}') for n in range(5)]))

    first = store.do(ListEvents(limit=3))
    rest = store.do(ListEvents(after=first[-1].seq))

    assert [event.data["n"] for event in first + rest] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("refusal", REFUSALS)
def test_events_of_a_lost_job_are_refused(store: Subject, clock: SteeredClock, refusal: str) -> None:
    job_id = enqueue(store)
    grant = REFUSALS[refusal](store, clock)

    assert store.do(AppendEvents(job_id, grant.token, [NewEvent("log")])) is False

    assert store.do(ListEvents(job_id=job_id, kinds=["log"])) == []


def test_an_effect_is_written_before_the_act_and_moved_on_after_it(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)

    intended = store.do(RecordEffect(job_id, grant.token, EffectRecord("mail", "intended", args='{"to": 7}', key="e1")))
    at = clock.now()
    clock.advance(1)
    confirmed = store.do(RecordEffect(job_id, grant.token, EffectRecord("mail", "confirmed", result='{"id": 9}')))

    assert intended is not None
    assert (intended.state, intended.args, intended.key, intended.result) == ("intended", {"to": 7}, "e1", None)
    assert confirmed is not None
    assert (confirmed.state, confirmed.args, confirmed.key, confirmed.result) == (
        "confirmed",
        {"to": 7},
        "e1",
        {"id": 9},
    )
    assert (confirmed.intended_at, confirmed.updated_at) == (at, clock.now())


def test_an_intent_recorded_again_changes_nothing_and_tells_how_far_it_got(store: Subject) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)
    store.do(RecordEffect(job_id, grant.token, EffectRecord("mail", "intended", args="1", key="e1")))
    store.do(RecordEffect(job_id, grant.token, EffectRecord("mail", "sent")))
    fail(store, grant, retry_after_seconds=0)
    second = claim_one(store)

    found = store.do(RecordEffect(job_id, second.token, EffectRecord("mail", "intended", args="2", key="e2")))

    assert found is not None
    assert (found.state, found.args, found.key) == ("sent", 1, "e1")


def test_effects_have_a_place_of_their_own_by_step_and_name(store: Subject) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)
    for step, name in (("b", "mail"), ("a", "mail"), ("a", "file")):
        store.do(RecordEffect(job_id, grant.token, EffectRecord(name, "intended", step=step)))

    effects = store.do(ListEffects(job_id=job_id)).items

    assert [(effect.step, effect.name) for effect in effects] == [("a", "file"), ("a", "mail"), ("b", "mail")]
    assert len({effect.key for effect in effects}) == 3


@pytest.mark.parametrize("refusal", REFUSALS)
def test_an_effect_of_a_lost_job_is_refused(store: Subject, clock: SteeredClock, refusal: str) -> None:
    job_id = enqueue(store)
    grant = REFUSALS[refusal](store, clock)

    assert store.do(RecordEffect(job_id, grant.token, EffectRecord("mail", "intended"))) is None

    assert store.do(ListEffects(job_id=job_id)).items == []


def test_effects_are_found_by_their_state_in_pages(store: Subject) -> None:
    ids = sorted(enqueue_many(store, 5))
    for grant in claim(store, 5):
        store.do(RecordEffect(grant.id, grant.token, EffectRecord("mail", "unknown")))
    seen: list[str] = []
    after = None

    while True:
        page = store.do(ListEffects(states=["unknown"], limit=2, after=after))
        seen += [effect.job_id for effect in page.items]
        if page.next is None:
            break
        after = page.next

    assert seen == ids
    assert store.do(ListEffects(states=["confirmed"])).items == []


def test_an_effect_in_a_state_nobody_knows_is_refused(store: Subject) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)

    with pytest.raises(TenureError):
        store.do(RecordEffect(job_id, grant.token, EffectRecord("mail", "perhaps")))
