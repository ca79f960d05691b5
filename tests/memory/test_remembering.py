"""Remembering: by workers and handlers, once, without secrets, whatever crashes."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

import tenure
from tenure import App
from tenure.errors import InvalidArgument
from tenure.flow.embedding_jobs import embeddings
from tenure.model.ids import new_job_id
from tenure.model.job import NewJob
from tenure.model.outcome import Completed
from tenure.store.contract import Enqueue, Settle
from tenure.store.memory import CountMemories, ListUnremembered
from tests.waiting import wait_until

WORKER: Final = Path(__file__).parent / "children" / "embedding_worker.py"
CANARIES: Final = (
    "AKIAIOSFODNN7EXAMPLE",
    "ghp_" + "c" * 36,
    "hunter2-canary",
    "canary-password",
    "canary-bearer-0123456789abcdef",
)


def dump(url: str, *tables: str) -> str:
    """Everything that these tables hold, as text."""
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as raw:
            return "\n".join(str(row) for table in tables for row in raw.execute(f"SELECT * FROM tenure_{table}"))
    with psycopg.connect(url) as connection:
        rows = [connection.execute(f"SELECT * FROM tenure.{table}".encode()).fetchall() for table in tables]
        return "\n".join(map(str, rows))


def test_secrets_are_not_remembered(app: App, url: str) -> None:
    key, github, word, password, bearer = CANARIES
    app.use(embeddings())
    app.queue("Agent", agent_events="ends")

    @app.job(queue="Agent", max_attempts=1)
    def work(payload: dict[str, Any], ctx: tenure.Context) -> dict[str, Any]:
        ctx.set_result_summary(f"Used {key} for the upload")
        ctx.remember(f"the token is {github}", meta={"password": word, "note": "kept"})
        if payload.get("fail"):
            raise ValueError(f"postgres://me:{password}@host/db refused; Authorization: Bearer {bearer}")
        return {"api_key": word, "url": f"https://me:{password}@host/x", "part": "BX-1"}

    work.enqueue({"password": word, "part": "BX-1"})
    work.enqueue({"secret": github, "fail": True})
    app.run_worker(drain=True)
    app.memory.remember(f"key {key} is old", agent="Agent")

    assert app.memory.stats().unremembered == 0
    kept = dump(url, "memory", "agent_event")
    assert [canary for canary in CANARIES if canary in kept] == []
    assert "BX-1" in kept
    assert "kept" in kept
    found = app.memory.search("upload", limit=5)
    assert found
    assert "[redacted]" in found[0].text


def test_a_handler_recalls_what_another_remembered_within_its_tenant(app: App) -> None:
    found: dict[str, list[str]] = {}

    @app.job
    def learn(ctx: tenure.Context) -> None:
        ctx.remember("Brake discs from Nordteile are 2 mm too large", kind="fact")
        ctx.remember("Brake discs from Nordteile are 2 mm too large", kind="fact")

    @app.job
    async def use(ctx: tenure.Context) -> None:
        await ctx.remember("async agents remember too", ttl=3600)
        hits = await ctx.recall("brake disc size", kind="fact")
        found[str(ctx.job.extra("tenant"))] = [hit.text for hit in hits]

    learn.options(tenant="acme").enqueue()
    app.run_worker(drain=True)
    use.options(tenant="acme").enqueue()
    use.options(tenant="other").enqueue()
    use.enqueue()
    app.run_worker(drain=True)

    text = "Brake discs from Nordteile are 2 mm too large"
    assert found == {"acme": [text], "other": [], "None": [text]}
    assert app.memory.search("async agents", tenant="other", limit=1)[0].tenant == "other"


def test_an_attempt_that_fails_after_it_remembered_does_not_remember_twice(app: App) -> None:
    app.queues.set("default", backoff=tenure.Backoff("none", jitter=0.0))

    @app.job(max_attempts=3)
    def shaky(ctx: tenure.Context) -> None:
        ctx.remember("the same each time")
        if ctx.attempt < 3:
            raise RuntimeError("again")

    shaky.enqueue()
    app.run_worker(drain=True)

    assert app.store.do(CountMemories()).models == {"wordllama:256": 1}


@pytest.mark.timeout(120)
def test_workers_killed_while_they_embed_lose_and_repeat_nothing(app: App, url: str) -> None:
    """The story: an event and its embedding job are committed together; a worker may die anywhere after that."""
    app.queue("Agent", agent_events="completed")
    app.queues.set("embedding", priority_order="low", priority_default=3, lease_seconds=1.0, max_attempts=50)

    @app.job(queue="Agent")
    def work(number: dict[str, int]) -> dict[str, int]:
        return number

    for number in range(60):
        work.enqueue({"part": number})
    app.run_worker(["Agent"], drain=True)
    assert app.memory.stats().events == 60

    seen = 0
    for _ in range(3):
        worker = subprocess.Popen([sys.executable, str(WORKER), url], stderr=subprocess.DEVNULL)
        try:
            wait_until(partial(_is_more_remembered, app, seen), 60)
        finally:
            os.kill(worker.pid, signal.SIGKILL)
            worker.wait()
        seen = _remembered(app)
    assert seen < 60, "the workers were done before they were killed"

    app.use(embeddings())
    wait_until(lambda: _is_drained(app), 60)
    assert app.store.do(ListUnremembered()) == []
    assert app.store.do(CountMemories()).models == {"wordllama:256": 60}


def _is_drained(app: App) -> bool:
    app.run_worker(["embedding"], drain=True)
    return not app.queues.counts(queue="embedding", state=["queued", "leased", "running"])


def _is_more_remembered(app: App, before: int) -> bool:
    return _remembered(app) > before


def _remembered(app: App) -> int:
    stats = app.memory.stats()
    return stats.events - stats.unremembered


@pytest.mark.timeout(120)
def test_a_worker_killed_while_it_settles_leaves_all_three_rows_or_none(app: App, url: str, tmp_path: Path) -> None:
    """Completion, agent event and embedding job are one transaction: after kill -9 their numbers agree."""
    app.queues.set("Agent", agent_events="completed")
    script = tmp_path / "agent.py"
    script.write_text(
        "import sys, tenure\n"
        "app = tenure.App(sys.argv[1])\n"
        "@app.job(queue='Agent')\n"
        "def work(number: dict) -> dict:\n"
        "    return number\n"
        "app.run_worker(['Agent'], concurrency=5)\n"
    )
    app.store.do(Enqueue([NewJob(new_job_id(), "work", "{}", "Agent") for _ in range(3000)]))
    worker = subprocess.Popen([sys.executable, str(script), url], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: app.memory.stats().events > 0, 60)
    finally:
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()

    def counted() -> tuple[int, int, int]:
        completed = sum(one.jobs for one in app.queues.counts(queue="Agent", state="succeeded"))
        embedding = sum(one.jobs for one in app.queues.counts(queue="embedding", state="queued"))
        return completed, app.memory.stats().events, embedding

    # On PostgreSQL the dead worker's session may still be at work, and commit between two looks.
    wait_until(lambda: len(set(counted())) == 1)
    assert min(counted()) > 0


def test_nothing_to_remember_is_refused(app: App) -> None:
    with pytest.raises(InvalidArgument, match="empty"):
        app.memory.remember("   ", agent="A")
    with pytest.raises(InvalidArgument):
        app.memory.search("")
    with pytest.raises(InvalidArgument):
        app.memory.search("x", by="luck")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="Which memories"):
        app.memory.forget()


@pytest.mark.anyio
async def test_the_async_view_does_the_same(url: str) -> None:
    async with App(url, embedder="wordllama:256") as app:
        memory_id = await app.aio.memory.remember("brake discs too large", agent="A", meta={"n": 1})
        [hit] = await app.aio.memory.search("rotor wrong size")

        assert (hit.id, hit.meta, hit.agent) == (memory_id, {"n": 1}, "A")
        assert await app.aio.memory.forget(memory_id) == 1
        assert (await app.aio.memory.stats()).counts == []
        assert await app.aio.memory.events() == []


def test_settling_plain_jobs_costs_no_statement_more(tmp_path: Path) -> None:
    """SQLite counts statements; on PostgreSQL a settle is one call in any case."""
    with App(f"sqlite:///{tmp_path}/jobs.db", embedder="words") as app:
        for _ in range(10):
            app.enqueue("work", {})
        grants = app.claim(worker="w", limit=10)
        before = app.store.stats().statements
        app.store.do(Settle([Completed(grant.id, grant.token) for grant in grants]))
        spent = app.store.stats().statements - before

    assert spent == 2  # the update of all ten, and the look at the index of queues that keep events
