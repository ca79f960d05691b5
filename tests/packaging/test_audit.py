"""Known vulnerabilities: a finding always fails, a service that cannot be asked never does, and says so."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.servers import free_port

ROOT = Path(__file__).parents[2]
CLEAN = {"name": "rich", "version": "15.0.0", "vulns": []}
UNASKED = {"name": "typer", "skip_reason": "Dependency not found on PyPI and could not be audited"}
FOUND = {"name": "jinja2", "version": "2.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.1.6"]}]}


def audit(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-W", "error", str(ROOT / ".ci" / "audit.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.returncode, done.stdout


class Service(BaseHTTPRequestHandler):
    answer: bytes
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def service() -> Iterator[tuple[str, type[Service]]]:
    handler = type("Handler", (Service,), {})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "answer", "code", "says"),
    [
        (200, {"info": {}, "vulnerabilities": []}, 0, ""),
        (200, {"info": {}}, 1, "tells nothing of them"),
        (200, "<html>", 1, "does not answer"),
        (404, {}, 1, "does not answer"),
    ],
)
def test_a_service_is_asked_only_if_it_tells_of_vulnerabilities(
    service: tuple[str, type[Service]], status: int, answer: Any, code: int, says: str
) -> None:
    url, handler = service
    handler.status, handler.answer = status, answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()

    ended, said = audit("probe", "--service", url)

    assert (ended, says in said, bool(said)) == (code, True, bool(says))


def test_a_service_that_is_not_there_is_told() -> None:
    ended, said = audit("probe", "--service", f"http://127.0.0.1:{free_port()}")

    assert (ended, said.startswith("Skipped: known vulnerabilities were not looked up")) == (1, True)


@pytest.mark.parametrize(
    ("packages", "options", "code", "says"),
    [
        ([CLEAN], [], 0, "nothing is known against 1 packages"),
        ([CLEAN, FOUND], [], 1, "jinja2 2.0 has PYSEC-1; fixed by 3.1.6"),
        ([UNASKED, FOUND], [], 1, "jinja2 2.0 has PYSEC-1"),
        ([CLEAN, UNASKED], [], 0, "1 of 2 packages could not be looked up, such as typer"),
        ([CLEAN, UNASKED], ["--strict"], 1, "could not be looked up"),
        (None, [], 0, "could not be looked up: ConnectionError"),
        (None, ["--strict"], 1, "could not be looked up: ConnectionError"),
    ],
)
def test_a_finding_fails_and_a_package_that_cannot_be_asked_for_is_told(
    tmp_path: Path, packages: list[Any] | None, options: list[str], code: int, says: str
) -> None:
    """The program stands for pip-audit: what it prints was recorded from version 2.10."""
    program = tmp_path / "pip-audit"
    told = "" if packages is None else json.dumps({"dependencies": packages, "fixes": []})
    program.write_text(f"#!/bin/sh\necho 'ConnectionError' >&2\necho '{told}'\nexit 1\n")
    program.chmod(0o755)

    ended, said = audit("run", *options, str(program), "core.txt")

    assert (ended, says in said) == (code, True), said
