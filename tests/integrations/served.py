"""Programs that tests start for real, and how they are told to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

END_SECONDS = 60.0
"""Far above what an end takes, far below what it would take if it waited for a poll, a lease or a grace period."""


class Program:
    """A process that was started, and what it has written so far."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def terminate(self) -> int:
        """Send SIGTERM and wait for the end; answer the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=END_SECONDS)


@contextmanager
def started(
    command: list[str], folder: Path, environment: Mapping[str, str] | None = None, *, is_python: bool = True
) -> Iterator[Program]:
    """Run a command, of this Python unless told otherwise; kill it if the test has not ended it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TENURE", "DJANGO"))}
    with tempfile.TemporaryDirectory() as logs:
        log = Path(logs) / "output"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*([sys.executable] if is_python else []), *command],
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**inherited, "PYTHONUNBUFFERED": "1", **(environment or {})},
            )
        try:
            yield Program(process, log)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
