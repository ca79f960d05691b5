"""An app for the browser tests: a job that takes until it is let go, one that works and one that fails."""

from __future__ import annotations

import time
from pathlib import Path

import tenure

app = tenure.App()
app.queue("mail", max_attempts=1, lease_seconds=3)


@app.job(queue="mail", kind="welcome")
def welcome(payload: dict[str, str]) -> dict[str, str | None]:
    return {"sent": payload.get("to")}


@app.job(queue="mail", kind="broken")
def broken(payload: dict[str, str]) -> None:
    if not Path(payload["mended"]).exists():
        raise ValueError("no such address")


@app.job(queue="mail", kind="slow")
def slow(payload: dict[str, str], ctx: tenure.Context) -> None:
    ctx.progress(0.5, "half way")
    while not Path(payload["until"]).exists():
        time.sleep(0.05)


@app.job(queue="mail", kind="refund", durable=True)
def refund(payload: dict[str, str], ctx: tenure.Context) -> dict[str, bool]:
    """Asks before it pays."""
    ok = ctx.approve("refund", args={"order": payload["order"], "amount": payload["amount"]}, text="Pay it back?")
    return {"granted": bool(ok)}


@app.job(kind="talk", queue="mail")
def talk(payload: dict[str, str], ctx: tenure.Context) -> None:
    """Says a line now and then, until it is told to end."""
    count = 0
    while not Path(payload["until"]).exists():
        count += 1
        ctx.stream().write(f"attempt {ctx.attempt} says {count}\n")
        ctx.check()
        time.sleep(0.2)
