"""Tests of agent frameworks. They need an environment of their own: `make test-frameworks`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import PostgresServer, wheel_bin_path

NEEDED = ("pydantic_ai", "agents", "langgraph")
collect_ignore_glob = [] if all(importlib.util.find_spec(name) for name in NEEDED) else ["test_*.py", "children/*"]


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    made = PostgresServer(wheel_bin_path(18), durable=False)
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database on either engine."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'jobs.db'}"
        return
    made: PostgresServer = request.getfixturevalue("server")
    address = made.create_database()
    yield address
    made.drop_database(address)


class Workers:
    """One worker at a time of the agents' app; a new one when it died."""

    def __init__(self, url: str, notes: Path) -> None:
        self.deaths = 0
        self._environment = {**os.environ, "TENURE_URL": url, "TENURE_TEST_NOTES": str(notes)}
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "tenure", "worker", "tests.frameworks.children.cashiers:app", "--lease", "3"]
        return subprocess.Popen(words, env=self._environment)

    def tend(self) -> None:
        """Start a worker again if the last one died."""
        if self._process.poll() is not None:
            self.deaths += 1
            self._process = self._start()

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


@pytest.fixture
def workers(url: str, notes: Path) -> Iterator[Workers]:
    made = Workers(url, notes)
    yield made
    made.close()
