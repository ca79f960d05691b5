# ruff: noqa: INP001 - a script beside the pictures that it makes
"""An hour of work for the pictures: made by the product's own moves, with a clock that is moved by hand until now.

Everything is written through the App, so that a page which shows it shows what users would see.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import tenure
from tenure.effects import bulk
from tenure.effects.bulk_payload import BulkFilter
from tenure.model import ids
from tenure.model.clock import ManualClock
from tenure.model.schedule import Schedule
from tenure.model.stream import NewChunk
from tenure.store.admin import AppendEvents, RecordEffect
from tenure.store.contract import Heartbeat, WorkerRow
from tenure.store.flow import SweepFlow
from tenure.store.metrics import RollUp
from tenure.store.schedules import TickSchedule
from tenure.store.streams import AppendStreams
from tenure.testing import drain
from tenure.web import bulk_acts

MINUTES = 55
STEP_SECONDS = 15
FLOW_QUEUES = ("SupplierAgent", "FitmentAgent", "PricingAgent", "PictureAgent", "ShopAgent")
WORKERS = (
    WorkerRow(
        ids.WorkerId("core-1"),
        "app-1",
        4121,
        ["billing", "default", "mail", "refunds"],
        concurrency=16,
        version=tenure.__version__,
    ),
    WorkerRow(
        ids.WorkerId("core-2"),
        "app-2",
        3990,
        ["billing", "default", "mail", "refunds"],
        concurrency=16,
        version=tenure.__version__,
    ),
    WorkerRow(ids.WorkerId("media-1"), "media-1", 811, ["media"], concurrency=8, version=tenure.__version__),
    WorkerRow(ids.WorkerId("media-2"), "media-2", 812, ["media"], concurrency=8, version="0.0.9"),
    WorkerRow(
        ids.WorkerId("agent-1"),
        "gpu-1",
        77,
        ["agents", *FLOW_QUEUES, "embedding", "translate"],
        concurrency=4,
        version=tenure.__version__,
    ),
)
GONE = WorkerRow(ids.WorkerId("media-3"), "media-3", 640, ["media"], concurrency=8, version="0.0.9")


@contextmanager
def sample_app(url: str) -> Iterator[tuple[tenure.App, ManualClock]]:
    """An App whose clock stands an hour back. Ids take the same time, because minutes are counted by it."""
    clock = ManualClock(datetime.now(UTC) - timedelta(minutes=MINUTES))
    of_the_sample = SimpleNamespace(time_ns=lambda: clock.now_us() * 1000)
    with patch("tenure.model.ids.time", of_the_sample), tenure.App(url, clock=clock) as app:
        yield app, clock


def populate(url: str) -> dict[str, str]:
    """Work in every state. Answers the ids that pages need."""
    with sample_app(url) as (app, clock):
        _declare(app)
        for row in (*WORKERS, GONE):
            app.store.do(Heartbeat((), worker=row))
        clock.advance(-3600)
        _newsletter(app)
        clock.advance(3600)
        found = {"job": _order(app, clock)}
        _an_hour(app, clock)
        found["flow"] = _flow(app)
        found["talk"] = _talk(app)
        _agents(app)
        found["approval"] = _questions(app)
        _memos(app)
        _spending(app)
        found["bulk"] = _act_on_all(app)
        _leave_things_open(app, clock)
        clock.advance((datetime.now(UTC) - clock.now()).total_seconds())
        while app.store.do(SweepFlow()).more:
            pass
        _count(app)
        found["dead"] = app.dead_letters.all(triage="pending", kind="welcome", limit=1).items[0].fingerprint
        found["waiting"] = app.jobs(queue="docs", state="queued", limit=1).items[0].id
    return found


def _newsletter(app: tenure.App) -> None:
    """Many jobs of one kind, for an act on all of them."""
    app.queues.set("newsletter", max_attempts=1)
    for _ in range(4):
        app.enqueue_many([app.new_job("newsletter", {"to": n}, queue="newsletter") for n in range(1000)])


def _declare(app: tenure.App) -> None:
    app.queues.set("mail", max_attempts=2, events=True)
    app.queues.set("media", concurrency=16)
    app.queues.set("billing", events=True, lease_seconds=3600, lease_max_seconds=3600)
    app.queues.set("docs", events=True)
    app.queues.set("default", events=True)
    app.schedule("nightly_report", "0 3 * * *", "report", {"day": "yesterday"}, queue="default", tz="Europe/Vienna")
    app.schedule("refresh_prices", "*/5 * * * *", "refresh_prices", queue="default")
    app.schedule("weekly_digest", "30 7 * * 1", "digest", queue="mail")
    app.schedules.declare()
    app.schedules.pause("weekly_digest", actor="ops-2", reason="the template is being rewritten")


def _order(app: tenure.App, clock: ManualClock) -> str:
    """A job with a history: an error, a lost lease, and an effect of unknown outcome."""
    clock.advance(38 * 60)
    payload = {"order": 88213, "amount": "149.00", "card_token": "tok_1Q9x", "id": 2**53 + 1}
    order = app.enqueue("settle_order", payload, queue="billing", key="order-88213", tenant="acme", priority=10)
    clock.advance(20)
    (first,) = app.claim(queues="billing", worker="core-2", lease_seconds=60)
    app.store.do(
        AppendEvents(
            first.id, first.token, [tenure.NewEvent("log", '{"message": "asks for the charge", "level": "info"}')]
        )
    )
    clock.advance(31)
    app.fail(first, _error(), retry_after=70)
    clock.advance(75)
    (second,) = app.claim(queues="billing", worker="core-1", lease_seconds=60)
    clock.advance(40)
    app.heartbeat(second, lease_seconds=60, progress={second.id: {"value": 0.5, "message": "charge is captured"}})
    clock.advance(90)
    app.reap()
    clock.advance(15)
    (third,) = app.claim(queues="billing", worker="core-1", lease_seconds=120)
    moves = [("stripe.capture", state) for state in ("intended", "sent", "confirmed")]
    moves += [("ledger.post", state) for state in ("intended", "sent", "unknown")]
    for at, (name, state) in enumerate(moves):
        clock.advance(4 + at)
        record = tenure.EffectRecord(name=name, state=state, args='{"account": "4000-SALES", "amount": "149.00"}')
        app.store.do(RecordEffect(third.id, third.token, record))
    app.store.do(
        AppendEvents(
            third.id,
            third.token,
            [tenure.NewEvent("log", '{"message": "the ledger does not answer", "level": "warning"}')],
        )
    )
    app.suspend(third, "effect:ledger.post")
    clock.advance(-(clock.now() - (datetime.now(UTC) - timedelta(minutes=MINUTES))).total_seconds())
    return order.id


def _an_hour(app: tenure.App, clock: ManualClock) -> None:
    """Mail, pictures and reports by the minute; a provider that is away for six minutes."""
    chance = random.Random(7)
    began, step = clock.now(), 0
    while (ran := (clock.now() - began).total_seconds()) < (MINUTES - 1.5) * 60:
        is_away = 44 * 60 <= ran < 49 * 60
        step += 1
        made = [app.new_job("resize", {"width": 640, "file": f"{step:04}-{n}.jpg"}, queue="media", tenant="acme")
                for n in range(chance.randint(6, 14))]  # fmt: skip
        made += [app.new_job("welcome", {"to": f"user-{step}@example.org", "template": "spring"}, queue="mail")
                 for _ in range(chance.randint(1, 3))]  # fmt: skip
        app.enqueue_many(made)
        clock.advance(chance.uniform(0.1, 1.5))
        pictures = app.claim(queues="media", worker=f"media-{1 + step % 2}", limit=6 if is_away else 20)
        letters = app.claim(queues="mail", worker="core-1", limit=6)
        clock.advance(chance.uniform(0.2, 1.2))
        for grant in pictures:
            app.complete(grant, {"bytes": 18_211}, summary="640 px, 18 KiB")
        for grant in letters:
            if is_away or chance.random() < 0.04:
                error = (
                    "SMTPServerDisconnected: provider 503"
                    if is_away
                    else "SMTPRecipientsRefused: 550 5.1.1 mailbox unavailable"
                )
                app.fail(grant, error, retry_after=0) if is_away else app.reject(grant, error)
            else:
                app.complete(grant, {"id": f"msg-{step}"}, summary="sent")
        _tick(app, clock.now(), chance)
        clock.advance(STEP_SECONDS - 2)
        app.store.do(Heartbeat((), worker=WORKERS[step % len(WORKERS)]))


def _tick(app: tenure.App, now: datetime, chance: random.Random) -> None:
    for row in app.schedules.all():
        told = Schedule.from_spec(row.name, row.spec)
        due = None if row.paused_at else told.due(row.last_tick, now)
        if due is not None:
            app.store.do(TickSchedule(row.name, row.last_tick, due[0], [told.job(one) for one in due[1]]))
            for grant in app.claim(queues="default", worker="core-2"):
                if chance.random() < 0.2:
                    app.reject(grant, "PriceListMissing: supplier 7 sent no list")
                else:
                    app.complete(grant, {"prices": 4182})


def _flow(app: tenure.App) -> str:
    """A workflow in the middle of its run: tasks in most states."""
    for agent in FLOW_QUEUES:
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
        for grant in app.claim(queues=FLOW_QUEUES, worker="agent-1", kinds=[kind], limit=2, lease_seconds=600):
            app.complete(grant, {"ok": True})
        app.workflows.advance()
    (bad,) = app.claim(queues=FLOW_QUEUES, worker="agent-1", kinds=["translate"])
    app.reject(bad, "ContextTooLong: 211,004 tokens, the model takes 200,000")
    (asks,) = app.claim(queues=FLOW_QUEUES, worker="agent-1", kinds=["ask"])
    app.suspend(asks, "signal:publish")
    app.claim(queues=FLOW_QUEUES, worker="agent-1", kinds=["fitment"], lease_seconds=600)
    app.workflows.advance()
    assert app.workflows.get(done.id).state == "completed"
    return run.id


def _talk(app: tenure.App) -> str:
    """A job that has given something out and is at it still."""
    app.queues.set("agents", agent_events="ends", lease_seconds=1800, lease_max_seconds=1800)
    job_id = app.enqueue("draft_answer", {"ticket": 4711}, queue="agents", tenant="acme").id
    (grant,) = app.claim(queues="agents", worker="agent-1")
    words = (
        "Dear customer,\n\nyour order 88213 left our house this morning. The carrier needs two days; you can follow it "
        "by the number in the mail that we sent at 09:12.\n\nThe second payment was"
    )
    texts = [f"{word} " for word in words.split(" ")]
    app.store.do(AppendStreams([NewChunk(grant.id, grant.token, "output", n + 1, one) for n, one in enumerate(texts)]))
    return job_id


def _agents(app: tenure.App) -> None:
    """Agents that did something, told what it cost, and remember it."""
    for name, cost in (("SupportAgent", 0.0214), ("CatalogAgent", 0.0031)):
        app.queues.set(name, agent_events="ends", max_attempts=1)
        app.enqueue_many([app.new_job("answer", {"ticket": n}, queue=name, tenant="acme") for n in range(9)])
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


def _questions(app: tenure.App) -> str:
    """Approvals: one that was granted, two that wait."""

    @app.job(kind="refund", durable=True, queue="refunds")
    def refund(payload: dict[str, Any], ctx: tenure.Context) -> Any:
        ok = ctx.approve(
            "refund",
            args={"order": payload["order"], "amount": payload["amount"], "to": "card ending 4242"},
            text=f"Pay {payload['amount']} EUR of order {payload['order']} back?",
            need=payload.get("need", 1),
            expires=timedelta(hours=payload.get("hours", 4)),
        )
        if ok:
            ctx.effect("bank.refund", ok.args, do=lambda call: {"transfer": f"T-{call.args['order']}"}, approval=ok)
        return {"granted": bool(ok)}

    app.queues.set("refunds", events=True)
    first = app.enqueue("refund", {"order": 88102, "amount": "12.00"}, actor="SupportAgent")
    drain(app, queues=["refunds"])
    [asked] = app.approvals.all(job_id=first.id)
    app.approvals.approve(asked.id, args_hash=asked.args_hash, by="ops-2", note="paid twice, seen in the ledger")
    app.enqueue("refund", {"order": 88213, "amount": "149.00", "need": 2}, actor="SupportAgent")
    app.enqueue("refund", {"order": 88240, "amount": "20.00", "hours": 30}, actor="SupportAgent")
    drain(app, queues=["refunds"])
    waiting = app.approvals.all(state="pending")
    large = next(one for one in waiting if "149.00" in one.text)
    app.approvals.approve(large.id, args_hash=large.args_hash, by="ops-2", note="the order was paid twice")
    return large.id


def _memos(app: tenure.App) -> None:
    """Values that were worked out once."""

    @app.job(kind="quote", durable=True, queue="quotes")
    def quote(payload: dict[str, Any], ctx: tenure.Context) -> Any:
        price = {"eur": "19.90", "supplier": "Nord", "part": payload["part"]}
        return ctx.memo("supplier_price", key=payload["part"], ttl=timedelta(hours=6), do=lambda: price)

    @app.job(kind="exchange_rates", queue="quotes", memo=timedelta(days=1))
    def exchange_rates(payload: dict[str, Any]) -> Any:
        return {"base": payload["base"], "usd": "1.0842", "chf": "0.9411"}

    app.queues.set("quotes")
    for part in ("BP-1042", "BP-1043", "WB-77"):
        app.enqueue("quote", {"part": part}, tenant="acme")
    app.enqueue("exchange_rates", {"base": "EUR"})
    drain(app, queues=["quotes"])


def _spending(app: tenure.App) -> None:
    """Budgets with room, without, and one that jobs wait for; limiters, one of them blocked."""
    app.budgets.set("all", usd="25.00", per="day", actor="ops-1", reason="first month")
    app.budgets.set("tenant:acme", usd="5.00", tokens=2_000_000, per="month", actor="ops-1", reason="contract")
    app.budgets.set("kind:translate_page", tokens=60_000, per="hour", actor="ops-1", reason="try-out")
    app.budgets.set("queue:agents", calls=500, per="hour", on_empty="fail", actor="ops-1", reason="no loops")

    @app.job(kind="translate_page", queue="translate")
    def translate(payload: dict[str, Any], ctx: tenure.Context) -> Any:
        with ctx.reserve(usd="0.40", tokens=20_000) as spent:
            spent.used(usd="0.3127", tokens=18_400 + payload["page"])
            return {"words": 812}

    app.queues.set("translate")
    app.enqueue_many([app.new_job("translate_page", {"page": n}, tenant="acme") for n in range(5)])
    drain(app, queues=["translate"])
    app.limits.set("openai", per_minute=600, tokens_per_minute=90_000, actor="ops-1", reason="tier 3")
    app.limits.set("carrier", per_minute=120, actor="ops-1", reason="their contract")
    app.limits.block("anthropic", 1500, actor="core-1", reason="429 Too Many Requests, retry-after: 1500")
    for n in range(3):
        app.enqueue("summarise", {"page": n}, queue="agents", limits=["anthropic"])


def _act_on_all(app: tenure.App) -> str:
    """Two acts on all that match: one that is over, one under way."""
    app.enqueue_many([app.new_job("resize_old", {"n": n}, queue="media", tenant="acme") for n in range(48)])
    over = BulkFilter(queue=("media",), kind=("resize_old",), shown=("queued",), tenant="acme")
    wanted = BulkFilter(queue=("newsletter",), shown=("queued",))
    app.use(bulk())
    bulk_acts.start(
        app, bulk_acts.frozen_act(app, "cancel", over, actor="ops-1", reason="the pictures have moved", pace=None)
    )
    drain(app, queues=["bulk"])
    slow = bulk_acts.frozen_act(app, "cancel", wanted, actor="ops-2", reason="wrong template", pace=5.0)
    return bulk_acts.start(app, slow)


def _leave_things_open(app: tenure.App, clock: ManualClock) -> None:
    """What is under way when the pictures are taken, and what needs a person."""
    for n in range(3):
        app.enqueue("pdf_render", {"invoice": 4000 + n, "pages": 3 + n}, queue="docs", tenant="acme")
    clock.advance(30)
    app.enqueue("report", {"day": "today"}, delay=3600)
    app.enqueue_many(
        [app.new_job("resize", {"width": 800, "file": f"pictures/new-{n}.jpg"}, queue="media") for n in range(9)]
    )
    held = app.claim(queues="media", worker="media-1", limit=5, lease_seconds=1800)
    app.heartbeat(held, lease_seconds=1800, progress={one.id: 0.2 * place for place, one in enumerate(held)})
    app.claim(queues="media", worker="media-2", limit=2, lease_seconds=1800)
    letters = app.dead_letters.all(triage="pending", limit=200).items
    old = [one.id for one in letters if "550" in one.final_error]
    app.dead_letters.triage(old, "acknowledged", actor="ops-2", note="the list is old", owner="ada")
    lost = [one.id for one in letters if "PriceListMissing" in one.final_error]
    app.dead_letters.triage(lost[:1], "escalated", actor="ops-2", note="supplier 7 was asked")
    app.dead_letters.triage(lost[1:], "closed", actor="ops-1", note="the list came at noon")
    app.workers.drain("media-2", actor="ops-1", reason="it runs an old version")
    app.queues.pause("billing", actor="ops-1", reason="the ledger is being moved")
    app.gates.close("kind:newsletter", actor="ops-2", reason="wrong template")


def _count(app: tenure.App) -> None:
    until = None
    while (done := app.store.do(RollUp())).more and done.until != until:
        until = done.until


@contextmanager
def beating(url: str) -> Iterator[None]:
    """The sample's workers say hello while the pictures are taken; one of them does not any more."""
    over = threading.Event()

    def beat() -> None:
        with tenure.App(url) as app:
            while not over.wait(4):
                for row in WORKERS:
                    app.store.do(Heartbeat((), worker=row))

    with tenure.App(url) as app:
        for row in WORKERS:
            app.store.do(Heartbeat((), worker=row))
        app.leases.acquire("leader", "core-1", seconds=3600)
    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _error() -> Exception:
    try:
        raise ConnectionError("503 Service Unavailable for capture of pi_3Q9x")
    except ConnectionError as exc:
        return exc
