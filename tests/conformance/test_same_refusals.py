"""Requests that no client of ours sends, but any program may: both engines refuse the same ones, with the same class
and code. No error of Python's own or of a driver comes out."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure.errors import TenureError
from tenure.model.clock import ManualClock
from tenure.model.event import NewEvent
from tenure.model.ids import JobId, Token, WorkerId, new_job_id
from tenure.model.job import NewJob
from tenure.model.outcome import (
    Completed,
    EffectRecord,
    Failed,
    FailureClass,
    Rejected,
    Released,
    Stopped,
    Suspended,
    Triage,
)
from tenure.model.policy import Backoff, QueuePolicy
from tenure.store.admin import (
    AcquireLease,
    AppendEvents,
    PauseQueues,
    RecordEffect,
    ReleaseLease,
    RemoveQueues,
    RemoveWorkers,
    ResolveEffect,
    SetGate,
    SetQueues,
    TriageDeadLetters,
)
from tenure.store.contract import (
    Cancel,
    Claim,
    Clone,
    EditJob,
    Enqueue,
    Exchange,
    Heartbeat,
    Hold,
    Prune,
    Reap,
    Request,
    Revive,
    Settle,
    Start,
    Store,
    Wake,
    WorkerRow,
)
from tenure.store.queries import (
    CountJobs,
    FollowEvents,
    GetJobs,
    GroupDeadLetters,
    ListAttempts,
    ListAudit,
    ListDeadLetters,
    ListEffects,
    ListEvents,
    ListJobs,
)
from tenure.store.schedules import PauseSchedules, RemoveSchedules, SetSchedules, TickSchedule
from tests.conformance.engines import START, SteeredDatabase, open_postgres, open_sqlite, scratch_folder

pytestmark = pytest.mark.postgres

NO_ID = JobId("not-a-uuid")
UNKNOWN = JobId("00000000-0000-7000-8000-00000000ffff")
W = WorkerId("w1")


@dataclass
class World:
    """The same on both engines: two jobs that wait, one that a worker holds, one that has ended badly."""

    queued: JobId
    held: JobId
    token: Token
    dead: JobId
    letter: str


Make = Callable[[World], Request[Any]]


def job_id(number: int) -> JobId:
    return JobId(f"00000000-0000-7000-8000-{number:012x}")


def job(number: int = 100, **fields: Any) -> NewJob:
    return NewJob(**{"id": job_id(number), "kind": "work", **fields})


def set_up(store: Store) -> None:
    store.do(Enqueue([job(1), job(2, max_attempts=1)]))
    _, dying = store.do(Claim(W, ["default"], 2))
    store.do(Settle([Failed(dying.id, dying.token, "boom")]))
    store.do(Enqueue([job(3), job(4)]))


def the_world(store: Store) -> World:
    [letter] = store.do(ListDeadLetters()).items
    return World(job_id(3), job_id(1), Token(1), job_id(2), letter.id)


@dataclass
class Case:
    """A request with one field in many ways."""

    make: Callable[[World, Any], Request[Any]]
    given: Mapping[str, Any]


NUMBERS = {str(number): number for number in (math.nan, math.inf, -math.inf, -1.0, 0.0, 1e18, 1e300)}
PLAIN_TEXTS = {"empty": "", "blank": "  ", "long": "x" * 100_000, "newline": "\n"}
TEXTS = PLAIN_TEXTS | {"nul": "a\0b", "surrogate": "a\ud800b"}
PLAIN_IDS = {"unknown": UNKNOWN, "upper case": JobId(job_id(3).upper())}
IDS = PLAIN_IDS | {
    "no uuid": NO_ID,
    "empty": JobId(""),
    "nul": JobId("a\0b"),
    "surrogate": JobId("\ud800"),
    "braces": JobId("{" + job_id(3) + "}"),
}


def numbers(make: Callable[[World, float], Request[Any]], *, is_upkeep: bool = False) -> Case:
    """`is_upkeep`: a time before the first database is refused by PostgreSQL, and finds nothing on SQLite."""
    return Case(make, {label: each for label, each in NUMBERS.items() if not is_upkeep or each not in (1e18, 1e300)})


def texts(make: Callable[[World, str], Request[Any]], *, is_hot: bool = False) -> Case:
    """`is_hot`: on the path of a job not every text is looked at for NUL. PostgreSQL refuses it, SQLite holds it."""
    return Case(make, PLAIN_TEXTS if is_hot else TEXTS)


def ids(make: Callable[[World, JobId], Request[Any]], *, is_hot: bool = False) -> Case:
    """`is_hot`: on the path of a job an id that is none is refused by PostgreSQL, and names nothing on SQLite."""
    return Case(make, PLAIN_IDS if is_hot else IDS)


def one(make: Callable[[World], Request[Any]]) -> Case:
    return Case(lambda world, _: make(world), {"": None})


BACKOFFS = {
    text: text
    for text in (
        "[]",
        "1",
        "null",
        '"none"',
        "{}",
        '{"shape": "steep"}',
        '{"base_seconds": "x"}',
        '{"base_seconds": -1}',
        '{"jitter": -1}',
        '{"cap_seconds": -5}',
        '{"factor": 1e999}',
        '{"other": 1}',
        '{"shape": "none"}',
        '{"base_seconds": null}',
        '{"power": true}',
        '{"base_seconds": 5, "shape": "linear"}',
    )
}

CASES: dict[str, Case] = {
    # enqueue
    "enqueue delay": numbers(lambda _, n: Enqueue([job(delay_seconds=n)])),
    "enqueue kind": texts(lambda _, t: Enqueue([job(kind=t)])),
    "enqueue key": texts(lambda _, t: Enqueue([job(key=t)])),
    "enqueue queue": texts(lambda _, t: Enqueue([job(queue=t)]), is_hot=True),
    "enqueue actor": texts(lambda _, t: Enqueue([job(actor=t)])),
    "enqueue payload": texts(lambda _, t: Enqueue([job(payload=t)])),
    "enqueue backoff": texts(lambda _, t: Enqueue([job(backoff=t)])),
    "enqueue tenant": texts(lambda _, t: Enqueue([job(tenant=t)])),
    "enqueue affinity": texts(lambda _, t: Enqueue([job(affinity_key=t)])),
    "enqueue concurrency key": texts(lambda _, t: Enqueue([job(concurrency_key=t)])),
    "enqueue id": ids(lambda _, i: Enqueue([NewJob(i, "work")])),
    "enqueue parent": ids(lambda _, i: Enqueue([job(parent_id=i)])),
    "enqueue another backoff": Case(lambda _, t: Enqueue([job(backoff=t)]), BACKOFFS),
    "enqueue priority large": one(lambda _: Enqueue([job(priority=2**31)])),
    "enqueue priority huge": one(lambda _: Enqueue([job(priority=2**70)])),
    "enqueue max_attempts 0": one(lambda _: Enqueue([job(max_attempts=0)])),
    "enqueue max_attempts large": one(lambda _: Enqueue([job(max_attempts=2**31)])),
    "enqueue max_attempts huge": one(lambda _: Enqueue([job(max_attempts=2**70)])),
    "enqueue run_at naive": one(lambda _: Enqueue([job(run_at=datetime(2026, 1, 1))])),  # noqa: DTZ001 - that is it
    "enqueue run_at first": one(lambda _: Enqueue([job(run_at=datetime.min.replace(tzinfo=UTC))])),
    "enqueue run_at last": one(lambda _: Enqueue([job(run_at=datetime.max.replace(tzinfo=UTC))])),
    "enqueue nothing": one(lambda _: Enqueue([])),
    "enqueue a declared queue without jobs": one(lambda _: Enqueue([], {"new": QueuePolicy()})),
    "enqueue the same id with another payload": one(lambda _: Enqueue([job(3, payload="[1]")])),
    "enqueue the same id in another queue": one(lambda _: Enqueue([job(3, queue="other")], {"other": QueuePolicy()})),
    "enqueue an id twice": one(lambda _: Enqueue([job(), job()])),
    # claim
    "claim lease": numbers(lambda _, n: Claim(W, ["default"], lease_seconds=n)),
    "claim worker": texts(lambda _, t: Claim(WorkerId(t), ["default"]), is_hot=True),
    "claim queue": texts(lambda _, t: Claim(W, [t]), is_hot=True),
    "claim kind": texts(lambda _, t: Claim(W, ["default"], kinds=[t]), is_hot=True),
    "claim affinity": texts(lambda _, t: Claim(W, ["default"], affinity=[t]), is_hot=True),
    "claim held": ids(lambda _, i: Claim(W, ["default"], held=[i]), is_hot=True),
    "claim without queues": one(lambda _: Claim(W, [])),
    "claim a queue twice": one(lambda _: Claim(W, ["default", "default"], 5)),
    "claim limit 0": one(lambda _: Claim(W, ["default"], 0)),
    "claim limit -1": one(lambda _: Claim(W, ["default"], -1)),
    "claim limit large": one(lambda _: Claim(W, ["default"], 2**31)),
    "claim limit huge": one(lambda _: Claim(W, ["default"], 2**70)),
    "claim no kinds": one(lambda _: Claim(W, ["default"], 5, kinds=[])),
    "claim no affinity": one(lambda _: Claim(W, ["default"], 5, affinity=[])),
    # settle
    "fail retry_after": numbers(lambda w, n: Settle([Failed(w.held, w.token, "e", retry_after_seconds=n)])),
    "release delay": numbers(lambda w, n: Settle([Released(w.held, w.token, n)])),
    "suspend delay": numbers(lambda w, n: Settle([Suspended(w.held, w.token, "x", n)])),
    "fail error": texts(lambda w, t: Settle([Failed(w.held, w.token, t)]), is_hot=True),
    "reject error": texts(lambda w, t: Settle([Rejected(w.held, w.token, t)]), is_hot=True),
    "stop error": texts(lambda w, t: Settle([Stopped(w.held, w.token, t)]), is_hot=True),
    "suspend waiting_for": texts(lambda w, t: Settle([Suspended(w.held, w.token, t)]), is_hot=True),
    "complete result": texts(lambda w, t: Settle([Completed(w.held, w.token, t)])),
    "complete summary": texts(lambda w, t: Settle([Completed(w.held, w.token, None, t)]), is_hot=True),
    "complete artifacts": texts(lambda w, t: Settle([Completed(w.held, w.token, None, None, t)]), is_hot=True),
    "complete event kind": texts(lambda w, t: Settle([Completed(w.held, w.token, events=(NewEvent(t),))]), is_hot=True),
    "complete event data": texts(lambda w, t: Settle([Completed(w.held, w.token, events=(NewEvent("k", t),))])),
    "complete effect name": texts(
        lambda w, t: Settle([Completed(w.held, w.token, effects=(EffectRecord(t, "confirmed"),))]), is_hot=True
    ),
    "complete effect state": texts(
        lambda w, t: Settle([Completed(w.held, w.token, effects=(EffectRecord("n", t),))]), is_hot=True
    ),
    "complete id": ids(lambda _, i: Settle([Completed(i, Token(1))]), is_hot=True),
    "fail id": ids(lambda _, i: Settle([Failed(i, Token(1), "e")]), is_hot=True),
    "complete token 0": one(lambda w: Settle([Completed(w.held, Token(0))])),
    "complete token huge": one(lambda w: Settle([Completed(w.held, Token(2**70))])),
    "complete a queued job under token 0": one(lambda w: Settle([Completed(w.queued, Token(0))])),
    "settle nothing": one(lambda _: Settle([])),
    "exchange nothing": one(lambda _: Exchange([], None)),
    "fail with a class of another end": one(lambda w: Settle([Failed(w.held, w.token, "e", FailureClass.CANCELLED)])),
    "settle twice": one(lambda w: Settle([Completed(w.held, w.token), Failed(w.held, w.token, "e")])),
    # heartbeat and start
    "heartbeat lease": numbers(lambda w, n: Heartbeat([Hold(w.held, w.token)], n)),
    "heartbeat progress": texts(lambda w, t: Heartbeat([Hold(w.held, w.token, t)])),
    "heartbeat worker": texts(lambda w, t: Heartbeat([], worker=WorkerRow(WorkerId(t), "h", 1)), is_hot=True),
    "heartbeat status": texts(lambda w, t: Heartbeat([], worker=WorkerRow(W, "h", 1, status=t)), is_hot=True),
    "heartbeat info": texts(lambda w, t: Heartbeat([], worker=WorkerRow(W, "h", 1, info=t))),
    "heartbeat host": texts(lambda w, t: Heartbeat([], worker=WorkerRow(W, t, 1)), is_hot=True),
    "heartbeat id": ids(lambda _, i: Heartbeat([Hold(i, Token(1))]), is_hot=True),
    "heartbeat current job": ids(
        lambda _, i: Heartbeat([], worker=WorkerRow(W, "h", 1, current_job_id=i)), is_hot=True
    ),
    "start id": ids(lambda _, i: Start([Hold(i, Token(1))]), is_hot=True),
    "heartbeat pid huge": one(lambda _: Heartbeat([], worker=WorkerRow(W, "h", 2**40))),
    "heartbeat nothing": one(lambda _: Heartbeat([])),
    "heartbeat twice": one(lambda w: Heartbeat([Hold(w.held, w.token), Hold(w.held, w.token)])),
    "start nothing": one(lambda _: Start([])),
    # acts of people
    "cancel actor": texts(lambda w, t: Cancel([w.queued], t, "why")),
    "cancel reason": texts(lambda w, t: Cancel([w.queued], "ann", t)),
    "cancel id": ids(lambda _, i: Cancel([i], "ann", "why")),
    "cancel twice": one(lambda w: Cancel([w.queued, w.queued], "ann", "why")),
    "cancel nothing": one(lambda _: Cancel([], "ann", "why")),
    "cancel version": texts(lambda w, t: Cancel([w.queued], "ann", "why", versions={w.queued: t})),
    "wake id": ids(lambda _, i: Wake([i])),
    "wake for": texts(lambda _, t: Wake(waiting_for=t)),
    "wake nothing": one(lambda _: Wake()),
    "revive actor": texts(lambda w, t: Revive([w.dead], t, "why")),
    "revive id": ids(lambda _, i: Revive([i], "ann", "why")),
    "revive from step": texts(lambda w, t: Revive([w.dead], "ann", "why", from_step=t)),
    "clone actor": texts(lambda w, t: Clone({w.dead: job_id(200)}, t, "why")),
    "clone id": ids(lambda _, i: Clone({i: job_id(200)}, "ann", "why")),
    "clone new id": ids(lambda w, i: Clone({w.dead: i}, "ann", "why")),
    "edit actor": texts(lambda w, t: EditJob(w.queued, t, "why", priority=3)),
    "edit payload": texts(lambda w, t: EditJob(w.queued, "ann", "why", payload=t)),
    "edit id": ids(lambda _, i: EditJob(i, "ann", "why", priority=3)),
    "edit nothing": one(lambda w: EditJob(w.queued, "ann", "why")),
    "edit priority huge": one(lambda w: EditJob(w.queued, "ann", "why", priority=2**70)),
    "triage actor": texts(lambda w, t: TriageDeadLetters([w.letter], Triage.CLOSED, t)),
    "triage id": texts(lambda _, t: TriageDeadLetters([t], Triage.CLOSED, "ann")),
    "triage note": texts(lambda w, t: TriageDeadLetters([w.letter], Triage.CLOSED, "ann", t)),
    "set queue": texts(lambda _, t: SetQueues({t: QueuePolicy()}, "ann")),
    "set queue actor": texts(lambda _, t: SetQueues({"q": QueuePolicy()}, t)),
    "set queue lease": numbers(lambda _, n: SetQueues({"q": QueuePolicy(lease_seconds=n)}, "ann")),
    "set queue lease max": numbers(lambda _, n: SetQueues({"q": QueuePolicy(lease_max_seconds=n)}, "ann")),
    "set queue retain": numbers(lambda _, n: SetQueues({"q": QueuePolicy(retain_seconds=n)}, "ann")),
    "set queue aging": numbers(lambda _, n: SetQueues({"q": QueuePolicy(aging_seconds=n)}, "ann")),
    "set queue window": numbers(lambda _, n: SetQueues({"q": QueuePolicy(key_window_seconds=n)}, "ann")),
    "set queue base": numbers(lambda _, n: SetQueues({"q": QueuePolicy(backoff=Backoff(base_seconds=n))}, "ann")),
    "set queue factor": numbers(lambda _, n: SetQueues({"q": QueuePolicy(backoff=Backoff(factor=n))}, "ann")),
    "set queue jitter": numbers(lambda _, n: SetQueues({"q": QueuePolicy(backoff=Backoff(jitter=n))}, "ann")),
    "set queue concurrency huge": one(lambda _: SetQueues({"q": QueuePolicy(concurrency=2**40)}, "ann")),
    "set queue priority huge": one(lambda _: SetQueues({"q": QueuePolicy(priority_default=2**40)}, "ann")),
    "set queue attempts huge": one(lambda _: SetQueues({"q": QueuePolicy(max_attempts=2**40)}, "ann")),
    "set queue shape": one(lambda _: SetQueues({"q": QueuePolicy(backoff=Backoff(shape="steep"))}, "ann")),  # type: ignore[arg-type]
    "set no queue": one(lambda _: SetQueues({}, "ann")),
    "pause actor": texts(lambda _, t: PauseQueues(["default"], paused=True, actor=t)),
    "pause queue": texts(lambda _, t: PauseQueues([t], paused=True, actor="ann")),
    "remove queue": texts(lambda _, t: RemoveQueues([t], "ann")),
    "gate": texts(lambda _, t: SetGate(t, is_open=False, actor="ann")),
    "gate of a queue": texts(lambda _, t: SetGate(f"queue:{t}", is_open=False, actor="ann")),
    "gate of a profile": texts(lambda _, t: SetGate(f"{t}.master", is_open=False, actor="ann")),
    "gate actor": texts(lambda _, t: SetGate("master", is_open=False, actor=t)),
    "gate of a queue with 201": one(lambda _: SetGate("queue:" + "x" * 201, is_open=False, actor="ann")),
    "gate of a queue with spaces": one(lambda _: SetGate("queue: a b", is_open=False, actor="ann")),
    "gate of a profile with an umlaut": one(lambda _: SetGate("ä.master", is_open=False, actor="ann")),
    "named lease": numbers(lambda _, n: AcquireLease("leader", "a", n)),
    "named lease name": texts(lambda _, t: AcquireLease(t, "a", 5)),
    "named lease owner": texts(lambda _, t: AcquireLease("leader", t, 5)),
    "release named lease": texts(lambda _, t: ReleaseLease("leader", t, 1)),
    "release named lease huge term": one(lambda _: ReleaseLease("leader", "a", 2**70)),
    "remove worker": texts(lambda _, t: RemoveWorkers([WorkerId(t)])),
    "remove workers unseen": numbers(lambda _, n: RemoveWorkers(unseen_seconds=n)),
    "append event": texts(lambda w, t: AppendEvents(w.held, w.token, [NewEvent(t)])),
    "append event data": texts(lambda w, t: AppendEvents(w.held, w.token, [NewEvent("k", t)])),
    "append events id": ids(lambda _, i: AppendEvents(i, Token(1), [NewEvent("k")])),
    "append event of another": ids(lambda w, i: AppendEvents(w.held, w.token, [NewEvent("k", "{}", i)])),
    "effect name": texts(lambda w, t: RecordEffect(w.held, w.token, EffectRecord(t, "sent"))),
    "effect state": texts(lambda w, t: RecordEffect(w.held, w.token, EffectRecord("n", t))),
    "effect args": texts(lambda w, t: RecordEffect(w.held, w.token, EffectRecord("n", "sent", args=t))),
    "effect id": ids(lambda _, i: RecordEffect(i, Token(1), EffectRecord("n", "sent"))),
    "resolve effect id": ids(lambda _, i: ResolveEffect(i, "n", "confirmed", "ann")),
    "schedule name": texts(lambda _, t: SetSchedules({t: "{}"}, "ann")),
    "schedule spec": texts(lambda _, t: SetSchedules({"s": t}, "ann")),
    "schedule actor": texts(lambda _, t: SetSchedules({"s": "{}"}, t)),
    "pause schedule": texts(lambda _, t: PauseSchedules([t], paused=True, actor="ann")),
    "remove schedule": texts(lambda _, t: RemoveSchedules([t], actor="ann")),
    "tick of nothing": one(lambda _: TickSchedule("s", START, START + timedelta(minutes=1), [job()])),
    # upkeep
    "prune older": numbers(lambda _, n: Prune(older_than_seconds=n), is_upkeep=True),
    "prune delete": numbers(lambda _, n: Prune(delete_after_seconds=n), is_upkeep=True),
    "prune workers": numbers(lambda _, n: Prune(worker_seconds=n), is_upkeep=True),
    "prune metrics": numbers(lambda _, n: Prune(metric_seconds=n), is_upkeep=True),
    "prune limit 0": one(lambda _: Prune(0)),
    "prune limit -1": one(lambda _: Prune(-1)),
    "prune limit huge": one(lambda _: Prune(2**70)),
    "reap limit 0": one(lambda _: Reap(0)),
    "reap limit huge": one(lambda _: Reap(2**70)),
    # reads
    "get id": ids(lambda _, i: GetJobs([i])),
    "attempts id": ids(lambda _, i: ListAttempts(i)),
    "list after": ids(lambda _, i: ListJobs(after=i)),
    "list parent": ids(lambda _, i: ListJobs(parent_id=i)),
    "list workflow": texts(lambda _, t: ListJobs(workflow_id=t)),
    "list state": texts(lambda _, t: ListJobs(states=(t,))),
    "list queue": texts(lambda _, t: ListJobs(queues=(t,))),
    "list limit 0": one(lambda _: ListJobs(limit=0)),
    "list limit -1": one(lambda _: ListJobs(limit=-1)),
    "list limit huge": one(lambda _: ListJobs(limit=2**70)),
    "count queue": texts(lambda _, t: CountJobs(queues=(t,))),
    "count state": texts(lambda _, t: CountJobs(states=(t,))),
    "letters after": texts(lambda _, t: ListDeadLetters(after=t)),
    "letters of": texts(lambda _, t: ListDeadLetters(ids=(t,))),
    "letters of job": ids(lambda _, i: ListDeadLetters(job_id=i)),
    "letters fingerprint": texts(lambda _, t: ListDeadLetters(fingerprint=t)),
    "letter groups limit -1": one(lambda _: GroupDeadLetters(limit=-1)),
    "events of": ids(lambda _, i: ListEvents(job_id=i)),
    "events of kind": texts(lambda _, t: ListEvents(kinds=(t,))),
    "events after huge": one(lambda _: ListEvents(after=2**70)),
    "follow place": texts(lambda _, t: FollowEvents(place=t)),
    "follow limit 0": one(lambda _: FollowEvents(limit=0)),
    "effects after": texts(lambda _, t: ListEffects(after=t)),
    "effects of": ids(lambda _, i: ListEffects(job_id=i)),
    "audit of": texts(lambda _, t: ListAudit(subject=t)),
    "audit before huge": one(lambda _: ListAudit(before=2**70)),
}


GROUPS = sorted({name.split()[0] for name in CASES})


@contextlib.contextmanager
def opened(database: SteeredDatabase, folder: Path) -> Iterator[tuple[Store, Store]]:
    """Both engines, with the same jobs in them."""
    database.restore()
    path = folder / f"{new_job_id()}.db"
    stores = open_sqlite(path, ManualClock(START)), open_postgres(database.url)
    try:
        for store in stores:
            set_up(store)
        yield stores
    finally:
        for store in stores:
            store.close()


def told(store: Store, request: Request[Any]) -> tuple[str, str]:
    """What became of a request: `taken`, or the class and code of what refused it."""
    try:
        store.do(request)
    except TenureError as exc:
        return type(exc).__name__, exc.code
    except Exception as exc:  # noqa: BLE001 - a test finds it in the list of what is wrong
        return "raised", repr(exc)
    return "taken", ""


@pytest.mark.parametrize("group", GROUPS)
def test_what_one_engine_refuses_the_other_refuses(group: str, steered_database: SteeredDatabase) -> None:
    wrong: list[str] = []
    todo = [
        (f"{name} {label}".strip(), case.make, value)
        for name, case in CASES.items()
        if name.split()[0] == group
        for label, value in case.given.items()
    ]
    with scratch_folder() as folder:
        while todo:
            with opened(steered_database, folder) as stores:
                while todo:
                    name, make, value = todo.pop()
                    on_sqlite, on_postgres = (told(store, make(the_world(store), value)) for store in stores)
                    if on_sqlite != on_postgres or on_sqlite[0] in {"raised", "InternalError"}:
                        wrong.append(f"{name}: SQLite {on_sqlite}, PostgreSQL {on_postgres}")
                    if "taken" in {on_sqlite[0], on_postgres[0]}:
                        break  # it may have changed something

    assert wrong == []
