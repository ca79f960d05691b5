"""A command line in the test's own process, on a SQLite file of the test's own."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tenure import App
from tenure.cli.main import run


@dataclass(frozen=True, slots=True)
class Result:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.err)["error"]
        return found

    @property
    def rows(self) -> list[list[str]]:
        """The lines of a piped table, without its heading."""
        return [line.split("\t") for line in self.out.splitlines()[1:]]


Cli = Callable[..., Result]


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A SQLite file that is not there yet, named by TENURE_URL as well."""
    found = f"sqlite:///{tmp_path / 'cli.db'}"
    for name in ("TENURE_ACTOR", "TENURE_APP", "TENURE_WORKER", "TENURE_DEBUG", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TENURE_URL", found)
    monkeypatch.chdir(tmp_path)
    return found


@pytest.fixture
def app(url: str) -> Iterator[App]:
    """The same database, as Python sees it."""
    with App(url, actor="test") as opened:
        opened.queues.set("mail", max_attempts=2)
        yield opened


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run one command line; `stdin` is what it reads."""

    def call(*args: str, stdin: str = "") -> Result:
        capsys.readouterr()
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        code = run(args)
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return call


@contextmanager
def no_traceback() -> Iterator[None]:
    """A fault of ours would be told as `internal`; tests want it raised."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENURE_DEBUG", "1")
        yield
