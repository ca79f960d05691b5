"""Handlers for workers in processes of their own, and such a worker: `python crew.py URL '{"concurrency": 2}'`.

What handlers do is written to the file their payload names, a line each, for the test to read.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import json
import os
import random
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


@job("process")
def stream_out(ctx: Context) -> None:
    """Write to a stream, in small pieces and a large one."""
    for nth in range(50):
        ctx.stream().write(f"{nth} ")
    ctx.stream().write("x" * 100_000)


@job("process")
async def astream_out(ctx: Context) -> None:
    """The same on an event loop."""
    for nth in range(50):
        await ctx.stream().write(f"{nth} ")
    await ctx.stream().write("x" * 100_000)


@job("process")
def spend_out(ctx: Context) -> None:
    """Reserve from budgets and say what was used."""
    with ctx.reserve(usd="0.40", tokens=1000) as reservation:
        reservation.used(usd="0.10", tokens=400)


@job("process")
async def aspend_out(ctx: Context) -> None:
    """The same on an event loop."""
    async with ctx.reserve(usd="0.40", tokens=1000) as reservation:
        reservation.used(usd="0.10", tokens=400)


@job("async")
async def spend_some(payload: dict[str, Any], ctx: Context) -> None:
    """Spend a part of what is reserved, and note it before the settle: the worker may be killed at any point."""
    async with ctx.reserve(usd_micro=10) as reservation:
        cost = random.randint(0, 10)
        note(payload, "spent", cost)
        await asyncio.sleep(random.random() / 5)
        reservation.used(usd_micro=cost)


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
def chatter(payload: dict[str, Any], ctx: Context) -> None:
    for number in range(payload["events"]):
        ctx.event("custom", number)


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


def noted_step(payload: dict[str, Any]) -> str:
    note(payload, "step")
    return "done"


@job("process")
def durable_child() -> str:
    return "child"


@job("process", is_durable=True)
def ask_refund(payload: dict[str, Any], ctx: Context) -> list[Any]:
    """Ask, then do what was approved. It dies once between the two if the payload says so."""
    note(payload, "asks", ctx.token)
    ok = ctx.approve("refund", args={"eur": 120}, text="Pay it back?")
    if not ok:
        return ["refused", *ok.by]
    if payload.get("die") and len(Path(payload["file"]).read_text().splitlines()) < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    done = ctx.effect(
        "refund", ok.args, do=lambda call: note(payload, "paid", call.args["eur"]), keyed=True, approval=ok
    )
    return ["paid", done, *ok.by]


@job("async", is_durable=True)
async def ask_and_hold(payload: dict[str, Any], ctx: Context) -> list[str]:
    """Ask; once it is granted, go on until a file appears."""
    ok = await ctx.approve("refund", args={"eur": 120})
    note(payload, "decided", *ok.by)
    while not Path(payload["until"]).exists():  # noqa: ASYNC110, ASYNC240 - a file is all the test can touch
        await asyncio.sleep(0.01)
    return list(ok.by)


@job("process", is_durable=True)
def durable_sync(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """Steps, a signal and children from a process of its own."""
    note(payload, "run", ctx.token)
    drawn = ctx.uuid()
    step = ctx.step("step", noted_step, payload)
    drawn_then = ctx.step("drawn", lambda: str(drawn))
    signal = ctx.wait_for("go")
    children = ctx.gather(*(ctx.spawn("child", "durable_child", key=n) for n in range(2)))
    return {"step": step, "signal": signal, "children": children, "same": str(drawn) == drawn_then}


@job("process", is_durable=True)
async def durable_async(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """The same on an event loop."""
    note(payload, "run", ctx.token)
    drawn = ctx.uuid()
    step = await ctx.step("step", noted_step, payload)
    drawn_then = await ctx.step("drawn", lambda: str(drawn))
    signal = await ctx.wait_for("go")
    done = await ctx.map("children", "durable_child", [{}, {}])
    children = [one.result async for one in done.results()]
    return {"step": step, "signal": signal, "children": children, "same": str(drawn) == drawn_then}


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
