"""The app of workers with durable handlers that die at chosen points: `tenure worker tests.fault.children.durable:app`.

What is done is appended to the file that TENURE_TEST_NOTES names, one write for each line: what, job, token, more. A
handler dies at a point once: the file that its payload names as `once` is made first.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import tenure
from tenure.handler.children import AddChildren, GroupTerms, ReadChildren
from tenure.model import failpoints
from tenure.worker import outcomes
from tests.fault.scale import QUEUE

app = tenure.App()


def note(what: str, ctx: tenure.Context, *more: object) -> None:
    line = " ".join(map(str, (what, ctx.id, ctx.token, *more)))
    file = os.open(os.environ["TENURE_TEST_NOTES"], os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(file, f"{line}\n".encode())
    os.close(file)


def die_once(payload: dict[str, Any], point: str, how: signal.Signals = signal.SIGKILL) -> None:
    """End (or stop) this process at the point that the payload names, once."""
    if payload["at"] != point:
        return
    try:
        Path(payload["once"]).touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), how)
    time.sleep(0.05)  # signals to oneself are delivered soon, not at once


def die_after_commit(payload: dict[str, Any], ctx: tenure.Context, point: str, is_there: Any) -> None:
    """End this process as soon as a commit is there, before its answer is."""
    if payload["at"] != point or Path(payload["once"]).exists():
        return
    other = tenure.App(app.url)  # a store of its own; it is opened before the point may be passed
    is_there(other, ctx.id)
    looking = threading.local()

    def act() -> None:
        if getattr(looking, "is_on", False):
            return  # the look itself passes the point
        looking.is_on = True
        if is_there(other, ctx.id):
            die_once(payload, point)
        looking.is_on = False

    failpoints.arm("after_commit_before_reply", act)


def has_step(other: tenure.App, job_id: str) -> bool:
    return any(step.key == "one" for step in other.steps.all(job_id))


def waits(other: tenure.App, job_id: str) -> bool:
    return other.get(job_id).state in {"waiting", "queued"}


def has_ended_child(other: tenure.App, job_id: str) -> bool:
    return any(job.state == "succeeded" for job in other.jobs(parent_id=job_id).items)


def has_page(other: tenure.App, job_id: str) -> bool:
    return any(step.kind == "group" for step in other.steps.all(job_id))


@app.job(queue=QUEUE)
def child(payload: int) -> int:
    return payload


@app.job(queue=QUEUE, durable=True)
def dies(payload: dict[str, Any], ctx: tenure.Context) -> Any:
    """Two steps and two children; dies once at the point that the payload names."""
    note("run", ctx)

    def one() -> int:
        note("one", ctx)
        die_once(payload, "in step")
        die_once(payload, "late", signal.SIGSTOP)
        die_after_commit(payload, ctx, "after step", has_step)
        return int(ctx.token)

    token = ctx.step("one", one)
    die_once(payload, "between")
    children = [ctx.spawn("child", child, n, key=n) for n in range(2)]
    die_once(payload, "before suspend")
    die_after_commit(payload, ctx, "after suspend", waits)
    die_after_commit(payload, ctx, "after child", has_ended_child)
    found = ctx.gather(*children)
    ctx.step("two", note, "two", ctx)
    die_once(payload, "at the end")
    return [token, found]


@app.job(queue=QUEUE, durable=True)
async def maps(payload: dict[str, Any], ctx: tenure.Context) -> Any:
    """Many children; dies once after the first page of them."""
    note("run", ctx)
    die_after_commit(payload, ctx, "after page", has_page)
    done = await ctx.map("all", child, range(payload["count"]), window=payload["window"])
    total = 0
    async for one in done.results():
        total += one.result
    return [done.counts, total]


@app.job(queue=QUEUE, durable=True)
def fast_children(payload: dict[str, Any], ctx: tenure.Context) -> Any:
    """Two children, created while it runs on; dies once when both have ended, before its suspend or with it."""
    note("run", ctx)
    if not Path(payload["once"]).exists():
        jobs = [ctx.new_child(child, n, {}) for n in range(2)]
        group = ctx.ask(AddChildren(GroupTerms().group("all", jobs), 0, 2))
        while any(not one.ok for one in ctx.ask(ReadChildren(group.id))):
            time.sleep(0.02)
        die_once(payload, "before the parent's suspend")
        if payload["at"] == "in the parent's suspend":
            vars(outcomes)["Suspended"] = dying
    done = ctx.map("all", child, range(2))
    return [done.counts, sorted(one.result for one in done.results())]


def dying(*_: object) -> None:
    """End this process where it makes the outcome of a suspend."""
    Path(os.environ["TENURE_TEST_NOTES"]).with_name("once").touch()
    os.kill(os.getpid(), signal.SIGKILL)


@app.job(queue=QUEUE, durable=True)
def ten_steps(ctx: tenure.Context) -> int:
    """Ten steps of a few milliseconds, each noted when it begins."""

    def part(n: int) -> int:
        note("part", ctx, n)
        time.sleep(0.005)
        return n

    return sum(ctx.step("part", part, n, key=n) for n in range(10))


@app.job(queue=QUEUE, durable=True)
def undoes(payload: dict[str, Any], ctx: tenure.Context) -> None:
    """Fails after two steps; dies once while it undoes them."""
    for part in ("train", "hotel"):
        ctx.on_failure(part, undo, payload, ctx, part)
        ctx.step(f"book-{part}", note, f"book-{part}", ctx)
    raise tenure.Permanent("no visa")


def undo(payload: dict[str, Any], ctx: tenure.Context, part: str) -> None:
    note(f"undo-{part}", ctx)
    die_once(payload, f"undo {part}")


@app.job(queue=QUEUE, durable=True)
def sleeps(payload: dict[str, Any], ctx: tenure.Context) -> bool:
    note("run", ctx)
    ctx.sleep("nap", payload["seconds"])
    return True
