"""Reading: filters, pages, counts, queues, audit. Reads change nothing."""

from __future__ import annotations

import uuid

import pytest

from tenure.model.ids import JobId, WorkerId, new_job_id
from tenure.model.policy import Backoff, QueuePolicy
from tenure.model.state import State
from tenure.store.admin import SetQueues
from tenure.store.queries import CountJobs, GetJobs, ListAudit, ListJobs, ListQueues
from tests.conformance.acts import (
    Subject,
    bring,
    cancel,
    claim,
    claim_one,
    enqueue,
    enqueue_many,
    get,
    make_queue,
)
from tests.conformance.engines import SteeredClock


def found(store: Subject, request: ListJobs) -> list[JobId]:
    return [job.id for job in store.do(request).items]


def test_jobs_are_read_by_id_in_order_with_none_where_there_is_none(store: Subject) -> None:
    one, two = enqueue_many(store, 2)

    jobs = store.do(GetJobs([two, new_job_id(), one, two]))

    assert [job and job.id for job in jobs] == [two, None, one, two]


def test_jobs_are_listed_newest_first(store: Subject) -> None:
    ids = enqueue_many(store, 5)

    assert found(store, ListJobs()) == ids[::-1]


def test_a_list_is_read_in_pages_without_gaps_or_repeats(store: Subject) -> None:
    ids = enqueue_many(store, 25)
    seen: list[JobId] = []
    pages = 0
    after = None

    while True:
        page = store.do(ListJobs(limit=10, after=after))
        seen += [job.id for job in page.items]
        pages += 1
        if page.next is None:
            break
        after = page.next

    assert seen == ids[::-1]
    assert pages == 3


def test_a_page_that_is_just_full_does_not_promise_more_than_there_is(store: Subject) -> None:
    enqueue_many(store, 10)

    page = store.do(ListJobs(limit=10))

    rest = [] if page.next is None else store.do(ListJobs(limit=10, after=page.next)).items
    assert (len(page.items), rest) == (10, [])


def test_a_page_goes_on_where_it_stood_when_jobs_arrive_meanwhile(store: Subject) -> None:
    ids = enqueue_many(store, 4)
    page = store.do(ListJobs(limit=2))
    enqueue_many(store, 3)

    rest = store.do(ListJobs(limit=10, after=page.next))

    assert [job.id for job in rest.items] == [ids[1], ids[0]]


def test_jobs_are_found_by_what_they_are(store: Subject) -> None:
    make_queue(store, "mail", profile="outbox")
    workflow = str(uuid.uuid4())
    plain = enqueue(store, "a", key="k")
    child = enqueue(store, "b", parent_id=plain, workflow_id=workflow)
    other = enqueue(store, "a", queue="mail")
    claim(store, queues=["mail"], worker="w9")

    assert found(store, ListJobs(kinds=["a"])) == [other, plain]
    assert found(store, ListJobs(queues=["mail"])) == [other]
    assert found(store, ListJobs(states=["queued"])) == [child, plain]
    assert found(store, ListJobs(states=["running", "dead"])) == [other]
    assert found(store, ListJobs(key="k")) == [plain]
    assert found(store, ListJobs(workflow_id=workflow)) == [child]
    assert found(store, ListJobs(parent_id=plain)) == [child]
    assert found(store, ListJobs(profile="outbox")) == [other]
    assert found(store, ListJobs(worker=WorkerId("w9"))) == [other]
    assert found(store, ListJobs(kinds=["a"], queues=["default"], states=["queued"])) == [plain]
    assert found(store, ListJobs(kinds=["nope"])) == []


def test_all_jobs_of_a_key_are_found_ended_ones_too(store: Subject) -> None:
    first = enqueue(store, key="k")
    cancel(store, first)
    second = enqueue(store, key="k")

    assert found(store, ListJobs(key="k")) == [second, first]


def test_counts_are_exact_by_queue_kind_and_state(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, "mail")
    start = clock.now()
    enqueue_many(store, 3, "a")
    clock.advance(1)
    enqueue_many(store, 2, "b", queue="mail")
    claim_one(store)

    counts = {(count.queue, count.kind, count.state): count for count in store.do(CountJobs())}

    assert {key: count.jobs for key, count in counts.items()} == {
        ("default", "a", "queued"): 2,
        ("default", "a", "running"): 1,
        ("mail", "b", "queued"): 2,
    }
    assert counts["default", "a", "queued"].oldest_at == start
    assert counts["mail", "b", "queued"].oldest_at == clock.now()


def test_counts_can_be_narrowed(store: Subject) -> None:
    make_queue(store, "mail")
    bring(store, State.RUNNING, "mail")
    enqueue_many(store, 3)
    enqueue_many(store, 2, queue="mail")

    assert [(count.queue, count.jobs) for count in store.do(CountJobs(queues=["default"]))] == [("default", 3)]
    assert [(count.state, count.jobs) for count in store.do(CountJobs(states=["running"]))] == [("running", 1)]


FULL_POLICY = QueuePolicy(
    profile="substrate",
    priority_order="low",
    priority_default=100,
    aging_seconds=12.5,
    start_on_claim=False,
    max_attempts=5,
    backoff=Backoff("power", 10, 1.5, 3, 10_240, 0.25),
    lease_seconds=300,
    lease_max_seconds=600,
    key_scope="window",
    key_space="global",
    key_required=True,
    key_window_seconds=60,
    key_conflict="tolerate",
    revive="clone",
    on_unknown_kind="release",
    forbidden_keys=("secret", "token", "password"),
    concurrency=7,
    concurrency_per_key=2,
    retain_seconds=None,
    events=True,
)


@pytest.mark.parametrize("policy", [QueuePolicy(), FULL_POLICY], ids=["default", "everything set"])
def test_a_policy_comes_back_as_it_was_set(store: Subject, clock: SteeredClock, policy: QueuePolicy) -> None:
    answered = store.do(SetQueues({"q": policy}, actor="ann"))

    [row] = store.do(ListQueues(["q"]))

    assert answered == [row]
    assert row.policy == policy
    assert (row.name, row.created_at, row.paused_at) == ("q", clock.now(), None)


def test_only_new_leaves_queues_that_exist(store: Subject) -> None:
    make_queue(store, "old", max_attempts=9)

    store.do(SetQueues({"old": QueuePolicy(), "new": QueuePolicy(max_attempts=2)}, actor="ann", only_new=True))

    rows = {row.name: row.policy.max_attempts for row in store.do(ListQueues())}
    assert rows == {"default": 3, "new": 2, "old": 9}


def test_queues_are_listed_by_name(store: Subject) -> None:
    for name in ("zebra", "alpha", "mail"):
        make_queue(store, name)

    assert [row.name for row in store.do(ListQueues())] == ["alpha", "default", "mail", "zebra"]
    assert [row.name for row in store.do(ListQueues(["zebra", "nope", "alpha"]))] == ["alpha", "zebra"]


def test_audit_rows_come_newest_first_and_can_be_narrowed_and_bounded(store: Subject, clock: SteeredClock) -> None:
    ids = enqueue_many(store, 3)
    for job_id in ids:
        cancel(store, job_id)
        clock.advance(1)

    rows = store.do(ListAudit(limit=2))

    assert [row.subject for row in rows] == [ids[2], ids[1]]
    assert rows[0].seq > rows[1].seq
    assert [row.subject for row in store.do(ListAudit(subject=ids[0]))] == [ids[0]]
    assert [row.subject for row in store.do(ListAudit(before=rows[1].seq))] == [ids[0]]
    assert store.do(ListAudit(subject=ids[2], before=rows[0].seq)) == []


def test_reading_changes_nothing(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store, delay_seconds=1)
    before = get(store, job_id)
    clock.advance(10)

    store.do(ListJobs())
    store.do(CountJobs())
    store.do(ListQueues())

    assert get(store, job_id) == before


def test_the_stores_clock_is_the_tests_clock(store: Subject, clock: SteeredClock) -> None:
    clock.advance(12.345678)

    assert store.store.now() == clock.now()


def test_a_value_of_more_than_300_bytes_is_shown_as_it_is(store: Subject) -> None:
    """PostgreSQL refuses a regular expression that repeats more than 255 times, and every longer value was shown as
    unreadable."""
    long = {"text": "x" * 400, "digits": "7" * 200}

    job_id = enqueue(store, payload=long)

    assert get(store, job_id).payload == long
