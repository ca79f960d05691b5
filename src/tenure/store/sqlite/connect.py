"""Connections: opened one way, set one way, with the few functions that SQLite lacks."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import sqlite3
import time
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tenure.errors import ConfigError
from tenure.model.fingerprint import fingerprint
from tenure.store.sqlite.errors import is_busy
from tenure.store.sqlite.queries import load

OLDEST: Final = (3, 38, 0)
"""The operator ->> ; STRICT tables, RETURNING and UPDATE FROM are older."""


def open_writer(path: Path, busy_seconds: float) -> sqlite3.Connection:
    """A connection that may write. WAL is a property of the file: the first one to come sets it."""
    _refuse_old_library()
    connection = _connect(path)
    try:
        deadline = time.monotonic() + busy_seconds
        while True:
            try:
                connection.execute(load("wal"))
                connection.executescript(load("connect"))
                break
            except sqlite3.OperationalError as exc:
                if not is_busy(exc) or time.monotonic() > deadline:
                    raise
                time.sleep(random.uniform(0.001, 0.01))
        add_functions(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """A connection for short reads. It cannot write, and never waits for the writer."""
    connection = _connect(path, wait_seconds=5.0)  # only recovery after a crash makes a reader wait
    try:
        connection.executescript(load("connect"))
        connection.execute(load("read_only"))
        add_functions(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def add_functions(connection: sqlite3.Connection) -> None:
    """The functions that our statements call and SQLite does not have."""
    connection.create_function("tenure_fingerprint", 2, fingerprint, deterministic=True)
    connection.create_function("tenure_payload_hash", 1, payload_hash, deterministic=True)
    connection.create_function("tenure_forbidden_key", 2, forbidden_key, deterministic=True)
    connection.create_function("tenure_power", 2, _power, deterministic=True)


def payload_hash(payload: str | bytes) -> str:
    """The same for payloads that differ only in spaces and in the order of keys."""
    canonical = json.dumps(json.loads(payload), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def forbidden_key(payload: str | bytes, keys: str) -> str | None:
    """The first key of the payload, at any depth, that is among `keys` (a JSON array); None if there is none."""
    found: list[str] = []
    json.loads(payload, object_pairs_hook=lambda pairs: found.extend(key for key, _ in pairs))
    wanted = set(json.loads(keys))
    return next((key for key in found if key in wanted), None)


def _power(base: float, exponent: float) -> float:
    """Not every build of SQLite has its mathematical functions. What is too large for a number is capped anyway."""
    with contextlib.suppress(OverflowError):
        return float(pow(base, exponent))
    return 1e300


def _connect(path: Path, wait_seconds: float = 0.0) -> sqlite3.Connection:
    # mode=rw: a file that was taken away must not come back empty.
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode=rw",
        uri=True,
        timeout=wait_seconds,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )


def _refuse_old_library() -> None:
    if sqlite3.sqlite_version_info < OLDEST:
        raise ConfigError(
            f"This Python brings SQLite {sqlite3.sqlite_version}; Tenure needs {'.'.join(map(str, OLDEST))} or newer. "
            f"Use a newer Python or a newer libsqlite3."
        )
