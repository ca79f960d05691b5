"""Agent events and memories: written with the end of a job, found by words (FTS5) and, by their vectors, in the
process that asks: SQLite has nothing of its own that compares vectors."""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Sequence
from sys import byteorder
from typing import Any, Final

from tenure.errors import InvalidArgument
from tenure.model.clock import from_us, to_us
from tenure.model.ids import JobId
from tenure.model.job import NewJob
from tenure.store.contract import Enqueue
from tenure.store.memory import (
    EMBEDDING_KIND,
    EMBEDDING_QUEUE,
    AgentEvent,
    CountMemories,
    EventSource,
    FindNear,
    FindWords,
    ForgetMemories,
    GetMemories,
    ListAgentEvents,
    ListMemories,
    ListUnremembered,
    ListVectors,
    Memory,
    MemoryCount,
    MemoryStats,
    NewMemory,
    ReadEvents,
    Scope,
    Vectors,
    WriteAgentEvents,
    WriteMemories,
)
from tenure.store.sqlite import admin, enqueue
from tenure.store.sqlite.codec import moment
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Row, Transaction, check_limit, dump

_SQL: Final = load("memory")
_WORD: Final = re.compile(r"[^\W_]+")


def keep_agent_events(transaction: Transaction, kind: str, job_ids: Sequence[str]) -> None:
    """Write agent events for jobs that just ended, where their queues keep them, and the jobs that embed them."""
    rows = transaction.all(_SQL["event_keep"], {"now": transaction.now, "kind": kind, "ids": dump(list(job_ids))})
    jobs = [
        _embedding_job(transaction.now, event_id, f"{job_id}:{token}:{kind}", tenant)
        for event_id, job_id, tenant, token in sorted(rows)
    ]
    if jobs:
        enqueue.enqueue(transaction, Enqueue(jobs), is_gated=False, tolerates=True)


def _embedding_job(now: int, event_id: int, seed: str, tenant: str | None) -> NewJob:
    """The id follows from the event and the time, by the rule of PostgreSQL's `embedding_id`."""
    ms, mixed = f"{now // 1000:012x}", hashlib.md5(seed.encode(), usedforsecurity=False).hexdigest()
    return NewJob(
        id=JobId(f"{ms[:8]}-{ms[8:]}-7{mixed[:3]}-8{mixed[3:6]}-{mixed[6:18]}"),
        kind=EMBEDDING_KIND,
        payload=json.dumps({"agent_event_id": event_id}),
        queue=EMBEDDING_QUEUE,
        key=str(event_id),
        tenant=tenant,
    )


def write_agent_events(transaction: Transaction, request: WriteAgentEvents) -> list[int]:
    """See store.memory.WriteAgentEvents."""
    admin.need_embedding_queue(transaction, "tenure")
    ids, jobs = [], []
    for event in request.events:
        values = {
            "now": transaction.now,
            "agent": event.agent,
            "kind": event.kind,
            "job_id": event.job_id,
            "workflow_id": event.workflow_id,
            "tenant": event.tenant,
            "key": event.key,
            "data": event.data,
        }
        row = transaction.one(_SQL["event_write"], values)
        if row is None:
            row = transaction.one(_SQL["event_by_key"], (event.key,))
            assert row is not None
        else:
            jobs.append(_embedding_job(transaction.now, row[0], f"event:{row[0]}", event.tenant))
        ids.append(int(row[0]))
    if jobs:
        enqueue.enqueue(transaction, Enqueue(jobs), is_gated=False, tolerates=True)
    return ids


def list_agent_events(transaction: Transaction, request: ListAgentEvents) -> list[AgentEvent]:
    """See store.memory.ListAgentEvents."""
    check_limit(request.limit)
    values = {
        "agents": _names(request.agents),
        "kinds": _names(request.kinds),
        "job_id": request.job_id,
        "before": request.before,
        "limit": request.limit,
    }
    return [_event(row) for row in transaction.all(_SQL["events"], values)]


def read_events(transaction: Transaction, request: ReadEvents) -> list[EventSource]:
    """See store.memory.ReadEvents."""
    rows = transaction.all(_SQL["event_sources"], {"ids": dump(list(request.ids))})
    return [EventSource(_event(row[:9]), row[9], _json(row[10]), _json(row[11]), row[12], row[13]) for row in rows]


def list_unremembered(transaction: Transaction, request: ListUnremembered) -> list[int]:
    """See store.memory.ListUnremembered."""
    check_limit(request.limit)
    return [row[0] for row in transaction.all(_SQL["unremembered"], {"after": request.after, "limit": request.limit})]


def write_memories(transaction: Transaction, request: WriteMemories) -> int:
    """See store.memory.WriteMemories."""
    return sum(_write(transaction, memory) for memory in request.memories)


def _write(transaction: Transaction, memory: NewMemory) -> bool:
    vector = None if memory.vector is None else _bytes(memory.vector)
    ttl = memory.ttl_seconds
    values: dict[str, Any] = {
        "id": memory.id,
        "tenant": memory.tenant,
        "agent": memory.agent,
        "kind": memory.kind,
        "agent_event_id": memory.agent_event_id,
        "job_id": memory.job_id,
        "workflow_id": memory.workflow_id,
        "text": memory.text,
        "text_hash": memory.text_hash,
        "model": memory.model,
        "dim": None if memory.vector is None else len(memory.vector),
        "vec": vector,
        "meta": memory.meta,
        "at": transaction.now if memory.at is None else to_us(memory.at),
        "expires_at": None if ttl is None else transaction.now + round(ttl * 1_000_000),
    }
    there = transaction.one(_SQL["memory_there"], {"id": memory.id, "agent_event_id": memory.agent_event_id})
    if there is not None:
        if there[1:3] == (memory.text_hash, memory.model):
            return False
        kept = ("agent", "kind", "tenant", "agent_event_id", "job_id", "workflow_id", "meta", "at", "expires_at")
        values |= {"id": there[0], **dict(zip(kept, there[3:], strict=True))}
        transaction.run(_SQL["memory_remove"], (there[0],))
    transaction.run(_SQL["memory_write"], values)
    return True


def find_words(transaction: Transaction, request: FindWords) -> list[str]:
    """See store.memory.FindWords."""
    check_limit(request.limit)
    words = [part for word in request.words for part in _WORD.findall(word)]
    if not words:
        return []
    asked = " OR ".join(f'"{word}"' for word in words)
    values = {**_scope(request.scope), "words": asked, "now": transaction.now, "limit": request.limit}
    return [row[0] for row in transaction.all(_SQL["find_words"], values)]


def find_near(_transaction: Transaction, _request: FindNear) -> None:
    """See store.memory.FindNear."""


def list_vectors(transaction: Transaction, request: ListVectors) -> Vectors:
    """See store.memory.ListVectors."""
    check_limit(request.limit)
    after = int(request.after or 0)
    values = {"model": request.model, "after": after, "limit": request.limit, "now": transaction.now}
    rows = transaction.all(_SQL["vectors"], values)
    mark = str(rows[-1][0] if rows else after)
    return Vectors([(row[1], row[2], row[3], row[4], row[5]) for row in rows], mark, more=len(rows) == request.limit)


def get_memories(transaction: Transaction, request: GetMemories) -> list[Memory | None]:
    """See store.memory.GetMemories."""
    rows = transaction.all(_SQL["memories"], {"ids": dump(list(request.ids)), "now": transaction.now})
    found = {row[0]: _memory(row) for row in rows}
    return [found.get(one) for one in request.ids]


def list_memories(transaction: Transaction, request: ListMemories) -> list[Memory]:
    """See store.memory.ListMemories."""
    check_limit(request.limit)
    values = {"model": request.model, "after": request.after, "limit": request.limit, "now": transaction.now}
    return [_memory(row) for row in transaction.all(_SQL["memories_of_others"], values)]


def forget_memories(transaction: Transaction, request: ForgetMemories) -> int:
    """See store.memory.ForgetMemories."""
    check_limit(request.limit)
    told: dict[str, Any] = {
        "ids": list(request.ids) or None,
        "agents": list(request.agents) or None,
        "kinds": list(request.kinds) or None,
        "tenant": request.tenant,
        "before": None if request.before is None else to_us(request.before),
    }
    if not request.everything and all(value is None for value in told.values()):
        raise InvalidArgument(
            "Which memories? Name ids, agents, kinds, a tenant or a time, or say that all go. Nothing was forgotten."
        )
    lists = {name: None if told[name] is None else dump(told[name]) for name in ("ids", "agents", "kinds")}
    gone = transaction.run(_SQL["forget"], {**told, **lists, "limit": request.limit}).rowcount
    if gone:
        detail = {name: value for name, value in told.items() if value is not None} | {"memories": gone}
        admin.audit(transaction, request.actor, "forget_memories", "memory", request.reason, detail)
    return gone


def expire(transaction: Transaction, limit: int) -> int:
    """Remove memories whose time is over. Answers how many went."""
    return transaction.run(_SQL["expire"], {"now": transaction.now, "limit": limit}).rowcount


def count_memories(transaction: Transaction, _request: CountMemories) -> MemoryStats:
    """See store.memory.CountMemories."""
    counts = [
        MemoryCount(agent, model, number, from_us(oldest), from_us(newest))
        for agent, model, number, oldest, newest in transaction.all(_SQL["counts"], {"now": transaction.now})
    ]
    models: dict[str, int] = {}
    for one in counts:
        models[one.model or "words"] = models.get(one.model or "words", 0) + one.memories
    row = transaction.one(_SQL["event_counts"])
    assert row is not None
    return MemoryStats(counts, row[0], row[0] - row[1], models, compares_vectors=False)


def _names(names: Sequence[str]) -> str | None:
    return dump(list(names)) if names else None


def _scope(scope: Scope) -> dict[str, Any]:
    return {"agents": _names(scope.agents), "kinds": _names(scope.kinds), "tenant": scope.tenant}


def _bytes(vector: Sequence[float]) -> bytes:
    numbers = array("f", vector)
    if byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()


def _event(row: Row) -> AgentEvent:
    event_id, at, agent, kind, job_id, workflow_id, tenant, key, data = row
    return AgentEvent(event_id, from_us(at), agent, kind, job_id, workflow_id, tenant, key, json.loads(data))


def _memory(row: Row) -> Memory:
    id_, at, agent, kind, text, model, tenant, event_id, job_id, workflow_id, meta, expires_at = row
    return Memory(
        id_,
        from_us(at),
        agent,
        kind,
        text,
        model,
        tenant,
        event_id,
        job_id,
        workflow_id,
        json.loads(meta),
        moment(expires_at),
    )


def _json(text: str | None) -> Any:
    return None if text is None else json.loads(text)
