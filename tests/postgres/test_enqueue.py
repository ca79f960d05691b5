"""Enqueueing on PostgreSQL: the rows it leaves, its refusals, its notifications, and the rules of the table itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import product

import psycopg
import pytest

from tenure.errors import (
    ForbiddenKey,
    GateClosed,
    InvalidArgument,
    InvalidPayload,
    KeyRequired,
    TenureError,
    UnknownQueue,
)
from tenure.model.ids import JobId, WorkerId
from tenure.model.job import NewJob
from tenure.model.policy import QueuePolicy
from tenure.store.admin import SetGate, SetQueues
from tenure.store.contract import Claim, Enqueue
from tenure.store.postgres.store import PostgresStore
from tests.conformance.acts import new_job

pytestmark = pytest.mark.postgres


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    made = PostgresStore(url)
    yield made
    made.close()


def rows(admin: psycopg.Connection) -> list[tuple[object, ...]]:
    return admin.execute(
        "SELECT id::text, queue, kind, priority, rank, max_attempts, payload::text, state, is_due, run_at = created_at "
        "FROM tenure.job ORDER BY id"
    ).fetchall()


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("order", ["high", "low"])
def test_an_enqueue_leaves_the_rows_that_policy_and_job_ask_for(
    store: PostgresStore, admin: psycopg.Connection, count: int, order: str
) -> None:
    store.do(SetQueues({"default": QueuePolicy(priority_order=order, priority_default=4)}, actor="t"))  # type: ignore[arg-type]
    texts = ('{"b": 1, "a": "ü"}', "[1,  2 ]", "null")
    jobs = [new_job(payload=text, priority=None if i else 9, max_attempts=8) for i, text in enumerate(texts[:count])]

    store.do(Enqueue(jobs))

    sign = -1 if order == "high" else 1
    assert rows(admin) == [
        (job.id, "default", "work", job.priority or 4, sign * (job.priority or 4), 8, job.payload, "queued", True, True)
        for job in jobs
    ]


@pytest.mark.parametrize("count", [1, 3])
def test_a_repeated_request_adds_what_is_missing_and_changes_nothing_else(
    store: PostgresStore, admin: psycopg.Connection, count: int
) -> None:
    jobs = [new_job(payload=n) for n in range(count)]
    store.do(Enqueue(jobs))
    before = rows(admin)

    answers = store.do(Enqueue([*jobs, new_job(payload='"later"')] if count > 1 else jobs))

    assert not any(answer.duplicate for answer in answers)
    assert [row for row in rows(admin) if row[6] != '"later"'] == before
    assert len(rows(admin)) == len(answers)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("queue", "policy", "payload", "error"),
    [
        pytest.param("nowhere", None, 1, UnknownQueue, id="unknown queue"),
        pytest.param("q", QueuePolicy(key_required=True), 1, KeyRequired, id="key required"),
        pytest.param(
            "q", QueuePolicy(forbidden_keys=("secret",)), {"a": [{"secret": 1}]}, ForbiddenKey, id="forbidden"
        ),
    ],
)
def test_a_refusal_refuses_the_whole_batch(
    store: PostgresStore,
    admin: psycopg.Connection,
    count: int,
    queue: str,
    policy: QueuePolicy | None,
    payload: object,
    error: type[TenureError],
) -> None:
    if policy is not None:
        store.do(SetQueues({queue: policy}, actor="t"))

    with pytest.raises(error):
        store.do(Enqueue([new_job(payload=payload, queue=queue) for _ in range(count)]))

    assert rows(admin) == []


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("gate", ["master", "default.master", "queue:default"])
def test_a_closed_gate_stops_an_enqueue_and_another_queues_gate_does_not(
    store: PostgresStore, admin: psycopg.Connection, gate: str, count: int
) -> None:
    store.do(SetGate("queue:other", is_open=False, actor="t"))
    store.do(Enqueue([new_job() for _ in range(count)]))
    store.do(SetGate(gate, is_open=False, actor="t"))

    with pytest.raises(GateClosed):
        store.do(Enqueue([new_job() for _ in range(count)]))

    assert len(rows(admin)) == count


@pytest.mark.parametrize("count", [1, 3])
def test_aging_and_events_follow_the_queues_policy(store: PostgresStore, admin: psycopg.Connection, count: int) -> None:
    store.do(SetQueues({"default": QueuePolicy(aging_seconds=60, events=True)}, actor="t"))

    store.do(Enqueue([new_job(priority=1) for _ in range(count)]))

    [[ranks]] = admin.execute(
        "SELECT count(*) FROM tenure.job WHERE rank = tenure.to_us(created_at) - 60000000"
    ).fetchall()
    [[events]] = admin.execute("SELECT count(*) FROM tenure.event WHERE kind = 'queued'").fetchall()
    assert (ranks, events) == (count, count)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("job", "error"),
    [
        pytest.param(new_job(job_id=JobId("no uuid")), InvalidArgument, id="id"),
        pytest.param(new_job(payload="{no json"), (InvalidArgument, InvalidPayload), id="payload"),
        pytest.param(new_job(payload='"\0"'), (InvalidArgument, InvalidPayload), id="NUL"),
        pytest.param(new_job(payload='1,"x":2},{"i":3'), (InvalidArgument, InvalidPayload), id="more than one value"),
        pytest.param(new_job(priority=2**31), InvalidArgument, id="priority"),
        pytest.param(new_job(kind="k" * 201), InvalidArgument, id="kind"),
    ],
)
def test_a_value_that_cannot_be_held_is_refused_with_the_whole_batch(
    store: PostgresStore, admin: psycopg.Connection, job: NewJob, error: type[TenureError], count: int
) -> None:
    with pytest.raises(error):
        store.do(Enqueue([*(new_job(kind=job.kind) for _ in range(count - 1)), job]))

    assert rows(admin) == []


@pytest.mark.parametrize("count", [1, 3])
def test_a_batch_notifies_its_queue_once_and_a_repeated_batch_does_not(
    store: PostgresStore, admin: psycopg.Connection, count: int
) -> None:
    admin.execute("LISTEN tenure")
    jobs = [new_job() for _ in range(count)]

    store.do(Enqueue(jobs))
    store.do(Enqueue(jobs))
    store.do(Enqueue([new_job(delay_seconds=60)]))
    admin.execute("SELECT 1")

    assert [note.payload for note in admin.notifies(timeout=0)] == ["default"]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ("state = 'resting'", "job_state_known"),
        ("kind = ''", "job_kind_not_blank"),
        ("kind = repeat('k', 201)", "job_kind_not_blank"),
        ("attempt = -1", "job_attempts_sound"),
        ("crashes = -1", "job_attempts_sound"),
        ("max_attempts = 0", "job_attempts_sound"),
        ("finished_at = created_at", "job_finished_iff_terminal"),
        ("state = 'dead'", "job_finished_iff_terminal"),
        ("state = 'running'", "job_leased_iff_held"),
        ("lease_owner = 'w'", "job_leased_iff_held"),
        ("lease_until = created_at", "job_leased_iff_held"),
        ("lease_until = created_at, lease_owner = 'w'", "job_leased_iff_held"),
        ("payload = NULL", "job_payload_gone_only_when_cleaned"),
        ("payload = '{\"a\": [{\"secret\": 1}]}', forbidden_keys = '{secret}'", "job_payload_guarded"),
    ],
)
def test_the_database_itself_names_the_rule_that_a_row_would_break(
    store: PostgresStore, admin: psycopg.Connection, change: str, rule: str
) -> None:
    store.do(Enqueue([new_job()]))

    with pytest.raises(psycopg.errors.CheckViolation) as caught:
        admin.execute(f"UPDATE tenure.job SET {change}".encode())

    assert caught.value.diag.constraint_name == rule


TERMINAL = {"succeeded", "failed", "dead", "cancelled"}
HELD = {"leased", "running"}


@pytest.mark.parametrize("state", sorted({*TERMINAL, *HELD, "queued", "waiting"}))
def test_a_state_goes_with_one_set_of_moments_and_no_other(
    store: PostgresStore, admin: psycopg.Connection, state: str
) -> None:
    store.do(Enqueue([new_job()]))

    def broken_rule(finished: bool, until: bool, owner: bool) -> str | None:
        try:
            with admin.transaction(force_rollback=True):
                admin.execute(
                    "UPDATE tenure.job SET state = %s, finished_at = CASE WHEN %s THEN now() END,"
                    " lease_until = CASE WHEN %s THEN now() END, lease_owner = CASE WHEN %s THEN 'w' END",
                    (state, finished, until, owner),
                )
        except psycopg.errors.CheckViolation as exc:
            return exc.diag.constraint_name
        return None

    for finished, until, owner in product((True, False), repeat=3):
        rule = broken_rule(finished, until, owner)
        if finished != (state in TERMINAL):
            assert rule == "job_finished_iff_terminal"
        elif (until, owner) != (state in HELD, state in HELD):
            assert rule == "job_leased_iff_held"
        else:
            assert rule is None


def test_a_job_granted_again_after_a_lost_reply_carries_all_that_the_first_grant_did(store: PostgresStore) -> None:
    """Follow-ups and reports take tenant, workflow and run from the grant (B2)."""
    job = new_job(
        payload={"unit": 7},
        key="k",
        tenant="t",
        workflow_id="0192f0c1-2b3c-7def-8123-456789abcdec",
        run_id="0192f0c1-2b3c-7def-8123-456789abcded",
        trace="00-trace-01",
    )
    store.do(Enqueue([job]))
    [first] = store.do(Claim(WorkerId("w"), ["default"]))

    [again] = store.do(Claim(WorkerId("w"), ["default"], held=[]))

    assert asdict(again) | {"lease_until_us": None} == asdict(first) | {"lease_until_us": None}
    assert (again.extra("tenant"), again.extra("workflow_id")) == ("t", job.workflow_id)
    assert again.lease_until >= first.lease_until
