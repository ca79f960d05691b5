"""Claims and settles in arrays: what goes through one JSON value must come out as it went in."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from tenure.model.clock import ManualClock
from tenure.model.ids import JobId, Token, new_job_id, new_job_ids
from tenure.model.job import Grant, NewJob
from tenure.model.outcome import Completed, Failed
from tenure.model.policy import QueuePolicy
from tenure.store.admin import SetQueues
from tenure.store.contract import Claim, Enqueue, Exchange
from tenure.store.queries import GetJobs
from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.bed import WORKER, job

LONG = json.dumps({"text": "ä" * 30_000})
ODD = '{ "a" : "\\u0000 \\ud83d\\ude00 \\" \\\\ €😀",\n"b":[1.50, 1e400, 12345678901234567890] }'


def claim(store: SqliteStore, limit: int = 100, queues: tuple[str, ...] = ("default",)) -> list[Grant]:
    return store.do(Claim(WORKER, queues, limit))


def states(store: SqliteStore, ids: list[JobId]) -> list[str]:
    return [job.state.value for job in store.do(GetJobs(ids)) if job is not None]


def test_a_grant_carries_payload_and_kind_letter_for_letter(store: SqliteStore) -> None:
    ids = new_job_ids(4)
    kinds = ['quo"te', "del\x7fete", "back\\slash", "Ünïcode😀"]
    payloads = [ODD, LONG, "null", '"\\u001e"']
    store.do(Enqueue([NewJob(*each) for each in zip(ids, kinds, payloads, strict=True)]))

    grants = claim(store)

    assert [(grant.id, grant.kind, grant.payload_text) for grant in grants] == list(
        zip(ids, kinds, payloads, strict=True)
    )
    assert [(grant.token, grant.attempt) for grant in grants] == [(1, 1)] * 4


def test_jobs_with_long_payloads_and_rare_columns_keep_their_place_in_line(store: SqliteStore) -> None:
    ids = new_job_ids(5)
    jobs = [
        NewJob(ids[0], "k"),
        NewJob(ids[1], "k", LONG, tenant="acme"),
        NewJob(ids[2], "k", key="once"),
        NewJob(ids[3], "k", LONG),
        NewJob(ids[4], "k", priority=5, trace="00-ab"),
    ]
    store.do(Enqueue(jobs))

    grants = claim(store)

    assert [grant.id for grant in grants] == [ids[4], *ids[:4]]
    assert [grant.payload_text for grant in grants] == ["{}", "{}", LONG, "{}", LONG]
    assert [grant.extra("tenant") for grant in grants] == [None, None, "acme", None, None]
    assert [grant.extra("key") for grant in grants] == [None, None, None, "once", None]
    assert grants[0].extra("trace") == "00-ab"


def test_a_claim_over_several_queues_tells_long_payloads_too(store: SqliteStore) -> None:
    store.do(SetQueues({"a": QueuePolicy(), "b": QueuePolicy(start_on_claim=False)}, actor="test"))
    ids = new_job_ids(4)
    store.do(Enqueue([NewJob(job_id, "k", LONG if n < 2 else "{}", queue="ab"[n % 2]) for n, job_id in enumerate(ids)]))

    grants = claim(store, queues=("a", "b"))

    assert [(grant.id, grant.queue, grant.started) for grant in grants] == [
        (job_id, "ab"[n % 2], n % 2 == 0) for n, job_id in enumerate(ids)
    ]
    assert [grant.payload_text for grant in grants] == [LONG, LONG, "{}", "{}"]


def test_a_batch_of_successes_under_different_tokens_settles_each_by_its_own(store: SqliteStore) -> None:
    ids = new_job_ids(4)
    store.do(Enqueue([NewJob(job_id, "k", max_attempts=9) for job_id in ids]))
    first = claim(store, 2)
    store.do(Exchange([Failed(grant.id, grant.token, "no", retry_after_seconds=0) for grant in first], None))
    second = claim(store)
    tokens = {grant.id: grant.token for grant in second}
    stale = [
        Completed(ids[0], Token(1)),
        Completed(ids[1], tokens[ids[1]]),
        Completed(ids[2], Token(1)),
        Completed(ids[3], Token(1), "7"),
    ]

    settled = store.do(Exchange(stale, None)).settled

    assert sorted(tokens.values()) == [1, 1, 2, 2]
    assert {grant: answer.lost for grant, answer in settled.items()} == {(ids[0], 1): True}
    assert states(store, list(ids)) == ["running", "succeeded", "succeeded", "succeeded"]


def test_a_claim_takes_back_what_expired_and_what_came_due_first(store: SqliteStore, clock: ManualClock) -> None:
    store.do(Enqueue([job(), job()]))
    store.do(Claim(WORKER, ["default"], 1, lease_seconds=10))
    later = NewJob(new_job_id(), "work", delay_seconds=60, priority=9)
    store.do(Enqueue([later]))
    clock.advance(61)

    grants = store.do(Claim(WORKER, ["default"], 5))

    assert grants[0].id == later.id
    assert len(grants) == 3


def test_a_lease_that_another_process_allowed_is_given(store: SqliteStore, path: Path) -> None:
    store.do(Enqueue([job()]))
    store.do(Claim(WORKER, ["default"], 0))
    with sqlite3.connect(path) as other:
        other.execute("UPDATE tenure_queue SET lease_max_seconds = 200000")
    other.close()

    assert len(store.do(Claim(WORKER, ["default"], 1, lease_seconds=100_000))) == 1
