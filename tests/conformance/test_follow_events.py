"""FollowEvents: each event once, none passed over, however its transaction was committed."""

from __future__ import annotations

import pytest

from tenure.errors import InvalidArgument
from tenure.model.event import NewEvent
from tenure.model.job import Grant
from tenure.store.admin import AppendEvents
from tenure.store.queries import Followed, FollowEvents
from tests.conformance.acts import Subject, claim_one, enqueue, make_queue


def say(store: Subject, grant: Grant, *numbers: int, kind: str = "log") -> None:
    """Events of one commit."""
    assert store.do(AppendEvents(grant.id, grant.token, [NewEvent(kind, f'{{"n": {n}}}') for n in numbers]))


def said(found: Followed) -> list[int]:
    return [event.data["n"] for event in found.events]


@pytest.fixture
def grant(store: Subject) -> Grant:
    enqueue(store)
    return claim_one(store)


def test_a_follower_without_a_place_begins_now(store: Subject, grant: Grant) -> None:
    say(store, grant, 1)

    begun = store.do(FollowEvents())
    say(store, grant, 2, 3)
    found = store.do(FollowEvents(begun.place))

    assert (begun.events, begun.more) == ([], False)
    assert (said(found), found.more) == ([2, 3], False)
    assert (begun.newest, found.newest) == (found.events[0].seq - 1, found.events[-1].seq)
    assert said(store.do(FollowEvents(found.place))) == []


def test_a_follower_behind_a_number_gets_those_above_it_then_what_is_new(store: Subject, grant: Grant) -> None:
    say(store, grant, *range(5))
    first = store.do(FollowEvents(after=0)).events[0]

    page = store.do(FollowEvents(after=first.seq, limit=3))
    say(store, grant, 5)
    rest = store.do(FollowEvents(page.place, limit=3))
    last = store.do(FollowEvents(rest.place, limit=3))

    assert (said(page), page.more) == ([1, 2, 3], True)
    assert said(rest) + said(last) == [4, 5]


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_pages_hold_every_event_once_also_within_one_commit(store: Subject, grant: Grant, limit: int) -> None:
    place = store.do(FollowEvents()).place
    say(store, grant, 0, 1, 2, 3)
    say(store, grant, 4)
    say(store, grant, 5, 6)
    seen = []

    for _ in range(8):
        found = store.do(FollowEvents(place, limit=limit))
        place = found.place
        seen += said(found)
        assert found.more is (len(seen) < 7)

    assert seen == list(range(7))


def test_what_lies_between_two_places_stays_the_same(store: Subject, grant: Grant) -> None:
    first = store.do(FollowEvents()).place
    say(store, grant, 1, 2)
    page = store.do(FollowEvents(first, limit=1))
    second = store.do(FollowEvents(page.place)).place
    say(store, grant, 3)

    assert said(store.do(FollowEvents(first, second))) == [1, 2]
    assert said(store.do(FollowEvents(first, page.place))) == [1]
    assert said(store.do(FollowEvents(page.place, second))) == [2]
    assert store.do(FollowEvents(first, second)).place == second


def test_filters_choose_and_the_place_moves_on(store: Subject, grant: Grant) -> None:
    make_queue(store, "loud", events=True)
    place = store.do(FollowEvents()).place
    job_id = enqueue(store, queue="loud")
    say(store, grant, 1)
    say(store, grant, 2, kind="stdout")

    by_queue = store.do(FollowEvents(place, queues=["loud"]))
    by_kind = store.do(FollowEvents(place, kinds=["stdout"]))
    by_job = store.do(FollowEvents(place, job_id=grant.id))

    assert [event.job_id for event in by_queue.events] == [job_id]
    assert (said(by_kind), said(by_job)) == ([2], [1, 2])
    assert store.do(FollowEvents(by_kind.place)).events == []


FOREIGN = ["", "x", "-1", "1:2", "5:3:", "1:9:9,8", "9" * 20, f"{'9' * 15}:{'9' * 15}:", f"{'9' * 25}:{'9' * 25}:"]


@pytest.mark.parametrize("place", FOREIGN)
def test_a_place_that_the_database_did_not_give_is_refused(store: Subject, place: str) -> None:
    for request in (FollowEvents(place), FollowEvents(store.do(FollowEvents()).place, place)):
        with pytest.raises(InvalidArgument, match="no place among"):
            store.do(request)


def test_a_limit_below_one_is_refused(store: Subject) -> None:
    with pytest.raises(InvalidArgument):
        store.do(FollowEvents(limit=0))
