"""Workers in processes of their own, started by the command that users type."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

CHILDREN = Path(__file__).parent / "children"

StartWorker = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[StartWorker]:
    """Start `tenure worker press:app` on a URL; what still runs is stopped at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(url: str, *options: str) -> subprocess.Popen[bytes]:
        log = (tmp_path / f"worker-{len(started)}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "tenure.cli.main", "worker", "press:app", *options],
            cwd=CHILDREN,
            env={**os.environ, "TENURE_URL": url},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        log.close()
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in started:
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
