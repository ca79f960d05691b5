"""Agent events and memories, as calls of PostgreSQL functions."""

from __future__ import annotations

from array import array
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from tenure.model.clock import from_us, to_us
from tenure.store.contract import Request
from tenure.store.memory import (
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
    NewAgentEvent,
    NewMemory,
    ReadEvents,
    Scope,
    Vectors,
    WriteAgentEvents,
    WriteMemories,
)
from tenure.store.postgres.codec import Call, encode, maybe_moment, text

_ARRAY_HEAD: Final = 20
"""Bytes before the first element of `array_send`; each element has its length before it."""


def _event_json(event: NewAgentEvent) -> str:
    told = {one.name: getattr(event, one.name) for one in fields(event) if one.name != "data"}
    return f'{text(told)[:-1]},"data":{event.data}}}'


def _memory_json(memory: NewMemory) -> str:
    told = {one.name: getattr(memory, one.name) for one in fields(memory) if one.name not in {"meta", "at", "vector"}}
    told["at"] = None if memory.at is None else to_us(memory.at)
    told["vector"] = None if memory.vector is None else [float(one) for one in memory.vector]
    return f'{text(told)[:-1]},"meta":{memory.meta}}}'


def _scope(scope: Scope) -> dict[str, Any]:
    return {"agents": list(scope.agents), "kinds": list(scope.kinds), "tenant": scope.tenant}


def _find_words(request: FindWords) -> str:
    return text({"words": list(request.words), "scope": _scope(request.scope), "limit": request.limit})


def _find_near(request: FindNear) -> str:
    vector = [float(one) for one in request.vector]
    return text({"model": request.model, "vector": vector, "scope": _scope(request.scope), "limit": request.limit})


def _forget(request: ForgetMemories) -> str:
    told = {one.name: getattr(request, one.name) for one in fields(request)}
    return text(told | {"before": None if request.before is None else to_us(request.before)})


def _event(row: dict[str, Any]) -> AgentEvent:
    return AgentEvent(**(row | {"at": from_us(row["at"])}))


def _source(row: list[Any]) -> EventSource:
    return EventSource(_event(row[0]), *row[1:])


def _memory(row: dict[str, Any]) -> Memory:
    return Memory(**(row | {"at": from_us(row["at"]), "expires_at": maybe_moment(row["expires_at"])}))


def _memories(answer: list[dict[str, Any]], request: GetMemories) -> list[Memory | None]:
    found = {row["id"]: _memory(row) for row in answer}
    return [found.get(one.lower()) for one in request.ids]


def _vectors(answer: dict[str, Any], _: ListVectors) -> Vectors:
    rows = [(id_, agent, kind, tenant, _bytes(sent)) for id_, agent, kind, tenant, sent in answer["rows"]]
    return Vectors(rows, answer["mark"], answer["more"])


def _bytes(sent: str) -> bytes:
    """The elements of an `array_send`, without the length before each. Their byte order stays as it is."""
    words = array("I")
    words.frombytes(b64decode(sent)[_ARRAY_HEAD:])
    return words[1::2].tobytes()


def _stats(answer: dict[str, Any], _: CountMemories) -> MemoryStats:
    counts = [
        MemoryCount(agent, model, number, from_us(oldest), from_us(newest))
        for agent, model, number, oldest, newest in answer["counts"]
    ]
    models: dict[str, int] = {}
    for one in counts:
        models[one.model or "words"] = models.get(one.model or "words", 0) + one.memories
    return MemoryStats(counts, answer["events"], answer["unremembered"], models, answer["compares_vectors"])


def _as_it_is(answer: Any, _: Any) -> Any:
    return answer


CALLS: Final[Mapping[type[Request[Any]], Call]] = {
    WriteAgentEvents: Call(
        "write_agent_events", lambda r: f'{{"events":[{",".join(map(_event_json, r.events))}]}}', _as_it_is
    ),
    ListAgentEvents: Call("list_agent_events", encode, lambda answer, _: [_event(row) for row in answer]),
    ReadEvents: Call("read_events", encode, lambda answer, _: [_source(row) for row in answer]),
    ListUnremembered: Call("list_unremembered", encode, _as_it_is),
    WriteMemories: Call(
        "write_memories", lambda r: f'{{"memories":[{",".join(map(_memory_json, r.memories))}]}}', _as_it_is
    ),
    FindWords: Call("find_words", _find_words, _as_it_is),
    FindNear: Call("find_near", _find_near, _as_it_is),
    ListVectors: Call("list_vectors", encode, _vectors),
    GetMemories: Call("get_memories", encode, _memories),
    ListMemories: Call("list_memories", encode, lambda answer, _: [_memory(row) for row in answer]),
    ForgetMemories: Call("forget_memories", _forget, _as_it_is),
    CountMemories: Call("count_memories", encode, _stats),
}
