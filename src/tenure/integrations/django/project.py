"""The project's App: made of its settings, on its own database, with connections that are looked after.

TENURE = {
    "DATABASE": "default",        # the alias in DATABASES where jobs live, in the same transactions as the models
    "URL": None,                  # instead: a database of the queue's own; enqueues are then transactions of their own
    "CONSOLE_URL": None,          # where `tenure serve` is reached, for links in the admin
}
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
from urllib.parse import quote, urlencode

from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings
from django.db import connections

from tenure.app import App
from tenure.errors import ConfigError, nearest
from tenure.model.frozen import frozen

if TYPE_CHECKING:
    from tenure.client.function import Enqueuer
    from tenure.client.handle import JobHandle
    from tenure.handler.context import Context

A = ParamSpec("A")
T = TypeVar("T")

_DJANGO_ONLY = frozenset({"isolation_level", "assume_role", "server_side_binding", "pool", "cursor_factory"})
"""Options of Django's PostgreSQL backend that libpq does not know."""


@frozen
class TenureSettings:
    """What `settings.TENURE` says."""

    database: str = "default"
    url: str | None = None
    console_url: str | None = None


def read_settings() -> TenureSettings:
    """`settings.TENURE`, checked. Raises: ConfigError."""
    given = getattr(settings, "TENURE", {})
    known = {"DATABASE", "URL", "CONSOLE_URL"}
    for name in given:
        if name not in known:
            raise ConfigError(f"settings.TENURE has no entry {name!r}.{nearest(str(name), known)}")
    return TenureSettings(given.get("DATABASE", "default"), given.get("URL"), given.get("CONSOLE_URL"))


def set_up() -> None:
    """Set Django up, unless it is or is about to be."""
    if not apps.ready and not apps.loading:
        import django

        django.setup()


@functools.cache
def project_app() -> App:
    """The App of this project. Opens nothing; the database is looked up when it is first needed."""
    found = read_settings()
    app = App(found.url or functools.partial(database_url, found.database), actor="django")
    app.middleware(_around_sync)
    app.middleware(_around_async)
    return app


def enqueue(job: Enqueuer[A, T], /, *args: A.args, **kwargs: A.kwargs) -> JobHandle[T]:
    """Enqueue one job in the transaction of Django's connection: it exists exactly if that commits.

    Outside of `transaction.atomic()` it is durable when this returns.
    """
    return job.options(connection=own_connection()).enqueue(*args, **kwargs)


async def aenqueue(job: Enqueuer[A, T], /, *args: A.args, **kwargs: A.kwargs) -> JobHandle[T]:
    """`enqueue` for async views. Django has no async transactions, so it belongs to none of yours."""
    return await sync_to_async(enqueue, thread_sensitive=True)(job, *args, **kwargs)


def own_connection() -> Any:
    """Django's connection to the database in which the jobs live; None if the queue has a database of its own."""
    found = read_settings()
    return None if found.url else connections[found.database]


def database_url(alias: str) -> str:
    """The database of DATABASES[alias] as a URL, as it is now: a test runner puts another in its place.

    Raises: ConfigError.
    """
    connection = connections[alias]
    found = connection.settings_dict
    if connection.vendor == "sqlite":
        name = str(found["NAME"])
        if ":memory:" in name or "mode=memory" in name:
            raise ConfigError(
                f"DATABASES[{alias!r}] is a SQLite database in memory, which no worker can reach. Name a file; for "
                'tests: "TEST": {"NAME": BASE_DIR / "test.sqlite3"}.'
            )
        return f"sqlite:///{Path(name).absolute()}"
    if connection.vendor != "postgresql":
        raise ConfigError(
            f"DATABASES[{alias!r}] is on {connection.vendor}, and jobs live on SQLite or PostgreSQL. Name another "
            'alias with TENURE = {"DATABASE": …}, or a database of the queue\'s own with "URL".'
        )
    return _postgres_url(found)


def _postgres_url(found: dict[str, Any]) -> str:
    user, password = quote(found["USER"], safe=""), quote(found["PASSWORD"], safe="")
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    options = {name: str(value) for name, value in found["OPTIONS"].items() if name not in _DJANGO_ONLY}
    host, port = str(found["HOST"]), str(found["PORT"])
    if host and not re.fullmatch(r"[\w.-]+", host):  # the folder of a socket, several hosts, an IPv6 address
        options["host"], host = host, ""
    if port and not host:
        options["port"], port = port, ""
    query = f"?{urlencode(options, quote_via=quote)}" if options else ""
    return f"postgresql://{login}{host}{f':{port}' if port else ''}/{quote(str(found['NAME']), safe='')}{query}"


def _around_sync(ctx: Context, call: Callable[[], Any]) -> Any:  # noqa: ARG001
    refresh_connections()
    try:
        return call()
    finally:
        refresh_connections()


async def _around_async(ctx: Context, call: Callable[[], Any]) -> Any:  # noqa: ARG001
    # Where async code uses the ORM, its connections belong to this thread of asgiref's.
    refresh = sync_to_async(refresh_connections, thread_sensitive=True)
    await refresh()
    try:
        return await call()
    finally:
        await refresh()


def refresh_connections() -> None:
    """Close connections of this thread that broke or are past CONN_MAX_AGE, and let the others be tested before use.

    A worker has no requests, so Django would never do either: after a lost connection every job would fail.
    """
    for connection in connections.all(initialized_only=True):
        connection.close_if_unusable_or_obsolete()
        connection.health_check_enabled = True  # type: ignore[attr-defined]  # missing in the stubs
