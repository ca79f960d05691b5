"""`tenure serve` as a process: where it listens, what it refuses, what it prints, what half requests cost it."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import tenure
from tenure.model.access import new_token

COMMAND = [sys.executable, "-m", "tenure.cli.main"]


@contextmanager
def serving(*arguments: str) -> Iterator[dict[str, object]]:
    """A server process, ready to be asked; what it said when its port was open."""
    with subprocess.Popen(
        [*COMMAND, "serve", "--port", "0", "--json", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else ""
            yield {**json.loads(line), "pid": process.pid}
        finally:
            process.terminate()
            process.wait(20)


@pytest.fixture
def url(tmp_path: Path) -> str:
    found = f"sqlite:///{tmp_path / 'jobs.db'}"
    with tenure.App(found) as app:
        app.now()
    return found


def test_a_server_listens_on_loopback_and_prints_a_link_that_signs_in(url: str) -> None:
    with serving("--url", url) as said:
        base, link = str(said["url"]), said["links"]
        assert isinstance(link, dict)
        address, _, code = link["default"].partition("#")
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", base)
        assert address == f"{base}/ui/signin"
        with httpx.Client(base_url=base, headers={"Origin": base}) as client:
            assert client.get("/healthz").json() == {"status": "ok"}
            assert client.post("/ui/session", data={"code": code}).status_code == 303
            assert client.get("/ui/").status_code == 200
            assert client.get("/healthz", headers={"Host": "evil.test"}).status_code == 421
            assert client.get("/healthz", headers={"Host": "localhost:1"}).status_code == 421


def test_behind_a_proxy_the_link_names_the_host_that_browsers_reach(url: str) -> None:
    """It named the server's own port with https, where nothing speaks TLS."""
    with serving("--url", url, "--behind-proxy", "127.0.0.1", "--allow-host", "jobs.example.com") as said:
        base, links = str(said["url"]), said["links"]
        assert isinstance(links, dict)
        assert base.startswith("http://127.0.0.1:")
        assert httpx.get(f"{base}/healthz").json() == {"status": "ok"}

    assert links["default"].startswith("https://jobs.example.com/ui/signin#")


def test_what_is_no_address_of_a_proxy_is_refused(url: str) -> None:
    ended = subprocess.run(
        [*COMMAND, "serve", "--behind-proxy", "yes", "--url", url], capture_output=True, text=True, check=False
    )

    assert ended.returncode == 2
    assert "none of these" in ended.stderr


def test_a_unix_socket_is_for_its_owner_only(url: str, tmp_path: Path) -> None:
    path = tmp_path / "tenure.sock"
    left_behind = socket.socket(socket.AF_UNIX)
    left_behind.bind(str(path))
    left_behind.close()

    with serving("--url", url, "--socket", str(path)) as said:
        assert said["url"] == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost") as client:
            assert client.get("/healthz").json() == {"status": "ok"}
            assert client.get("/api/v1/jobs").status_code == 401
            assert client.get("/healthz", headers={"Host": "evil.test"}).status_code == 421
        second = subprocess.run(
            [*COMMAND, "serve", "--socket", str(path), "--url", url], capture_output=True, text=True, check=False
        )
        assert second.returncode == 2
        assert "cannot be listened on" in second.stderr
    assert not path.exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_other_addresses_are_refused_without_tls(url: str, host: str) -> None:
    ended = subprocess.run(
        [*COMMAND, "serve", "--host", host, "--port", "0", "--url", url], capture_output=True, text=True, check=False
    )

    assert ended.returncode == 2
    assert "in clear" in ended.stderr


def test_a_key_that_others_can_read_is_refused(url: str, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_text("secret")
    key.chmod(0o644)

    ended = subprocess.run(
        [*COMMAND, "serve", "--url", url, "--tls-cert", str(key), "--tls-key", str(key)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 2
    assert "can be read by others" in ended.stderr


def test_half_open_connections_leave_the_server_answering(url: str) -> None:
    many = 2000 if os.environ.get("TENURE_LONG") == "1" else 300
    with tenure.App(url) as app:
        token = app.access.new_token("producer", "enqueue:*").text
    with serving("--url", url) as said:
        base = str(said["url"])
        host, port = base.removeprefix("http://").split(":")
        halves = []
        try:
            for _ in range(many):
                half = socket.create_connection((host, int(port)))
                half.sendall(b"GET /healthz HTTP/1.1\r\nHost: ")
                halves.append(half)

            with httpx.Client(base_url=base, timeout=30, headers={"Authorization": f"Bearer {token}"}) as client:
                statuses = [client.get("/healthz").status_code for _ in range(20)]
                statuses += [client.post("/api/v1/jobs", json={"kind": "k"}).status_code for _ in range(20)]

            assert statuses == [200] * 20 + [201] * 20
        finally:
            for half in halves:
                half.close()


def test_a_connection_that_sends_no_head_is_closed(url: str) -> None:
    with serving("--url", url) as said:
        host, port = str(said["url"]).removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as half:
            half.sendall(b"GET /healthz HTTP/1.1\r\nHost: ")

            assert half.recv(1) == b""


def test_nothing_listens_where_the_address_is_refused(url: str) -> None:
    """The port is not opened first and closed again."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    ended = subprocess.run(
        [*COMMAND, "serve", "--host", "0.0.0.0", "--port", str(port), "--url", url],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 2
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def raw(base: str, request: bytes) -> bytes:
    """The first line of the answer to bytes on a real socket."""
    host, port = base.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(request)
        return connection.makefile("rb").readline()


def test_hosts_are_judged_on_a_real_socket(url: str) -> None:
    with serving("--url", url) as said:
        base = str(said["url"])
        own = base.removeprefix("http://").encode()
        port = own.partition(b":")[2]

        def ask(*hosts: bytes) -> bytes:
            lines = b"".join(b"Host: " + host + b"\r\n" for host in hosts)
            return raw(base, b"GET /healthz HTTP/1.1\r\n" + lines + b"Connection: close\r\n\r\n")

        assert b" 200 " in ask(own)
        for hosts in (
            (b"evil.test",),
            (b"evil.test:" + port,),
            (b"127.0.0.1.evil.test:" + port,),
            (b"127.0.0.1:1",),
            (own, own),
            (own, b"evil.test"),
            (),
        ):
            assert b" 421 " in ask(*hosts) or b" 400 " in ask(*hosts), hosts
        assert b" 421 " in raw(base, b"GET /healthz HTTP/1.0\r\n\r\n")


def test_a_large_body_is_refused_before_it_is_read_and_costs_no_memory(url: str) -> None:
    """A gigabyte is announced, or sent in pieces without an end: it is refused after a mebibyte, and what comes behind
    is thrown away until the connection is closed."""
    with tenure.App(url) as app:
        token = app.access.new_token("producer", "enqueue:*").text
    head = b"POST /api/v1/jobs HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"
    with serving("--url", url) as said:
        base = str(said["url"])
        host, port = base.removeprefix("http://").split(":")
        begun = head % (f"{host}:{port}".encode(), token.encode())

        assert b" 413 " in raw(base, begun + b"Content-Length: 1073741824\r\n\r\n")
        before = _resident(said)
        sent = 0
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(begun + b"Transfer-Encoding: chunked\r\n\r\n")
            try:
                while sent < 2**28:
                    connection.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
                    sent += 65536
            except OSError:
                pass  # it was cut off
        assert _resident(said) - before < 64 * 2**20
        assert httpx.get(f"{base}/healthz", timeout=30).status_code == 200


def _resident(said: dict[str, object]) -> int:
    """What the server's process holds in memory."""
    pages = Path(f"/proc/{said['pid']}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def test_guessing_over_a_socket_is_slowed_and_the_owner_is_not_locked_out(url: str) -> None:
    with tenure.App(url) as app:
        token = app.access.new_token("owner", "read:meta").text
    with serving("--url", url) as said, httpx.Client(base_url=str(said["url"]), timeout=60) as client:
        own = {"Authorization": f"Bearer {token}"}
        assert client.get("/api/v1/me", headers=own).status_code == 200
        wrong = [
            client.get("/api/v1/me", headers={"Authorization": f"Bearer {new_token()}"}).status_code for _ in range(40)
        ]
        assert wrong[:20] == [401] * 20
        assert 429 in wrong[20:]
        assert client.get("/api/v1/me", headers=own).status_code == 200


def test_a_server_that_is_stopped_ends_its_streams_and_says_nothing_of_them(url: str) -> None:
    """An open tab held the server for five seconds, and it ended with a traceback for each."""
    with tenure.App(url) as app:
        token = app.access.new_token("viewer", "read:meta").text
    with subprocess.Popen(
        [*COMMAND, "serve", "--port", "0", "--json", "--url", url],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        base = json.loads(process.stdout.readline())["url"]
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.stream("GET", f"{base}/api/v1/events", headers=headers, timeout=30) as live:
            lines = live.iter_lines()
            assert "event: ready" in (next(lines) for _ in range(10))
            process.terminate()
            left = list(lines)  # the answer has an end; httpx raises where it was cut off
        _, told = process.communicate(timeout=30)

    assert (told, [line for line in left if line.startswith("event:")]) == ("", [])


STOPPED_WHILE_IT_STARTS = """
import atexit, os, signal, sys, threading
import tenure

app = tenure.App(os.environ["TENURE_URL"])
begin = threading.Thread.start

def start(self):
    begin(self)
    if self.name == "tenure-bulk":
        os.kill(os.getpid(), signal.SIGTERM)

def tell():
    for left in threading.enumerate():
        if left.name == "tenure-bulk":
            print("the worker of the bulk acts was left running", file=sys.stderr)

threading.Thread.start = start
atexit.register(tell)
"""


def test_a_signal_while_the_server_starts_ends_it_in_order(url: str, tmp_path: Path) -> None:
    """The signal raised KeyboardInterrupt wherever it came: the worker of the bulk acts went on without its store, and
    once a server did not end at all."""
    (tmp_path / "stopped_early.py").write_text(STOPPED_WHILE_IT_STARTS)
    told = {**os.environ, "TENURE_URL": url}

    done = subprocess.run(
        [*COMMAND, "serve", "stopped_early:app", "--port", "0", "--json"],
        capture_output=True, text=True, env=told, cwd=tmp_path, timeout=60, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")


def test_no_secret_is_seen_in_the_arguments_of_the_server_or_its_children(url: str, tmp_path: Path) -> None:
    """A URL with a password comes by the environment; the process shows it in no command line."""
    told = {**os.environ, "TENURE_URL": url}
    with subprocess.Popen(
        [*COMMAND, "serve", "--port", "0", "--json"], stdout=subprocess.PIPE, text=True, env=told, cwd=tmp_path
    ) as process:
        try:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            shown = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            assert url.encode() not in shown
            assert said["links"]["default"].partition("#")[2].encode() not in shown
        finally:
            process.terminate()
            process.wait(20)


def test_connections_of_one_address_are_bounded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest that has sent no request is let go of; a request that is being answered is not."""
    import asyncio

    from tenure.web.proxies import Proxies
    from tenure.web.server import BoundedProtocol

    class Closing(asyncio.Transport):
        def __init__(self, address: str) -> None:
            super().__init__({"peername": (address, 1), "sockname": ("127.0.0.1", 2)})
            self.is_closed = False

        def is_closing(self) -> bool:
            return self.is_closed

        def close(self) -> None:
            self.is_closed = True

    async def connect() -> list[bool]:
        import uvicorn
        from uvicorn.server import ServerState

        monkeypatch.setattr(BoundedProtocol, "per_address", 2)
        monkeypatch.setattr(BoundedProtocol, "proxies", Proxies(["192.0.2.9"]))
        config, state = uvicorn.Config(lambda: None, log_config=None, ws="none"), ServerState()
        config.load()
        made = [Closing(address) for address in ["192.0.2.1"] * 3 + ["192.0.2.2"] * 2 + ["192.0.2.9"] * 4]
        for transport in made:
            protocol = BoundedProtocol(config, state, {})
            protocol.connection_made(transport)
            await asyncio.sleep(0.001)
        return [transport.is_closed for transport in made]

    assert asyncio.run(connect()) == [True, False, False, False, False, False, False, False, False]


def test_a_head_that_is_too_large_is_refused(url: str) -> None:
    with serving("--url", url) as said:
        answer = httpx.get(f"{said['url']}/healthz", headers={"X-Large": "x" * 100_000})

    assert answer.status_code in {400, 431}
