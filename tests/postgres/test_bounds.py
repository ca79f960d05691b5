"""What a login may take is bounded by the database itself (V13): queues, the size of a job, a statement's time."""

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
from tests.postgres.conftest import ROLES
from tests.servers import USER

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


@pytest.mark.parametrize(
    ("role", "timeout"),
    [("producer", "30s"), ("worker", "1min"), ("reader", "1min"), ("operator", "10min"), ("admin", "10min")],
)
def test_a_login_gets_its_role_with_a_bound_on_its_statements(
    url: str, admin: psycopg.Connection, role: str, timeout: str
) -> None:
    """PostgreSQL takes no setting from a role that a login is a member of."""
    name = f"bounded_{role}"
    if not admin.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [name]).fetchone():
        admin.execute(f"CREATE ROLE {name} LOGIN".encode())

    admin.execute("SELECT tenure.grant_role(%s, %s)", [name, role])

    with psycopg.connect(url.replace(f"{USER}@", f"{name}@"), autocommit=True) as connection:
        assert connection.execute("SHOW statement_timeout").fetchone() == (timeout,)
        row = connection.execute("SELECT pg_has_role(%s, %s, 'MEMBER')", [name, f"tenure_{role}"]).fetchone()
        assert row == (True,)


def test_a_statement_that_takes_longer_is_stopped(url: str, admin: psycopg.Connection) -> None:
    if not admin.execute("SELECT 1 FROM pg_roles WHERE rolname = 'bounded_producer'").fetchone():
        admin.execute("CREATE ROLE bounded_producer LOGIN")
    admin.execute("SELECT tenure.grant_role('bounded_producer', 'producer', '200ms')")

    with (
        psycopg.connect(url.replace(f"{USER}@", "bounded_producer@"), autocommit=True) as connection,
        pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"),
    ):
        connection.execute("SELECT pg_sleep(60)")
    with pytest.raises(psycopg.Error, match="There is no role 'owner'"):
        admin.execute("SELECT tenure.grant_role('bounded_producer', 'owner')")


def test_no_role_may_grant_roles(login: Callable[..., str]) -> None:
    for role in ROLES:
        with (
            psycopg.connect(login(role), autocommit=True) as connection,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            connection.execute("SELECT tenure.grant_role('bounded_producer', 'admin')")
