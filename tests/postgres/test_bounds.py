"""What a producer's login may take is bounded by the database itself (V13): queues, and the size of a job."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import psycopg
import pytest

from tenure.errors import Forbidden, InvalidArgument
from tenure.model.ids import new_job_id
from tenure.model.policy import QueuePolicy
from tenure.store.admin import SetQueues
from tenure.store.contract import Enqueue
from tenure.store.postgres.store import PostgresStore
from tests.conformance.acts import new_job

pytestmark = pytest.mark.postgres


@pytest.fixture
def producer(login: Callable[..., str]) -> Iterator[PostgresStore]:
    store = PostgresStore(login("producer"))
    yield store
    store.close()


def test_a_call_creates_a_hundred_queues_at_most(producer: PostgresStore, admin: psycopg.Connection) -> None:
    many = {f"q{number}": QueuePolicy() for number in range(101)}

    with pytest.raises(InvalidArgument, match="101 queues"):
        producer.do(Enqueue([new_job(queue="q1")], create_queues=many))

    assert admin.execute("SELECT count(*) FROM tenure.queue").fetchone() == (1,)


def test_a_producer_creates_no_further_queue_once_there_are_a_thousand(
    producer: PostgresStore, admin: psycopg.Connection, login: Callable[..., str]
) -> None:
    admin.execute(
        "INSERT INTO tenure.queue (name, created_at, updated_at) SELECT 'q' || n, now(), now() "
        "FROM generate_series(1, 999) AS n"
    )

    with pytest.raises(Forbidden, match="1,000 queues"):
        producer.do(Enqueue([new_job(queue="one-more")], create_queues={"one-more": QueuePolicy()}))

    assert admin.execute("SELECT count(*) FROM tenure.queue").fetchone() == (1_000,)
    assert admin.execute("SELECT count(*) FROM tenure.job").fetchone() == (0,)
    # Those that are there go on, and an admin may have as many as it wants.
    producer.do(Enqueue([new_job(queue="q7")], create_queues={"q7": QueuePolicy()}))
    store = PostgresStore(login("admin"))
    store.do(SetQueues({"one-more": QueuePolicy()}, "me"))
    store.close()


def test_a_job_that_no_reader_could_show_is_refused_by_the_database(
    login: Callable[..., str], admin: psycopg.Connection
) -> None:
    jobs = [{"i": new_job_id(), "p": "x" * size} for size in (10, 17 << 20)]
    request = {"groups": [{"queue": "default", "kind": "k", "jobs": jobs}]}

    with (
        psycopg.connect(login("producer"), autocommit=True) as connection,
        pytest.raises(psycopg.Error, match="16 MiB") as refused,
    ):
        connection.execute("SELECT tenure.enqueue(%s::json)", [json.dumps(request)])

    assert refused.value.sqlstate == "TN007"
    assert admin.execute("SELECT count(*) FROM tenure.job").fetchone() == (0,)
