"""The handlers of `tenure demo`. Real work of a small sort: files in a folder, with traces of who wrote them."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import TypedDict

import tenure

FOLDER_VARIABLE = "TENURE_DEMO_FOLDER"
QUEUE_VARIABLE = "TENURE_DEMO_QUEUE"
WORKER_VARIABLE = "TENURE_DEMO_WORKER"
"""Names the worker, also in the processes of their own that it gives to jobs."""

PAGE_SECONDS = 0.35
QUEUE = os.environ.get(QUEUE_VARIABLE, "demo")

app = tenure.App()


class Thumbnail(TypedDict):
    number: int


class Report(TypedDict):
    name: str
    pages: int


class Charge(TypedDict):
    customer: str
    amount: int


@app.job(queue=QUEUE)
def thumbnail(payload: Thumbnail) -> str:
    """A small piece of work: bytes through a hash, and a line that says it was done."""
    digest = hashlib.sha256(str(payload["number"]).encode() * 50_000).hexdigest()
    append("thumbnails", f"{payload['number']} {digest[:16]}")
    return digest[:16]


@app.job(queue=QUEUE)
def report(payload: Report, ctx: tenure.Context) -> dict[str, object]:
    """A long piece of work: page after page. It does not look whether it is still wanted; the token sees to that."""
    for page in range(1, payload["pages"] + 1):
        time.sleep(PAGE_SECONDS)
        ctx.progress({"page": page, "of": payload["pages"]})
        append(f"pages-{payload['name']}", f"{page} {os.getpid()} {ctx.token}")
    return {"pages": payload["pages"], "worker": os.environ[WORKER_VARIABLE], "token": ctx.token}


@app.job(queue=QUEUE)
def charge(payload: Charge) -> str:
    """Fails until the payment service is repaired, which here is a file."""
    if not (folder() / "payments-are-up").exists():
        raise ConnectionError("the payment service refuses connections")
    append("charges", f"{payload['customer']} {payload['amount']}")
    return f"{payload['customer']} paid {payload['amount']}"


def folder() -> Path:
    """Where handlers leave their traces."""
    return Path(os.environ[FOLDER_VARIABLE])


def append(name: str, line: str) -> None:
    """Add a line to a file, whole: short writes in append mode do not mix."""
    with (folder() / name).open("ab", buffering=0) as file:
        file.write(f"{line}\n".encode())


def lines(name: str) -> list[str]:
    """What was written so far."""
    path = folder() / name
    return path.read_text().splitlines() if path.exists() else []
