"""A database with rows in every table that a move copies, all of them written by the product."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import tenure
from tenure.model.ids import WorkerId
from tenure.store.admin import AcquireLease
from tenure.store.budgets import ReserveBudget
from tenure.store.contract import Heartbeat, WorkerRow
from tenure.store.metrics import RollUp
from tenure.testing import ManualClock, drain
from tests.waiting import wait_until

HOUR = 3600.0


def fill(url: str, jobs: int) -> None:
    """Let an app work on `url` until every table has rows; `jobs` of a plain kind are among them.

    Its clock ends at the present: what it holds at the end is held for a day.
    """
    clock = ManualClock(datetime.now(UTC) - timedelta(days=3, hours=2))
    app = _app()
    with ExitStack() as stack:
        is_sqlite = url.startswith("sqlite")
        stack.enter_context(app.pointed_at(url, clock=clock if is_sqlite else None))
        if not is_sqlite:
            app.migrate()
            stack.enter_context(clock.steer(url))
        _work(app, clock, jobs)


@contextmanager
def filled_app(url: str) -> Iterator[tenure.App]:
    """The same app on a database that is filled, on the machine's clock."""
    app = _app()
    with app.pointed_at(url):
        yield app


def _app() -> tenure.App:
    app = tenure.App(embedder="words", actor="filler")
    app.queue("mail", max_attempts=2, events=True)
    app.queue("memory", agent_events="ends")
    app.use(tenure.embeddings())
    app.schedule("hourly", job="plain", every=3600)

    @app.job(queue="mail", backoff=tenure.Backoff("none"))
    def plain(payload: dict[str, Any]) -> dict[str, Any]:
        if payload.get("break"):
            raise RuntimeError("the server said “no” — ünïcode\n\tand tabs \\ and quotes '\"")
        return {"text": "ok ☃", "n": payload.get("n")}

    @app.job(queue="mail")
    def refused(payload: dict[str, Any]) -> None:
        raise tenure.Permanent("never")

    @app.job(queue="mail")
    def sends(payload: dict[str, Any], ctx: tenure.Context) -> None:
        ctx.effect("send", {"to": payload["to"]}, do=lambda call: {"id": call.key})

    @app.job(queue="memory")
    def remembers(payload: dict[str, Any], ctx: tenure.Context) -> dict[str, Any]:
        ctx.remember(f"Part {payload['part']} needs the long screws", kind="fact", ttl=90 * 86_400)
        return {"fits": True}

    @app.job
    def spends(usd: str, ctx: tenure.Context) -> None:
        with ctx.reserve(usd=usd, tokens=500) as reservation:
            reservation.used(usd="0.0315", tokens=421)

    @app.job
    def child(number: int) -> int:
        return number * number

    @app.job(memo=30 * 86_400)
    def square(number: int) -> int:
        return number * number

    @app.job(durable=True)
    def parent(name: str, ctx: tenure.Context) -> Any:
        ctx.stream().write(f"begun ☃\n\tfor '\"\\ {name}")
        first = ctx.step("first", lambda: {"price": 1e2, "of": name})
        squares = ctx.map("squares", "child", list(range(5)))
        return {"first": first, "told": ctx.wait_for(f"told:{name}"), "sum": squares.counts}

    @app.job(durable=True)
    def asks(name: str, ctx: tenure.Context) -> bool:
        decision = ctx.approve("refund", args={"eur": 1.50, "to": name, "why": "“ü”\n"}, ask=["ops", "Zoë"], need=2)
        return bool(decision)

    return app


def _work(app: tenure.App, clock: ManualClock, jobs: int) -> None:
    app.store.do(RollUp())  # counting begins an hour before
    app.profiles.install("automechanica")
    app.profiles.install("substrate")
    app.gates.open("substrate.master")
    app.enqueue_many(app.new_job("plain", {"n": n}, key=f"plain-{n}", priority=n % 7) for n in range(jobs))
    app.enqueue("plain", {"n": -1}, delay=30 * 86_400)
    broken = app.enqueue("plain", {"break": True})
    app.enqueue("plain", {"break": True, "again": True})
    app.enqueue("refused", {})
    app.enqueue("sends", {"to": "ann@example.org"})
    app.enqueue("remembers", {"part": "BX-4471"})
    for name in ("ann", "bob"):
        app.enqueue("parent", name)
        app.enqueue("asks", name)
    app.schedules.declare()
    app.budgets.set("tenant:é", usd="0.50", tokens=9_000, per="month")
    app.budgets.set("all", usd="100")
    for usd in ("0.40", "0.40", "0.60"):
        app.enqueue("spends", usd, tenant="é")
    clock.advance(HOUR)
    drain(app, raise_errors=False)
    clock.advance(HOUR)
    for asked in app.approvals.all():
        app.approvals.approve(asked.id, by="Zoë", args_hash=asked.args_hash, note="seen ☃")
        if asked.args["to"] == "ann":
            app.approvals.approve(asked.id, by="max", groups=["ops"], args_hash=asked.args_hash)
    app.signal("told:ann", {"eur": 40})
    app.signal("told:nobody", 7, scope="queue")
    drain(app, raise_errors=False)
    (letter, *_) = app.dead_letters.all()
    app.dead_letters.triage([letter.id], "acknowledged", note="seen")
    app.revive(broken.id, reason="fixed")
    app.cancel(app.enqueue("plain", {"n": -2}).id)
    _workflow(app)
    app.queues.pause("memory", reason="repairs")
    app.limits.set("anthropic", per_minute=50, tokens_per_minute=40_000)
    app.limits.block("anthropic", 86_400, reason="429 — ünïcode")
    app.enqueue("plain", {"n": -3}, limits=["anthropic", "mail"])
    app.enqueue("square", 12)
    drain(app, raise_errors=False)
    _access(app)
    app.store.do(AcquireLease("leader", "me", 30))
    # Two days on: what ended is counted by minute, hour and day, and cleaned.
    clock.advance(3 * 86_400)
    while app.store.do(RollUp()).more:
        pass
    while app.prune(older_than=2 * 86_400).more:
        pass
    wait_until(lambda: not app.prune(older_than=2 * 86_400).more and _is_tallied(app))
    row = WorkerRow(WorkerId("holder"), "host", 7, ["mail"], ["plain"], info='{"b": 1e2, "a": [1.50, "ü"]}')
    app.store.do(Heartbeat((), worker=row))
    app.gates.close("heartbeat")
    held = app.claim(worker="holder", queues=["mail"], limit=3, lease_seconds=86_400)
    assert held
    app.store.do(ReserveBudget(held[0].id, held[0].token, "call", {"usd": 400_000}))


def _is_tallied(app: tenure.App) -> bool:
    """PostgreSQL counts in two steps, the second one when older transactions have ended."""
    with closing(app.store.tables()) as tables:
        return tables.count("tally") > 0


def _workflow(app: tenure.App) -> None:
    for name in ("FitmentAgent", "PricingAgent"):
        app.agent(name)
    flow = tenure.Workflow(
        "onboard",
        fail=tenure.FailureThreshold(count=1),
        on_breach="escalate",
        escalate_to=tenure.Escalation(person="ops", after=timedelta(hours=4)),
    )
    norm = flow.task("normalise", agent="FitmentAgent", task_type="normalise", payload={"supplier": 7})
    flow.task("price", agent="PricingAgent", task_type="refresh", after=[norm])
    app.workflows.start(flow, key="supplier-7")
    (grant,) = app.claim(worker="agent", queues=["FitmentAgent"], kinds=["normalise"])
    app.reject(grant, "no such supplier")
    app.workflows.advance()
    # More than one transaction cancels: the rest is left to be folded.
    wide = tenure.Workflow("wide")
    for number in range(1_100):
        wide.task(f"t{number}", agent="FitmentAgent", task_type="normalise", payload={"n": number})
    app.workflows.cancel(app.workflows.start(wide).id, reason="a trial")


def _access(app: tenure.App) -> None:
    made = app.access.new_token("robot", ["read:meta"])
    app.access.open_session(token=made.text)
    app.access.shared_secret("cursor")
    app.access.remember_request(made.token.id, "key-1", "body", ["a", "b"])
    while app.access.seal().more:
        pass
