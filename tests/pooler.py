"""A real PgBouncer in transaction mode, in front of a test server. A guard ends it with the test session."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from psycopg.conninfo import conninfo_to_dict

from tests.servers import START_SECONDS, USER, PostgresServer, free_port, server_user

MISSING: Final = "PgBouncer is not installed (Debian: apt-get install pgbouncer)"

_SETTINGS: Final = """
[databases]
* = host=127.0.0.1 port={server_port} user={user}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 4000
server_idle_timeout = 5
logfile = {home}/pgbouncer.log
pidfile = {home}/pgbouncer.pid
"""

# $1 is the program, $2 its settings. `read` returns when the session writes a line or is gone.
_GUARD: Final = """
trap '' INT HUP
"$1" -q "$2" &
pid=$!
read -r _
kill "$pid" 2>/dev/null
wait "$pid"
"""


class PgBouncer:
    """One PgBouncer with `size` connections per database, in front of `server`."""

    def __init__(self, program: str, server: PostgresServer, *, size: int = 20) -> None:
        uid, gid = server_user()
        self.home = Path(tempfile.mkdtemp(prefix="tenure-pgb-", dir=server.home.parent))
        os.chown(self.home, uid, gid)
        self.port = free_port()
        settings = self.home / "pgbouncer.ini"
        settings.write_text(
            _SETTINGS.format(server_port=server.port, user=USER, port=self.port, size=size, home=self.home)
        )
        settings.chmod(0o644)
        is_root = os.geteuid() == 0
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "guard", program, str(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.home,
            start_new_session=True,
            user=uid if is_root else None,
            group=gid if is_root else None,
            extra_groups=[] if is_root else None,
        )
        self._await()

    def url(self, direct: str) -> str:
        """The address of the database of a direct URL, through this pooler, as users write it."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{conninfo_to_dict(direct)['dbname']}?tenure_pooler=1"

    def close(self) -> None:
        """End it and remove its folder."""
        self._process.communicate(b"\n", timeout=START_SECONDS)
        shutil.rmtree(self.home, ignore_errors=True)

    def _await(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if time.monotonic() > deadline:
                log = self.home / "pgbouncer.log"
                raise RuntimeError(f"PgBouncer did not start: {log.read_text() if log.exists() else 'it has no log'}")
            time.sleep(0.02)


def find_pgbouncer() -> str | None:
    """The program, or None. Debian puts it where a user's PATH does not look."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
