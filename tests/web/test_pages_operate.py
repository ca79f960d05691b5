"""What operators change on pages: policies of queues, workers, schedules, owners of dead letters; what they look up:
jobs that wait for a limiter, the audit as a file, the world beside the records. All audited, all without scripts."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.effects import files
from tenure.model.duration import duration_seconds, duration_text
from tenure.model.ids import WorkerId
from tenure.model.policy import Backoff, QueuePolicy
from tenure.model.policy_words import read_settings, write_settings
from tenure.observe.browse import board, death_board
from tenure.store.admin import RecordEffect
from tenure.store.contract import Heartbeat, WorkerRow
from tenure.testing import adrain
from tenure.web.pages import audit as audit_page
from tenure.web.pages import pulse
from tenure.web.pages.dead_letters import similar
from tenure.web.pages.pulse import health
from tests.web.conftest import Server
from tests.web.test_pages import _text, signed_in

pytestmark = pytest.mark.anyio


def _version(text: str) -> str:
    found = re.search(r'name="version" value="([^"]+)"', text)
    assert found is not None
    return found[1]


# --- queues -----------------------------------------------------------------------------------------------------------


def test_every_setting_reads_back_from_its_words() -> None:
    policy = QueuePolicy(
        backoff=Backoff("power", 2.5, 1.5, 3, 7200, 0.25),
        lease_seconds=0.4,
        aging_seconds=90,
        concurrency=7,
        forbidden_keys=("secret", "token"),
        retain_seconds=None,
        events=True,
    )

    assert replace(QueuePolicy(), **read_settings(QueuePolicy(), write_settings(policy))) == policy


@pytest.mark.parametrize("seconds", [0.25, 1, 90, 3600, 5400, 86_400, 90_061])
def test_durations_read_back(seconds: float) -> None:
    assert duration_seconds(duration_text(seconds)) == seconds


async def test_a_policy_is_changed_by_a_form_with_a_reason(server: Server) -> None:
    server.app.queues.set("mail", max_attempts=3)

    async with signed_in(server) as client:
        form = await client.get("/ui/queues/mail/policy")
        told = {"version": _version(form.text), "s.max_attempts": "5", "s.lease_seconds": "10m", "s.concurrency": "4"}
        told |= {"s.backoff.shape": "linear", "s.events": "true", "s.retain_seconds": "none"}
        unsaid = await client.post("/ui/queues/mail/policy", data=told)
        done = await client.post("/ui/queues/mail/policy", data={**told, "reason": "longer letters"})

    (row,) = server.app.queues.all("mail")
    policy = row.policy
    assert unsaid.status_code == 400
    assert 'value="10m"' in unsaid.text, "what was written is kept"
    assert done.status_code == 303
    assert (policy.max_attempts, policy.lease_seconds, policy.concurrency) == (5, 600, 4)
    assert (policy.backoff.shape, policy.backoff.base_seconds, policy.retain_seconds) == ("linear", 5, None)
    written = [one for one in server.app.access.audit(subject="mail") if one.act == "set_queue"]
    assert (written[0].actor, written[0].reason) == ("ada", "longer letters")


async def test_a_policy_that_makes_no_sense_or_is_outdated_changes_nothing(small: Server) -> None:
    small.app.queues.set("mail", max_attempts=3)

    async with signed_in(small) as client:
        version = _version((await client.get("/ui/queues/mail/policy")).text)
        data = {"version": version, "reason": "why"}
        none = await client.post("/ui/queues/mail/policy", data=data)
        wrong = await client.post("/ui/queues/mail/policy", data={**data, "s.max_attempts": "many"})
        longer = await client.post("/ui/queues/mail/policy", data={**data, "s.lease_seconds": "30d"})
        small.app.queues.set("mail", max_attempts=4)
        late = await client.post("/ui/queues/mail/policy", data={**data, "s.max_attempts": "5"})
    async with signed_in(small, "read:meta", "operate") as client:
        forbidden = await client.get("/ui/queues/mail/policy")

    assert [one.status_code for one in (none, wrong, longer, late)] == [400, 400, 400, 400]
    assert "whole number" in _text(wrong)
    assert "lease_max_seconds" in _text(longer)
    assert "changed since" in _text(late)
    assert forbidden.status_code == 403
    assert small.app.queues.all("mail")[0].policy.max_attempts == 4


# --- workers ----------------------------------------------------------------------------------------------------------


async def test_a_worker_is_drained_ends_what_it_holds_and_is_resumed(server: Server) -> None:
    app = server.app
    name = "<b>w/1</b>"
    app.store.do(Heartbeat((), worker=WorkerRow(WorkerId(name), "host", 1, ["default"], concurrency=4)))
    held = app.enqueue("welcome").id
    (grant,) = app.claim(worker=name)
    app.enqueue("welcome")

    async with signed_in(server) as client:
        page = await client.get("/ui/workers/one", params={"id": name})
        unsaid = await client.post("/ui/workers/drain", data={"worker": name})
        await client.post("/ui/workers/drain", data={"worker": name, "reason": "an old version"})
        with pytest.raises(tenure.GateClosed):
            app.claim(worker=name)
        drained = await client.get("/ui/workers/one", params={"id": name})
        app.complete(grant)
        empty = await client.get("/ui/workers/one", params={"id": name})
        await client.post("/ui/workers/resume", data={"worker": name})

    assert held[-4:] in _text(page)
    assert "<b>w/1" not in page.text
    assert unsaid.status_code == 400
    assert "takes nothing more" in _text(drained)
    assert "it can be stopped" in _text(empty)
    assert len(app.claim(worker=name)) == 1
    acts = [(one.act, one.actor, one.reason) for one in app.access.audit(subject=f"worker:{name}")]
    assert ("close_gate", "ada", "an old version") in acts
    assert ("open_gate", "ada", None) in acts


async def test_a_worker_that_is_not_there_is_a_page_that_says_so(small: Server) -> None:
    async with signed_in(small) as client:
        looked = await client.get("/ui/workers/one", params={"id": "w-9"})
        acted = await client.post("/ui/workers/drain", data={"worker": "w-9", "reason": "x"})

    assert looked.status_code == 404
    assert acted.status_code == 404
    assert "w-9" in _text(looked)


# --- schedules --------------------------------------------------------------------------------------------------------


async def test_a_schedule_is_told_in_words_and_changed(server: Server) -> None:
    app = server.app
    app.schedule("nightly", "0 3 * * *", "report", {"day": "yesterday"}, tz="Europe/Vienna")
    app.schedules.declare()

    async with signed_in(server) as client:
        page = await client.get("/ui/schedules/nightly")
        every = {"when": "90s", "tz": "UTC", "missed": "all", "queue": "default", "payload": '{"day": "today"}'}
        unsaid = await client.post("/ui/schedules/nightly/edit", data=every)
        done = await client.post("/ui/schedules/nightly/edit", data={**every, "reason": "more often"})
        listed = await client.get("/ui/schedules")
        wrong = await client.post("/ui/schedules/nightly/edit", data={"when": "61 * * * *", "reason": "x"})

    (row,) = app.schedules.all("nightly")
    spec = json.loads(row.spec)
    assert "At 03:00 every day, Europe/Vienna" in _text(page)
    assert len(re.findall(r"<tr data-row><td>\w{3} \d\d ", page.text)) == 5
    assert unsaid.status_code == 400
    assert done.status_code == 303
    assert (spec["cron"], spec["every_seconds"], spec["missed"], spec["tz"]) == (None, 90, "all", "UTC")
    assert json.loads(spec["payload"]) == {"day": "today"}
    assert "Every 90 s" in _text(listed)
    assert wrong.status_code == 400
    assert 'value="61 * * * *"' in wrong.text
    written = [(one.act, one.actor, one.reason) for one in app.access.audit(subject="nightly")]
    assert ("set_schedule", "ada", "more often") in written


async def test_a_payload_that_may_not_be_read_is_not_shown_and_stays(small: Server) -> None:
    small.app.schedule("nightly", "0 3 * * *", "report", {"secret": "hunter2"})
    small.app.schedules.declare()

    async with signed_in(small, "read:meta", "operate", "admin") as client:
        page = await client.get("/ui/schedules/nightly")
        done = await client.post("/ui/schedules/nightly/edit", data={"when": "0 4 * * *", "reason": "later"})
    async with signed_in(small, "read:meta", "operate") as client:
        forbidden = await client.post("/ui/schedules/nightly/edit", data={"when": "0 5 * * *", "reason": "later"})

    spec = json.loads(small.app.schedules.all("nightly")[0].spec)
    assert "hunter2" not in page.text
    assert done.status_code == 303
    assert forbidden.status_code == 403
    assert (spec["cron"], json.loads(spec["payload"])) == ("0 4 * * *", {"secret": "hunter2"})


# --- dead letters -----------------------------------------------------------------------------------------------------


def _deaths(app: tenure.App) -> None:
    app.queues.set("mail", max_attempts=1)
    errors = (
        "SMTPError: mailbox of ann is full",
        "SMTPError: the server speaks no TLS",
        "KeyError: mailbox of bob is full",
        "ZeroDivisionError: division by zero",
    )
    for error in errors:
        app.enqueue("welcome", queue="mail")
        app.fail(app.claim(queues="mail", worker="w")[0], error)


async def test_a_group_is_assigned_and_keeps_its_owner(server: Server) -> None:
    app = server.app
    _deaths(app)
    fingerprint = next(one.fingerprint for one in app.dead_letters.all().items if "ann" in one.final_error)

    async with signed_in(server) as client:
        asked = await client.get(f"/ui/dead-letters/{fingerprint}/assign")
        nobody = await client.post(f"/ui/dead-letters/{fingerprint}/assign", data={"reason": "x", "owner": ""})
        await client.post(f"/ui/dead-letters/{fingerprint}/assign", data={"reason": "your provider", "owner": "bob"})
        await client.post(f"/ui/dead-letters/{fingerprint}/escalate", data={"reason": "they do not answer"})
        page = await client.get(f"/ui/dead-letters/{fingerprint}")

    (letter,) = app.dead_letters.all(fingerprint=fingerprint).items
    assert 'value="ada"' in asked.text
    assert nobody.status_code == 400
    assert (letter.owner, letter.triage, letter.triaged_by) == ("bob", "escalated", "ada")
    assert re.search(r"Owner\s+B?\s*bob", _text(page))


def test_similar_groups_share_the_error_or_most_of_the_message(small: Server) -> None:
    _deaths(small.app)
    groups = [one for column in death_board(small.app.store, small.app.now()) for one in column.groups]
    full = next(one for one in groups if "ann" in one.message)

    found = similar(full, groups)

    assert [(one.group.title, one.why.partition(",")[0]) for one in found] == [
        ("SMTPError", "the same error"),
        ("KeyError", "86\xa0% of the message"),
    ]


# --- limits, approvals, metrics ---------------------------------------------------------------------------------------


async def test_jobs_that_wait_for_a_limiter_are_told_with_their_time(server: Server) -> None:
    app = server.app
    app.limits.block("openai", 1800, reason="429")
    ids = [app.enqueue("summarise", limits=["carrier", "openai"]).id for _ in range(4)]

    async with signed_in(server) as client:
        page = await client.get("/ui/limits")
        app.limits.clear("openai")
        opened = await client.get("/ui/limits")

    assert re.search(r"carrier\s+and\s+openai\s+default\s+4\s+in\s+(30|29)\s+min", _text(page))
    assert ids[0] in page.text
    assert re.search(r"carrier\s+and\s+openai\s+default\s+4\s+now", _text(opened))


async def test_an_approval_says_what_it_unlocks_and_later_what_it_did(small: Server) -> None:
    app = small.app

    @app.job(kind="refund", durable=True)
    def refund(payload: dict[str, Any], ctx: tenure.Context) -> Any:
        ok = ctx.approve("refund", args={"order": payload["order"]})
        ctx.effect("bank.transfer", ok.args, do=lambda _: {"ok": True}, approval=ok)

    app.enqueue("refund", {"order": 7})
    await adrain(app)
    (asked,) = app.approvals.all(state="pending")

    async with signed_in(small) as client:
        waiting = await client.get(f"/ui/approvals/{asked.id}")
        app.approvals.approve(asked.id, by="maria", args_hash=asked.args_hash)
        await adrain(app)
        used = await client.get(f"/ui/approvals/{asked.id}")

    assert "one effect may be done with exactly these arguments" in _text(waiting)
    assert re.search(r"once,\s+by the effect\s+bank\.transfer", _text(used))


async def test_metrics_tell_bloat_and_how_late_retention_is(server: Server) -> None:
    app = server.app
    app.queues.set("short", retain_seconds=0.001)
    app.enqueue("welcome", queue="short")
    app.complete(app.claim(queues="short", worker="w")[0])

    async with signed_in(server) as client:
        late = await client.get("/ui/metrics")
        app.prune()
        kept = await client.get("/ui/metrics")

    assert "Bloat" in _text(late)
    assert re.search(r"Prune lag\s+\d[\d.]*\s+(ms|s)", _text(late))
    assert re.search(r"Prune lag\s+none", _text(kept))


async def test_memos_are_listed_and_forgotten_with_a_reason(small: Server) -> None:
    app = small.app

    @app.job(kind="quote", durable=True)
    def quote(payload: dict[str, Any], ctx: tenure.Context) -> Any:
        return ctx.memo("price", key=payload["part"], ttl=3600, do=lambda: {"eur": "19.90"})

    for part in ("BP-1", "<b>BP-2</b>"):
        app.enqueue("quote", {"part": part}, tenant="acme")
    await adrain(app)
    kept = app.steps.memos("price").items

    async with signed_in(small) as client:
        page = await client.get("/ui/memos")
        one = await client.get("/ui/memos", params={"name": "price", "prefix": "BP"})
        wrong = await client.get("/ui/memos", params={"after": "nonsense"})
        unsaid = await client.post("/ui/memos/forget", data={"pick": kept[0].id})
        done = await client.post("/ui/memos/forget", data={"pick": [kept[0].id], "reason": "an old price"})
    async with signed_in(small, "read:meta") as client:
        masked = await client.get("/ui/memos")

    assert "19.90" in _text(page)
    assert "<b>BP-2" not in page.text
    assert "BP-1" in _text(one)
    assert "BP-2" not in _text(one)
    assert wrong.status_code == 400
    assert unsaid.status_code == 400
    assert done.status_code == 303
    assert [memo.id for memo in app.steps.memos("price").items] == [kept[1].id]
    assert "19.90" not in masked.text
    acts = [(row.act, row.actor, row.reason) for row in app.access.audit(limit=20)]
    assert ("forget_memos", "ada", "an old price") in acts


# --- health, audit ----------------------------------------------------------------------------------------------------


async def test_records_are_compared_with_the_world(tmp_path: Path) -> None:
    root = tmp_path / "files"
    root.mkdir()
    with tenure.App(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        app.use(files(root=root))
        app.enqueue("create_file", {"path": "a.txt", "content": "hello"})
        await adrain(app)
        async with signed_in(Server(app)) as client:
            whole = await client.post("/ui/health/reconcile", data={"since": "1h"})
            (root / "a.txt").write_text("changed")
            differs = await client.post("/ui/health/reconcile", data={"since": "all"})
            wrong = await client.post("/ui/health/reconcile", data={"since": "never"})

    assert "Nothing differs. 1 record of the last hour was compared" in _text(whole)
    assert "1 thing differs." in _text(differs)
    assert "a.txt" in _text(differs)
    assert wrong.status_code == 400


async def test_a_server_without_an_app_says_how_to_compare(small: Server) -> None:
    async with signed_in(small) as client:
        page = await client.get("/ui/health")
        acted = await client.post("/ui/health/reconcile", data={"since": "1h"})

    assert "tenure reconcile MODULE:APP" in _text(page)
    assert acted.status_code == 400
    assert "tenure serve MODULE:APP" in _text(acted)


async def test_the_audit_is_a_file_by_pages_and_holds_no_formula(
    small: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_page, "EXPORT_PAGE", 3)
    monkeypatch.setattr(audit_page, "EXPORT", 6)
    for number in range(9):
        small.app.access.note("pause", "mail", actor="=cmd()", reason=f"number {number}")

    async with signed_in(small) as client:
        lines = await client.get("/ui/audit/export", params={"subject": "mail", "format": "jsonl"})
        sheet = await client.get("/ui/audit/export", params={"subject": "mail", "format": "csv"})
        told = [json.loads(line) for line in lines.text.splitlines()]
        rest = await client.get("/ui/audit/export", params={"subject": "mail", "before": told[-1]["seq"]})
    async with signed_in(small, "read:meta") as client:
        forbidden = await client.get("/ui/audit/export")

    rows = list(csv.DictReader(io.StringIO(sheet.text)))
    assert [one["reason"] for one in told] == [f"number {number}" for number in range(8, 2, -1)]
    assert [json.loads(line)["reason"] for line in rest.text.splitlines()] == ["number 2", "number 1", "number 0"]
    assert [row["actor"] for row in rows] == ["'=cmd()"] * 6
    assert "audit.csv" in sheet.headers["content-disposition"]
    assert forbidden.status_code == 403


async def test_the_chain_over_the_audit_is_verified_on_a_page(server: Server) -> None:
    server.app.access.note("pause", "mail", actor="ada")
    server.app.access.seal()

    async with signed_in(server) as client:
        page = await client.get("/ui/audit/verify")

    assert "The chain fits" in _text(page)
    assert server.app.access.verify_audit().head in page.text


# --- jobs -------------------------------------------------------------------------------------------------------------


async def test_columns_of_the_list_are_chosen_and_kept(small: Server) -> None:
    small.app.enqueue("welcome", tenant="acme")

    async with signed_in(small) as client:
        told = {"columns": "chosen", "column": ["age", "tenant"], "back": "/ui/jobs?q=state:queued"}
        done = await client.post("/ui/preferences", data=told)
        page = await client.get("/ui/jobs")
        await client.post("/ui/preferences", data={"theme": "dark", "back": "/ui/jobs"})
        again = await client.get("/ui/jobs")

    assert done.headers["location"].endswith("/ui/jobs?q=state:queued")
    for one in (page, again):
        heads = re.findall(r"<th scope=\"col\"[^>]*>([^<]*)", one.text)
        assert [head.strip() for head in heads if head.strip()] == ["State", "Job", "Age", "Tenant"]


def test_the_moment_of_a_changed_schedule_is_not_in_the_past(small: Server) -> None:
    """Its last tick stays, so a schedule that comes more often makes up for no tick before the change."""
    app = small.app
    app.schedule("nightly", "0 3 * * *", "report")
    (before,) = app.schedules.declare()

    after = app.schedules.change("nightly", every=timedelta(seconds=60), reason="more often")

    assert after.last_tick == before.last_tick
    assert before.last_tick <= datetime.now(UTC)


async def test_a_worker_that_fetched_ahead_does_not_use_more_slots_than_it_has(server: Server) -> None:
    app = server.app
    app.queues.set("mail")
    app.store.do(Heartbeat((), worker=WorkerRow(WorkerId("w-1"), "host", 7, ["mail"], concurrency=2)))
    app.enqueue_many([app.new_job("welcome", {"n": n}, queue="mail") for n in range(5)])
    app.claim(queues="mail", worker="w-1", limit=5)

    async with signed_in(server) as client:
        workers, one, queue, overview = [
            _text(await client.get(f"/ui{path}")) for path in ("/workers", "/workers/one?id=w-1", "/queues/mail", "/")
        ]

    assert "2 of 2 slots are used" in workers
    assert "2 of 2, 3 ahead" in workers
    assert "2 jobs of 2 at once, and 3 fetched ahead" in one
    assert "2 of 2 used" in queue
    assert "5 of 2" not in overview


async def test_a_server_that_waits_for_bulk_acts_is_no_worker_of_an_empty_database(server: Server) -> None:
    """`tenure serve` runs one, so a database without work was shown as a healthy one, and nothing was taught."""
    server.app.store.do(Heartbeat((), worker=WorkerRow(WorkerId("own"), "host", 7, ["bulk"])))

    async with signed_in(server) as client:
        page = _text(await client.get("/ui/"))

    assert "Nothing here yet" in page
    assert health([], board(server.app.store), {}).says == "No worker takes jobs yet."


async def test_the_beginning_of_an_id_is_found_as_on_the_command_line(server: Server) -> None:
    app = server.app
    one, other = app.enqueue("welcome").id, app.enqueue("welcome").id
    same = next(n for n, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)

    async with signed_in(server) as client:
        found = [await client.get("/ui/find", params={"q": text}) for text in (one[: same + 1], f"{other[:-1]}…")]
        several = await client.get("/ui/find", params={"q": one[:same]})
        listed = await client.get(several.headers["location"])
        short = await client.get("/ui/find", params={"q": "feed"})

    assert [answer.headers["location"] for answer in found] == [f"/ui/jobs/{one}", f"/ui/jobs/{other}"]
    assert "Type more of it" in _text(listed)
    assert short.headers["location"] == "/ui/jobs?q=kind%3Afeed"


@pytest.mark.parametrize(
    ("detail", "words"),
    [
        ({"method": "POST", "path": "/ui/x", "status": 303, "address": "10.0.0.7"}, "POST, 303, from 10.0.0.7"),
        ({"from": "queued", "to": "cancelled"}, "queued → cancelled"),
        ({"state": "queued"}, "state queued"),
        ({"from": {"payload": "a1"}, "to": {"payload": "b2"}, "kept": True}, "payload a1 → payload b2, kept yes"),
        ({"job_ids": ["a", "b"], "note": None}, "job ids 2 values"),
        (["x"], "x"),
    ],
)
def test_what_the_audit_keeps_of_an_act_is_told_in_words(detail: Any, words: str) -> None:
    assert audit_page.in_words(detail) == words


async def test_a_worker_of_an_older_version_is_behind_also_where_its_text_sorts_last(small: Server) -> None:
    for name, version in (("old", "0.9.0"), ("new", "0.10.0"), ("silent", "")):
        small.app.store.do(Heartbeat((), worker=WorkerRow(WorkerId(name), "host", 1, ["default"], version=version)))

    async with signed_in(small) as client:
        page = await client.get("/ui/workers")

    rows = dict(re.findall(r'<tr data-row id="worker-(\w+)">(.*?)</tr>', page.text, re.DOTALL))
    assert {name for name, row in rows.items() if "behind" in row} == {"old"}


async def test_what_waits_for_a_person_is_told_alike_by_the_inbox_the_overview_and_the_health_line(
    server: Server,
) -> None:
    """Found by looking: with questions open the health line said that nothing waits for a person, effects of unknown
    outcome were counted nowhere outside of the inbox, and of 120 questions the inbox said 50."""
    app = server.app

    @app.job(kind="refund", durable=True)
    def refund(payload: dict[str, Any], ctx: tenure.Context) -> None:
        ctx.approve("refund", args={"order": payload["order"]})

    app.enqueue_many([app.new_job("refund", {"order": n}) for n in range(120)])
    await adrain(app)
    app.queues.set("mail")
    app.enqueue("welcome", queue="mail")
    (grant,) = app.claim(queues="mail", worker="w")
    for state in ("intended", "sent", "unknown"):
        app.store.do(RecordEffect(grant.id, grant.token, tenure.EffectRecord(name="charge", state=state, args="{}")))
    app.store.do(Heartbeat((), worker=WorkerRow(WorkerId("w"), "host", 1, ["default", "mail"])))

    async with signed_in(server) as client:
        inbox = await client.get("/ui/approvals")
        overview = await client.get("/ui/")

    told = "120 questions and 1 effect of unknown outcome wait for a person"
    assert told in _text(inbox)
    assert "20 newer ones come here as these are answered" in _text(inbox)
    assert re.search(rf'class="banner waiting">.*?{told}', overview.text.replace("\xa0", " "), re.DOTALL)
    assert "121 ask" in _text(overview)
    assert f"{told}." in health([], board(app.store), pulse.take(app).asked).says.replace("\xa0", " ")


async def test_a_closed_gate_and_a_paused_queue_say_on_the_overview_why(server: Server) -> None:
    app = server.app
    app.queues.set("mail")
    app.enqueue("welcome", queue="mail")
    app.gates.close("kind:newsletter", actor="ada", reason="wrong template.")
    app.queues.pause("mail", actor="ada", reason="the provider is away")

    async with signed_in(server) as client:
        page = _text(await client.get("/ui/"))

    assert re.search(r"kind:newsletter is closed by ada at [\d:]+ UTC: wrong template\. What it guards waits", page)
    assert re.search(r"mail is paused by ada at [\d:]+ UTC: the provider is away\. Claims take nothing", page)
