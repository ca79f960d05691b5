"""Driver errors never leak: whatever PostgreSQL says, by whichever driver, becomes an error of ours with a sentence."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Final

import asyncpg
import psycopg
import pytest
import sqlalchemy

from tenure import errors
from tenure.errors import TenureError
from tenure.store.contract import Enqueue, StoreStats
from tenure.store.postgres import migrate
from tenure.store.postgres.errors import driver_errors, is_driver_error, location, redact, translate
from tenure.store.postgres.store import PostgresStore
from tenure.store.queries import ListQueues
from tests.conformance.acts import new_job
from tests.servers import PASSWORD_USER, PostgresServer

pytestmark = pytest.mark.postgres

STATES: Final[dict[str, type[TenureError]]] = {
    "08006": errors.StoreUnavailable,
    "57P01": errors.StoreUnavailable,
    "57P03": errors.StoreUnavailable,
    "53300": errors.StoreUnavailable,
    "53200": errors.StoreUnavailable,
    "58030": errors.StoreUnavailable,
    "40001": errors.StoreBusy,
    "40P01": errors.StoreBusy,
    "55P03": errors.StoreBusy,
    "57014": errors.StoreBusy,
    "53100": errors.DiskFull,
    "25006": errors.ReadOnly,
    "28000": errors.AccessDenied,
    "28P01": errors.AccessDenied,
    "42501": errors.AccessDenied,
    "XX001": errors.Corrupt,
    "XX002": errors.Corrupt,
    "22P02": errors.InvalidArgument,
    "22003": errors.InvalidArgument,
    "22021": errors.InvalidArgument,
    "54001": errors.InvalidPayload,
    "23514": errors.InvalidArgument,
    "25P02": errors.UsageError,
    "25P03": errors.StoreUnavailable,
    "25P04": errors.StoreUnavailable,
    "26000": errors.ConfigError,
    "42P05": errors.ConfigError,
    "TN004": errors.KeyConflict,
    "TN005": errors.KeyRequired,
    "TN006": errors.ForbiddenKey,
    "TN007": errors.InvalidArgument,
    "TN008": errors.IllegalMove,
    "TN009": errors.NotFound,
    "TN010": errors.Forbidden,
    "TN011": errors.Outdated,
    "42601": errors.InternalError,
}


def raise_on_server(state: str, message: str = "The reason.", detail: str = "") -> str:
    """A statement that makes the server raise just this."""
    return f"DO $$ BEGIN RAISE EXCEPTION '{message}' USING ERRCODE = '{state}', DETAIL = '{detail}'; END $$"


def by_psycopg(url: str, statement: str) -> Exception:
    with psycopg.connect(url, autocommit=True) as connection, pytest.raises(psycopg.Error) as caught:
        connection.execute(statement.encode())
    return caught.value


def by_asyncpg(url: str, statement: str) -> Exception:
    async def run() -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    with pytest.raises(asyncpg.PostgresError) as caught:
        asyncio.run(run())
    return caught.value


def by_sqlalchemy(url: str, statement: str) -> Exception:
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    try:
        with engine.connect() as connection, pytest.raises(sqlalchemy.exc.DBAPIError) as caught:
            connection.exec_driver_sql(statement)
    finally:
        engine.dispose()
    return caught.value


def by_async_sqlalchemy(url: str, statement: str) -> Exception:
    from sqlalchemy.ext.asyncio import create_async_engine

    async def run() -> None:
        engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))
        try:
            async with engine.connect() as connection:
                await connection.exec_driver_sql(statement)
        finally:
            await engine.dispose()

    with pytest.raises(sqlalchemy.exc.DBAPIError) as caught:
        asyncio.run(run())
    return caught.value


DRIVERS: Final = {
    "psycopg": by_psycopg,
    "asyncpg": by_asyncpg,
    "sqlalchemy on psycopg": by_sqlalchemy,
    "sqlalchemy on asyncpg": by_async_sqlalchemy,
}


@pytest.fixture
def anywhere(postgres_server: PostgresServer) -> str:
    """Any database will do."""
    return postgres_server.url()


@pytest.mark.parametrize("state", STATES)
def test_every_sqlstate_has_its_class(anywhere: str, state: str) -> None:
    raised = by_psycopg(anywhere, raise_on_server(state))

    ours = translate(raised)

    assert type(ours) is STATES[state]
    assert str(ours)[0].isupper()
    assert str(ours).endswith((".", "?"))


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("state", ["40P01", "53100", "42501", "TN009", "TN004"])
def test_every_driver_carries_the_sqlstate_through(anywhere: str, driver: str, state: str) -> None:
    raised = DRIVERS[driver](anywhere, raise_on_server(state))

    assert is_driver_error(raised)
    ours = translate(raised)
    assert type(ours) is STATES[state]
    assert "The reason." in str(ours)


@pytest.mark.parametrize("driver", DRIVERS)
def test_refusals_with_facts_make_their_own_sentence(anywhere: str, driver: str) -> None:
    gate = json.dumps({"gate": "queue:mail", "act": "claim"})
    queue = json.dumps({"queue": "mial", "known": ["default", "mail"]})

    closed = translate(DRIVERS[driver](anywhere, raise_on_server("TN002", detail=gate)))
    unknown = translate(DRIVERS[driver](anywhere, raise_on_server("TN003", detail=queue)))

    assert isinstance(closed, errors.GateClosed)
    assert closed.gate == "queue:mail"
    assert "claim is refused" in str(closed)
    assert isinstance(unknown, errors.UnknownQueue)
    assert "Did you mean 'mail'?" in str(unknown)


def test_djangos_wrapper_is_seen_through(anywhere: str) -> None:
    from django.db.utils import OperationalError

    wrapped = OperationalError("as Django says it")
    wrapped.__cause__ = by_psycopg(anywhere, raise_on_server("55P03"))

    assert type(translate(wrapped)) is errors.StoreBusy


def test_errors_of_others_pass_as_they_are() -> None:
    with pytest.raises(ZeroDivisionError), driver_errors():
        _ = 1 / 0
    with pytest.raises(errors.LeaseLost), driver_errors():
        raise errors.LeaseLost("ours already")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def opening(url: str) -> TenureError:
    """What a store says that cannot work on `url`."""
    store = PostgresStore(url)
    try:
        with pytest.raises(TenureError) as caught:
            store.do(ListQueues())
        assert isinstance(store.stats(), StoreStats)
    finally:
        store.close()
    return caught.value


def test_a_refused_connection_says_where_and_what_to_do() -> None:
    port = free_port()

    found = opening(f"postgresql://me@127.0.0.1:{port}/jobs")

    assert type(found) is errors.StoreUnavailable
    assert "Start the server" in str(found)


def test_a_wrong_password_is_access_denied_and_does_not_show(postgres_server: PostgresServer) -> None:
    found = opening(postgres_server.url(user=PASSWORD_USER, password="s3cret-canary"))

    assert type(found) is errors.AccessDenied
    assert "s3cret" not in "".join(traceback.format_exception(found))


def test_an_unknown_host_a_database_or_a_user_that_is_not_there(postgres_server: PostgresServer) -> None:
    host = opening("postgresql://me@no-such-host.invalid/jobs")
    database = opening(postgres_server.url("no_such_database"))
    user = opening(postgres_server.url(user="no_such_user"))

    assert type(host) is errors.StoreUnavailable
    assert "correct host and port" in str(host)
    assert type(database) is errors.StoreUnavailable
    assert "createdb" in str(database)
    assert type(user) is errors.AccessDenied


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret-canary@host:not_a_port/jobs",
        "postgresql://me:s3cret-canary@host/jobs?no_such_setting=1",
        "host=x password=s3cret-canary nonsense",
        "postgresql://me:s3cret-canary@host:1:2:3/jobs",
    ],
)
def test_a_url_that_cannot_be_read_shows_no_password(url: str) -> None:
    found = opening(url)

    assert type(found) in {errors.ConfigError, errors.StoreUnavailable}
    assert "s3cret" not in "".join(traceback.format_exception(found))


def test_an_empty_database_is_a_schema_that_is_behind(postgres_url: str) -> None:
    found = opening(postgres_url)

    assert type(found) is errors.SchemaBehind
    assert "tenure migrate" in str(found)


@pytest.mark.slow
@pytest.mark.parametrize("command", [["migrate", "--check"], ["doctor", "--no-sandbox"], ["jobs", "ls"]])
def test_a_host_that_takes_connections_and_says_nothing_is_given_up(command: list[str]) -> None:
    """What is asked outside of the pool waited 130 s, psycopg's own bound."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/jobs"

        done = subprocess.run(
            [sys.executable, "-m", "tenure", *command, "--url", url],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    assert "cannot be reached" in done.stderr + done.stdout
    assert done.returncode in {1, 5}


def test_too_many_connections(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.url(), autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS lonely")
        admin.execute("CREATE ROLE lonely LOGIN CONNECTION LIMIT 0")

    found = opening(postgres_server.url(user="lonely"))

    assert type(found) is errors.StoreUnavailable
    assert "too many connections" in str(found)


@pytest.fixture
def with_options(url: str) -> Iterator[Callable[[str], PostgresStore]]:
    """A store whose sessions have a setting of their own."""
    made: list[PostgresStore] = []

    def make(options: str) -> PostgresStore:
        made.append(PostgresStore(f"{url}?options={options}"))
        return made[-1]

    yield make
    for store in made:
        store.close()


def test_a_server_that_cannot_be_written_is_read_only(with_options: Callable[[str], PostgresStore]) -> None:
    store = with_options("-cdefault_transaction_read_only%3Don")

    with pytest.raises(errors.ReadOnly, match="target_session_attrs"):
        store.do(Enqueue([new_job()]))
    assert store.do(ListQueues())


def test_a_lock_that_is_not_to_be_had_is_busy(
    with_options: Callable[[str], PostgresStore], admin: psycopg.Connection
) -> None:
    store = with_options("-clock_timeout%3D20")

    with admin.transaction():
        admin.execute("LOCK TABLE tenure.job IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(errors.StoreBusy):
            store.do(Enqueue([new_job()]))

    assert store.do(Enqueue([new_job()]))


def test_a_statement_that_takes_too_long_is_busy(
    with_options: Callable[[str], PostgresStore], admin: psycopg.Connection
) -> None:
    store = with_options("-cstatement_timeout%3D50")

    with admin.transaction():
        admin.execute("LOCK TABLE tenure.queue IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(errors.StoreBusy):
            store.do(ListQueues())


def test_a_session_that_is_cut_is_unavailable_and_the_next_call_connects_again(
    url: str, admin: psycopg.Connection
) -> None:
    store = PostgresStore(url, pool_size=1)
    try:
        store.do(ListQueues())
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
            "AND datname = current_database() AND application_name = 'tenure'"
        )
        outcomes = [_try(store), _try(store)]
    finally:
        store.close()

    assert outcomes[0] in (None, errors.StoreUnavailable)
    assert outcomes[1] is None


def _try(store: PostgresStore) -> type[Any] | None:
    try:
        store.do(ListQueues())
    except TenureError as exc:
        return type(exc)
    return None


@pytest.mark.parametrize("url", ["postgresql://u:s3cret@h:1/d", "host=h port=1 user=u password=s3cret dbname=d"])
def test_a_location_names_the_place_and_not_the_login(url: str) -> None:
    assert location(url) == "PostgreSQL at h:1, database 'd'"
    assert "s3cret" not in redact(f"cannot read {url!r} or s3cret", url)


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("postgresql://u@a:1,b:2/d?target_session_attrs=read-write", "a:1 or b:2"),
        ("postgresql://u@a,b/d", "a or b"),
        ("host=a,b port=7 dbname=d", "a:7 or b:7"),
    ],
)
def test_a_location_names_each_host_with_its_port(url: str, where: str) -> None:
    assert location(url) == f"PostgreSQL at {where}, database 'd'"


def test_a_migration_maps_its_errors_too(postgres_server: PostgresServer) -> None:
    url = postgres_server.url(user=PASSWORD_USER, password="s3cret-canary")

    with pytest.raises(errors.AccessDenied) as caught:
        migrate.migrate(url)

    assert "s3cret" not in "".join(traceback.format_exception(caught.value))
