"""Enqueue: all or none, one answer per job, durable when answered, safe to repeat."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

from tenure.errors import InvalidArgument, UnknownQueue
from tenure.model.ids import JobId, new_job_id
from tenure.model.policy import QueuePolicy
from tenure.model.state import State
from tenure.store.contract import Enqueue
from tenure.store.queries import GetJobs, ListQueues
from tests.conformance.acts import Subject, claim, claim_one, complete, enqueue, enqueue_many, exists, get, new_job
from tests.conformance.engines import SteeredClock

DOORS = ("do", "ado")


def test_a_new_job_is_queued_due_at_once_and_unspent(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store, "mail", {"to": "a@example.com"})

    job = get(store, job_id)

    assert (job.state, job.kind, job.queue, job.payload) == (State.QUEUED, "mail", "default", {"to": "a@example.com"})
    assert (job.attempt, job.crashes, job.token, job.max_attempts, job.priority) == (0, 0, 0, 3, 0)
    assert job.created_at == job.updated_at == job.run_at == clock.now()
    assert job.lease_owner is None
    assert job.lease_until is None
    assert job.finished_at is None
    assert job.shown_state == "queued"


def test_answers_come_in_the_order_of_the_jobs(store: Subject) -> None:
    jobs = [new_job(payload={"n": n}) for n in (3, 1, 2)]

    answers = store.do(Enqueue(jobs))

    assert [answer.id for answer in answers] == [job.id for job in jobs]
    assert not any(answer.duplicate for answer in answers)


def test_an_empty_batch_is_answered_with_an_empty_list(store: Subject) -> None:
    assert store.do(Enqueue([])) == []


def test_every_column_a_job_may_carry_comes_back(store: Subject) -> None:
    user, requester, workflow, run, parent = (str(uuid.uuid4()) for _ in range(5))

    job_id = enqueue(
        store,
        key="k-1",
        priority=7,
        max_attempts=9,
        affinity_key="gpu",
        concurrency_key="customer-1",
        source_ref="s",
        target_ref="t",
        payload_ref="p",
        actor="orchestrator",
        created_by_user_id=user,
        requested_by_user_id=requester,
        tenant="acme",
        workflow_id=workflow,
        parent_id=JobId(parent),
        run_id=run,
        trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        artifacts_path="/artifacts/1",
        backoff='{"shape": "constant", "base_seconds": 3}',
    )
    job = get(store, job_id)

    assert (job.key, job.priority, job.max_attempts) == ("k-1", 7, 9)
    assert (job.affinity_key, job.concurrency_key, job.tenant, job.actor) == (
        "gpu",
        "customer-1",
        "acme",
        "orchestrator",
    )
    assert (job.source_ref, job.target_ref, job.payload_ref) == ("s", "t", "p")
    assert (job.created_by_user_id, job.requested_by_user_id) == (user, requester)
    assert (job.workflow_id, job.parent_id, job.run_id) == (workflow, parent, run)
    assert job.trace == "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert job.artifacts_path == "/artifacts/1"
    assert job.backoff == {"shape": "constant", "base_seconds": 3}


def test_a_grant_brings_the_rarely_set_columns_along(store: Subject) -> None:
    enqueue(store, key="k-1", tenant="acme", affinity_key="gpu")

    grant = claim_one(store)

    assert (grant.extra("key"), grant.extra("tenant"), grant.extra("affinity_key")) == ("k-1", "acme", "gpu")
    assert grant.extra("workflow_id") is None


def test_one_bad_job_keeps_the_whole_batch_out(store: Subject) -> None:
    good, bad = new_job(), new_job(queue="no-such-queue")

    with pytest.raises(UnknownQueue):
        store.do(Enqueue([good, bad]))

    assert store.do(GetJobs([good.id, bad.id])) == [None, None]


def test_a_repeated_enqueue_finds_its_own_row_and_counts_as_created(store: Subject) -> None:
    request = Enqueue([new_job(payload={"n": 1}), new_job(key="k")])

    first = store.do(request)
    again = store.do(request)

    assert again == first
    assert [grant.id for grant in claim(store, 10)] == [answer.id for answer in first]


def test_a_repeated_enqueue_does_not_bring_a_finished_job_back(store: Subject) -> None:
    request = Enqueue([new_job(key="k")])
    [first] = store.do(request)
    complete(store, claim_one(store))

    [again] = store.do(request)

    assert (again.id, again.duplicate) == (first.id, False)
    assert get(store, first.id).state is State.SUCCEEDED


def test_a_declared_queue_is_created_with_its_policy_in_the_same_transaction(store: Subject) -> None:
    policy = QueuePolicy(max_attempts=7, priority_default=4)

    [answer] = store.do(Enqueue([new_job(queue="fresh")], create_queues={"fresh": policy}))

    job = get(store, answer.id)
    assert (job.queue, job.max_attempts, job.priority) == ("fresh", 7, 4)
    [row] = store.do(ListQueues(["fresh"]))
    assert row.policy == policy


def test_a_declared_queue_that_exists_keeps_its_policy(store: Subject) -> None:
    store.do(Enqueue([], create_queues={"kept": QueuePolicy(max_attempts=7)}))
    store.do(Enqueue([new_job(queue="kept")], create_queues={"kept": QueuePolicy(max_attempts=2)}))

    [row] = store.do(ListQueues(["kept"]))

    assert row.policy.max_attempts == 7


def test_a_refused_batch_creates_no_queue_either(store: Subject) -> None:
    with pytest.raises(InvalidArgument):
        store.do(Enqueue([new_job(queue="half", max_attempts=0)], create_queues={"half": QueuePolicy()}))

    assert store.do(ListQueues(["half"])) == []


def test_run_at_is_kept_to_the_microsecond(store: Subject, clock: SteeredClock) -> None:
    moment = clock.now() + timedelta(days=3, microseconds=123_457)

    assert get(store, enqueue(store, run_at=moment)).run_at == moment


@pytest.mark.parametrize("attempts", [0, -1])
def test_max_attempts_below_one_are_refused(store: Subject, attempts: int) -> None:
    job = new_job(max_attempts=attempts)

    with pytest.raises(InvalidArgument, match="max_attempts"):
        store.do(Enqueue([job]))

    assert not exists(store, job.id)


@pytest.mark.parametrize("priority", [2**31, -(2**31) - 1])
def test_a_priority_beyond_32_bits_is_refused(store: Subject, priority: int) -> None:
    with pytest.raises(InvalidArgument, match="priority"):
        store.do(Enqueue([new_job(priority=priority)]))


@pytest.mark.parametrize("priority", [2**31 - 1, -(2**31)])
def test_the_outermost_priorities_are_accepted(store: Subject, priority: int) -> None:
    assert get(store, enqueue(store, priority=priority)).priority == priority


@pytest.mark.parametrize("kind", ["", "k" * 201])
def test_a_kind_that_is_blank_or_too_long_is_refused(store: Subject, kind: str) -> None:
    with pytest.raises(InvalidArgument, match="kind"):
        store.do(Enqueue([new_job(kind)]))


def test_an_id_that_is_no_uuid_is_refused(store: Subject) -> None:
    with pytest.raises(InvalidArgument):
        store.do(Enqueue([new_job(job_id=JobId("not-a-uuid"))]))


def test_a_thousand_jobs_go_in_as_one_batch(store: Subject) -> None:
    ids = enqueue_many(store, 1000)

    assert len(set(ids)) == 1000
    assert [grant.id for grant in claim(store, 1000)] == ids


def test_a_thousand_answers_keep_order_with_duplicates_among_them(store: Subject) -> None:
    jobs = [new_job(key=f"k{n % 100}") for n in range(1000)]

    answers = store.do(Enqueue(jobs))

    assert [answer.id for answer in answers] == [jobs[n % 100].id for n in range(1000)]
    assert [answer.duplicate for answer in answers] == [n >= 100 for n in range(1000)]


def test_an_unknown_id_is_answered_with_none(store: Subject) -> None:
    assert store.do(GetJobs([new_job_id()])) == [None]
