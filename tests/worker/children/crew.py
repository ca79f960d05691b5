"""Handlers for workers in processes of their own, and such a worker: `python crew.py URL '{"concurrency": 2}'`.

What handlers do is written to the file their payload names, a line each, for the test to read.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tenure.handler.context import Context
from tenure.handler.payload import payload_codec
from tenure.handler.registry import Handler, Mode, Registry

registry = Registry()


def job(mode: Mode, **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        wants = inspect.signature(function).parameters
        encode, decode = payload_codec(Any, function.__name__)
        registry.add(
            Handler(
                kind=function.__name__,
                queue="default",
                function=function,
                mode=mode,
                decode=decode,
                encode=encode,
                wants_payload="payload" in wants,
                wants_context="ctx" in wants,
                **settings,
            )
        )
        return function

    return register


def note(payload: dict[str, Any], *words: object) -> None:
    with Path(payload["file"]).open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


@job("async")
async def hold(payload: dict[str, Any], ctx: Context) -> str:
    """Begin, and go on until a file appears."""
    note(payload, "begun", ctx.token, os.getpid())
    while not Path(payload["until"]).exists():  # noqa: ASYNC110, ASYNC240 - a file is all the test can touch
        await asyncio.sleep(0.01)
    note(payload, "ended", ctx.token, os.getpid())
    return f"token {ctx.token}"


@job("async")
async def heed(payload: dict[str, Any], ctx: Context) -> None:
    """Begin, and give the job back when the worker wants to stop."""
    note(payload, "begun", ctx.token, os.getpid())
    await ctx.stopping.wait_async()
    ctx.check()


@job("async")
async def quick(payload: dict[str, Any]) -> None:
    note(payload, "quick")


@job("async")
async def write_under_token(payload: dict[str, Any], ctx: Context) -> int:
    """Do a little work, written down with the token, and fail as often as the script says."""
    note(payload, "run", ctx.id, ctx.token, ctx.attempt)
    await asyncio.sleep(payload["seconds"])
    if payload["always_fails"]:
        raise ValueError("as the script says")
    return int(ctx.token)


@job("process")
def echo(payload: dict[str, Any]) -> dict[str, Any]:
    return {"said": payload["say"], "pid": os.getpid(), "session": os.getsid(0)}


@job("process")
async def async_echo(payload: dict[str, Any]) -> str:
    await asyncio.sleep(0)
    return str(payload["say"])


@job("process")
def talk(payload: dict[str, Any], ctx: Context) -> str:
    ctx.progress(0.25)
    ctx.logger.info("from afar")
    ctx.enqueue("quick", payload, delay=3600)
    ctx.set_result_summary("talked")
    (ctx.artifacts / "said.txt").write_text("x")
    return "done"


@job("process")
def segfault(payload: dict[str, Any]) -> None:
    note(payload, "segfault")
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    ctypes.string_at(0)


@job("process")
def leave(payload: dict[str, Any]) -> None:
    os._exit(7)


@job("thread")
def die(payload: dict[str, Any]) -> None:
    """End the process in which it runs."""
    os._exit(9)


@job("process")
def fall(payload: dict[str, Any]) -> None:
    raise ValueError(f"fell over {payload['say']}")


@job("process", timeout_seconds=4.0)
def breed(payload: dict[str, Any]) -> None:
    """Start a daemon that leaves session and parent behind, and hang."""
    _daemonise(payload)
    time.sleep(600)


@job("process")
def breed_and_return(payload: dict[str, Any]) -> str:
    _daemonise(payload)
    return "left it running"


@job("process")
def linger(payload: dict[str, Any], ctx: Context) -> None:
    """Hang until the worker wants to stop, then give the job back."""
    note(payload, "begun", ctx.token, os.getpid())
    assert ctx.stopping.wait(60)
    ctx.check()


def _daemonise(payload: dict[str, Any]) -> None:
    script = (
        "import os, sys, time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "open(sys.argv[1], 'a').write(f'daemon {os.getpid()}\\n')\n"
        "time.sleep(600)\n"
    )
    subprocess.run([sys.executable, "-c", script, payload["file"]], check=True)
    deadline = time.monotonic() + 10
    file = Path(payload["file"])
    while not (file.exists() and "daemon" in file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.01)


def main() -> int:
    from tenure.observe.log import emitter
    from tenure.worker.supervisor import die_with_supervisor
    from tenure.worker.worker import Worker, WorkerConfig
    from tests.conformance.engines import open_store

    die_with_supervisor()
    settings = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    store = open_store(sys.argv[1])
    config = WorkerConfig(**{"poll_seconds": 0.2, "maintain": False, **settings})
    Worker(store, registry, config, emit=emitter("json", "debug")).run_sync()
    store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
