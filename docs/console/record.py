# ruff: noqa: INP001 - a script beside the pictures that it makes
"""Take pictures of every page of the console: a real `tenure serve` on a database with work in it, in real Chromium.

python docs/console/record.py                    every page, light and dark, 1440, 1024 and 390 wide, into /tmp
python docs/console/record.py bulk job           only pages whose names begin so
python docs/console/record.py --keep             also the few that the guide shows, into docs/console/
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

import tenure
from tenure.effects import bulk
from tenure.effects.bulk_payload import BulkFilter
from tenure.model.access import EVERYTHING
from tenure.model.stream import NewChunk
from tenure.store.streams import AppendStreams
from tenure.web import bulk_acts

HERE = Path(__file__).parent
CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
WIDTHS = (1440, 1024, 390)
PATIENCE = 180_000
"""Milliseconds that one picture may take, on a machine that is busy."""
PLAIN = (
    "queues",
    "workers",
    "schedules",
    "workflows",
    "approvals",
    "bulk",
    "agents",
    "memory",
    "metrics",
    "health",
    "gates",
    "audit",
    "access",
    "connect",
)
KEPT = {
    ("overview", "light", 1440),
    ("job", "light", 1440),
    ("job-output", "dark", 1440),
    ("dead-letters", "dark", 1440),
    ("bulk", "light", 1440),
    ("agents", "light", 1440),
    ("workflow", "light", 1440),
    ("jobs", "light", 390),
}


QUEUES = ["SupplierAgent", "FitmentAgent", "PricingAgent", "PictureAgent", "ShopAgent"]


def populate(app: tenure.App) -> dict[str, str]:
    """Work in every state, made by the moves that make it."""
    for name, settings in {
        "mail": {"max_attempts": 2, "events": True},
        "media": {"concurrency": 8},
        "billing": {},
    }.items():
        app.set_queue(name, **settings)  # type: ignore[arg-type]
    for n in range(60):
        app.enqueue("resize", {"width": 640 + n, "file": f"pictures/{n:04}.jpg"}, queue="media", tenant="acme")
    for grant in app.claim(queues="media", worker="media-1", limit=44):
        app.complete(grant, {"bytes": 18_211}, summary="640 px, 18 KiB")
    held = app.claim(queues="media", worker="media-2", limit=4)
    app.heartbeat(held, progress={one.id: 0.2 * (place + 1) for place, one in enumerate(held)})
    errors = ["SMTPRecipientsRefused: 550 5.1.1 mailbox unavailable", "RateLimitError: 429, too many requests"]
    for n in range(18):
        app.enqueue("welcome", {"to": f"user-{n}@example.org", "template": "spring"}, queue="mail")
    for _ in range(2):
        for place, grant in enumerate(app.claim(queues="mail", worker="mail-1", limit=18)):
            app.fail(grant, errors[place % 2], retry_after=0)
    letters = app.dead_letters(limit=50).items
    app.triage(
        [one.id for one in letters if "550" in one.final_error], "acknowledged", actor="ops-2", note="list is old"
    )
    order = app.enqueue(
        "settle_order", {"order": 88213, "amount": "149.00", "id": 2**53 + 1}, queue="billing", key="order-88213"
    )
    (first,) = app.claim(queues="billing", worker="core-2")
    app.fail(first, _error(), retry_after=0)
    (second,) = app.claim(queues="billing", worker="core-1")
    for state in ("intended", "sent", "unknown"):
        from tenure.store.admin import RecordEffect

        record = tenure.EffectRecord(name="ledger.post", state=state, args='{"account": "4000-SALES"}')
        app.do(RecordEffect(second.id, second.token, record))
    app.suspend(second, "effect")
    app.enqueue("report", {"day": "today"}, delay=3600)
    app.pause("billing", actor="ops-1", reason="the ledger is being moved")
    remember(app)
    return {
        "job": order.id,
        "dead": letters[0].fingerprint,
        "flow": start_flow(app),
        "talk": talk(app),
        "bulk": act_on_all(app),
    }


def talk(app: tenure.App) -> str:
    """A job that has given something out and is at it still."""
    app.set_queue("agents", agent_events="ends", lease_seconds=600, lease_max_seconds=600)
    job_id = app.enqueue("draft_answer", {"ticket": 4711}, queue="agents").id
    (grant,) = app.claim(queues="agents", worker="agent-1")
    words = "Dear customer,\n\nyour order 88213 left our house this morning. The carrier needs two days; you can follow"
    texts = [f"{word} " for word in words.split(" ")]
    app.do(AppendStreams([NewChunk(grant.id, grant.token, "output", n + 1, one) for n, one in enumerate(texts)]))
    return job_id


def remember(app: tenure.App) -> None:
    """Agents that did something, told what it cost, and remember it."""
    for name, cost in (("SupportAgent", 0.0214), ("CatalogAgent", 0.0031)):
        app.set_queue(name, agent_events="ends", max_attempts=1)
        app.enqueue_many([app.new_job("answer", {"ticket": n}, queue=name) for n in range(9)])
        for place, grant in enumerate(app.claim(queues=name, worker="agent-1", limit=9)):
            if place == 7:
                app.fail(grant, "ContextTooLong: 211,004 tokens, the model takes 200,000")
            else:
                app.complete(grant, {"costUsd": cost * (place + 1), "tokens": {"input": 1800 + place, "output": 240}})
    for text in (
        "Brake pads of the supplier Nord arrive late on Mondays; tell customers three days.",
        "Order 88213 was paid twice; the second payment was sent back by hand.",
        "Wheel bearings are priced per pair, brake pads per axle.",
    ):
        app.memory.remember(text, agent="SupportAgent", kind="rule")


def act_on_all(app: tenure.App) -> str:
    """Two acts on all that match: one that is over, one under way."""
    app.set_queue("newsletter", max_attempts=1)
    for _ in range(4):
        app.enqueue_many([app.new_job("newsletter", {"to": n}, queue="newsletter") for n in range(1000)])
    over = BulkFilter(queue=("media",), kind=("resize",), shown=("queued",), tenant="acme")
    wanted = BulkFilter(queue=("newsletter",), shown=("queued",))
    app.use(bulk())
    done = bulk_acts.frozen_act(app, "cancel", over, actor="ops-1", reason="the pictures have moved", pace=None)
    bulk_acts.start(app, done)
    asyncio.run(app.worker(["bulk"], drain=True, handle_signals=False).run())
    slow = bulk_acts.frozen_act(app, "cancel", wanted, actor="ops-2", reason="wrong template", pace=20.0)
    return bulk_acts.start(app, slow)


def start_flow(app: tenure.App) -> str:
    """A workflow in the middle of its run: tasks in most states."""
    for agent in ("SupplierAgent", "FitmentAgent", "PricingAgent", "PictureAgent", "ShopAgent"):
        app.agent(agent)
    flow = tenure.Workflow("supplier_import", on_breach="continue", deadline=timedelta(days=2))
    fetch = flow.task("fetch", agent="SupplierAgent", task_type="fetch")
    normal = flow.task("normalise", agent="SupplierAgent", task_type="normalise", after=[fetch])
    fit = flow.task("fitment", agent="FitmentAgent", task_type="fitment", after=[normal])
    price = flow.task("price", agent="PricingAgent", task_type="refresh", after=[normal], optional=True)
    texts = flow.task("texts", agent="SupplierAgent", task_type="texts", after=[normal])
    pictures = [flow.task(f"picture-{n}", agent="PictureAgent", task_type="crop", after=[normal]) for n in range(3)]
    ask = flow.task("ask_publish", agent="ShopAgent", task_type="ask", after=[texts])
    translate = flow.task("translate", agent="SupplierAgent", task_type="translate", after=[texts])
    publish = flow.task(
        "publish", agent="ShopAgent", task_type="publish", after=[fit, price.ended, *pictures, ask, translate]
    )
    flow.task("notify", agent="ShopAgent", task_type="notify", after=[publish])
    flow.task("archive", agent="ShopAgent", task_type="archive", after=[publish])
    small = tenure.Workflow("nightly_prices")
    small.task("refresh", agent="PricingAgent", task_type="refresh_all")
    done = app.workflows.start(small, key="2026-11-17")
    run = app.workflows.start(flow, key="supplier-7")
    for kind in ("refresh_all", "fetch", "normalise", "texts", "crop"):
        for grant in app.claim(queues=QUEUES, worker="core-2", kinds=[kind], limit=2):
            app.complete(grant, {"ok": True})
        app.workflows.advance()
    (bad,) = app.claim(queues=QUEUES, worker="core-2", kinds=["translate"])
    app.reject(bad, "ContextTooLong: 211,004 tokens, the model takes 200,000")
    (asks,) = app.claim(queues=QUEUES, worker="core-2", kinds=["ask"])
    app.suspend(asks, "signal:publish")
    app.claim(queues=QUEUES, worker="core-1", kinds=["fitment"])
    app.workflows.advance()
    assert app.workflows.get(done.id).state == "completed"
    return run.id


def _error() -> Exception:
    try:
        raise ConnectionError("503 Service Unavailable for capture of pi_3Q9x")
    except ConnectionError as exc:
        return exc


def pages(ids: dict[str, str]) -> dict[str, str]:
    """Name → path."""
    return {
        "overview": "/",
        "jobs": "/jobs",
        "jobs-filter": "/jobs?q=queue:mail+state:dead",
        "job": f"/jobs/{ids['job']}",
        "job-attempts": f"/jobs/{ids['job']}?tab=attempts",
        "job-data": f"/jobs/{ids['job']}?tab=data",
        "job-cancel": f"/jobs/{ids['job']}/cancel",
        "job-output": f"/jobs/{ids['talk']}?tab=output",
        "bulk-act": f"/bulk/{ids['bulk']}",
        "bulk-new": "/bulk/new?act=cancel&q=queue:newsletter+state:queued",
        "memory-found": "/memory?q=brake+pads",
        "enqueue": "/enqueue",
        "dead-letters": "/dead-letters",
        "dead-letter-group": f"/dead-letters/{ids['dead']}",
        "dead-letter-replay": f"/dead-letters/{ids['dead']}/replay?count=5",
        **{name: f"/{name}" for name in PLAIN},
        "workflow": f"/workflows/{ids['flow']}",
        "queue": "/queues/mail",
        "not-found": "/nowhere",
    }


@contextmanager
def served(url: str) -> Iterator[str]:
    """A real server; its sign-in link."""
    command = [sys.executable, "-m", "tenure.cli.main", "serve", "--json", "--port", "0", "--url", url]
    command += ["--look-seconds", "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            told = json.loads(server.stdout.readline())
            with tenure.App(url) as app:
                yield f"{told['url']}/ui/signin#{app.access.new_link('ops-1', EVERYTHING)}"
        finally:
            server.terminate()


def take(page: Page, root: str, paths: dict[str, str], folder: Path, theme: str, *, keep: bool) -> list[str]:
    """Pictures of all pages in one theme; answers what looks wrong to a ruler."""
    wrong = []
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        for name, path in paths.items():
            page.goto(f"{root}{path}", wait_until="load")
            over: Any = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            if over > 0:
                wrong.append(f"{name} {width} {theme}: {over} px too wide")
            page.screenshot(path=folder / f"{name}-{theme}-{width}.png", full_page=width == 1440, timeout=PATIENCE)
            if keep and (name, theme, width) in KEPT:
                page.screenshot(path=HERE / f"{name}-{theme}-{width}.png", timeout=PATIENCE)
    return wrong


def main() -> int:
    """Take them all."""
    keep = "--keep" in sys.argv
    folder = Path(tempfile.gettempdir()) / "tenure-console"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        url = f"sqlite:///{scratch}/orders.db"
        with tenure.App(url) as app:
            ids = populate(app)
        with served(url) as link, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            page = browser.new_page()
            page.goto(link)
            page.wait_for_url("**/ui/")
            root = page.url.rstrip("/")
            names = tuple(one for one in sys.argv[1:] if not one.startswith("-"))
            paths = {name: path for name, path in pages(ids).items() if not names or name.startswith(names)}
            wrong = [line for theme in ("light", "dark") for line in take(page, root, paths, folder, theme, keep=keep)]
            browser.close()
    sys.stdout.write("".join(f"{line}\n" for line in wrong) + f"pictures in {folder}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
