"""Reads for pages: the newest jobs with counts beside them, and deaths; every look has a bound."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from tenure.errors import InvalidArgument
from tenure.model.ids import WorkerId
from tenure.model.outcome import Triage
from tenure.store.admin import TriageDeadLetters
from tenure.store.browsing import Browsed, BrowseJobs, ListDeaths
from tests.conformance.acts import Subject, claim, claim_one, complete, enqueue, enqueue_many, fail, letters, reject


def ids(found: Browsed) -> list[str]:
    return [job.id for job in found.items]


def test_the_newest_come_first_and_all_states_are_counted(store: Subject) -> None:
    made = enqueue_many(store, 4)
    complete(store, claim_one(store))
    fail(store, claim_one(store))

    found = store.do(BrowseJobs(limit=2))

    assert ids(found) == [made[3], made[2]]
    assert found.counts == {"queued": 2, "retry_waiting": 1, "succeeded": 1}
    assert (found.scanned, found.is_whole) == (4, True)


def test_a_page_goes_on_where_the_one_before_ended(store: Subject) -> None:
    made = enqueue_many(store, 5)

    first = store.do(BrowseJobs(limit=2))
    second = store.do(BrowseJobs(limit=2, after=first.next))
    third = store.do(BrowseJobs(limit=2, after=second.next))

    assert [*ids(first), *ids(second), *ids(third)] == made[::-1]
    assert third.next is None


def test_counts_follow_the_filter_but_not_its_states(store: Subject) -> None:
    enqueue(store, "mail")
    enqueue(store, "pdf")
    complete(store, claim_one(store))

    found = store.do(BrowseJobs(kinds=["mail", "pdf"], states=["queued"]))
    only = store.do(BrowseJobs(kinds=["pdf"], states=["dead"]))

    assert [job.kind for job in found.items] == ["pdf"]
    assert found.counts == {"queued": 1, "succeeded": 1}
    assert only.items == []
    assert only.counts == {"queued": 1}


def test_a_look_ends_at_its_bound_and_says_where_to_go_on(store: Subject) -> None:
    wanted = enqueue(store, "rare")
    enqueue_many(store, 5, "common")

    first = store.do(BrowseJobs(kinds=["rare"], scan=3))
    second = store.do(BrowseJobs(kinds=["rare"], scan=3, after=first.next))

    assert (first.items, first.counts, first.is_whole, first.scanned) == ([], {}, False, 3)
    assert ids(second) == [wanted]
    assert first.last == first.next
    assert second.last == wanted


@pytest.mark.parametrize(
    "wanted",
    [
        BrowseJobs(key="k-1"),
        BrowseJobs(tenant="acme"),
        BrowseJobs(queues=["default"], kinds=["mine"]),
        BrowseJobs(worker=WorkerId("w9")),
        BrowseJobs(states=["running"]),
    ],
)
def test_each_filter_finds_its_own(store: Subject, wanted: BrowseJobs) -> None:
    mine = enqueue(store, "mine", key="k-1", tenant="acme")
    assert claim_one(store, "w9").id == mine
    enqueue(store, "other", key="k-2", tenant="globex")

    assert ids(store.do(wanted)) == [mine]


def test_jobs_of_a_parent_and_of_a_workflow_are_found_by_their_index(store: Subject) -> None:
    workflow = str(uuid4())
    parent = enqueue(store)
    child = enqueue(store, parent_id=parent, workflow_id=workflow)
    enqueue_many(store, 3)

    # A scan of one shows that the index, not the newest rows, is looked at.
    assert ids(store.do(BrowseJobs(parent_id=parent, scan=1))) == [child]
    assert ids(store.do(BrowseJobs(workflow_id=workflow, scan=1))) == [child]


def test_words_of_an_error_are_looked_for_as_they_are(store: Subject) -> None:
    loud = enqueue(store)
    reject(store, claim_one(store), "ValueError: 100% of_it")
    quiet = enqueue(store)
    reject(store, claim_one(store), "ValueError: all of it")

    assert ids(store.do(BrowseJobs(error="100% OF_IT"))) == [loud]
    assert ids(store.do(BrowseJobs(error="%"))) == [loud]
    assert ids(store.do(BrowseJobs(error="valueerror"))) == [quiet, loud]


def test_since_leaves_out_what_was_made_before(store: Subject) -> None:
    enqueue(store)
    moment = store.do(BrowseJobs()).at + timedelta(seconds=5)
    store.clock.advance(10)
    late = enqueue(store)

    assert ids(store.do(BrowseJobs(since=moment))) == [late]


def test_a_limit_or_a_scan_below_one_is_refused(store: Subject) -> None:
    for wrong in (BrowseJobs(limit=0), BrowseJobs(scan=0)):
        with pytest.raises(InvalidArgument):
            store.do(wrong)


def test_deaths_come_by_triage_newest_first_and_up_to_their_bound(store: Subject) -> None:
    for number in range(3):
        enqueue(store, "mail")
        store.clock.advance(1)
        reject(store, claim_one(store), f"ValueError: {number} " + "x" * 2000)
    first, *_ = letters(store)
    store.do(TriageDeadLetters([first.id], Triage.CLOSED, "ada", "known"))

    pending = store.do(ListDeaths("pending", scan=10))
    (closed,) = store.do(ListDeaths("closed"))

    assert len(pending) == 2
    assert pending[0].moved_at > pending[1].moved_at
    assert all(len(one.error) == 500 for one in pending)
    assert (closed.triaged_by, closed.triage_note) == ("ada", "known")
    assert len(store.do(ListDeaths("pending", scan=1))) == 1
    assert store.do(ListDeaths("pending", fingerprint=pending[0].fingerprint))[0].id == pending[0].id
    assert store.do(ListDeaths("pending", fingerprint="none")) == []
    assert claim(store, 1) == []
