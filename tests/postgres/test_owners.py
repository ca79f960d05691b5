"""A job belongs to the login that enqueued it (V4): two producers and two workers, canaries in every field.

What one login has written is looked for in every answer, error and notification that another login of the same role can
get: by every function it may call, with every id and key filled in, and by every column that it may read.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

import psycopg
import pytest

from tenure import App, Grant
from tenure.errors import Forbidden, InvalidArgument, KeyConflict, NotFound
from tenure.model.event import NewEvent
from tenure.model.ids import JobId, WorkerId, new_job_id
from tenure.model.job import NewJob
from tenure.model.outcome import Completed, EffectRecord, Failed, FailureClass, Rejected, Released
from tenure.model.step import NewStep
from tenure.model.stream import NewChunk
from tenure.store.admin import AppendEvents, RecordEffect
from tenure.store.contract import Claim, Enqueue, Heartbeat, Hold, Settle
from tenure.store.flow import ListSteps, RecordSteps, Signal
from tenure.store.memory import NewAgentEvent, WriteAgentEvents
from tenure.store.postgres.store import PostgresStore
from tenure.store.queries import GetJobs, ListAttempts, ListEffects, ListJobs
from tenure.store.streams import AppendStreams
from tests.conformance.acts import new_job
from tests.postgres.test_roles import MATRIX

pytestmark = pytest.mark.postgres

CANARY: Final = "canary"
_numbers = itertools.count(1)


def canary() -> str:
    """A text that occurs nowhere else."""
    return f"{CANARY}-{next(_numbers)}"


def canary_job(key: str | None = None) -> NewJob:
    """A job with a canary in every field that takes text."""
    return new_job(
        "report",
        {canary(): [canary()]},
        key=key or canary(),
        affinity_key=canary(),
        concurrency_key=canary(),
        source_ref=canary(),
        target_ref=canary(),
        payload_ref=canary(),
        actor=canary(),
        tenant=canary(),
        trace=canary(),
        artifacts_path=canary(),
    )


@pytest.fixture
def connect(login: Callable[..., str]) -> Iterator[Callable[..., psycopg.Connection]]:
    """Opens a connection of one more login with a role."""
    opened: list[psycopg.Connection] = []

    def make(role: str, nth: str = "") -> psycopg.Connection:
        opened.append(psycopg.connect(login(role, nth), autocommit=True))
        return opened[-1]

    yield make
    for connection in opened:
        connection.close()


@pytest.fixture
def store(login: Callable[..., str]) -> Iterator[Callable[..., PostgresStore]]:
    """Opens a store of one more login with a role."""
    opened: list[PostgresStore] = []

    def make(role: str, nth: str = "") -> PostgresStore:
        opened.append(PostgresStore(login(role, nth)))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def lives(producer: PostgresStore, worker: PostgresStore) -> list[JobId]:
    """Jobs of one producer and one worker in every stage of their lives, with canaries in whatever either may write."""
    name = WorkerId("holder-1")
    for _ in range(5):
        producer.do(Enqueue([canary_job()]))
    grants = worker.do(Claim(name, ["default"], limit=5, lease_seconds=300))
    for grant in grants:
        worker.do(Heartbeat([Hold(grant.id, grant.token, progress=json.dumps(canary()))], lease_seconds=300))
        worker.do(AppendEvents(grant.id, grant.token, [NewEvent(canary(), json.dumps({"x": canary()}))]))
        worker.do(RecordEffect(grant.id, grant.token, EffectRecord("pay", "confirmed", result=json.dumps(canary()))))
        worker.do(RecordSteps(grant.id, grant.token, [NewStep("charge", value=json.dumps(canary()))]))
    done, failed, dead, held, limited = grants
    worker.do(Settle([refused_by_provider(limited, canary())]))
    worker.do(Settle([Completed(done.id, done.token, result=json.dumps(canary()), result_summary=canary())]))
    worker.do(Settle([Failed(failed.id, failed.token, canary())]))
    worker.do(Settle([Rejected(dead.id, dead.token, canary())]))
    [queued] = producer.do(Enqueue([canary_job()]))
    return [done.id, failed.id, dead.id, held.id, limited.id, queued.id]


def refused_by_provider(grant: Grant, error: str) -> Released:
    """A job that a service has refused: it blocks the limiter of that service, with its error as the reason."""
    return Released(grant.id, grant.token, 30.0, FailureClass.RATE_LIMITED, error, limiter="provider")


def ask(connection: psycopg.Connection, statement: str, *values: Any) -> str:
    """Everything that the server says to a statement: rows, or the error with its detail and hint."""
    try:
        return str(connection.execute(statement.encode(), values).fetchall())
    except psycopg.Error as exc:
        said = exc.diag
        return " ".join(str(part) for part in (said.message_primary, said.message_detail, said.message_hint, exc))


def requests(ids: list[JobId], keys: list[str]) -> Iterator[dict[str, Any]]:
    """Requests that fill in whatever a function may look by."""
    common = {"limit": 100, "name": "default", "queues": ["default"], "states": None}
    yield {**common, "job_ids": ids, "ids": ids}
    for job_id in ids:
        yield {
            **common,
            "job_id": job_id,
            "id": job_id,
            "to": job_id,
            "group_id": job_id,
            "key": "k",
            "job_ids": [job_id],
        }
    for key in keys:
        yield {**common, "key": key}


def told(
    connection: psycopg.Connection, role: str, ids: list[JobId], keys: list[str], but: Collection[str] = ()
) -> dict[str, str]:
    """What every function that the role may call, but for these, answers to every request."""
    answers: dict[str, str] = {}
    takes_json = {
        row[0]
        for row in connection.execute(
            "SELECT proname FROM pg_proc WHERE pronamespace = 'tenure'::regnamespace AND pronargs = 1 "
            "AND proargtypes[0] = 'json'::regtype"
        )
    }
    for name in sorted(
        name for name, callers in MATRIX.items() if role in callers and name in takes_json and name not in but
    ):
        for request in requests(ids, keys):
            answers[f"{name} {request}"] = ask(connection, f"SELECT tenure.{name}(%s::json)", json.dumps(request))
    return answers


def test_a_producer_is_told_nothing_of_what_another_enqueued(
    store: Callable[..., PostgresStore], connect: Callable[..., psycopg.Connection], admin: psycopg.Connection
) -> None:
    other = connect("producer", "_b")
    other.execute("LISTEN tenure")
    ids = lives(store("producer"), store("worker"))
    keys = [row[0] for row in admin.execute("SELECT idempotency_key FROM tenure.job")]

    answers = told(other, "producer", ids, keys)
    for job_id, key in zip(ids, keys, strict=True):
        for payload in ({}, {"x": 1}):
            for row in ({"i": new_job_id(), "k": key, "p": payload}, {"i": job_id, "p": payload}):
                group = {"groups": [{"queue": "default", "kind": "report", "jobs": [row]}]}
                answers[f"enqueue {row}"] = ask(other, "SELECT tenure.enqueue(%s::json)", json.dumps(group))
    answers["notifications"] = str([note.payload for note in other.notifies(timeout=0.5)])

    leaks = {
        asked: answer
        for asked, answer in answers.items()
        for secret in [CANARY, *(one for one in ids if one not in asked)]
        if secret in answer.replace(_quoted(asked), "")
    }
    assert leaks == {}
    assert len(answers) > 50


def _quoted(asked: str) -> str:
    """The key that the caller itself named: an error may repeat that."""
    found = [word.strip("',\"{}") for word in asked.split() if CANARY in word]
    return found[0] if found else "\0"


def test_a_producer_reads_its_own_jobs(store: Callable[..., PostgresStore]) -> None:
    own, other = store("producer"), store("producer", "_b")
    [mine] = own.do(Enqueue([canary_job()]))
    [theirs] = other.do(Enqueue([canary_job()]))

    found = own.do(GetJobs([mine.id, theirs.id]))

    assert [job and job.id for job in found] == [mine.id, None]


def test_the_holder_of_a_key_is_named_to_its_owner_alone(store: Callable[..., PostgresStore]) -> None:
    own, other = store("producer"), store("producer", "_b")
    [held] = own.do(Enqueue([new_job("report", {"a": 1}, key="the-key")]))

    with pytest.raises(KeyConflict, match=held.id):
        own.do(Enqueue([new_job("report", {"a": 2}, key="the-key")]))
    with pytest.raises(KeyConflict, match="held by a job of another login") as refused:
        other.do(Enqueue([new_job("report", {"a": 2}, key="the-key")]))

    assert held.id not in str(refused.value)


def test_an_id_of_anothers_job_cannot_be_taken_over_with_the_same_payload(store: Callable[..., PostgresStore]) -> None:
    """A repeated request counts as created; one of another login is no repetition, however alike."""
    own, other = store("producer"), store("producer", "_b")
    job = new_job("report", {"a": 1})
    own.do(Enqueue([job]))

    assert [answer.id for answer in own.do(Enqueue([job]))] == [job.id]
    with pytest.raises(InvalidArgument, match="belongs to another job"):
        other.do(Enqueue([job]))


def test_a_producer_cannot_signal_anothers_job(store: Callable[..., PostgresStore], admin: psycopg.Connection) -> None:
    own, other = store("producer"), store("producer", "_b")
    [job] = own.do(Enqueue([new_job()]))

    with pytest.raises(NotFound) as refused:
        other.do(Signal("paid", "1", to=job.id))
    with pytest.raises(NotFound) as unknown:
        other.do(Signal("paid", "1", to=new_job_id()))

    assert admin.execute("SELECT count(*) FROM tenure.signal").fetchone() == (0,)
    assert str(refused.value).replace(job.id, "")[:12] == str(unknown.value)[:12]
    assert own.do(Signal("paid", "1", to=job.id)).is_taken


def test_the_login_is_kept_by_every_way_a_job_is_made(
    store: Callable[..., PostgresStore], login: Callable[..., str], admin: psycopg.Connection
) -> None:
    producer, worker, operator = store("producer"), store("worker"), App(login("operator"))
    [job] = producer.do(Enqueue([new_job()]))
    [grant] = worker.do(Claim(WorkerId("w"), ["default"], lease_seconds=300))
    worker.do(Settle([Completed(grant.id, grant.token, jobs=(new_job("follow-up"),))]))
    [copy] = operator.clone(job.id, actor="me", reason="again")

    owners: dict[str, str] = dict(admin.execute("SELECT id::text, enqueued_by FROM tenure.job").fetchall())

    follow_up = next(one for one in owners if one not in {job.id, copy.id})
    operator.close()
    assert owners == {job.id: "login_producer", follow_up: "login_worker", copy.id: "login_producer"}


CONTENTS: Final = ("payload", "result", "progress", "last_error", "result_summary")


def test_a_worker_reads_the_contents_of_what_it_holds_or_enqueued(
    store: Callable[..., PostgresStore],
) -> None:
    producer, holder, other = store("producer"), store("worker"), store("worker", "_b")
    ids = lives(producer, holder)

    for job_id in ids[:4]:
        assert other.do(GetJobs([job_id])) == [None]
        assert holder.do(GetJobs([job_id]))[0] is not None
        assert other.do(ListSteps(job_id)) == []
        assert len(holder.do(ListSteps(job_id))) == 1
        assert other.do(ListAttempts(job_id)) == []
        assert other.do(ListEffects(job_id=job_id)).items == []
        assert len(holder.do(ListEffects(job_id=job_id)).items) == 1
    assert len(holder.do(ListAttempts(ids[1]))) == 1
    shown = {job.id: job for job in other.do(ListJobs(limit=100)).items}
    assert set(shown) == set(ids), "which jobs there are is no secret among workers"
    for job in shown.values():
        for name in CONTENTS:
            assert CANARY not in str(getattr(job, name)), name
    assert {job.is_hidden for job in shown.values()} == {True}
    assert {job.is_hidden for job in holder.do(ListJobs(limit=100)).items if job.id in ids[:4]} == {False}


SECRET: Final = "carried"
"""In whatever a job carries; canaries are in what all workers may know of it, too."""
GIVES_JOBS: Final = frozenset({"claim", "exchange", "settle"})
"""Functions that grant jobs: what is granted is read."""


def asking(producer: PostgresStore, worker: PostgresStore, admin: psycopg.Connection) -> list[JobId]:
    """A job that is held and one that waits for an approval; a budget of its tenant; a stream. All carry the secret."""
    jobs = [new_job("report", {"x": SECRET}, tenant=SECRET, key=str(number)) for number in range(3)]
    for job in jobs:
        producer.do(Enqueue([job]))
    held, waits, limited = worker.do(Claim(WorkerId("w-1"), ["default"], limit=3, lease_seconds=300))
    worker.do(Settle([refused_by_provider(limited, SECRET)]))
    for grant in (held, waits):
        worker.do(Heartbeat([Hold(grant.id, grant.token, progress=json.dumps(SECRET))], lease_seconds=300))
        worker.do(RecordSteps(grant.id, grant.token, [NewStep("charge", value=json.dumps(SECRET))]))
        worker.do(AppendEvents(grant.id, grant.token, [NewEvent("note", json.dumps({"x": SECRET}))]))
        worker.do(AppendStreams([NewChunk(grant.id, grant.token, "default", 1, json.dumps(SECRET))]))
    asked = {"id": new_job_id(), "name": "refund", "args": json.dumps({"x": SECRET}), "ask": [SECRET], "text": SECRET}
    step = {"key": "approve/refund", "kind": "approval", "state": "open", "value": asked}
    suspend = {"i": waits.id, "t": waits.token, "o": "suspend", "w": "approval:refund", "steps": [step]}
    ask(admin, "SELECT set_config('role', 'login_worker', false)")
    ask(admin, "SELECT tenure.settle(%s::json)", json.dumps({"rest": [suspend]}))
    ask(admin, "SELECT set_config('role', 'none', false)")
    budgets = [{"scope": f"tenant:{SECRET}", "unit": "usd", "limit": 5_000_000}]
    ask(admin, "SELECT tenure.set_budgets(%s::json)", json.dumps({"budgets": budgets, "actor": "ops"}))
    return [held.id, waits.id, limited.id]


def test_a_worker_is_told_by_no_function_what_anothers_job_carries(
    store: Callable[..., PostgresStore], connect: Callable[..., psycopg.Connection], admin: psycopg.Connection
) -> None:
    """V5: approvals and budgets were listed to every worker. `told` asks every function that a worker may call."""
    own, other = connect("worker"), connect("worker", "_b")
    ids = asking(store("producer"), store("worker"), admin)
    tenant = {"tenant": SECRET}

    answers = told(other, "worker", ids, [], but=GIVES_JOBS)
    mine = {name: ask(own, f"SELECT tenure.{name}('{{}}')") for name in ("list_approvals", "list_budgets")}

    shown = {name: answer.replace(json.dumps(tenant)[1:-1], "") for name, answer in answers.items()}
    leaks = {asked: answer for asked, answer in shown.items() if SECRET in answer and not asked.startswith("list_jobs")}
    assert leaks == {}
    assert [name for name, answer in mine.items() if SECRET not in answer] == [], "otherwise this could not fail"
    assert ask(other, "SELECT tenure.count_approvals('{}')") == "[(0,)]"
    assert ask(own, "SELECT tenure.count_approvals('{}')") == "[(1,)]"
    assert len(answers) > 100


def test_a_worker_that_takes_a_job_over_reads_it(
    store: Callable[..., PostgresStore], admin: psycopg.Connection
) -> None:
    producer, first, second = store("producer"), store("worker"), store("worker", "_b")
    producer.do(Enqueue([canary_job()]))
    [grant] = first.do(Claim(WorkerId("w-1"), ["default"], lease_seconds=300))
    first.do(RecordSteps(grant.id, grant.token, [NewStep("charge", value='"x"')]))
    admin.execute("UPDATE tenure.job SET lease_until = now() - interval '1 hour'")
    admin.execute(
        "CREATE OR REPLACE FUNCTION tenure.restart_grace() RETURNS interval LANGUAGE sql AS $$ SELECT interval '0' $$"
    )
    [again] = second.do(Claim(WorkerId("w-2"), ["default"], lease_seconds=300))

    assert [job and job.id for job in second.do(GetJobs([grant.id]))] == [grant.id]
    assert len(second.do(ListSteps(grant.id))) == 1
    assert first.do(GetJobs([grant.id])) == [None]
    assert again.id == grant.id


def test_a_worker_appends_events_to_the_job_that_it_holds_and_to_no_other(
    store: Callable[..., PostgresStore], admin: psycopg.Connection
) -> None:
    producer, worker = store("producer"), store("worker")
    [foreign] = producer.do(Enqueue([new_job(queue="default")]))
    producer.do(Enqueue([new_job()]))
    [grant, _] = worker.do(Claim(WorkerId("w"), ["default"], limit=2, lease_seconds=300))
    forged = NewEvent("forged", job_id=next(one for one in (foreign.id, new_job_id()) if one != grant.id))

    with pytest.raises(Forbidden, match="another job"):
        worker.do(AppendEvents(grant.id, grant.token, [forged]))
    worker.do(Settle([Completed(grant.id, grant.token, events=(forged,))]))

    written = admin.execute("SELECT job_id::text FROM tenure.event WHERE kind = 'forged'").fetchall()
    assert written == [(grant.id,)], "what comes with an outcome belongs to that job, whatever it says"


def test_a_worker_writes_agent_events_about_jobs_that_it_may_read_and_so_reads_no_others(
    store: Callable[..., PostgresStore], connect: Callable[..., psycopg.Connection], admin: psycopg.Connection
) -> None:
    """V5: `read_events` gives an event with what its job carries, and an event could name any job."""
    producer, holder, other = store("producer"), store("worker"), store("worker", "_b")
    [job] = producer.do(Enqueue([canary_job()]))
    holder.do(Claim(WorkerId("w"), ["default"], lease_seconds=300))

    with pytest.raises(Forbidden, match=job.id):
        other.do(WriteAgentEvents([NewAgentEvent("spy", "note", job_id=job.id)]))
    with pytest.raises(Forbidden):
        other.do(WriteAgentEvents([NewAgentEvent("spy", "note"), NewAgentEvent("spy", "note", job_id=new_job_id())]))
    [own] = holder.do(WriteAgentEvents([NewAgentEvent("report", "note", job_id=job.id)]))
    [about_none] = other.do(WriteAgentEvents([NewAgentEvent("spy", "note")]))

    ids = [row[0] for row in admin.execute("SELECT id FROM tenure.agent_event ORDER BY id")]
    assert ids == [own, about_none]
    assert CANARY in ask(connect("worker"), "SELECT tenure.read_events(%s::json)", json.dumps({"ids": [own]}))
    assert CANARY not in ask(
        connect("worker", "_b"), "SELECT tenure.read_events(%s::json)", json.dumps({"ids": [about_none]})
    )


def test_a_workflow_takes_no_job_that_does_not_come_with_it(
    store: Callable[..., PostgresStore], connect: Callable[..., psycopg.Connection], admin: psycopg.Connection
) -> None:
    [foreign] = store("producer").do(Enqueue([canary_job()]))
    before = admin.execute("SELECT j::text FROM tenure.job AS j").fetchall()
    run = new_job_id()
    workflow = {"id": run, "name": "flow", "profile": "default", "total": 1, "policy": {}, "data": {}}
    request = {
        "workflow": workflow,
        "jobs": {"groups": []},
        "tasks": [[foreign.id, "mine", 0, 0, False, None]],
        "last": True,
    }

    other = connect("producer", "_b")
    taken = ask(other, "SELECT tenure.start_workflow(%s::json)", json.dumps(request))
    edges = {"workflow": workflow, "edges": [[foreign.id, foreign.id, "ok"]], "last": True}
    tied = ask(other, "SELECT tenure.start_workflow(%s::json)", json.dumps(edges))

    assert "does not come with it" in taken
    assert "no task of this workflow" in tied
    assert admin.execute("SELECT j::text FROM tenure.job AS j").fetchall() == before
    assert admin.execute("SELECT count(*) FROM tenure.workflow").fetchone() == (0,)


def test_a_workflow_belongs_to_the_login_that_started_it(
    connect: Callable[..., psycopg.Connection], admin: psycopg.Connection
) -> None:
    own, other = connect("producer"), connect("producer", "_b")
    run, job = new_job_id(), new_job_id()
    workflow = {"id": run, "name": "flow", "profile": "default", "total": 1, "policy": {}, "data": {"x": canary()}}
    row = {"i": job, "p": {}, "x": {"workflow_id": run}}
    page: dict[str, Any] = {
        "workflow": {**workflow, "key": "one", "digest": canary()},
        "jobs": {"groups": [{"queue": "default", "kind": "k", "jobs": [row]}]},
        "tasks": [[job, "first", 0, 0, False, None]],
        "last": True,
    }
    join = {"jobs": {"groups": [{"queue": "default", "kind": "k", "jobs": [{**row, "i": new_job_id()}]}]}}

    started = ask(own, "SELECT tenure.start_workflow(%s::json)", json.dumps(page))
    again = ask(other, "SELECT tenure.start_workflow(%s::json)", json.dumps(page))
    page["workflow"]["id"] = new_job_id()
    by_key = ask(other, "SELECT tenure.start_workflow(%s::json)", json.dumps(page))
    joined = ask(other, "SELECT tenure.join_workflow(%s::json)", json.dumps(join))
    listed = ask(other, "SELECT tenure.list_workflows('{}')")

    assert run in started
    assert "belongs to another" in again or "of another login" in again
    assert "of another login" in by_key
    assert run not in by_key
    assert "belongs to another login" in joined
    assert listed == "[([],)]"
    assert run in ask(own, "SELECT tenure.list_workflows('{}')")
    assert admin.execute("SELECT count(*) FROM tenure.job").fetchone() == (1,)
