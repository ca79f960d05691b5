"""What pages do with names of any sort, with what is secret by its name, with values that make no sense, and with what
changes while they are looked at."""

from __future__ import annotations

import html
import json
import random
import re
from urllib.parse import quote

import httpx
import pytest
from anyio.to_thread import run_sync

import tenure
from tenure.store.admin import AppendEvents, RecordEffect
from tenure.testing import drain
from tenure.web import asgi
from tenure.web.pages import _pulses
from tenure.web.pages.table import ROUTES
from tests.web.conftest import BASE, Server
from tests.web.test_pages import _populate, _text, signed_in

pytestmark = pytest.mark.anyio
NAMES = ("two words", "a/b", "a/policy", "100%", "a?b#c&d=e", "a,b", 'say "hi"', "Ümlaut ß 漢", "x" * 200)
SECRET = "tok_1Q9xSECRETvalue"


@pytest.mark.parametrize("name", NAMES)
async def test_a_queue_of_any_name_has_its_page_and_its_links_lead_there(small: Server, name: str) -> None:
    app = small.app
    app.queues.set(name)
    app.enqueue("welcome", queue=name, tenant="acme")
    app.budgets.set(f"queue:{name}"[:250], usd="1.00", per="day")

    async with signed_in(small) as client:
        listed = await client.get("/ui/queues")
        [address] = {one for one in _links(listed) if one.startswith("/ui/queues/") and not one.endswith("/default")}
        page = await client.get(address)
        [jobs] = {one for one in _links(page) if one.startswith("/ui/jobs?q=queue")}
        found = await client.get(jobs)
        paused = await client.post(f"{address}/pause", data={"reason": "why"})
        after = await client.get(paused.headers["location"])
        policy = await client.get(f"{address}/policy")

    assert page.status_code == found.status_code == after.status_code == policy.status_code == 200
    assert "1\xa0job shown" in found.text
    assert app.queues.all(name)[0].paused_by == "ada"
    assert "paused by ada" in _text(after)
    assert ": why" in _text(after)


@pytest.mark.parametrize("kind", NAMES)
async def test_a_job_of_any_kind_is_found_by_its_own_link(small: Server, kind: str) -> None:
    job_id = small.app.enqueue(kind).id
    small.app.enqueue("other")

    async with signed_in(small) as client:
        page = await client.get(f"/ui/jobs/{job_id}")
        [link] = {one for one in _links(page) if one.startswith("/ui/jobs?q=kind")}
        found = await client.get(link)

    assert "1\xa0job shown" in found.text
    assert f"job-{job_id}" in found.text


async def test_what_is_secret_by_its_name_is_hidden_wherever_job_data_is_shown(server: Server) -> None:
    """Found by reading: payloads were masked, and steps, effects, dead letters, memos and exports were not."""
    app = server.app
    app.queues.set("mail", max_attempts=1)
    ids = [app.enqueue("pay", {"n": n, "api_key": f"{SECRET}{n}", "in": {"password": SECRET}}, queue="mail").id
           for n in range(2)]  # fmt: skip
    for grant in app.claim(queues="mail", worker="w", limit=2):
        app.store.do(AppendEvents(grant.id, grant.token, [_log({"api_key": SECRET})]))
        for state in ("intended", "sent", "unknown"):
            record = tenure.EffectRecord(name="charge", state=state, args=f'{{"api_key": "{SECRET}"}}')
            app.store.do(RecordEffect(grant.id, grant.token, record))
        app.fail(grant, "ValueError: no such card")
    fingerprint = app.dead_letters.all().items[0].fingerprint
    paths = [f"/ui/jobs/{ids[0]}?tab={tab}" for tab in ("attempts", "effects", "steps", "logs", "data")]
    paths += ["/ui/dead-letters", f"/ui/dead-letters/{fingerprint}", "/ui/memos"]
    paths += ["/ui/jobs/export?format=jsonl", "/ui/jobs/export?format=csv"]

    async with signed_in(server) as client:
        answers = {path: await client.get(path) for path in paths}

    assert {path for path, answer in answers.items() if SECRET in answer.text} == set()
    assert {answer.status_code for answer in answers.values()} == {200}
    assert "masked by its name" in answers[f"/ui/dead-letters/{fingerprint}"].text


async def test_a_step_shows_no_secret(small: Server) -> None:
    app = small.app

    @app.job(kind="fetch", durable=True)
    def fetch(payload: dict[str, str], ctx: tenure.Context) -> None:
        ctx.step("login", lambda: {"user": "ada", "password": SECRET})
        ctx.sleep("later", 3600)

    job_id = app.enqueue("fetch", {}).id
    await run_sync(drain, app)

    async with signed_in(small) as client:
        page = await client.get(f"/ui/jobs/{job_id}?tab=steps")

    assert "login" in page.text
    assert "ada" in page.text
    assert SECRET not in page.text
    assert ">Steps<" in page.text  # a row of the time axis


async def test_an_attempt_is_chosen_and_shows_its_own_error_and_log(small: Server) -> None:
    app = small.app
    app.queues.set("mail", max_attempts=3, events=True)
    job_id = app.enqueue("pay", queue="mail").id
    for n in range(2):
        (grant,) = app.claim(queues="mail", worker=f"w-{n}")
        app.store.do(AppendEvents(grant.id, grant.token, [_log({"message": f"says {n}"}, message=f"says {n}")]))
        app.fail(grant, f"ValueError: trouble {n}", retry_after=0)

    async with signed_in(small) as client:
        newest = await client.get(f"/ui/jobs/{job_id}?tab=attempts")
        first = await client.get(f"/ui/jobs/{job_id}?tab=attempts&attempt=1")

    assert "Attempt 2 on w-1" in _text(newest)
    assert "Attempt 1 on w-0" in _text(first)
    assert '<span class="x">ValueError: trouble 0</span>' in first.text
    assert "says 0" in _panel(first)
    assert "says 1" not in _panel(first)
    assert f"tab=attempts&amp;attempt={2}" in newest.text


async def test_an_agents_job_tells_what_it_cost_and_its_session(small: Server) -> None:
    app = small.app
    job_id = app.enqueue("answer", {}).id
    odd = app.enqueue("answer", {}).id
    for grant in app.claim(worker="w", limit=2):
        cost = 0.042 if grant.id == job_id else 10**18
        app.complete(grant, {"costUsd": cost, "tokens": {"input": 1800, "output": 240}, "sessionId": "s-1f2e3d"})

    async with signed_in(small) as client:
        told = _text(await client.get(f"/ui/jobs/{job_id}"))
        other = await client.get(f"/ui/jobs/{odd}")

    assert "Cost 0.0420 USD 2,040 tokens" in told
    assert "Session s-1f2e3d" in told
    assert other.status_code == 200
    assert "not told" in other.text


async def test_letters_that_were_decided_stay_so_when_those_of_another_column_are_decided(server: Server) -> None:
    """An acknowledgement of what was pending took back what was escalated."""
    app = server.app
    app.queues.set("mail", max_attempts=1)
    for n in range(5):
        app.enqueue("welcome", {"n": n}, queue="mail")
    for grant in app.claim(queues="mail", worker="w", limit=5):
        app.fail(grant, "ValueError: no such address")
    letters = app.dead_letters.all().items
    app.dead_letters.triage([one.id for one in letters[:2]], "escalated", actor="bob", note="for the provider")

    async with signed_in(server) as client:
        board = await client.get("/ui/dead-letters")
        [ack] = [one for one in _links(board) if "/ack?" in one and "of=pending" in one]
        asked = _text(await client.get(ack))
        done = await client.post(ack.partition("?")[0], data={"reason": "looking", "of": "pending"})
        closed = await client.post(ack.partition("?")[0], data={"reason": "looking", "of": "closed"})

    assert "Acknowledge 3 letters" in asked
    assert done.status_code == 303
    assert sorted(one.triage for one in app.dead_letters.all().items) == ["acknowledged"] * 3 + ["escalated"] * 2
    assert closed.status_code == 400


async def test_groups_of_one_owner_are_shown_alone(small: Server) -> None:
    app = small.app
    app.queues.set("mail", max_attempts=1)
    for error in ("ValueError: one", "KeyError: two"):
        app.enqueue("welcome", {}, queue="mail")
        (grant,) = app.claim(queues="mail", worker="w")
        app.fail(grant, error)
    letter = next(one for one in app.dead_letters.all().items if "two" in one.final_error)
    app.dead_letters.triage([letter.id], "acknowledged", actor="bob", note="mine", owner="ada")

    async with signed_in(small) as client:
        own = _text(await client.get("/ui/dead-letters?owner=ada"))
        nobody = _text(await client.get("/ui/dead-letters?owner=-"))

    assert "KeyError" in own
    assert "ValueError" not in own
    assert "ValueError" in nobody
    assert "KeyError" not in nobody


async def test_new_jobs_do_not_move_the_rows_of_a_live_page(server: Server) -> None:
    app = server.app
    app.queues.set("mail")
    app.queues.set("later")
    ids = [app.enqueue("welcome", {"n": n}, queue="mail").id for n in range(3)]

    async with signed_in(server) as client:
        page = await client.get("/ui/jobs?q=queue:mail")
        renew = html.unescape(re.findall(r'hx-get="([^"]+)"', page.text)[0])
        newer = [app.enqueue("welcome", {"n": n}, queue="mail").id for n in range(2)]
        app.enqueue("other", queue="later")
        _pulses[app].forget()  # as a look does that finds them
        renewed = await client.get(renew)
        again = html.unescape(re.findall(r'hx-get="([^"]+)"', renewed.text)[0])
        shown = await client.get(_links(renewed, ' class="newer"')[0])
        app.cancel_many(ids, reason="gone")
        left = await client.get(f"{renew}+state:queued".replace("upto", "_", 0))

    assert re.findall(r'id="job-([0-9a-f-]+)"', renewed.text) == sorted(ids, reverse=True)
    assert "2 newer match. Show" in renewed.text
    assert again == renew
    assert ">5<" in renewed.text  # the counts are those of now
    assert re.findall(r'id="job-([0-9a-f-]+)"', shown.text) == sorted([*ids, *newer], reverse=True)
    assert left.status_code == 200


async def test_a_page_of_the_audit_is_led_back_to_after_signing_in(small: Server) -> None:
    async with small.client(headers={"Accept": "text/html", "Origin": BASE}) as client:
        asked = await client.get("/ui/jobs?q=kind:a+b")
        back = html.unescape(re.findall(r'name="back" value="([^"]*)"', asked.text)[0])
        wrong = await client.post("/ui/session", data={"code": "nonsense", "back": back})
        kept = html.unescape(re.findall(r'name="back" value="([^"]*)"', wrong.text)[0])
        led = await client.post("/ui/session", data={"code": small.link(), "back": kept})
        away = await client.post("/ui/session", data={"code": small.link(), "back": "//evil.test/ui/"})

    assert asked.status_code == wrong.status_code == 401
    assert "Sign in to go on." in asked.text
    assert "not valid" in wrong.text
    assert led.headers["location"] == "/ui/jobs?q=kind:a+b"
    assert away.headers["location"] == "/ui/"


async def test_a_form_that_is_sent_after_the_session_ended_says_so(small: Server) -> None:
    async with signed_in(small) as client:
        small.app.access.end_sessions(small.app.access.sessions()[0].digest, actor="bob")
        answer = await client.post("/ui/queues/mail/pause", data={"reason": "why"})

    assert answer.status_code == 401
    assert "nothing was changed" in answer.text
    assert "<h1>Sign in</h1>" in answer.text


async def test_the_door_looks_like_the_pages_and_shows_the_environment(
    small: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_ENVIRONMENT", "production")

    async with small.client() as client:
        page = await client.get("/ui/signin")
        sheet = await client.get("/ui/signin.css")

    assert "production" in page.text
    assert "@layer tokens" in sheet.text
    assert small.app.url.rpartition("/")[2] not in page.text  # which database it is, is not for everyone


async def test_a_token_is_revoked_after_a_question(small: Server) -> None:
    made = small.app.access.new_token("ci", ["read:meta"])

    async with signed_in(small) as client:
        [link] = [one for one in _links(await client.get("/ui/access")) if "revoke" in one]
        asked = await client.get(link)
        done = await client.post("/ui/access/revoke", data={"token": made.token.id})
        again = await client.get(link)

    assert "Revoke the token of ci?" in _text(asked)
    assert done.status_code == 303
    assert again.status_code == 404


async def test_a_schedule_is_paused_with_a_reason(small: Server) -> None:
    small.app.schedule("nightly report", "0 3 * * *", "report")
    small.app.schedules.declare()
    address = f"/ui/schedules/{quote('nightly report')}"

    async with signed_in(small) as client:
        without = await client.post(f"{address}/pause", data={})
        done = await client.post(f"{address}/pause", data={"reason": "being rewritten"})
        page = _text(await client.get(address))

    assert (without.status_code, done.status_code) == (400, 303)
    assert "paused by ada" in page
    assert "Last tick none yet" in page


async def test_the_first_steps_name_the_database_that_this_server_has(small: Server) -> None:
    async with signed_in(small) as client:
        page = _text(await client.get("/ui/"))

    assert f'tenure.App("{small.app.url}")' in page


async def test_a_mounted_console_leads_back_below_its_mount(small: Server) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    outer = Starlette(routes=[Mount("/tenure", asgi(small.app))])
    transport = httpx.ASGITransport(outer, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url=BASE, headers={"Accept": "text/html"}) as client:
        asked = await client.get("/tenure/ui/jobs?q=kind:x")

    assert 'name="back" value="/tenure/ui/jobs?q=kind:x"' in html.unescape(asked.text)


@pytest.mark.slow
async def test_no_page_and_no_form_fails_for_values_that_make_no_sense(server: Server) -> None:
    """The first run found a payload that nests too deep, a list that goes on behind no budget, and a span of time that
    begins before the first year."""
    ids, chance = _populate(server.app), random.Random(21)
    server.app.schedule("nightly", "0 3 * * *", "report")
    server.app.schedules.declare()
    fingerprint = server.app.dead_letters.all().items[0].fingerprint
    known = {"name": "mail", "fingerprint": fingerprint, "rest": "x"}
    failed: list[str] = []

    def path(template: str, odd: str | None = None) -> str:
        return re.sub(r"\{(\w+)(?::path)?\}", lambda found: odd or known.get(found[1], ids["queued"]), template)

    async with signed_in(server) as client:
        for route in ROUTES:
            if route.path == "/signout":
                continue
            act = chance.choice(ACTS)
            template = route.path.replace("{act}", act)
            for value in chance.sample(ODD, 8):
                given = dict.fromkeys(chance.sample(FIELDS, 12), value) | {"reason": "why"}
                if route.verb == "GET":
                    query = {name: text[:600] for name, text in given.items()}
                    answers = [await client.get(f"/ui{path(template)}", params=query)]
                    answers.append(await client.get(f"/ui{path(template, quote(value[:40] or 'x', safe=''))}"))
                else:
                    given.pop("session", None)
                    answers = [await client.post(f"/ui{path(template)}", data=given)]
                failed += [f"{route.verb} {template} {value[:20]!r}" for one in answers if one.status_code >= 500]

    assert failed == []


ODD = (
    "", " ", "²", "٣", "-1", "0", "1e309", "nan", "inf", "9" * 30, "9" * 5000, "a" * 600, "a/b", "..", "%00", "\x00",
    "\u202e", "null", "{", "[1,", "é", "'", '"', "a,b", "x:y", "since:999999w", "state:", "state:x,y", 'kind:"',
    "00000000-0000-0000-0000-000000000000", "[1e400]", '{"a": NaN}', "[" * 2000, "1d", "1_000", "cancel",
)  # fmt: skip
FIELDS = (
    "q", "add", "after", "upto", "range", "tab", "attempt", "stream", "state", "name", "subject", "before", "id", "of",
    "owner", "agent", "by", "prefix", "tenant", "scope", "unit", "per", "key", "token", "act", "fingerprint", "format",
    "kind", "queue", "json", "payload", "count", "pace", "amount", "scopes", "days", "seconds", "per_minute", "pick",
    "tokens_per_minute", "priority", "delay", "version", "gate", "worker", "when", "tz", "missed", "choice", "since",
    "args_hash", "note", "outcome", "result", "step", "escalation", "answer", "on_empty", "back", "columns", "column",
    "s.max_attempts", "s.lease_seconds", "s.backoff.base_seconds", "s.forbidden_keys", "p.x",
)  # fmt: skip
ACTS = (
    "cancel", "revive", "clone", "priority", "release", "wake", "pause", "resume", "drain", "set", "raise", "remove",
    "open", "close", "block", "clear", "ack", "replay", "escalate", "assign", "retry", "answer", "undo",
)  # fmt: skip


def _links(answer: httpx.Response, marked: str = "") -> list[str]:
    return [html.unescape(one) for one in re.findall(rf'<a[^>]*{re.escape(marked)}[^>]*\shref="([^"]+)"', answer.text)]


def _panel(answer: httpx.Response) -> str:
    return answer.text.partition('class="panel"')[2]


def _log(fields: dict[str, str], message: str = "told") -> tenure.NewEvent:
    return tenure.NewEvent("log", json.dumps({"message": message, "level": "info", "fields": fields}))


async def test_a_large_payload_is_on_the_page_of_its_job_once_and_nowhere_as_a_line_to_copy(small: Server) -> None:
    """Command, curl and pytest were three more copies of it, in every tab, at each change of a live page."""
    job_id = small.app.enqueue("welcome", {"n": 2**53 + 1, "text": "x" * 1_000_000}).id

    async with signed_in(small) as client:
        attempts = await client.get(f"/ui/jobs/{job_id}")
        data = await client.get(f"/ui/jobs/{job_id}?tab=data")

    assert len(attempts.text) < 60_000
    assert "9007199254740993" in data.text


async def test_too_many_wrong_codes_are_told_on_the_page_that_takes_the_next_one(small: Server) -> None:
    """Found in a browser: the sentence stood alone on an empty page, without a way back."""
    async with small.client(headers={"Accept": "text/html", "Origin": "http://127.0.0.1:8400"}) as client:
        for _ in range(21):
            refused = await client.post("/ui/session", data={"code": "wrong"})

    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) >= 1
    assert "Too many wrong credentials" in _text(refused)
    assert 'name="code"' in refused.text
