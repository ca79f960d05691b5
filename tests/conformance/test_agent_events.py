"""Agent events: written with the end of a job, in its own transaction, together with the job that embeds them."""

from __future__ import annotations

import json
from dataclasses import replace

import psycopg
import pytest

from tenure.errors import InvalidArgument
from tenure.model.job import Job
from tenure.model.outcome import Completed
from tenure.model.policy import QueuePolicy
from tenure.store.admin import SetGate, SetQueues
from tenure.store.contract import Exchange, Settle
from tenure.store.memory import (
    AgentEvent,
    ListAgentEvents,
    ListUnremembered,
    NewAgentEvent,
    ReadEvents,
    WriteAgentEvents,
)
from tenure.store.queries import ListJobs, ListQueues
from tests.conformance.acts import (
    NO_BACKOFF,
    Subject,
    cancel,
    claim,
    claim_one,
    complete,
    enqueue,
    enqueue_many,
    fail,
    make_queue,
    reap,
    reject,
    release,
    revive,
    suspend,
)
from tests.conformance.engines import SteeredClock

DOORS = ("do", "ado")


def events(store: Subject) -> list[AgentEvent]:
    return store.do(ListAgentEvents())[::-1]


def embedding_jobs(store: Subject) -> list[Job]:
    return sorted(store.do(ListJobs(kinds=["embedding"])).items, key=lambda job: job.payload["agent_event_id"])


def test_a_completed_job_of_an_agent_leaves_an_event_and_an_embedding_job(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, "FitmentAgent", agent_events="completed")
    job_id = enqueue(store, "generate_fitment", queue="FitmentAgent", tenant="acme")
    grant = claim_one(store, queue="FitmentAgent")
    clock.advance(2.5)

    complete(store, grant, result='{"costUsd": 0.25, "fits": true}', result_summary="fits")

    [event] = events(store)
    assert (event.agent, event.kind, event.job_id, event.tenant) == ("FitmentAgent", "completed", job_id, "acme")
    assert event.at == clock.now()
    assert event.data == {"task": "generate_fitment", "attempt": 1, "token": 1, "seconds": 2.5, "cost_usd": 0.25}
    [job] = embedding_jobs(store)
    assert (job.queue, job.key, job.payload, job.tenant) == (
        "embedding",
        str(event.id),
        {"agent_event_id": event.id},
        "acme",
    )
    assert job.state == "queued"


def test_other_queues_leave_none(store: Subject) -> None:
    make_queue(store, "FitmentAgent", agent_events="ends")
    enqueue(store)

    complete(store, claim_one(store))

    assert events(store) == []
    assert embedding_jobs(store) == []


def test_a_batch_leaves_an_event_for_each_in_one_exchange(store: Subject) -> None:
    make_queue(store, "A", agent_events="completed")
    ids = [*enqueue_many(store, 5, queue="A"), *enqueue_many(store, 3)]
    grants = claim(store, 8, queues=["A", "default"])

    store.do(Exchange([Completed(grant.id, grant.token) for grant in grants], None))

    assert sorted(str(event.job_id) for event in events(store)) == sorted(ids[:5])
    assert [job.payload["agent_event_id"] for job in embedding_jobs(store)] == [event.id for event in events(store)]


def test_a_settle_that_is_sent_twice_leaves_one_event(store: Subject) -> None:
    make_queue(store, "A", agent_events="ends")
    enqueue(store, queue="A")
    enqueue(store, queue="A", max_attempts=1)
    done, failed = claim(store, 2, queues=["A"])

    for _ in range(3):
        complete(store, done)
        fail(store, failed)

    assert sorted(event.kind for event in events(store)) == ["completed", "dead"]
    assert len(embedding_jobs(store)) == 2


def test_deaths_and_rejections_leave_events_where_the_queue_says_so(store: Subject) -> None:
    make_queue(store, "all", agent_events="ends", backoff=NO_BACKOFF)
    make_queue(store, "good", agent_events="completed", backoff=NO_BACKOFF)
    for queue in ("all", "good"):
        enqueue(store, queue=queue, max_attempts=2)
        fail(store, claim_one(store, queue=queue), "first")
        fail(store, claim_one(store, queue=queue), "second")
        enqueue(store, queue=queue)
        reject(store, claim_one(store, queue=queue))

    assert [(event.agent, event.kind, event.data["attempt"]) for event in events(store)] == [
        ("all", "dead", 2),
        ("all", "failed", 1),
    ]


def test_a_lease_that_ran_out_for_the_last_time_leaves_an_event(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, "A", agent_events="ends")
    enqueue(store, queue="A", max_attempts=1)
    claim_one(store, queue="A")
    clock.advance(61)

    reap(store)

    assert [(event.kind, event.data["class"]) for event in events(store)] == [("dead", "crash")]


def test_what_is_no_end_leaves_none(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, "A", agent_events="ends", backoff=NO_BACKOFF)
    job_id = enqueue(store, queue="A")
    release(store, claim_one(store, queue="A"))
    fail(store, claim_one(store, queue="A"))
    suspend(store, claim_one(store, queue="A"), delay_seconds=1)
    clock.advance(2)
    late = claim_one(store, queue="A")
    clock.advance(61)
    complete(store, late)  # too late
    cancel(store, job_id)

    assert events(store) == []


def test_a_revived_job_that_completes_leaves_an_event_of_its_own(store: Subject) -> None:
    make_queue(store, "A", agent_events="ends")
    job_id = enqueue(store, queue="A", max_attempts=1)
    fail(store, claim_one(store, queue="A"))
    revive(store, job_id)

    complete(store, claim_one(store, queue="A"))

    assert [(event.kind, event.data["token"]) for event in events(store)] == [("dead", 1), ("completed", 2)]
    assert len({job.id for job in embedding_jobs(store)}) == 2


def test_closed_gates_do_not_keep_an_end_from_being_remembered(store: Subject) -> None:
    make_queue(store, "A", agent_events="completed")
    enqueue(store, queue="A")
    grant = claim_one(store, queue="A")
    store.do(SetGate("master", is_open=False, actor="ops"))

    complete(store, grant)

    assert len(embedding_jobs(store)) == 1


def test_the_queue_of_embeddings_comes_with_the_first_queue_that_needs_it(store: Subject) -> None:
    make_queue(store, "plain")
    assert "embedding" not in {row.name for row in store.do(ListQueues())}

    make_queue(store, "A", agent_events="completed")
    make_queue(store, "B", agent_events="ends")

    [row] = store.do(ListQueues(["embedding"]))
    assert (row.policy.priority_order, row.policy.priority_default, row.policy.agent_events) == ("low", 3, "none")
    with pytest.raises(InvalidArgument, match="embedding"):
        store.do(SetQueues({"embedding": replace(row.policy, agent_events="ends")}, actor="ops"))


def test_an_unknown_rule_is_refused(store: Subject) -> None:
    with pytest.raises(InvalidArgument):
        store.do(SetQueues({"A": QueuePolicy(agent_events="always")}, actor="ops"))  # type: ignore[arg-type]


def test_a_program_notes_events_once_per_key(store: Subject) -> None:
    told = NewAgentEvent("analytics", "escalation", '{"rule": "p95"}', key="day-1:p95")

    first = store.do(WriteAgentEvents([told, NewAgentEvent("analytics", "note")]))
    again = store.do(WriteAgentEvents([told]))

    assert again == first[:1]
    assert [(event.kind, event.key, event.data) for event in events(store)] == [
        ("escalation", "day-1:p95", {"rule": "p95"}),
        ("note", None, {}),
    ]
    assert [job.payload["agent_event_id"] for job in embedding_jobs(store)] == first
    with pytest.raises(InvalidArgument):
        store.do(WriteAgentEvents([NewAgentEvent(" ", "note")]))


def test_events_are_read_with_what_their_jobs_say(store: Subject) -> None:
    make_queue(store, "A", agent_events="completed")
    enqueue(store, "price", {"part": "BX-4471"}, queue="A")
    complete(store, claim_one(store, queue="A"), result='{"price": 7}', result_summary="priced")
    [event] = events(store)

    [source] = store.do(ReadEvents([event.id, event.id + 100]))

    assert source.event == event
    assert (source.job_kind, source.payload, source.result, source.result_summary) == (
        "price",
        {"part": "BX-4471"},
        {"price": 7},
        "priced",
    )
    assert store.do(ListUnremembered()) == [event.id]


def test_events_are_listed_newest_first_by_agent_and_kind(store: Subject) -> None:
    for name in ("A", "B"):
        make_queue(store, name, agent_events="completed")
        enqueue_many(store, 3, queue=name)
        store.do(Settle([Completed(grant.id, grant.token) for grant in claim(store, 3, queues=[name])]))

    newest = store.do(ListAgentEvents(agents=["B"], limit=2))

    assert [event.agent for event in newest] == ["B", "B"]
    rest = store.do(ListAgentEvents(agents=["B"], before=newest[-1].id))
    assert len(rest) == 1
    assert store.do(ListAgentEvents(kinds=["dead"])) == []
    assert store.do(ListAgentEvents(job_id=rest[0].job_id)) == rest


def test_a_worker_that_speaks_sql_alone_leaves_the_event_too(store: Subject) -> None:
    if store.engine != "postgres":
        pytest.skip("SQLite has no functions of ours: its workers are Python")
    make_queue(store, "A", agent_events="completed")
    enqueue(store, queue="A")
    with psycopg.connect(store.store.url, autocommit=True) as psql:
        row = psql.execute("""SELECT tenure.claim('{"worker": "psql", "queues": ["A"], "limit": 1}')""").fetchone()
        assert row is not None
        [[_, _, _, [line]]] = row[0]["lines"]
        psql.execute("SELECT tenure.settle(%s::json)", [json.dumps({"done": [{"i": line[0], "t": line[2]}]})])

    assert [(event.kind, str(event.job_id)) for event in events(store)] == [("completed", line[0])]
    assert len(embedding_jobs(store)) == 1


def test_an_embedding_queue_named_beside_those_that_need_it_gets_the_policy_given(store: Subject) -> None:
    """SQLite made the queue for A first, so that `only_new` left its own policy there."""
    policies = {"A": QueuePolicy(agent_events="ends"), "embedding": QueuePolicy(max_attempts=7)}

    rows = store.do(SetQueues(policies, actor="ops", only_new=True))

    assert [(row.name, row.policy.max_attempts) for row in rows] == [("A", 3), ("embedding", 7)]
