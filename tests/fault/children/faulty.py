"""The app of workers that meet poison, starvation and kills: `tenure worker tests.fault.children.faulty:app`.

Each handler appends a line to the file that TENURE_TEST_NOTES names when it starts: kind, job, token, process. One
write each on a file opened for appending, so the line is there although the process dies right after.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import time
from pathlib import Path
from typing import Any, NoReturn

import tenure
from tests.fault.scale import QUEUE

app = tenure.App()

MIB = 1024 * 1024

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def note(kind: str, ctx: tenure.Context) -> None:
    file = os.open(os.environ["TENURE_TEST_NOTES"], os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(file, f"{kind} {ctx.id} {ctx.token} {os.getpid()}\n".encode())
    os.close(file)


@app.job(queue=QUEUE)
def healthy(ctx: tenure.Context) -> None:
    note("healthy", ctx)


@app.job(queue=QUEUE)
def nap(payload: dict[str, Any], ctx: tenure.Context) -> None:
    note("nap", ctx)
    time.sleep(payload["seconds"])


@app.job(queue=QUEUE)
def hold(payload: dict[str, Any], ctx: tenure.Context) -> None:
    """Go on until a file appears: an hour-long job whose end the test decides."""
    note("hold", ctx)
    while not Path(payload["until"]).exists():
        time.sleep(0.02)


@app.job(queue=QUEUE)
def poison(payload: dict[str, Any], ctx: tenure.Context) -> NoReturn:
    note("poison", ctx)
    match payload["how"]:
        case "signal":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(3)
        case "memory":
            _eat_memory()
        case "parent":
            _kill(os.getppid())
        case "ancestors":
            for pid in _ancestors():
                _kill(pid)
    os._exit(4)


def _eat_memory() -> NoReturn:
    """What an out-of-memory killer does, without one: allocate up to a limit, and die there."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 64 * MIB, used + 64 * MIB))
    eaten = []
    try:
        while True:
            eaten.append(bytearray(MIB))
    except MemoryError:
        os.abort()


def _kill(pid: int) -> None:
    """Never the test's own process, which is the parent of a worker without a supervisor."""
    if pid > 1 and pid != int(os.environ["TENURE_TEST_PID"]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _ancestors() -> list[int]:
    """The processes above this one, nearest first, up to the test's own."""
    found = []
    pid = os.getppid()
    while pid > 1 and pid != int(os.environ["TENURE_TEST_PID"]):
        found.append(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found
