"""The console's pages through ASGI: each answers, says what it shows, escapes what it is given, and changes things only
by forms."""

from __future__ import annotations

import html
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

import tenure
from tenure.store.admin import AppendEvents, RecordEffect
from tenure.web.application import page_table
from tenure.web.auth import csrf_of
from tests.web.conftest import Server

pytestmark = pytest.mark.anyio
SAME_ORIGIN = {"Origin": "http://127.0.0.1:8400"}

# Text that browsers, templates and spreadsheets have been fooled with.
VECTORS = (
    "<script>alert(1)</script>", "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>", "<svg><script>alert(1)</script></svg>", '"><script>alert(1)</script>',
    "'><script>alert(1)</script>", "</textarea><script>alert(1)</script>", "</title><script>alert(1)</script>",
    "</style><script>alert(1)</script>", "</pre><img src=x onerror=alert(1)>", "<iframe src=javascript:alert(1)>",
    "javascript:alert(1)", "JaVaScRiPt:alert(1)", "java\tscript:alert(1)", "data:text/html,<script>alert(1)</script>",
    "vbscript:msgbox(1)", '" onmouseover="alert(1)', "' onfocus='alert(1)' autofocus='", "` onclick=`alert(1)",
    "{{ 7*7 }}", "{% for x in y %}", "{# comment #}", "${7*7}", "#{7*7}", "<%= 7*7 %>", "{{constructor}}",
    "&lt;script&gt;", "&#60;script&#62;", "&amp;lt;b&gt;", "<b>bold</b>", "<a href=//evil.test>x</a>",
    "<base href=//evil.test>", "<meta http-equiv=refresh content=0>", "<form action=//evil.test>", "<input autofocus>",
    "<object data=x>", "<embed src=x>", "<link rel=stylesheet href=//evil.test>", "<style>*{display:none}</style>",
    "<math><mi xlink:href=javascript:alert(1)>", "<details open ontoggle=alert(1)>", "<video><source onerror=alert(1)>",
    "<marquee onstart=alert(1)>", "<body onload=alert(1)>", "<!--><script>alert(1)</script>", "<![CDATA[<script>]]>",
    "]]><script>alert(1)</script>", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "a\u202egnp.exe", "zero\u200bwidth",
    "line\u2028separator", "nul\u0001byte", "\ufeffbom", "tag\U000e0041", "=cmd|' /C calc'!A0", "+1+1", "@SUM(1)",
    "-2+3", "hx-get=/evil hx-trigger=load", "<div hx-get=/ui/signout hx-trigger=load>", "%3Cscript%3E",
    "\\u003cscript\\u003e",
)  # fmt: skip


@asynccontextmanager
async def signed_in(server: Server, *scopes: str) -> AsyncIterator[httpx.AsyncClient]:
    """A browser with a session, whose scripts send the token of its forms."""
    async with server.client(headers={"Accept": "text/html", **SAME_ORIGIN}) as client:
        answer = await client.post("/ui/session", data={"code": server.link(*scopes)})
        assert answer.status_code == 303
        client.headers["X-CSRF-Token"] = csrf_of(client.cookies["tenure-8400"].strip('"').partition(".")[2])
        yield client


def _populate(app: tenure.App) -> dict[str, str]:
    """Jobs in every state that a page shows, made by the moves that make them."""
    app.queues.set("mail", events=True, max_attempts=1)
    app.queues.set("later")
    ids = [app.enqueue("welcome", {"n": n}, queue="mail").id for n in range(5)]
    done, dead, held, *_ = app.claim(queues="mail", worker="w-1", limit=3)
    app.complete(done, {"ok": True}, summary="sent")
    app.fail(dead, ValueError("no such address"))
    app.heartbeat(held, progress={held.id: {"value": 0.4, "message": "on it"}})
    app.enqueue("report", {"day": "today"}, queue="later", delay=3600)
    app.cancel(ids[4], reason="not wanted")
    return {"done": done.id, "dead": dead.id, "held": held.id, "queued": ids[3], "cancelled": ids[4]}


def _text(answer: httpx.Response) -> str:
    """What a reader without CSS and scripts sees."""
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.text.replace("<wbr>", ""))))


PAGES = {
    "/": "What is outstanding?",
    "/jobs": "Jobs",
    "/memos": "Memos",
    "/enqueue": "Enqueue a job",
    "/dead-letters": "Dead letters",
    "/queues": "Queues",
    "/queues/mail": "mail",
    "/workers": "Workers",
    "/schedules": "Schedules",
    "/workflows": "Workflows",
    "/approvals": "Approvals",
    "/bulk": "Bulk acts",
    "/agents": "Agents",
    "/memory": "Memory",
    "/budgets": "Budgets",
    "/limits": "Limits",
    "/metrics": "Metrics",
    "/health": "Health",
    "/gates": "Gates",
    "/audit": "Audit",
    "/access": "Access",
    "/connect": "Connect",
}


@pytest.mark.parametrize("path", PAGES)
async def test_every_page_answers_with_its_heading_and_no_inline_script_or_style(server: Server, path: str) -> None:
    _populate(server.app)

    async with signed_in(server) as client:
        answer = await client.get(f"/ui{path}")

    assert answer.status_code == 200, answer.text[-500:]
    assert f">{PAGES[path]}" in answer.text
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert not re.search(r"<script(?![^>]*\ssrc=)", answer.text)
    assert "<style" not in answer.text
    assert not re.search(r"<[^>]+\sstyle\s*=", answer.text)
    assert not re.search(r"<[^>]+\son\w+\s*=", answer.text)
    assert not re.search(r"topic=[^&\"]+&amp;seen=(?:&|\")", answer.text)  # a live page names what it was made with
    assert not re.search(r"""(?:src|href|action)\s*=\s*["']?(?:https?:)?//""", answer.text)


@pytest.mark.parametrize("tab", ["attempts", "output", "steps", "effects", "logs", "data", "related", "audit"])
@pytest.mark.parametrize("which", ["done", "dead", "held", "queued", "cancelled"])
async def test_a_job_is_shown_in_every_state_and_tab(small: Server, which: str, tab: str) -> None:
    ids = _populate(small.app)

    async with signed_in(small) as client:
        answer = await client.get(f"/ui/jobs/{ids[which]}?tab={tab}")

    assert answer.status_code == 200
    assert ids[which] in answer.text
    assert "Timeline" in answer.text


async def test_a_job_page_explains_in_words(small: Server) -> None:
    ids = _populate(small.app)

    async with signed_in(small) as client:
        held = _text(await client.get(f"/ui/jobs/{ids['held']}"))
        queued = _text(await client.get(f"/ui/jobs/{ids['queued']}"))

    assert "runs it, under a lease" in held
    assert "No live worker serves queue mail" in queued
    assert "tenure jobs explain" in held


async def test_numbers_are_exact_and_hidden_characters_are_shown_by_number(small: Server) -> None:
    job_id = small.app.enqueue("count", {"big": 2**53 + 1, "text": "a\u202eb\x1b", "nested": {"api_key": "sesame1"}}).id

    async with signed_in(small) as client:
        answer = await client.get(f"/ui/jobs/{job_id}?tab=data")
        unmasked = await client.post(f"/ui/jobs/{job_id}/unmask?tab=data")

    assert "9007199254740993" in answer.text
    assert "a\\u202eb\\u001b" in answer.text
    assert "\u202e" not in answer.text
    assert "sesame1" not in answer.text
    assert "sesame1" in unmasked.text
    assert [row.act for row in small.app.access.audit(limit=5)].count("http:unmask") == 1


async def test_without_the_scope_no_payload_result_or_error_is_on_any_page(small: Server) -> None:
    app = small.app
    app.queues.set("mail", max_attempts=1)
    app.enqueue("welcome", {"word": "canary-payload"}, queue="mail")
    (grant,) = app.claim(queues="mail", worker="w")
    app.fail(grant, "ValueError: canary-error")
    done = app.enqueue("welcome", {"word": "canary-payload"}, queue="mail").id
    (other,) = app.claim(queues="mail", worker="w")
    app.complete(other, {"word": "canary-result"})
    (letter,) = app.dead_letters.all().items
    paths = [
        "/",
        "/jobs",
        "/dead-letters",
        f"/dead-letters/{letter.fingerprint}",
        "/queues/mail",
        "/approvals",
        "/metrics",
    ]
    paths += [f"/jobs/{one}?tab={tab}" for one in (grant.id, done) for tab in ("attempts", "logs", "data", "related")]
    paths += ["/jobs/export?format=jsonl", "/jobs/export?format=csv"]

    async with signed_in(small, "read:meta", "operate") as client:
        answers = {path: await client.get(f"/ui{path}") for path in paths}

    for path, answer in answers.items():
        assert answer.status_code == 200, path
        assert "canary" not in answer.text, path


@pytest.mark.parametrize("vector", VECTORS)
async def test_no_field_escapes_its_place(small: Server, vector: str) -> None:
    """The page with a hostile text has the same tags, attributes and links as the page with a harmless one."""
    shapes = []
    for text in (vector, "harmless"):
        job_id, pages = await _with_text(small, text)
        told = [re.sub(re.escape(job_id), "ID", page) for page in pages]
        shapes.append([_shape(page) for page in told])
        assert not any(char in page for page in pages for char in "\x1b\x07\u202e\u200b\u2028\u0001\ufeff\U000e0041")

    assert shapes[0] == shapes[1]


async def _with_text(small: Server, text: str) -> tuple[str, list[str]]:
    """Every field that a stranger can fill holds the text; the pages that show them."""
    app = small.app
    name = re.sub(r"[\x00-\x1f\x7f-\x9f\u200b\u2028\u202e\ufeff\U000e0041]", "", text)[:100] or "x"
    queue = f"q {name}"[:90]
    app.queues.set(queue, max_attempts=1, events=True)
    job_id = app.enqueue(name, {text: [text, {"deep": text}]}, queue=queue, key=text, tenant=text, actor=text).id
    (grant,) = app.claim(queues=queue, worker=name or "w")
    app.heartbeat(grant, progress={grant.id: {"value": 0.5, "message": text}})
    app.store.do(
        AppendEvents(grant.id, grant.token, [tenure.NewEvent("log", json.dumps({"message": text, "level": text}))])
    )
    app.fail(grant, f"ValueError: {text}\n{text}")
    (letter,) = app.dead_letters.all(queue=queue, triage="pending").items
    app.dead_letters.triage(letter.id, "acknowledged", note=text, actor=name)
    paths = [
        f"/jobs/{job_id}",
        f"/jobs/{job_id}?tab=data",
        f"/jobs/{job_id}?tab=audit",
        f"/jobs/{job_id}?tab=logs",
        f"/jobs/{job_id}/revive",
    ]
    paths += [f"/dead-letters/{letter.fingerprint}"]
    async with signed_in(small) as client:
        pages = []
        for path in paths:
            answer = await client.get(f"/ui{path}")
            assert answer.status_code == 200, (path, answer.text[-300:])
            pages.append(answer.text)
        assert (await client.get("/ui/jobs", params={"q": f"kind:{text}"})).status_code in {200, 303}
    return job_id, pages


def _shape(page: str) -> list[str]:
    """Tags with the names of their attributes, without what they say."""
    main = page[page.index("<main") : page.index("</main>")]
    main = re.sub(r"<svg.*?</svg>", "<svg>", main, flags=re.DOTALL)
    tags = re.findall(r"</?[a-zA-Z][^>]*>", main)
    # Marks inside one JSON document differ with its text; what matters is that no other tag appears.
    return sorted({re.sub(r'"[^"]*"', '""', tag) for tag in tags})


async def test_acts_need_a_reason_and_leave_who_and_why(small: Server) -> None:
    ids = _populate(small.app)

    async with signed_in(small) as client:
        asked = await client.get(f"/ui/jobs/{ids['dead']}/revive")
        refused = await client.post(f"/ui/jobs/{ids['dead']}/revive", data={"reason": ""})
        done = await client.post(f"/ui/jobs/{ids['dead']}/revive", data={"reason": "address mended"})
        shown = await client.get(done.headers["location"])

    assert "Revive 1 job" in _text(asked).replace("\xa0", " ")
    assert refused.status_code in {400, 422}
    assert done.status_code == 303
    assert "1 job revived" in shown.text
    assert small.app.get(ids["dead"]).state == "queued"
    rows = small.app.access.audit(subject=ids["dead"])
    assert ("ada", "address mended") in {(row.actor, row.reason) for row in rows}


async def test_a_group_is_acknowledged_sampled_replayed_and_closed(server: Server) -> None:
    app = server.app
    app.queues.set("mail", max_attempts=1)
    for n in range(8):
        app.enqueue("welcome", {"n": n}, queue="mail")
    for grant in app.claim(queues="mail", worker="w", limit=8):
        app.fail(grant, "ValueError: no such address")
    fingerprint = app.dead_letters.all().items[0].fingerprint

    async with signed_in(server) as client:
        board = _text(await client.get("/ui/dead-letters"))
        ack = await client.post(f"/ui/dead-letters/{fingerprint}/ack", data={"reason": "looking"})
        sample = await client.post(f"/ui/dead-letters/{fingerprint}/replay", data={"reason": "mended", "count": "5"})
        told = await client.get(sample.headers["location"])
        rest = await client.post(f"/ui/dead-letters/{fingerprint}/close", data={"reason": "known"})

    assert "ValueError" in board
    assert "no such address" in board
    assert (ack.status_code, sample.status_code, rest.status_code) == (303, 303, 303)
    assert "5\xa0jobs replayed" in told.text
    assert sum(one.jobs for one in app.queues.counts(state="queued")) == 5
    assert {one.triage for one in app.dead_letters.all(limit=20)} == {"closed"}


async def test_a_queue_is_paused_with_a_reason_and_resumed(server: Server) -> None:
    _populate(server.app)

    async with signed_in(server) as client:
        without = await client.post("/ui/queues/mail/pause", data={})
        paused = await client.post("/ui/queues/mail/pause", data={"reason": "provider is down"})
        shown = _text(await client.get("/ui/queues/mail"))
        (row,) = server.app.queues.all("mail")
        resumed = await client.post("/ui/queues/mail/resume", data={})

    assert without.status_code in {400, 422}
    assert paused.status_code == resumed.status_code == 303
    assert row.paused_by == "ada"
    assert "paused by ada" in shown
    assert server.app.queues.all("mail")[0].paused_at is None


async def test_an_unknown_effect_is_decided_on_its_job(small: Server) -> None:
    app = small.app
    app.enqueue("pay", {"amount": "1.00"})
    (grant,) = app.claim(worker="w")
    _unknown_effect(app, grant)

    async with signed_in(small) as client:
        page = _text(await client.get(f"/ui/jobs/{grant.id}"))
        answer = await client.post(
            f"/ui/jobs/{grant.id}/resolve",
            data={
                "name": "ledger.post",
                "step": "",
                "outcome": "confirmed",
                "reason": "seen in the ledger",
                "result": "{}",
            },
        )

    assert "ledger.post was sent, and no answer was kept" in page
    assert answer.status_code == 303
    (effect,) = app.effects.all(job_id=grant.id).items
    assert effect.state == "confirmed"


def _unknown_effect(app: tenure.App, grant: tenure.Grant) -> None:
    """An effect that was sent and whose answer was lost, and its job, which waits for a person."""
    for state in ("intended", "sent", "unknown"):
        app.store.do(
            RecordEffect(grant.id, grant.token, tenure.EffectRecord(name="ledger.post", state=state, args="{}"))
        )
    app.suspend(grant, "effect")


@pytest.mark.parametrize("typed", ["/", "/ui"])
async def test_what_one_types_leads_to_the_overview(small: Server, typed: str) -> None:
    """`/ui` without a slash was a problem document, signed in or not."""
    async with small.client() as client:
        led = await client.get(typed)

    assert (led.status_code, led.headers["location"]) == (307, "/ui/")


async def test_choices_are_kept_by_the_server_and_lead_back(small: Server) -> None:
    async with signed_in(small) as client:
        dark = await client.post("/ui/preferences", data={"theme": "dark", "times": "utc", "back": "/ui/jobs?q=kind:x"})
        page = await client.get("/ui/jobs")
        odd = await client.post("/ui/preferences", data={"theme": "<x>", "back": "//evil.test/"})
        away = await client.post("/ui/preferences", data={"theme": "dark", "back": "https://evil.test/"})

    assert dark.headers["location"] == "/ui/jobs?q=kind:x"
    assert 'data-theme="dark"' in page.text
    assert 'data-times="utc"' in page.text
    assert odd.headers["location"] == away.headers["location"] == "/ui/"


async def test_the_search_leads_to_an_id_or_to_the_filter(small: Server) -> None:
    ids = _populate(small.app)

    async with signed_in(small) as client:
        by_id = await client.get("/ui/find", params={"q": ids["dead"]})
        by_words = await client.get("/ui/find", params={"q": "state:dead since:1h"})
        wrong = await client.get("/ui/jobs", params={"q": "colour:red state:purple since:soon"})

    assert by_id.headers["location"] == f"/ui/jobs/{ids['dead']}"
    assert by_words.headers["location"].startswith("/ui/jobs?q=state%3Adead")
    for said in ("There is no token colour:", "There is no state purple", "since:soon is no duration"):
        assert said in _text(wrong)


async def test_what_is_not_there_is_a_page_with_404(small: Server) -> None:
    async with signed_in(small) as client:
        answers = [
            await client.get(path)
            for path in (
                "/ui/jobs/00000000-0000-7000-8000-000000000000",
                "/ui/jobs/zzz",
                "/ui/queues/none",
                "/ui/dead-letters/none",
                "/ui/nowhere/at/all",
                "/ui/static/console.css",
            )
        ]

    assert {answer.status_code for answer in answers} == {404}
    assert all("There is nothing here" in answer.text for answer in answers)


async def test_an_export_holds_no_formula(small: Server) -> None:
    small.app.enqueue("=cmd|' /C calc'!A0", {"x": "=1+1"}, key="@SUM(1)")

    async with signed_in(small) as client:
        answer = await client.get("/ui/jobs/export?format=csv")

    assert "attachment" in answer.headers["content-disposition"]
    assert "'=cmd" in answer.text
    assert "'@SUM" in answer.text
    assert not re.search(r"(^|,)\"?[=@]", answer.text, re.MULTILINE)


async def test_a_token_is_minted_once_and_never_with_more_than_one_has(small: Server) -> None:
    async with signed_in(small, "admin") as client:
        more = await client.post("/ui/access/tokens", data={"name": "ci", "scope": "read:payload"})
        made = await client.post("/ui/access/tokens", data={"name": "ci", "scope": ["read:meta"], "days": "7"})
        again = await client.get("/ui/access")

    assert more.status_code == 422
    (text,) = set(re.findall(r"tnr_[0-9A-Za-z]{12}_[0-9A-Za-z]{43}_[0-9A-Za-z]{6}", made.text))
    assert text not in again.text
    (token,) = small.app.access.tokens()
    assert (token.name, list(token.scopes)) == ("ci", ["read:meta"])


async def test_the_first_page_of_an_empty_database_teaches(small: Server) -> None:
    async with signed_in(small) as client:
        page = _text(await client.get("/ui/"))

    assert "Nothing here yet" in page
    assert "tenure worker tasks:app" in page


def test_every_form_of_the_table_is_audited_or_changes_no_row() -> None:
    free = {"/preferences", "/jobs/picked"}

    assert {route.path for route in page_table() if route.verb == "POST" and route.audit is None} == free


async def test_reading_pages_changes_nothing(small: Server) -> None:
    _populate(small.app)
    async with signed_in(small) as client:
        await client.get("/ui/")
        before = repr(
            (small.app.jobs(limit=100).items, small.app.queues.all(), small.app.gates.all(), small.app.access.audit())
        )
        for path in PAGES:
            await client.get(f"/ui{path}")
        after = repr(
            (small.app.jobs(limit=100).items, small.app.queues.all(), small.app.gates.all(), small.app.access.audit())
        )

    assert before == after
