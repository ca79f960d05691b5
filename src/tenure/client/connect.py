"""From a URL to an open store. The engines are imported here and late, so that each costs only those who use it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from tenure.errors import ConfigError, MissingExtra, SchemaBehind, nearest
from tenure.model.url import shown_url
from tenure.store.contract import Store

if TYPE_CHECKING:
    from tenure.model.clock import Clock

Migrate = Literal["auto", "always", "existing", "never"]

SCHEMES = ("sqlite", "postgresql", "postgres")
_WITH_DRIVER = re.compile(r"(sqlite|postgresql|postgres)\+\w+(?=://)")

_DRIVERS = frozenset({"psycopg", "psycopg_pool", "psycopg_binary"})
_NO_SCHEMA = (
    "This database has no schema of Tenure's yet, and reading makes none. Set it up with `tenure migrate`, or by the "
    "first enqueue or worker."
)


def without_driver(url: str) -> str:
    """The URL without the driver that SQLAlchemy writes into its scheme: `postgresql+psycopg://` names an engine.

    Raises: ConfigError, if it is no text, such as a Path.
    """
    if not isinstance(url, str):
        raise ConfigError(
            f"A database is named by a URL, which is text, got {type(url).__name__}. For a SQLite file write "
            "sqlite:///jobs.db."
        )
    return _WITH_DRIVER.sub(r"\1", url, count=1)


def open_store(url: str, migrate: Migrate, clock: Clock | None = None) -> Store:
    """Open the store and see to its schema.

    Raises: ConfigError, MissingExtra, StoreUnavailable, SchemaBehind, SchemaAhead.
    """
    url = without_driver(url)
    if scheme_of(url) == "sqlite":
        return _open_sqlite(url, migrate, clock)
    if clock is not None:
        raise ConfigError("PostgreSQL keeps its own clock, so none can be handed in. See tenure.testing.temporary_app.")
    return _open_postgres(url, migrate)


def scheme_of(url: str) -> str:
    """The engine that a URL names. Raises: ConfigError."""
    scheme, mark, _ = without_driver(url).partition("://")
    if not mark:
        hint = f" For a SQLite file write sqlite:///{url}." if re.fullmatch(r"[\w./~-]+", url) else ""
        raise ConfigError(f"{shown_url(url)!r} is no database URL: it has no '://'.{hint}")
    if scheme not in SCHEMES:
        raise ConfigError(f"{shown_url(url)!r}: there is no engine {scheme!r}.{nearest(scheme, SCHEMES)}")
    return scheme


def is_file_to_make(url: str) -> bool:
    """Whether the URL names a SQLite file that does not exist. Raises: ConfigError."""
    if scheme_of(url) != "sqlite":
        return False
    from tenure.store.sqlite.files import path_of

    return not path_of(without_driver(url)).exists()


def _open_sqlite(url: str, migrate: Migrate, clock: Clock | None) -> Store:
    from tenure.store.sqlite.store import SqliteStore

    store = SqliteStore(url, clock=clock)
    if migrate != "never":
        try:
            if migrate == "existing" and store.schema_version() == 0:
                raise SchemaBehind(_NO_SCHEMA)
            if migrate == "auto" and (table := store.foreign_table()) is not None:
                raise SchemaBehind(
                    f"{shown_url(url)} is the database of another program: it has a table {table!r} and nothing of "
                    "Tenure's. Nothing was changed. If your jobs belong beside these tables, run `tenure migrate` "
                    "once, or open it with App(…, migrate='always'). Otherwise name another file."
                )
            store.migrate()
        except BaseException:
            store.close()
            raise
    return store


def _open_postgres(url: str, migrate: Migrate) -> Store:
    try:
        from tenure.store.postgres.address import read_address
        from tenure.store.postgres.migrate import newest
        from tenure.store.postgres.store import PostgresStore
    except ModuleNotFoundError as exc:
        if exc.name in _DRIVERS:
            raise MissingExtra("postgres", "PostgreSQL") from exc
        raise
    address = read_address(url)
    store = PostgresStore(address.url, pool_size=address.pool_size, is_pooled=address.is_pooled)
    try:
        if migrate != "never":
            found = store.schema_version()
            if found == 0 and migrate == "existing":
                raise SchemaBehind(_NO_SCHEMA)
            if found < newest() and (migrate == "always" or found == 0):
                store.migrate()
            else:
                _check_version(found, newest())
    except BaseException:
        store.close()
        raise
    return store


def _check_version(found: int, wanted: int) -> None:
    if found < wanted:
        raise SchemaBehind(
            f"The schema in the database is at migration {found}, and this version of Tenure needs {wanted}. "
            "Run `tenure migrate`, or open it with App(…, migrate='always')."
        )
