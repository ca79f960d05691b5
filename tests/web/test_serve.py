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
            yield json.loads(line)
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
    with serving("--url", url) as said:
        base = str(said["url"])
        host, port = base.removeprefix("http://").split(":")
        halves = []
        try:
            for _ in range(many):
                half = socket.create_connection((host, int(port)))
                half.sendall(b"GET /healthz HTTP/1.1\r\nHost: ")
                halves.append(half)

            answer = httpx.get(f"{base}/healthz", timeout=10)

            assert answer.status_code == 200
        finally:
            for half in halves:
                half.close()


def test_a_connection_that_sends_no_head_is_closed(url: str) -> None:
    with serving("--url", url) as said:
        host, port = str(said["url"]).removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as half:
            half.sendall(b"GET /healthz HTTP/1.1\r\nHost: ")

            assert half.recv(1) == b""


def test_a_head_that_is_too_large_is_refused(url: str) -> None:
    with serving("--url", url) as said:
        answer = httpx.get(f"{said['url']}/healthz", headers={"X-Large": "x" * 100_000})

    assert answer.status_code in {400, 431}
