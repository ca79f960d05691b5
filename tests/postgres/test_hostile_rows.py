"""V7, by the functions that a worker's login may call: JSON that no client can parse hides no row beside it.

One such row made `tenure workers ls`, `tenure doctor`, the audit, agent events and memories unreadable as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import psycopg
import pytest

from tenure.model.ids import WorkerId, new_job_id
from tenure.observe.doctor import examine
from tenure.store.contract import WorkerRow
from tenure.store.memory import GetMemories, ListAgentEvents, ListMemories, ReadEvents
from tenure.store.postgres.store import PostgresStore
from tenure.store.queries import ListAudit, ListWorkers
from tenure.store.schedules import ListSchedules

pytestmark = pytest.mark.postgres

HOSTILE: Final = {
    "digits": '{"x": ' + "9" * 5000 + "}",
    "depth": '{"x": ' + "[" * 3000 + "]" * 3000 + "}",
    "exponent": '{"x": 1e999999}',
}


@pytest.fixture
def worker(login: Callable[..., str]) -> Iterator[psycopg.Connection]:
    with psycopg.connect(login("worker"), autocommit=True) as connection:
        yield connection


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    made = PostgresStore(url)
    yield made
    made.close()


def call(connection: psycopg.Connection, function: str, request: str) -> Any:
    row = connection.execute(f"SELECT tenure.{function}(%s::json)".encode(), [request]).fetchone()
    return row and row[0]


def beat(connection: psycopg.Connection, name: str, info: str) -> None:
    said = f'"id": "{name}", "hostname": "h", "pid": 1, "queues": ["default"], "kinds": [], "concurrency": 1, '
    said += f'"version": "", "executor_kind": "external_worker", "status": "ok", "info": {info}'
    call(connection, "heartbeat", f'{{"worker": {{{said}}}}}')


@pytest.mark.parametrize("name", HOSTILE)
def test_a_worker_hides_no_other_by_what_it_says_of_itself(
    worker: psycopg.Connection, store: PostgresStore, name: str
) -> None:
    beat(worker, "plain", '{"x": 1}')
    # The column is jsonb, which writes an exponent's zeros out, and takes no larger one.
    beat(worker, "hostile", HOSTILE[name].replace("1e999999", "1e99999"))

    seen = {str(one.row.id): one.row for one in store.do(ListWorkers())}

    assert set(seen) == {"plain", "hostile"}
    assert json.loads(seen["plain"].info) == {"x": 1}
    assert seen["hostile"].denied == ()


@pytest.mark.parametrize("info", ["[1]", "5", '"text"', "true"])
def test_what_a_worker_says_of_itself_is_an_object(
    worker: psycopg.Connection, admin: psycopg.Connection, info: str
) -> None:
    with pytest.raises(psycopg.Error, match="is a JSON object") as refused:
        beat(worker, "w", info)

    assert refused.value.sqlstate == "TN007"
    assert admin.execute("SELECT count(*) FROM tenure.worker").fetchone() == (0,)


@pytest.mark.parametrize("denied", ["5", "null", '{"prune": 1}', '"prune"', '[["prune"], 7]'])
def test_doctor_reads_on_whatever_a_worker_says_that_it_may_not_do(
    worker: psycopg.Connection, store: PostgresStore, denied: str
) -> None:
    beat(worker, "w", f'{{"denied": {denied}}}')

    assert "schema" in {check.name for check in examine(store, store.url)}


def test_what_a_worker_may_not_do_is_read_from_its_row() -> None:
    row = WorkerRow(WorkerId("w"), "h", 1, info='{"denied": ["prune", "roll_up"]}')

    assert row.denied == ("prune", "roll_up")


@pytest.mark.parametrize("name", HOSTILE)
def test_agent_events_and_memories_are_read_beside_one_that_cannot_be(
    worker: psycopg.Connection, store: PostgresStore, name: str
) -> None:
    first, second = new_job_id(), new_job_id()
    for data in ('{"x": 1}', HOSTILE[name]):
        call(worker, "write_agent_events", f'{{"events": [{{"agent": "a", "kind": "k", "data": {data}}}]}}')
    for memory, meta in ((first, '{"x": 1}'), (second, HOSTILE[name])):
        told = f'"id": "{memory}", "agent": "a", "kind": "k", "text": "t", "text_hash": "h", "meta": {meta}'
        call(worker, "write_memories", f'{{"memories": [{{{told}}}]}}')

    events = store.do(ListAgentEvents())
    memories = store.do(GetMemories([first, second]))

    assert [set(event.data) for event in events] == [{"$unreadable"}, {"x"}]
    assert [source.event for source in store.do(ReadEvents([event.id for event in reversed(events)]))] == events[::-1]
    assert [memory and set(memory.meta) for memory in memories] == [{"x"}, {"$unreadable"}]
    assert store.do(ListMemories("other")) == memories


@pytest.mark.parametrize("name", HOSTILE)
def test_the_audit_is_read_beside_a_row_that_cannot_be(
    worker: psycopg.Connection, store: PostgresStore, name: str
) -> None:
    for spec in ('{"x": 1}', HOSTILE[name]):
        call(worker, "set_schedules", f'{{"specs": {{"nightly": {spec}}}, "actor": "w"}}')

    assert [set(row.detail) for row in store.do(ListAudit(subject="nightly"))] == [{"$unreadable"}, {"x"}]
    assert [row.name for row in store.do(ListSchedules())] == ["nightly"]
