"""Queues, gates, workers, schedules, migrate, prune, stats, top, tail, doctor, explain."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tenure import App, Backoff, WorkerId
from tenure.store.contract import Heartbeat, WorkerRow
from tenure.store.metrics import RollUp
from tenure.testing import ManualClock
from tests.cli.conftest import Cli


def test_settings_of_a_queue_are_read_by_their_types(cli: Cli, app: App) -> None:
    words = "max_attempts=7 lease_seconds=10m backoff=linear backoff.base_seconds=2s events=true concurrency=4"
    found = cli("queues", "set", "fresh", *words.split(), "forbidden_keys=secret,token", "--json")

    policy = app.queues.all("fresh")[0].policy
    assert found.code == 0
    assert (policy.max_attempts, policy.lease_seconds, policy.events, policy.concurrency) == (7, 600.0, True, 4)
    assert policy.backoff == Backoff("linear", base_seconds=2.0)
    assert policy.forbidden_keys == ("secret", "token")
    cli("queues", "set", "fresh", "concurrency=none")
    assert app.queues.all("fresh")[0].policy.concurrency is None
    assert app.queues.all("fresh")[0].policy.max_attempts == 7


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("max_atempts=5", "Did you mean 'max_attempts'"),
        ("backoff.base_second=5", "Did you mean 'base_seconds'"),
        ("max_attempts=many", "whole number"),
        ("events=perhaps", "true or false"),
        ("lease_seconds=soon", "no duration"),
        ("max_attempts", "name=value"),
        ("key_scope=activ", "Did you mean 'active'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_a_hint(cli: Cli, app: App, word: str, says: str) -> None:
    found = cli("queues", "set", "mail", word)

    assert found.code == 2
    assert says in found.err


def test_a_paused_queue_is_shown_so_and_gives_nothing(cli: Cli, app: App) -> None:
    app.enqueue("k", queue="mail")

    assert cli("queues", "pause", "mail", "--json").json == {"changed": ["mail"]}
    assert cli("queues", "pause", "mail", "--json").json == {"changed": []}
    assert cli("claim", "--queue", "mail").code == 3
    assert next(row for row in cli("queues", "ls").rows if row[0] == "mail")[1:3] == ["paused", "1"]
    assert cli("queues", "resume", "mail").code == 0
    assert cli("claim", "--queue", "mail").code == 0
    assert cli("queues", "pause", "mial").code == 3


def test_a_closed_gate_refuses_with_7_until_it_is_opened(cli: Cli, app: App) -> None:
    assert cli("gates", "close", "master", "--reason", "maintenance").code == 0
    refused = cli("enqueue", "k")
    assert (refused.code, refused.out) == (7, "")
    assert "tenure gates open master" in refused.err
    assert ["master", "closed"] in [row[:2] for row in cli("gates", "ls").rows]
    assert cli("gates", "open", "master").code == 0
    assert cli("enqueue", "k").code == 0
    assert cli("gates", "close", "nonsense").code == 2


def test_workers_are_listed_with_what_they_serve(cli: Cli, app: App) -> None:
    app.store.do(Heartbeat([], worker=WorkerRow(WorkerId("w-1"), "host", 1, queues=("mail",), concurrency=3)))

    (row,) = cli("workers", "ls").rows

    assert row[0] == "w-1"
    assert row[3:6] == ["0", "3", "mail"]


def test_looking_at_a_migration_creates_nothing(cli: Cli, url: str, tmp_path: Path) -> None:
    """`migrate --sql` left an empty file behind, and a side folder."""
    printed = cli("migrate", "--sql")

    assert printed.code == 0
    assert "CREATE TABLE tenure_job" in printed.out
    assert cli("migrate", "--check").code == 5
    assert cli("doctor", "--no-sandbox").code == 5
    assert list(tmp_path.iterdir()) == []


def test_the_sql_for_a_file_that_does_not_exist_makes_it(cli: Cli, url: str, tmp_path: Path) -> None:
    first, script = cli("migrate", "--sql").out.split("\n", 1)
    assert first == ".bail on"  # for the shell, which Python's module does not know

    with closing(sqlite3.connect(tmp_path / "cli.db")) as connection:
        connection.executescript(script)

    assert cli("migrate", "--check").code == 0
    assert cli("enqueue", "k").code == 0


@pytest.mark.parametrize("command", [("jobs", "ls"), ("stats",), ("queues", "pause", "default"), ("dlq", "groups")])
def test_only_commands_that_make_work_make_a_file_or_a_schema(
    cli: Cli, url: str, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """An empty file got a schema from whatever command looked at it first; PostgreSQL refused that already."""
    absent = cli(*command)
    (tmp_path / "cli.db").touch(mode=0o600)
    empty = cli(*command)

    assert (absent.code, empty.code) == (5, 6)
    assert f"There is no database file {tmp_path}/cli.db" in absent.err
    assert f"`tenure migrate --url sqlite:///{tmp_path}/cli.db`" in absent.err
    assert "no schema of Tenure's yet, and reading makes none" in empty.err
    assert (tmp_path / "cli.db").stat().st_size == 0


def test_migrate_creates_the_file_and_prints_the_sql(cli: Cli, url: str, tmp_path: Path) -> None:
    assert "CREATE TABLE tenure_job" in cli("migrate", "--sql").out

    first, second = cli("migrate", "--json"), cli("migrate", "--json")

    assert first.json["applied"]
    assert second.json == {"applied": [], "schema_version": first.json["schema_version"]}
    assert cli("migrate", "--check").code == 0
    assert cli("migrate", "--sql").out.strip() == ".bail on"  # the file lacks nothing
    assert stat.S_IMODE((tmp_path / "cli.db").stat().st_mode) == 0o600


def test_prune_counts_and_asks_before_it_cleans(cli: Cli, app: App) -> None:
    for _ in range(3):
        app.enqueue("k")
    for grant in app.claim(limit=3):
        app.complete(grant, "result")

    assert cli("prune").code == 0
    refused = cli("prune", "--older-than", "0")
    assert refused.code == 2
    assert "clean 3 jobs" in refused.err
    assert cli("prune", "--older-than", "0", "--yes", "--json").json["pruned"]["cleaned"] == 3
    assert {job.shown_state for job in app.jobs().items} == {"cleaned"}
    assert cli("prune", "--delete-after", "0", "--yes", "--json").json["pruned"]["deleted"] == 3
    assert app.jobs().items == []


def test_stats_answer_the_six_questions(cli: Cli, app: App) -> None:
    app.queues.set("mail", max_attempts=1, key_scope="none")
    for kind in ("done", "dies", "waits", "waits"):
        app.enqueue(kind, queue="mail", key="same")
    grants = {grant.kind: grant for grant in app.claim(queues="mail", limit=4, kinds=["done", "dies"])}
    app.complete(grants["done"])
    app.fail(grants["dies"], "KeyError: 'to'")

    told = cli("stats", "--json").json
    plain = cli("stats").out

    assert [(one["kind"], one["state"], one["jobs"]) for one in told["outstanding"]] == [("waits", "queued", 2)]
    assert [(one["kind"], one["sample_error"]) for one in told["failures"]] == [("dies", "KeyError: 'to'")]
    assert told["summary"]["stuck_count"] == 0
    ran = {one["kind"]: one for one in told["summary"]["ran"]}
    assert (ran["done"]["succeeded"], ran["dies"]["dead"]) == (1, 1)
    assert ran["done"]["run_p50"] >= 0
    assert [(one["kind"], one["jobs"]) for one in told["summary"]["repeated"]] == [("waits", 2)]
    for question in range(1, 7):
        assert f"# {question}. " in plain


def test_stats_tell_what_was_counted_minute_by_minute(cli: Cli, url: str) -> None:
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    clock = ManualClock(now - timedelta(minutes=5))
    with App(url, clock=clock, actor="test") as app:
        app.enqueue("k")
        empty = cli("stats", "--minutes", "60")
        app.complete(app.claim()[0])
        clock.advance(180)
        app.store.do(RollUp())

        told = cli("stats", "--minutes", "60", "--json").json["minutes"]
        plain = cli("stats", "--minutes", "60").out
        without = cli("stats", "--json").json["minutes"]

    assert empty.code == 0
    assert "counts once a minute" in empty.err
    assert [(one["queue"], one["completed"], one["failed"], one["error_rate"]) for one in told] == [
        ("default", 1, 0, 0.0)
    ]
    assert datetime.fromisoformat(told[0]["minute"]) == now - timedelta(minutes=5)
    assert "# 7. " in plain
    assert without == []
    assert cli("stats", "--minutes", "-1").code == 2


def test_a_leader_without_the_right_to_prune_is_found_by_doctor(cli: Cli, app: App) -> None:
    row = WorkerRow(WorkerId("w-1"), "host", 1, queues=("mail",), info='{"denied": ["prune"]}')
    app.store.do(Heartbeat([], worker=row))
    assert not [one for one in cli("doctor", "--no-sandbox", "--json").json["checks"] if one["name"] == "upkeep"]

    app.leases.acquire("leader", "w-1")
    found = [one for one in cli("doctor", "--no-sandbox", "--json").json["checks"] if one["name"] == "upkeep"]

    assert [one["status"] for one in found] == ["wrong"]
    assert "may not prune" in found[0]["says"]


def test_the_events_of_a_job_are_told_in_words(cli: Cli, app: App) -> None:
    """`jobs show` and `tail` printed each move as JSON, cut at any letter to fit the terminal."""
    app.queues.set("loud", events=True)
    job = app.enqueue("k", queue="loud")
    (grant,) = app.claim(queues="loud", worker="w-1")
    app.fail(grant, "broken")

    shown, followed = cli("jobs", "show", job.id).out, cli("tail", "--once").out

    for out in (shown, followed):
        assert "running attempt=1 worker=w-1" in out
        assert "queued attempt=1 class=error" in out
        assert '"state"' not in out


def test_top_looks_once_where_there_is_no_terminal(cli: Cli, app: App) -> None:
    app.enqueue("k", queue="mail")
    app.claim(queues="mail")

    found = cli("top")

    assert "# Queues" in found.out
    assert cli("top", "--json").json["held"][0]["kind"] == "k"


def test_tail_prints_each_event_once_and_names_silent_queues(cli: Cli, app: App) -> None:
    app.queues.set("loud", events=True)
    app.enqueue("k", queue="loud")
    app.claim(queues="loud")

    found = cli("tail", "--once")
    lines = cli("tail", "--once", "--json", "--queue", "loud").out.splitlines()

    assert "events=true" in found.err
    assert [line.split()[1] for line in found.out.splitlines()] == ["queued", "claimed", "started"]
    assert len(lines) == 3


def test_doctor_finds_a_loose_file_and_says_how_to_fix_it(cli: Cli, app: App, tmp_path: Path) -> None:
    assert cli("doctor", "--no-sandbox").code == 0
    (tmp_path / "cli.db").chmod(0o644)

    found = cli("doctor", "--no-sandbox", "--json")

    assert found.code == 1
    check = next(one for one in found.json["checks"] if one["name"] == "file")
    assert check["status"] == "wrong"
    os.system(check["fix"])  # what it says is a command that helps
    assert cli("doctor", "--no-sandbox").code == 0


def test_doctor_tells_that_a_full_disk_has_taken_the_reserve(cli: Cli, app: App, tmp_path: Path) -> None:
    app.claim()
    reserve = tmp_path / "cli.db-reserve"
    assert reserve.stat().st_size
    assert cli("doctor", "--no-sandbox").code == 0
    os.truncate(reserve, 0)

    found = cli("doctor", "--no-sandbox", "--json")

    assert found.code == 1
    [check] = [one for one in found.json["checks"] if one["name"] == "disk"]
    assert check["status"] == "wrong"
    assert "outcomes of running jobs" in check["says"]


def test_doctor_finds_work_that_nobody_does(cli: Cli, app: App) -> None:
    app.enqueue("k", queue="mail")
    app.gates.close("worker")
    app.queues.pause("default")

    checks = cli("doctor", "--no-sandbox", "--json").json["checks"]

    assert {"unserved", "gate", "paused"} <= {one["name"] for one in checks}
    assert all(one["fix"] for one in checks if one["status"] == "wrong")


def test_doctor_without_a_database_ends_with_5(cli: Cli, url: str) -> None:
    found = cli("doctor", "--no-sandbox")

    assert found.code == 5
    assert "There is no database file" in found.out


def test_doctor_says_what_the_sandbox_offers(cli: Cli, app: App) -> None:
    assert any(one["name"] == "sandbox" for one in cli("doctor", "--json").json["checks"])


def _codes(cli: Cli, job_id: str) -> list[str]:
    return [one["code"] for one in cli("jobs", "explain", job_id, "--json").json["reasons"]]


def _serve(app: App, *, kinds: tuple[str, ...] = (), concurrency: int = 5) -> None:
    row = WorkerRow(WorkerId("w-1"), "host", 1, queues=("mail",), kinds=kinds, concurrency=concurrency)
    app.store.do(Heartbeat([], worker=row))


def test_explain_names_every_cause_of_waiting(cli: Cli, app: App) -> None:
    app.queues.set("mail", concurrency=1, concurrency_per_key=1)
    first = app.enqueue("k", queue="mail", concurrency_key="u1").id
    second = app.enqueue("k", queue="mail", concurrency_key="u1").id
    later = app.enqueue("k", queue="mail", delay=3600).id

    assert _codes(cli, first) == ["no_worker", "next"]
    _serve(app, kinds=("other",))
    assert _codes(cli, first) == ["no_handler", "next"]
    _serve(app, kinds=("k",))
    assert _codes(cli, first) == ["next"]
    assert _codes(cli, second) == ["in_line"]
    assert _codes(cli, later) == ["delayed"]
    app.queues.pause("mail")
    app.gates.close("queue:mail")
    assert _codes(cli, first) == ["gate_closed", "paused", "next"]
    app.queues.resume("mail")
    app.gates.open("queue:mail")
    (grant,) = app.claim(queues="mail", worker="w-1", limit=2)
    assert grant.id == first
    assert _codes(cli, first) == ["running"]
    assert _codes(cli, second) == ["queue_at_limit", "key_at_limit", "next"]


def test_explain_says_how_a_job_ended_or_when_it_is_tried_again(cli: Cli, app: App) -> None:
    retried, dead, done, gone = (app.enqueue("k", queue="mail", max_attempts=n).id for n in (2, 1, 1, 1))
    grants = {grant.id: grant for grant in app.claim(queues="mail", limit=4)}
    app.fail(grants[retried], "no luck", retry_after=3600)
    app.fail(grants[dead], "no luck")
    app.complete(grants[done])
    app.cancel(gone)

    assert _codes(cli, retried)[0] == "backing_off"
    assert _codes(cli, dead) == ["dead"]
    assert _codes(cli, done) == ["succeeded"]
    assert _codes(cli, gone) == ["running", "cancel_requested"]
    assert f"tenure jobs revive {dead}" in cli("jobs", "explain", dead).out


def test_explain_sees_a_lease_that_ran_out(cli: Cli, app: App) -> None:
    job_id = app.enqueue("k", queue="mail").id
    (grant,) = app.claim(queues="mail", lease_seconds=0.001)
    assert grant.id == job_id

    assert _codes(cli, job_id) == ["lease_ran_out"]


def test_a_waiting_job_is_edited_and_ranked_anew(cli: Cli, app: App) -> None:
    job_id = app.enqueue("k", {"to": "a"}, queue="mail").id

    shown = cli("jobs", "edit", job_id, '{"to": "b"}', "--priority", "5", "--json").json["jobs"][0]

    assert (shown["payload"], shown["priority"]) == ({"to": "b"}, 5)
    assert app.get(job_id).payload == {"to": "b"}
    (row,) = app.access.audit(subject=job_id)
    assert (row.act, row.reason) == ("edit", "edited by hand")
    app.claim(queues="mail")
    late = cli("jobs", "edit", job_id, '{"to": "c"}')
    assert late.code == 4
    assert "is running" in late.err


def test_an_editor_opens_on_the_payload_and_overwrites_nothing_unread(
    cli: Cli, app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = app.enqueue("k", {"to": "ä"}, queue="mail").id
    editor = tmp_path / "editor"
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.delenv("VISUAL", raising=False)

    def let_it(script: str) -> None:
        editor.write_text(f"#!/bin/sh\n{script}\n")
        editor.chmod(0o755)

    let_it("sed -i s/ä/b/ $1")
    assert cli("jobs", "edit", job_id).code == 0
    assert app.get(job_id).payload == {"to": "b"}
    let_it("true")
    same = cli("jobs", "edit", job_id)
    let_it("echo '{' > $1")
    broken = cli("jobs", "edit", job_id)
    assert (same.code, broken.code) == (2, 2)
    assert "left as it was" in same.err
    assert app.get(job_id).payload == {"to": "b"}


def test_schedules_are_listed_run_paused_and_resumed(cli: Cli, app: App) -> None:
    app.schedule("nightly", "0 3 * * *", "report", {"all": True}, tz="Europe/Berlin")
    app.schedules.declare()

    (shown,) = cli("schedules", "ls", "--json").json["schedules"]
    made = cli("schedules", "run", "nightly", "--json").json["jobs"][0]["id"]

    assert (shown["cron"], shown["tz"], shown["payload"]) == ("0 3 * * *", "Europe/Berlin", {"all": True})
    assert app.get(made).kind == "report"
    assert cli("schedules", "pause", "nightly", "--json").json == {"changed": ["nightly"]}
    assert cli("schedules", "ls", "--json").json["schedules"][0]["next_tick"] is None
    assert cli("schedules", "resume", "nightly", "--json").json == {"changed": ["nightly"]}
    missing = cli("schedules", "run", "nigthly")
    assert missing.code == 3
    assert "Did you mean 'nightly'" in missing.err


def test_limiters_are_set_blocked_cleared_and_removed(cli: Cli, app: App) -> None:
    app.enqueue("k", queue="mail", limits=["llm"])

    made = cli("limits", "set", "llm", "--per-minute", "50", "--tokens-per-minute", "40000", "--json").json
    blocked = cli("limits", "block", "llm", "1h", "--reason", "429", "--actor", "ann", "--json").json

    assert made["limiters"][0]["per_minute"] == 50
    assert blocked["limiters"][0]["room"] == 0
    assert next(row for row in cli("limits", "ls").rows if row[0] == "llm")[1] == "blocked"
    assert cli("claim", "--queue", "mail").code == 3
    assert cli("limits", "clear", "llm").code == 0
    assert next(row for row in cli("limits", "ls").rows if row[0] == "llm")[1] == "open"
    assert cli("claim", "--queue", "mail").code == 0
    assert next(row for row in cli("limits", "ls").rows if row[0] == "llm")[1] == "limited"
    assert cli("limits", "rm", "llm", "--json").json == {"changed": ["llm"]}
    assert app.limits.all() == []
    assert {one.act for one in app.access.audit(subject="limiter:llm")} >= {
        "set_limiter",
        "block_limiter",
        "clear_limiter",
    }


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("block", "llm", "2d"), 2, "a block ends within 86,400 s"),
        (("set", "llm", "--per-minute", "0"), 2, "never let a job through"),
        (("set", "llm"), 2, "--per-minute or --tokens-per-minute"),
        (("set", "a,b", "--per-minute", "5"), 2, "without commas"),
        (("clear", "llm"), 3, "There is no limiter 'llm'"),
        (("rm", "llm"), 3, "There is no limiter 'llm'"),
    ],
)
def test_a_limiter_that_cannot_be_is_refused(cli: Cli, app: App, words: tuple[str, ...], code: int, says: str) -> None:
    found = cli("limits", *words)

    assert (found.code, says in found.err) == (code, True), found.err
    assert app.limits.all() == []


def test_a_worker_in_another_language_tells_a_refusal(cli: Cli, app: App) -> None:
    for _ in range(3):
        assert cli("enqueue", "k", "--queue", "mail", "--limiter", "llm", "--raw").code == 0
    grant = cli("claim", "--queue", "mail", "--json").json["grants"][0]

    words = ("release", grant["id"], str(grant["token"]), "--delay", "10m", "--limiter", "llm", "--reason", "429")
    assert cli(*words).code == 0

    assert cli("claim", "--queue", "mail").code == 3
    why = cli("jobs", "explain", grant["id"]).out
    assert "blocked by limiter 'llm' until" in why
    assert "tenure limits clear llm" in why
    assert "'llm' is blocked until" in cli("doctor").out


def test_the_backlog_of_a_queue_is_one_number(cli: Cli, app: App) -> None:
    app.enqueue_many(app.new_job("k", {}, queue="mail") for _ in range(5))
    app.claim(queues="mail", limit=2, worker="w")

    assert cli("queues", "backlog", "mail", "--json").json == {"queue": "mail", "backlog": 5}
    assert cli("queues", "backlog", "mail", "--cap", "3", "--json").json["backlog"] == 3
    unknown = cli("queues", "backlog", "mial")
    assert (unknown.code, "Did you mean 'mail'" in unknown.err) == (3, True)
