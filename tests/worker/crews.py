"""Worker processes for tests: started, heard, and ended for sure."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
CREW = Path(__file__).parent / "children" / "crew.py"


class Crew:
    """A worker in a process of its own; its log is read back as events."""

    def __init__(
        self, url: str, log: Path, settings: dict[str, Any], environment: dict[str, str] | None = None
    ) -> None:
        self._log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(CREW), url, json.dumps(settings)],
                stderr=file,
                env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
            )

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def events(self) -> list[dict[str, Any]]:
        lines = self._log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def names(self) -> list[str]:
        return [event["event"] for event in self.events()]

    def text(self) -> str:
        return self._log.read_text()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def crew(url: str, folder: Path, name: str = "crew", **settings: Any) -> Iterator[Crew]:
    """A worker process that does not outlive the test."""
    one = Crew(url, folder / f"{name}.log", settings)
    try:
        yield one
    finally:
        one.end()


def is_alive(pid: int) -> bool:
    """Whether a process is there and not a zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def words(file: Path, first: str) -> list[list[str]]:
    """The lines of a file that begin with a word, split."""
    if not file.exists():
        return []
    return [line.split() for line in file.read_text().splitlines() if line.startswith(first)]
