"""The console in real Chromium: what a person does with it, and what it must never do."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import expect

import tenure
from docs.console.record import RULER
from tenure.effects.bulk_payload import BulkFilter
from tenure.model.ids import WorkerId
from tenure.model.stream import NewChunk
from tenure.store.admin import AppendEvents
from tenure.store.contract import Heartbeat, WorkerRow
from tenure.store.streams import AppendStreams
from tenure.web import bulk_acts
from tenure.web.pages.job import TABS
from tests.browser.conftest import Console
from tests.web.test_pages import VECTORS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
PATIENCE = 40_000
"""Milliseconds; only a test that fails waits as long."""

BOTH_ENGINES = pytest.mark.parametrize(
    "console", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
RULES: dict[Literal["light", "dark"], dict[str, object]] = {
    "light": {"resultTypes": ["violations"]},
    "dark": {"resultTypes": ["violations"], "runOnly": ["color-contrast", "link-in-text-block"]},
}
"""What axe is asked for: everything once, and in the other theme, which has other colors only, what depends on them."""
BEAT = Heartbeat((), worker=WorkerRow(WorkerId("w-7"), "host", 7, ["mail"]))
PATHS = (
    "/", "/jobs", "/enqueue", "/dead-letters", "/queues", "/queues/mail", "/workers", "/schedules", "/workflows",
    "/approvals", "/bulk", "/agents", "/memory", "/memos", "/budgets", "/limits", "/metrics", "/health", "/gates",
    "/audit", "/access", "/connect", "/nowhere",
)  # fmt: skip


def _work(console: Console) -> dict[str, str]:
    """A job in most states, a dead letter and a worker's row."""
    app = console.app
    for n in range(6):
        app.enqueue("welcome", {"to": f"user-{n}", "html": "<script>document.title='owned'</script>"}, queue="mail")
    done, dead, held = app.claim(queues="mail", worker="<b>w-1</b>", limit=3)
    app.complete(done, {"ok": True})
    app.fail(dead, "ValueError: <img src=x onerror=document.title='owned'>")
    app.store.do(BEAT)
    app.queues.set("Pricing", agent_events="ends")
    app.enqueue("reprice", queue="Pricing")
    app.complete(app.claim(queues="Pricing", worker="w-1")[0], {"costUsd": 0.02, "tokens": {"input": 12}})
    app.memory.remember("<img src=x onerror=document.title='owned'> brakes come late", agent="Pricing")
    app.store.do(AppendStreams([NewChunk(held.id, held.token, "output", 1, "<script>document.title='owned'</script>")]))
    app.budgets.set("all", usd="5.00", per="day", reason="<b>why</b>")
    app.limits.block("openai", 3600, reason="<img src=x onerror=document.title='owned'>")
    app.schedule("nightly", "0 3 * * *", "report")
    app.schedules.declare()
    filter_ = BulkFilter(kind=("nothing",))
    act = bulk_acts.frozen_act(app, "cancel", filter_, actor="<b>ada</b>", reason="<i>why</i>", pace=1.0)
    return {
        "bulk": bulk_acts.start(app, act),
        "done": done.id,
        "queued": next(iter(app.jobs(queue="mail", state="queued", limit=1))).id,
        "dead": dead.id,
        "held": held.id,
        "print": app.dead_letters.all().items[0].fingerprint,
        "flow": _flow(app),
    }


def _flow(app: tenure.App) -> str:
    """A workflow with a task in most states, and a hostile name."""
    app.agent("Loader")
    flow = tenure.Workflow("import", on_breach="continue")
    load = flow.task("load", agent="Loader", task_type="load")
    fit = flow.task("<img src=x onerror=document.title='owned'>", agent="Loader", task_type="fit", after=[load])
    price = flow.task("price", agent="Loader", task_type="price", after=[load])
    flow.task("publish", agent="Loader", task_type="publish", after=[fit, price])
    run = app.workflows.start(flow)
    (first,) = app.claim(queues="Loader", worker="w-1")
    app.complete(first, {"ok": True})
    app.workflows.advance()
    (grant,) = app.claim(queues="Loader", worker="w-1", kinds=["price"])
    app.reject(grant, "ValueError: no price")
    app.workflows.advance()
    return run.id


@pytest.mark.timeout(1200)
def test_every_page_is_clean_in_both_themes_and_at_any_width(console: Console) -> None:
    """No overflow, nothing serious for axe, nothing against the CSP, no request that leaves, no error in a script."""
    ids = _work(console)
    paths = [*PATHS, f"/jobs/{ids['dead']}", f"/jobs/{ids['held']}?tab=data", f"/dead-letters/{ids['print']}"]
    paths += [f"/dead-letters/{ids['print']}/replay", f"/jobs/{ids['held']}/cancel"]
    paths += [f"/workflows/{ids['flow']}", f"/workflows/{ids['flow']}/cancel"]
    paths += ["/bulk/new?act=cancel&q=kind:welcome", "/memory?q=brakes", f"/jobs/{ids['held']}?tab=output"]
    paths += [f"/bulk/{ids['bulk']}", f"/jobs/{ids['queued']}/edit", f"/jobs/{ids['queued']}/priority"]
    paths += ["/queues/mail/policy", "/workers/one?id=w-7", "/schedules/nightly", "/audit/verify"]
    paths += [
        f"/dead-letters/{ids['print']}/assign",
        f"/jobs/{ids['held']}/release",
        f"/jobs/{ids['dead']}/edit",
        "/limits/clear?key=openai",
    ]
    paths += ["/budgets/raise?scope=all&unit=usd&per=day", *(f"/jobs/{ids['dead']}?tab={tab}" for tab in TABS)]
    axe, found = Axe(), []
    for path in paths:
        console.page.set_viewport_size({"width": 1280, "height": 900})
        console.goto(path)
        assert "owned" not in console.page.title()
        for theme in RULES:
            console.page.emulate_media(color_scheme=theme)
            found += [
                f"{theme} {path}: {one['id']}: {one['nodes'][0]['html'][:120]}"
                for one in axe.run(console.page, options=RULES[theme]).response["violations"]
                if one["impact"] in {"serious", "critical"}
            ]
        for width in (320, 390, 600, 1024):
            console.page.set_viewport_size({"width": width, "height": 800})
            found += [f"{path}: {width}: {one}" for one in console.page.evaluate(RULER)]

    assert found == []
    assert console.complaints == []


@BOTH_ENGINES
def test_a_job_is_enqueued_runs_live_and_is_taken_over_when_its_worker_is_killed(console: Console) -> None:
    page, until = console.page, console.folder / "go"
    console.app.queues.set("mail", max_attempts=3)
    first = console.worker()
    console.goto("/enqueue")
    page.get_by_label("Kind").fill("slow")
    page.get_by_label("Queue").fill("mail")
    page.get_by_label("Payload").fill(f'{{"until": "{until}"}}')
    page.get_by_role("button", name=re.compile("Enqueue 1")).click()

    say = page.locator(".say")
    expect(page.locator(".toast")).to_contain_text("Enqueued")
    expect(say).to_contain_text("runs it", timeout=PATIENCE)
    expect(page.locator(".facts")).to_contain_text("half way", timeout=PATIENCE)

    first.send_signal(signal.SIGKILL)
    first.wait()
    second = console.worker()

    expect(page.locator(".facts")).to_contain_text("2 of 3", timeout=2 * PATIENCE)
    expect(say).to_contain_text("runs it", timeout=PATIENCE)
    expect(page.locator(".panel")).to_contain_text("lease lost", timeout=PATIENCE)
    until.touch()
    expect(say).to_contain_text("succeeded", timeout=PATIENCE)
    assert second.poll() is None
    assert console.complaints == []


@BOTH_ENGINES
def test_a_death_is_triaged_and_replayed(console: Console) -> None:
    page, mended = console.page, console.folder / "mended"
    for _ in range(8):
        console.app.enqueue("broken", {"mended": str(mended)}, queue="mail")
    console.worker()
    console.goto("/dead-letters")

    expect(page.locator(".fp .cnt").first).to_have_text("8", timeout=PATIENCE)
    page.get_by_role("link", name="Ack…").first.click()
    page.get_by_label("Note").fill("the address book is being mended")
    page.get_by_role("button", name=re.compile("Acknowledge 8")).click()
    expect(page.locator(".toast")).to_contain_text("acknowledged")
    mended.touch()
    page.get_by_role("link", name="Sample of 5…").click()
    page.get_by_label("Reason").fill("a sample first")
    page.get_by_role("button", name=re.compile("Replay 5")).click()
    expect(page.locator(".toast")).to_contain_text("5\xa0jobs replayed")
    group = page.url
    console.goto("/jobs?q=kind:broken")
    expect(page.locator("tbody .st.succeeded")).to_have_count(5, timeout=PATIENCE)
    page.goto(group)
    page.get_by_role("link", name="Replay all…").click()
    page.get_by_label("Pace").fill("100")
    page.get_by_label("Reason").fill("mended")
    page.get_by_role("button", name=re.compile("Replay 3")).click()
    expect(page.locator(".say")).to_contain_text("3 done of 3", timeout=PATIENCE)
    console.goto("/jobs?q=kind:broken")

    expect(page.locator("tbody .st.succeeded")).to_have_count(8, timeout=PATIENCE)
    assert console.complaints == []


@pytest.mark.timeout(600)
def test_ten_thousand_jobs_are_cancelled_with_progress_stopped_half_way_and_brought_back(console: Console) -> None:
    page, app = console.page, console.app
    app.queues.set("bulky")
    for _ in range(10):
        app.enqueue_many([app.new_job("welcome", {"n": n}, queue="bulky") for n in range(1000)])
    console.goto("/jobs?q=queue:bulky+state:queued")
    page.get_by_role("link", name="cancel…").click()
    expect(page.locator("main h1")).to_have_text("Cancel 10,000\xa0jobs?")
    page.get_by_label("Pace").fill("200")
    page.get_by_label("Reason").fill("wrong list")
    page.get_by_role("button", name=re.compile("Cancel 10,000")).click()

    say = page.locator(".say")
    expect(say).to_contain_text(re.compile("working.*[1-9][0-9,]* done of 10,000"), timeout=PATIENCE)
    page.get_by_role("button", name="Pause").click()
    expect(say).to_contain_text("paused", timeout=PATIENCE)
    page.get_by_role("button", name="Go on").click()
    expect(say).to_contain_text("working", timeout=PATIENCE)
    page.get_by_role("button", name="Abort").click()
    expect(say).to_contain_text("aborted", timeout=PATIENCE)
    done = sum(one.jobs for one in app.queues.counts(queue="bulky", state="cancelled"))
    assert 0 < done < 10_000
    page.get_by_label("Reason").fill("it was the right list")
    page.get_by_role("button", name=re.compile(f"Undo {done:,}")).click()
    expect(page.locator("main h1")).to_contain_text("Undo")
    page.goto(page.url)  # the pace of the undo is that of the act; what it has done so far is on the page
    expect(say).to_contain_text(re.compile("[1-9][0-9,]* done of"), timeout=PATIENCE)
    expect(say).to_contain_text(f"{done:,} done of {done:,}", timeout=4 * PATIENCE)
    assert sum(one.jobs for one in app.queues.counts(queue="bulky", state="queued")) == 10_000
    assert console.complaints == []


@pytest.mark.timeout(300)
def test_the_output_of_a_job_comes_as_it_is_written_and_starts_anew_with_another_attempt(console: Console) -> None:
    page, app, until = console.page, console.app, console.folder / "go"
    app.queues.set("mail", max_attempts=3, lease_seconds=3)
    job_id = app.enqueue("talk", {"until": str(until)}, queue="mail").id
    first = console.worker()
    console.goto(f"/jobs/{job_id}")
    expect(page.get_by_role("link", name=re.compile("^Output 1"))).to_be_visible(timeout=PATIENCE)
    page.get_by_role("link", name=re.compile("^Output")).click()

    output = page.locator("#output")
    expect(output).to_contain_text("attempt 1 says 3", timeout=PATIENCE)
    first.send_signal(signal.SIGKILL)
    first.wait()
    console.worker()
    expect(output).to_contain_text("attempt 2 says 3", timeout=2 * PATIENCE)
    expect(output).not_to_contain_text("attempt 1")
    until.touch()
    expect(page.locator(".say")).to_contain_text("succeeded", timeout=PATIENCE)
    expect(page.locator("main")).to_contain_text("has ended, and so has its output", timeout=PATIENCE)
    assert console.complaints == []


def test_what_would_turn_text_into_a_page_is_refused_by_the_browser(console: Console) -> None:
    """Trusted Types: a script that is fooled cannot write HTML; htmx goes on, as the live tests show."""
    console.goto("/jobs")

    told = console.page.evaluate("() => { try { document.body.innerHTML = '<b>x</b>'; return 'done' } "
                                 "catch (error) { return error.name } }")  # fmt: skip

    assert told == "TypeError"


def test_a_workflow_is_read_walked_retried_and_cancelled(console: Console) -> None:
    page, flow = console.page, _flow(console.app)
    console.goto("/workflows")
    page.locator(f"#workflow-{flow} a.id").click()

    expect(page.locator(".dag .node")).to_have_count(4)
    expect(page.locator(".outline")).to_contain_text("publish")
    expect(page.locator(".say")).to_contain_text("3 of 4")
    page.get_by_role("link", name=re.compile("^price: failed")).click()
    expect(page.locator("main h1")).to_contain_text("price")
    page.locator(f".facts a[href$='{flow}']").click()
    page.get_by_role("link", name=re.compile("Retry 1")).click()
    page.get_by_label("Reason").fill("price list mended")
    page.get_by_role("button", name=re.compile("Retry 1")).click()
    expect(page.locator(".toast")).to_contain_text("runs again")
    page.wait_for_load_state()  # keys are heard from then on
    page.keyboard.press("c")
    page.get_by_label("Reason").fill("not wanted")
    page.get_by_role("button", name=re.compile("Cancel 1")).click()
    expect(page.locator(".say")).to_contain_text("cancelled")
    assert console.app.workflows.get(flow).state == "cancelled"
    assert console.complaints == []


def test_a_waiting_payload_is_edited_and_a_budget_is_raised(console: Console) -> None:
    page, app = console.page, console.app
    job_id = app.enqueue("welcome", {"to": "user@exmaple.org", "n": 2**53 + 1}, queue="mail").id
    app.budgets.set("queue:mail", usd="1.00", per="day")
    console.goto(f"/jobs/{job_id}")
    page.keyboard.press("e")
    field = page.get_by_label("Payload")
    expect(field).to_have_value(re.compile("9007199254740993"))
    field.fill(field.input_value().replace("exmaple", "example"))
    page.get_by_label("Reason").fill("a typing error")
    page.get_by_role("button", name="Save 1 job").click()

    expect(page.locator(".toast")).to_contain_text("1 job edited")
    assert app.get(job_id).payload == {"to": "user@example.org", "n": 2**53 + 1}
    console.goto("/budgets")
    page.get_by_role("link", name="Raise queue:mail").click()
    page.get_by_label("Add, in usd").fill("0.50")
    page.get_by_label("Reason").fill("more letters")
    page.get_by_role("button", name="Raise 1 budget").click()
    expect(page.locator("main")).to_contain_text("1.50 USD")
    assert console.complaints == []


def test_a_question_is_answered_and_its_job_goes_on(console: Console) -> None:
    page, app = console.page, console.app
    job_id = app.enqueue("refund", {"order": "88213", "amount": "149.00"}, queue="mail", actor="shop").id
    console.worker()
    console.goto(f"/jobs/{job_id}")
    expect(page.locator(".say")).to_contain_text("asks", timeout=PATIENCE)
    expect(page.locator(".nav .call.waiting")).to_have_text("1 ask", timeout=PATIENCE)

    page.get_by_role("link", name=re.compile("^Approvals")).click()
    expect(page.locator("#ask pre")).to_contain_text('"amount": "149.00"')
    page.get_by_label("Note").fill("it was paid twice")
    page.get_by_role("button", name="Approve").click()
    expect(page.locator(".toast")).to_contain_text("Approved")
    page.locator("#ask .crumb a").click()

    expect(page.locator(".say")).to_contain_text("succeeded", timeout=PATIENCE)
    assert app.get(job_id).result == {"granted": True}
    assert console.complaints == []


def test_long_and_hostile_content_stays_in_its_place_at_every_width(console: Console) -> None:
    """Names of 200 characters without a blank, a payload of almost 1 MiB, 2^53+1, an error of one long line; and text
    that browsers were fooled with, in every field that takes it."""
    ids = _long(console.app)
    paths = ["/", "/jobs", "/dead-letters", "/queues", "/workers", "/gates", "/metrics", "/audit", "/bulk", "/limits"]
    paths += [f"/jobs/{ids['long']}?tab={tab}" for tab in TABS]
    paths += [f"/dead-letters/{one}" for one in ids["prints"].split()[:3]]
    paths += [f"/queues/{'q' * 200}", f"/workers/one?id={'w' * 120}", f"/jobs?q=kind:{'k' * 200}"]
    found = []
    for path in paths:
        console.goto(path)
        assert console.page.title() != "owned"
        if foreign := console.page.locator(FOREIGN).count():
            found.append(f"{path}: {foreign} elements that no template made")
        for width in (320, 390, 560, 600, 720, 1024, 1440):
            console.page.set_viewport_size({"width": width, "height": 800})
            found += [f"{path}: {width}: {one}" for one in console.page.evaluate(RULER)]

    console.goto(f"/jobs/{ids['long']}?tab=data")
    expect(console.page.locator("main")).to_contain_text("9007199254740993")
    expect(console.page.locator("main")).to_contain_text("cut here, the rest is in the API")
    assert found == []
    assert console.complaints == []


FOREIGN = ", ".join(
    f"main {one}" for one in ("script", "img", "iframe", "object", "embed", "base", "meta", "style", "link", "video",
                              "math", "marquee", "body", "form[action*=evil]", "a[href*=evil]", "[onload]", "[onerror]")
)  # fmt: skip
"""What the corpus would make of a page that does not escape."""


def _long(app: tenure.App) -> dict[str, str]:
    """Jobs and workers with names, payloads and errors of any length and sort."""
    queue, kind = "q" * 200, "k" * 200
    app.queues.set(queue, max_attempts=1, events=True)
    app.store.do(Heartbeat((), worker=WorkerRow(WorkerId("w" * 120), "h" * 200, 7, [queue, "mail"], version="9" * 40)))
    payload = {"n": 2**53 + 1, "text": "x" * 1_000_000, "deep": {"a" * 200: ["b" * 500]}}
    long = app.enqueue(kind, payload, queue=queue, key="y" * 200, tenant="t" * 100, actor="a" * 100).id
    (grant,) = app.claim(queues=queue, worker="w" * 120)
    event = tenure.NewEvent("log", '{"message": "' + "m" * 3000 + '", "level": "warning"}')
    app.store.do(AppendEvents(grant.id, grant.token, [event]))
    app.fail(grant, f"{'E' * 150}: {'z' * 4000}")
    app.queues.set("mail", max_attempts=1)
    for vector in VECTORS:
        app.enqueue("welcome", {"v": vector}, queue="mail", tenant=vector[:100])
    for vector, one in zip(VECTORS, app.claim(queues="mail", worker="w-1", limit=len(VECTORS)), strict=True):
        app.fail(one, vector)
    app.queues.pause(queue, actor="a" * 100, reason="r" * 300)
    app.gates.close(f"kind:{'g' * 190}", actor="a" * 100, reason="<img src=x onerror=document.title='owned'>")
    app.limits.block("l" * 100, 600, reason="s" * 300)
    prints = {one.fingerprint for one in app.dead_letters.all(limit=200).items if one.job_id != long}
    first = app.dead_letters.all(job_id=long).items[0].fingerprint
    return {"long": long, "prints": " ".join([first, *sorted(prints)])}


def test_new_jobs_wait_behind_a_pill_and_show_when_they_are_asked_for(console: Console) -> None:
    page, app = console.page, console.app
    first = app.enqueue("welcome", {"to": "x"}, queue="mail").id
    console.goto("/jobs?q=queue:mail")
    expect(page.locator(f"#job-{first}")).to_be_visible()

    newer = app.enqueue("welcome", {"to": "y"}, queue="mail").id

    pill = page.get_by_role("link", name="1 newer matches. Show")
    expect(pill).to_be_visible(timeout=PATIENCE)
    expect(page.locator(f"#job-{newer}")).to_have_count(0)
    pill.click()
    expect(page.locator(f"#job-{newer}")).to_be_visible()
    assert console.complaints == []


def test_relative_times_go_on_and_a_paused_page_stands_still(console: Console) -> None:
    page, app = console.page, console.app
    job_id = app.enqueue("report", {}).id
    page.clock.install()
    console.goto("/queues/default")
    time = page.locator(f"tr:has(a[href$='{job_id}']) time").first
    page.clock.fast_forward(300_000)
    expect(time).to_have_text("5\xa0min ago")

    page.get_by_role("button", name="Live").click()
    expect(page.get_by_role("button", name="Paused")).to_be_visible()
    assert page.locator("#stream").count() == 0
    stands, later = time.inner_text(), app.enqueue("report", {}).id
    page.clock.fast_forward(600_000)
    assert time.inner_text() == stands
    assert page.locator(f"a[href$='{later}']").count() == 0


FOCUSED = """() => {
  const one = document.activeElement;
  const shape = one.querySelector?.(".edge, .shape");
  const shown = getComputedStyle(one).outlineStyle !== "none" || one.closest(".tokens") !== null
    || (shape && getComputedStyle(shape).strokeWidth === "2.5px");
  return { name: one.outerHTML.slice(0, 90), inside: one !== document.body, shown };
}"""


def test_a_page_is_walked_by_keyboard_alone(console: Console) -> None:
    """The first stop leads past the navigation; what has the focus shows it; a dialog begins with what does no harm and
    gives the focus back."""
    page = console.page
    job_id = console.app.enqueue("welcome", {"to": "x"}, queue="mail").id
    console.goto(f"/jobs/{job_id}")
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to content")
    expect(skip).to_be_focused()
    assert skip.evaluate("one => one.getBoundingClientRect().top >= 0")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")

    seen = []
    for _ in range(60):
        told = page.evaluate(FOCUSED)
        seen.append(told)
        page.keyboard.press("Tab")
    assert [one["name"] for one in seen if one["inside"] and not one["shown"]] == []

    cancel = page.get_by_role("link", name="Cancel…")
    cancel.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").get_by_role("button", name="Leave it")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(cancel).to_be_focused()


def test_a_group_is_acknowledged_by_keys_alone(console: Console) -> None:
    """`j` and `a` lead to a page whose first field to fill has the focus, so that words and Enter are all it takes."""
    page, app = console.page, console.app
    app.enqueue("broken", {"n": 1}, queue="mail")
    app.fail(app.claim(queues="mail", worker="w-1")[0], "ValueError: no such address")
    console.goto("/dead-letters")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("acknowledge on this page")
    page.keyboard.press("Escape")

    page.keyboard.press("j")
    page.keyboard.press("a")
    expect(page.get_by_label("Note")).to_be_focused()
    page.keyboard.type("the address book is being mended")
    page.keyboard.press("Enter")

    expect(page.locator(".toast")).to_contain_text("acknowledged")
    (letter,) = app.dead_letters.all().items
    assert (letter.triage, letter.triage_note) == ("acknowledged", "the address book is being mended")


CLICKED = """() => {
  globalThis.clicked = [];
  document.addEventListener("click", (event) => { clicked.push(event.target.href); event.preventDefault(); }, true);
}"""
"""Notes where clicks would lead, instead of going there."""


def test_a_key_acts_on_the_current_card_and_on_no_other(console: Console) -> None:
    """`c` on a card that cannot be closed yet led to the question whether another group should be closed."""
    page, app = console.page, console.app
    for error in ("ValueError: no such address", "KeyError: no such customer"):
        app.enqueue("broken", queue="mail")
        app.fail(app.claim(queues="mail", worker="w-1")[0], error)
    fresh, decided = app.dead_letters.all().items
    app.dead_letters.triage([decided.id], "acknowledged", actor="ada", note="seen")
    console.goto("/dead-letters")

    page.keyboard.press("j")
    expect(page.locator("[data-row][aria-current]")).to_contain_text(fresh.fingerprint[:6])
    page.evaluate(CLICKED)
    page.keyboard.press("c")
    page.keyboard.press("a")
    clicked = page.evaluate("clicked")
    assert [one.partition("?")[0].rpartition("/dead-letters/")[2] for one in clicked] == [f"{fresh.fingerprint}/ack"]


def test_a_new_server_teaches_the_first_steps(console: Console) -> None:
    """The server's own worker of bulk acts is there from the start, and is none that a user has started."""
    page = console.page
    console.goto("/workers")
    expect(page.locator("tbody tr")).to_have_count(1, timeout=PATIENCE)
    console.goto("/")

    expect(page.locator("main h1")).to_have_text("Nothing here yet")


def test_a_chart_is_drawn_follows_its_table_and_shows_the_zone_that_was_chosen(console: Console) -> None:
    page, app = console.page, console.app
    for n in range(3):
        app.enqueue("welcome", {"n": n}, queue="mail")
    for grant in app.claim(queues="mail", worker="w-1", limit=3):
        app.complete(grant)
    console.goto("/metrics")
    expect(page.locator("#throughput canvas")).to_be_visible()
    page.get_by_role("link", name="7 d").click()
    expect(page.locator("#throughput canvas")).to_be_visible()
    expect(page.get_by_role("link", name="7 d")).to_have_attribute("aria-current", "true")
    assert console.complaints == []


def test_local_times_are_those_of_the_browser_on_the_axis_too(console: Console) -> None:
    app = console.app
    job_id = app.enqueue("welcome", {}, queue="mail").id
    with console.window(timezone_id="Asia/Kathmandu") as page:  # 5:45 ahead of UTC
        page.goto(f"{console.root}/jobs/{job_id}")
        utc = page.locator(".timeline text[data-at]").first.text_content() or ""
        page.get_by_role("button", name="Local").click()
        expect(page.locator("html")).to_have_attribute("data-times", "local")
        local = page.locator(".timeline text[data-at]").first.text_content() or ""

    minutes = [int(one[:2]) * 60 + int(one[3:5]) for one in (utc, local)]
    assert (minutes[1] - minutes[0]) % 1440 in {344, 345, 346}


def test_a_queue_is_paused_and_says_so_everywhere(console: Console) -> None:
    page = console.page
    console.goto("/queues/mail")
    page.get_by_label("Reason").fill("provider is down")
    page.get_by_role("button", name="Pause queue").click()

    expect(page.locator(".toast")).to_contain_text("Queue mail paused")
    console.app.enqueue("welcome", {"to": "x"}, queue="mail")
    console.goto("/")
    expect(page.locator(".banners")).to_contain_text("is paused by", timeout=PATIENCE)
    assert console.app.claim(queues="mail", worker="w") == []


def test_a_dialog_asks_before_a_job_is_cancelled(console: Console) -> None:
    page = console.page
    job_id = console.app.enqueue("welcome", {"to": "x"}, queue="mail").id
    console.goto(f"/jobs/{job_id}")
    page.get_by_role("link", name="Cancel…").click()

    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Cancel this job?")
    dialog.get_by_role("button", name="Leave it").click()
    expect(dialog).to_be_hidden()
    page.keyboard.press("c")
    dialog.get_by_label("Reason").fill("not wanted")
    dialog.get_by_role("button", name=re.compile("Cancel 1 job")).click()
    expect(page.locator(".say")).to_contain_text("cancelled")
    assert console.app.get(job_id).state == tenure.State.CANCELLED


def test_theme_times_and_keys_are_chosen_and_kept(console: Console) -> None:
    page = console.page
    _work(console)
    console.goto("/jobs")
    page.get_by_role("button", name="Dark").click()
    page.get_by_role("button", name="UTC").click()

    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.locator("html")).to_have_attribute("data-times", "utc")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(19, 21, 24)"
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.locator("[data-picked]")).to_have_text("1")
    page.keyboard.press("g")
    page.keyboard.press("d")
    page.wait_for_url("**/dead-letters")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Keys")


def test_seven_tabs_stay_live_at_once(console: Console) -> None:
    """Browsers open six connections to a host by HTTP/1.1: a tab that is hidden must give its own back."""
    tabs = [console.context.new_page() for _ in range(7)]
    for tab in tabs:
        tab.goto(f"{console.root}/jobs", wait_until="load")
    job_id = console.app.enqueue("welcome", {"to": "x"}, queue="mail").id

    for tab in tabs:
        tab.bring_to_front()
        expect(tab.locator(f"#job-{job_id}")).to_be_visible(timeout=2 * PATIENCE)
    assert console.complaints == []


def test_single_keys_are_switched_off(console: Console) -> None:
    page = console.page
    console.goto("/jobs")
    page.get_by_role("button", name="Keys off").click()
    expect(page.locator("html")).to_have_attribute("data-keys", "off")

    page.keyboard.press("g")
    page.keyboard.press("d")
    page.keyboard.press("?")

    expect(page.get_by_role("dialog")).to_have_count(0)
    assert page.url.endswith("/jobs")


def test_pages_read_without_scripts(console: Console) -> None:
    ids = _work(console)
    with console.window(java_script_enabled=False) as page:
        shown = ["/queues/mail/policy", "/workers/one?id=w-7", "/schedules/nightly", "/audit/verify"]
        shown += (f"/jobs/{ids['dead']}?tab=attempts", f"/dead-letters/{ids['print']}", f"/workflows/{ids['flow']}")
        for path in (*PATHS, *shown):
            page.goto(f"{console.root}{path}")
            assert page.locator("h1").first.inner_text()
            assert len(page.locator("main").inner_text()) > 40
        page.goto(f"{console.root}/jobs/{ids['dead']}/revive")
        page.get_by_label("Reason").fill("no script needed")
        page.get_by_role("button", name=re.compile("Revive 1")).click()
        expect(page.locator(".say")).to_contain_text("queued")
        page.goto(f"{console.root}/queues/mail/policy")
        page.get_by_label("Attempts").fill("7")
        page.get_by_label("Reason").fill("no script needed")
        page.get_by_role("button", name="Set policy").click()
        expect(page.locator("main")).to_contain_text("max_attempts 7", use_inner_text=True)
        console.app.store.do(BEAT)
        page.goto(f"{console.root}/workers/one?id=w-7")
        page.get_by_label("Reason").fill("an old version")
        page.get_by_role("button", name="Drain worker").click()
        expect(page.locator(".say")).to_contain_text("it can be stopped")
        page.goto(f"{console.root}/jobs")
        page.get_by_role("button", name="Columns").click()
        page.get_by_label("Kind", exact=True).uncheck()
        page.get_by_role("button", name="Show these").click()
        expect(page.get_by_role("columnheader", name="Kind")).to_have_count(0)


def test_signing_out_ends_the_session(console: Console) -> None:
    console.page.get_by_role("button", name="Sign out").click()
    console.page.wait_for_url("**/ui/signin")
    answer = console.page.goto(f"{console.root}/jobs")

    assert answer is not None
    assert answer.status == 401


def test_every_page_has_a_picture_script() -> None:
    script = (Path(__file__).parents[2] / "docs/console/record.py").read_text()

    assert all(path.strip("/").partition("/")[0] in script for path in PATHS if path not in {"/", "/nowhere"})
