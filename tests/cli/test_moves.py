"""Enqueue, claim, heartbeat and the ends, one command each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tenure import App
from tenure.model.ids import JobId, Token
from tenure.model.step import NewStep
from tenure.store.flow import RecordSteps
from tests.cli.conftest import Cli


def test_an_enqueued_job_is_claimed_with_its_payload_and_completed(cli: Cli, app: App) -> None:
    made = cli("enqueue", "greet", '{"name": "Ada Lovelace"}')
    job_id, token, kind, payload = cli("claim").out.rstrip("\n").split("\t")
    done = cli("complete", job_id, token, "--result", '{"ok": true}', "--summary", "greeted")

    assert made.out.strip() == job_id
    assert (kind, json.loads(payload)) == ("greet", {"name": "Ada Lovelace"})
    assert done.code == 0
    job = app.get(job_id)
    assert (job.state, job.result, job.result_summary) == ("succeeded", {"ok": True}, "greeted")


def test_nothing_due_ends_with_3_and_says_so_on_stderr_only(cli: Cli, app: App) -> None:
    found = cli("claim")

    assert (found.code, found.out) == (3, "")
    assert "No job is due" in found.err


def test_a_claim_waits_for_a_job_no_longer_than_it_was_told(cli: Cli, app: App) -> None:
    app.enqueue("later", delay=0.2)

    assert cli("claim", "--wait", "5s").code == 0
    assert cli("claim", "--wait", "50ms").code == 3


def test_a_payload_comes_from_stdin_or_a_file(cli: Cli, app: App, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("[1, 2]")

    from_stdin = cli("enqueue", "k", "-", stdin='{"a": 1}').out.strip()
    from_file = cli("enqueue", "k", "@p.json").out.strip()

    assert app.get(from_stdin).payload == {"a": 1}
    assert app.get(from_file).payload == [1, 2]


def test_lines_of_stdin_become_jobs_in_their_order(cli: Cli, app: App) -> None:
    made = cli("enqueue", "k", "--lines", "--json", stdin='{"n": 0}\n\n{"n": 1}\n{"n": 2}\n')

    ids = [one["id"] for one in made.json["jobs"]]
    assert [app.get(one).payload["n"] for one in ids] == [0, 1, 2]
    assert ids == sorted(ids)


def test_a_line_that_is_not_json_is_named(cli: Cli, app: App) -> None:
    found = cli("enqueue", "k", "--lines", stdin="{}\n{oops\n")

    assert found.code == 2
    assert "Line 2" in found.err


def test_a_key_that_is_taken_answers_the_job_that_holds_it(cli: Cli, app: App) -> None:
    first = cli("enqueue", "k", "--key", "one", "--json").json["jobs"][0]
    second = cli("enqueue", "k", "--key", "one", "--json").json["jobs"][0]

    assert second == {"id": first["id"], "duplicate": True}


def test_every_option_of_enqueue_reaches_the_job(cli: Cli, app: App) -> None:
    options = "--queue mail --priority 7 --delay 1h --max-attempts 9 --affinity gpu --concurrency-key user-1"
    job = app.get(cli("enqueue", "k", "{}", *options.split()).out.strip())

    assert (job.queue, job.priority, job.max_attempts) == ("mail", 7, 9)
    assert (job.affinity_key, job.concurrency_key) == ("gpu", "user-1")
    assert (job.run_at - job.created_at).total_seconds() == pytest.approx(3600, abs=1)


def test_a_heartbeat_extends_the_lease_and_stores_progress(cli: Cli, app: App) -> None:
    cli("enqueue", "k")
    job_id, token, *_ = cli("claim", "--lease", "10s").out.split("\t")
    before = app.get(job_id).lease_until

    found = cli("heartbeat", job_id, token, "--lease", "1h", "--progress", '{"page": 3}')

    job = app.get(job_id)
    assert (found.code, found.out) == (0, "ok\n")
    assert before is not None
    assert job.lease_until is not None
    assert (job.lease_until - before).total_seconds() > 3000
    assert job.progress == {"page": 3}


def test_a_heartbeat_says_that_a_cancel_was_asked_for(cli: Cli, app: App) -> None:
    cli("enqueue", "k")
    job_id, token, *_ = cli("claim").out.split("\t")
    app.cancel(job_id)

    assert cli("heartbeat", job_id, token).out == "cancel_requested\n"
    told = {"job_id": job_id, "cancel_requested": True, "overdue": False}
    assert cli("heartbeat", job_id, token, "--json").json == told


def test_a_heartbeat_says_that_the_deadline_of_a_durable_job_has_passed(cli: Cli, app: App) -> None:
    cli("enqueue", "k")
    job_id, token, *_ = cli("claim").out.split("\t")
    deadline = NewStep("$deadline", "sleep", "open", due_seconds=0.0)
    app._state.open_store().do(RecordSteps(JobId(job_id), Token(int(token)), [deadline]))

    assert cli("heartbeat", job_id, token).out == "overdue\n"


def test_a_failed_attempt_is_retried_and_then_dead(cli: Cli, app: App) -> None:
    cli("enqueue", "k", "--queue", "mail")
    states = []
    for _ in range(2):
        job_id, token, *_rest = cli("claim", "--queue", "mail", "--wait", "5s").out.split("\t")
        found = cli("fail", job_id, token, "--error", "no luck", "--retry-after", "0", "--json")
        states.append(found.json["jobs"][0]["state"])

    assert states == ["queued", "dead"]
    assert [one.error for one in app.attempts(job_id)] == ["no luck", "no luck"]


def test_permanent_fails_at_once_with_the_error_from_stdin(cli: Cli, app: App) -> None:
    cli("enqueue", "k")
    job_id, token, *_ = cli("claim").out.split("\t")

    cli("fail", job_id, token, "--permanent", "--error", "-", stdin="bad\nvery bad")

    job = app.get(job_id)
    assert (job.state, job.last_error) == ("failed", "bad\nvery bad")


def test_a_released_job_has_its_attempt_back(cli: Cli, app: App) -> None:
    cli("enqueue", "k")
    job_id, token, *_ = cli("claim").out.split("\t")

    found = cli("release", job_id, token, "--delay", "1m", "--reason", "not now")

    job = app.get(job_id)
    assert found.code == 0
    assert (job.state, job.attempt) == ("queued", 0)


def test_a_worker_that_lost_its_lease_is_refused_by_every_end(cli: Cli, app: App) -> None:
    cli("enqueue", "k")
    job_id, _token, *_ = cli("claim").out.split("\t")

    for command in (["complete"], ["fail", "--error", "x"], ["release"], ["heartbeat"]):
        name, *rest = command
        found = cli(name, job_id, "99", *rest)
        assert (found.code, found.out) == (4, ""), name
        assert "[lease_lost]" in found.err
    assert app.get(job_id).state == "running"
