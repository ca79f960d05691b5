"""Memories: written once, found by words and by vectors of one model, forgotten on request."""

from __future__ import annotations

import hashlib
import struct
from datetime import timedelta

import pytest

from tenure.errors import InvalidArgument
from tenure.model.ids import JobId, new_job_id
from tenure.store.contract import Prune
from tenure.store.memory import (
    CountMemories,
    FindNear,
    FindWords,
    ForgetMemories,
    GetMemories,
    ListMemories,
    ListUnremembered,
    ListVectors,
    NewAgentEvent,
    NewMemory,
    Scope,
    WriteAgentEvents,
    WriteMemories,
)
from tenure.store.queries import ListAudit
from tenure.store.summary import Prunable
from tests.conformance.acts import Subject
from tests.conformance.engines import SteeredClock

DOORS = ("do", "ado")


def memory(
    text: str,
    agent: str = "A",
    vector: tuple[float, ...] | None = None,
    *,
    kind: str = "note",
    model: str | None = None,
    tenant: str | None = None,
    event: int | None = None,
    ttl: float | None = None,
) -> NewMemory:
    return NewMemory(
        id=new_job_id(),
        agent=agent,
        kind=kind,
        text=text,
        text_hash=hashlib.sha256(text.encode()).hexdigest(),
        model=model or (None if vector is None else "m:2"),
        vector=vector,
        tenant=tenant,
        agent_event_id=event,
        ttl_seconds=ttl,
    )


def texts(store: Subject, ids: list[str]) -> list[str]:
    return [found.text for found in store.do(GetMemories(ids)) if found is not None]


def by_words(store: Subject, *words: str, scope: Scope = Scope()) -> list[str]:  # noqa: B008 - frozen
    return texts(store, store.do(FindWords(words, scope)))


def vectors(
    store: Subject, model: str = "m:2", after: str | None = None, limit: int = 2
) -> tuple[dict[str, object], str]:
    """All vectors since a mark, by id, read in pages."""
    found: dict[str, object] = {}
    while True:
        page = store.do(ListVectors(model, after, limit))
        found |= {row[0]: struct.unpack(f">{len(row[4]) // 4}f", row[4]) for row in page.rows}
        after = page.mark
        if not page.more:
            return found, after


def test_a_memory_is_found_by_its_words_and_rare_ones_count_more(store: Subject) -> None:
    store.do(
        WriteMemories(
            [
                *(memory(f"Price of part number {n} was refreshed") for n in range(20)),
                memory("Fitment of part BX-4471 confirmed for Audi A4 2012"),
                memory("Batteries were cleaned by the workshop"),
            ]
        )
    )

    assert by_words(store, "BX-4471")[0].startswith("Fitment")
    assert by_words(store, "part", "price", "4471")[0].startswith("Fitment")
    assert by_words(store, "battery") == ["Batteries were cleaned by the workshop"]
    assert by_words(store, "AUDI")[0].startswith("Fitment")
    assert by_words(store, "zeppelin") == []
    assert by_words(store, "", "--", '"', "' OR x=x --)") == []


def test_a_scope_narrows_what_is_found(store: Subject) -> None:
    store.do(
        WriteMemories(
            [
                memory("brake disc one", "A"),
                memory("brake disc two", "B", kind="fact"),
                memory("brake disc three", "B", tenant="acme"),
            ]
        )
    )

    assert len(by_words(store, "brake")) == 3
    assert by_words(store, "brake", scope=Scope(agents=["A"])) == ["brake disc one"]
    assert by_words(store, "brake", scope=Scope(kinds=["fact"])) == ["brake disc two"]
    assert by_words(store, "brake", scope=Scope(tenant="acme")) == ["brake disc three"]
    assert by_words(store, "brake", scope=Scope(agents=["A"], tenant="acme")) == []


def test_the_memory_of_an_event_is_written_once_and_replaced_by_another_model(store: Subject) -> None:
    [event] = store.do(WriteAgentEvents([NewAgentEvent("A", "note")]))
    assert store.do(ListUnremembered()) == [event]
    first = memory("brakes", event=event)

    assert store.do(WriteMemories([first])) == 1
    assert store.do(WriteMemories([memory("brakes", event=event)])) == 0
    assert store.do(ListUnremembered()) == []
    assert store.do(WriteMemories([memory("brakes", event=event, vector=(1.0, 0.0))])) == 1

    [found] = store.do(GetMemories([first.id]))
    assert found is not None
    assert (found.model, found.agent_event_id, found.text) == ("m:2", event, "brakes")
    assert store.do(CountMemories()).models == {"m:2": 1}
    assert by_words(store, "brake") == ["brakes"]


def test_vectors_are_read_in_pages_and_then_what_is_new(store: Subject) -> None:
    written = [memory(f"text {n}", vector=(float(n), -1.5)) for n in range(5)]
    store.do(WriteMemories([*written, memory("other", vector=(1.0, 1.0, 1.0), model="n:3"), memory("words only")]))

    found, mark = vectors(store)
    assert found == {one.id: one.vector for one in written}

    late = memory("late", vector=(9.0, 9.0))
    store.do(WriteMemories([late]))
    changed = NewMemory(written[0].id, "A", "note", "text 0", "new hash", "m:2", (7.0, 7.0))
    store.do(WriteMemories([changed]))
    new, _ = vectors(store, after=mark)
    assert {late.id, changed.id} <= new.keys()
    assert (new[late.id], new[changed.id]) == ((9.0, 9.0), (7.0, 7.0))


def test_near_is_told_by_the_store_or_left_to_the_process(store: Subject) -> None:
    store.do(WriteMemories([memory("east", vector=(1.0, 0.0)), memory("north", vector=(0.0, 1.0))]))

    found = store.do(FindNear("m:2", (0.1, 0.9)))

    if store.do(CountMemories()).compares_vectors:
        assert found is not None
        assert texts(store, found) == ["north", "east"]
    else:
        assert found is None


def test_what_has_expired_is_not_found_and_goes_with_prune(store: Subject, clock: SteeredClock) -> None:
    kept, short = memory("brake kept"), memory("brake short", ttl=60.0)
    store.do(WriteMemories([kept, short]))
    assert len(by_words(store, "brake")) == 2

    clock.advance(61)

    assert by_words(store, "brake") == ["brake kept"]
    assert store.do(GetMemories([short.id])) == [None]
    assert store.do(Prunable(Prune())).memories == 1
    assert store.do(Prune()).memories == 1
    assert store.do(Prune()).memories == 0
    assert len(store.do(GetMemories([kept.id]))) == 1


def test_forgetting_takes_what_was_asked_for_and_is_written_down(store: Subject, clock: SteeredClock) -> None:
    store.do(WriteMemories([memory("one", "A"), memory("two", "B", tenant="acme")]))
    clock.advance(100)
    store.do(WriteMemories([memory("three", "B"), memory("four", "B", kind="fact")]))

    with pytest.raises(InvalidArgument, match="Which memories"):
        store.do(ForgetMemories("ops", "asked"))
    assert store.do(ForgetMemories("ops", "asked", agents=["B"], before=clock.now() - timedelta(seconds=50))) == 1
    assert store.do(ForgetMemories("ops", "asked", kinds=["fact"])) == 1
    assert store.do(ForgetMemories("ops", "asked", ids=[new_job_id()])) == 0
    assert store.do(ForgetMemories("ops", "all of it", everything=True, limit=1)) == 1
    assert store.do(ForgetMemories("ops", "all of it", everything=True)) == 1

    assert store.do(CountMemories()).counts == []
    assert by_words(store, "one", "two", "three", "four") == []
    told = store.do(ListAudit(subject="memory"))
    assert [(one.actor, one.act, one.detail["memories"]) for one in told] == [("ops", "forget_memories", 1)] * 4


def test_a_reindex_finds_what_another_model_embedded(store: Subject) -> None:
    old, new, bare = memory("old", vector=(1.0,), model="old:1"), memory("new", vector=(1.0, 1.0)), memory("bare")
    store.do(WriteMemories([old, new, bare]))

    left = store.do(ListMemories("m:2"))

    assert [one.id for one in left] == sorted([old.id, bare.id])
    assert store.do(ListMemories("m:2", after=left[0].id)) == left[1:]
    assert {one.id for one in store.do(ListMemories(None))} == {old.id, new.id}


def test_counts_are_told_by_agent_and_model(store: Subject) -> None:
    [event] = store.do(WriteAgentEvents([NewAgentEvent("A", "note")]))
    store.do(WriteMemories([memory("a", "A"), memory("b", "A", (1.0, 0.0)), memory("c", "B")]))

    stats = store.do(CountMemories())

    assert [(one.agent, one.model, one.memories) for one in stats.counts] == [
        ("A", None, 1),
        ("A", "m:2", 1),
        ("B", None, 1),
    ]
    assert (stats.events, stats.unremembered) == (1, 1)
    assert event > 0


@pytest.mark.parametrize("wrong", [memory(" "), memory("text", " "), NewMemory(JobId("x"), "A", "k", "t", "h")])
def test_a_memory_that_says_nothing_is_refused(store: Subject, wrong: NewMemory) -> None:
    if wrong.id == "x" and store.engine == "sqlite":
        pytest.skip("SQLite has no type for ids; App makes them")

    with pytest.raises(InvalidArgument):
        store.do(WriteMemories([wrong]))
