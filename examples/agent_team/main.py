"""A team of agents writes a page, and everything that can happen to such a team does: python main.py [URL]

A planner and three workers ask a model that costs money. The provider answers 429, a worker process is killed, the
budget runs out and is raised, and a person has to agree before the page goes out. The model is scripted, so no account
is needed. Runs on a SQLite file with no server, or on the database that the URL names.
"""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tenure

if __name__ == "__main__" and len(sys.argv) > 1:
    os.environ["AGENT_TEAM_URL"] = sys.argv[1]  # the worker processes read it too
app = tenure.App(os.environ.get("AGENT_TEAM_URL", "sqlite:///agent_team.db"))
app.queue("team")
CALLS, PAGE, LOG = Path("calls.jsonl"), Path("page.md"), Path("workers.log")


# --- the model: a stand-in for a provider ---

ANSWERS: dict[str, Any] = {
    "plan a page": ["research", "write", "illustrate"],
    "collect facts": "80 lux, 12 hours, 95 g",
    "check the facts": "80 lux, 11 hours, 95 g",
    "outline the text": "light, battery, weight",
    "write the text": "Bright for a whole night, and lighter than an apple.",
    "sketch a picture": "a lamp on a handlebar",
    "draw the picture": "lamp.svg",
}


def calls() -> list[dict[str, str]]:
    """The provider's own record: each call and what became of it."""
    return [json.loads(line) for line in CALLS.read_text().splitlines()] if CALLS.exists() else []


def ask_model(prompt: str) -> tuple[Any, str]:
    """The answer and its price in dollars. One prompt is refused the first time, and one is not answered."""
    is_first = prompt not in [call["prompt"] for call in calls()]
    end = {"check the facts": "refused", "write the text": "unanswered"}.get(prompt) if is_first else None
    with CALLS.open("a") as file:
        file.write(json.dumps({"prompt": prompt, "end": end or "answered"}) + "\n")
    if end == "refused":
        raise tenure.RateLimited(2, "429 Too Many Requests", key="model")
    if end == "unanswered":
        time.sleep(600)  # the process is killed meanwhile
    return ANSWERS[prompt], "0.06"


# --- the agents ---


def ask(ctx: tenure.Context, prompt: str) -> Any:
    """One model call: paid from the budget, recorded as a step, and never made again once it is recorded."""

    def call() -> Any:
        with ctx.reserve(usd="0.10") as reservation:  # the most that it may cost
            try:
                answer, price = ask_model(prompt)
            except tenure.RateLimited:
                reservation.release()  # a refused call costs nothing
                raise
            reservation.used(usd=price)
        return answer

    return ctx.step(prompt, call)


@app.job(queue="team", durable=True, limits=["model"])
def plan(product: str, ctx: tenure.Context) -> dict[str, Any]:
    kinds = ask(ctx, "plan a page")
    facts, text, picture = ctx.gather(*(ctx.spawn(kind, kind) for kind in kinds))
    page = {"title": product, "text": text, "facts": facts, "picture": picture}
    decision = ctx.approve("publish", args=page, text="May this page go out?", expires=86_400)
    if not decision:
        return {"state": "refused", "by": decision.by}
    ctx.effect("publish", decision.args, do=publish, keyed=True, approval=decision)
    return {"state": "published", "by": decision.by}


@app.job(queue="team", durable=True, limits=["model"])
def research(ctx: tenure.Context) -> Any:
    ask(ctx, "collect facts")
    return ask(ctx, "check the facts")


@app.job(queue="team", durable=True, limits=["model"])
def write(ctx: tenure.Context) -> Any:
    ask(ctx, "outline the text")
    return ask(ctx, "write the text")


@app.job(queue="team", durable=True, limits=["model"])
def illustrate(ctx: tenure.Context) -> Any:
    ask(ctx, "sketch a picture")
    return ask(ctx, "draw the picture")


def publish(call: tenure.EffectCall) -> None:
    page = call.args
    PAGE.write_text(f"# {page['title']}\n\n{page['text']}\n\n{page['facts']}\n\n![]({page['picture']})\n")


# --- the people ---


def start_worker(lease_seconds: float) -> subprocess.Popen[bytes]:
    """A worker process. One slot and nothing fetched ahead, so that the story has an order."""
    with LOG.open("ab") as log:
        return subprocess.Popen([sys.executable, __file__, app.url, "worker", str(lease_seconds)], stderr=log)


def wait_for(what: str, found: Callable[[], Any], worker: subprocess.Popen[bytes]) -> Any:
    """What `found` answers, as soon as it answers anything."""
    until = time.monotonic() + 90
    while not (answer := found()):
        if worker.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"waited for {what}, but it did not come; see {LOG}")
        time.sleep(0.05)
    return answer


def calls_that(end: str) -> Callable[[], list[str]]:
    return lambda: [call["prompt"] for call in calls() if call["end"] == end]


def spending(scope: str) -> str:
    (budget,) = app.budgets.all(scope)
    spent = budget.used + budget.reserved  # in millionths of a dollar
    assert spent <= budget.limit
    return f"${spent / 1_000_000:.2f} of ${budget.limit / 1_000_000:.2f} is spent"


def main() -> None:
    if CALLS.exists():
        sys.exit(f"{CALLS} is here from an earlier run, which would be counted too. Start in an empty folder.")
    tenant = f"lamp-{uuid.uuid4().hex[:8]}"
    budget = f"tenant:{tenant}"
    app.budgets.set(budget, usd="0.40")
    job = plan.options(tenant=tenant, actor="ann").enqueue("Bicycle lamp")
    print("ann wants a page, for at most $0.40")

    first = start_worker(lease_seconds=15.0)  # short, so that its work is soon taken over
    workers = [first]
    try:
        wait_for("the plan", lambda: app.get(job.id).state == "waiting", first)
        print("the planner has asked for:", ", ".join(ANSWERS["plan a page"]))

        (refused,) = wait_for("the 429", calls_that("refused"), first)
        (limiter,) = wait_for("the block", lambda: [one for one in app.limits.all(["model"]) if one.reason], first)
        print(f"research, {refused!r}: {limiter.reason}; all jobs of {limiter.key!r} wait, and no attempt is spent")

        (unanswered,) = wait_for("the second call of the writer", calls_that("unanswered"), first)
        first.send_signal(signal.SIGKILL)
        first.wait()
        print(f"write, {unanswered!r}: the worker process is killed during the call; its lease ends in 15 s")

        second = start_worker(lease_seconds=30.0)
        workers.append(second)
        wait_for("the empty budget", lambda: app.budgets.all(budget)[0].waiting == 2, second)
        print(f"write and illustrate wait: {spending(budget)}, the unanswered call counted in full")
        app.budgets.raise_by(budget, usd="0.20", actor="maria", reason="a process was killed")
        print("maria raises the budget by $0.20")

        (asked,) = wait_for("the question", lambda: app.approvals.all(job_id=job.id).items, second)
        print(f"the planner asks: {asked.text} {asked.args['title']}: {asked.args['text']}")
        try:
            app.approvals.approve(asked.id, by="ann", args_hash=asked.args_hash)
        except tenure.Forbidden:
            print("ann may not answer, because it is her job")
        app.approvals.approve(asked.id, by="maria", args_hash=asked.args_hash, note="nice")
        result = job.result(timeout=60)
        print(f"maria approves; {result['state']}: {PAGE}")
        second.terminate()
        second.wait()
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()

    answered = Counter(calls_that("answered")())
    attempts = {child.kind: child.attempt for child in app.jobs(parent_id=job.id)}
    print(f"model calls answered: {answered.total()}, answered twice: {answered.total() - len(answered)}")
    print(f"attempts: research {attempts['research']} in spite of the 429, write {attempts['write']} for the crash")
    print(f"in the end {spending(budget)}")
    assert answered == Counter(dict.fromkeys(ANSWERS, 1))
    assert attempts == {"research": 1, "write": 2, "illustrate": 1}


if __name__ == "__main__":
    with app:
        if sys.argv[2:3] == ["worker"]:
            app.run_worker(["team"], concurrency=1, prefetch=0, lease_seconds=float(sys.argv[3]), poll_seconds=0.2)
        else:
            main()
