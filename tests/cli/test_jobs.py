"""`tenure jobs`."""

from __future__ import annotations

import threading

import pytest

from tenure import App, NewEvent
from tests.cli.conftest import Cli


def test_a_list_narrows_by_state_queue_and_kind_and_goes_on_after_a_page(cli: Cli, app: App) -> None:
    made = [app.enqueue("a" if number % 2 else "b", queue="mail" if number < 2 else None).id for number in range(5)]

    assert [row[0] for row in cli("jobs", "ls").rows] == made[::-1]
    assert {row[0] for row in cli("jobs", "ls", "--queue", "mail").rows} == set(made[:2])
    assert {row[0] for row in cli("jobs", "ls", "-k", "a", "-s", "queued").rows} == {made[1], made[3]}
    first = cli("jobs", "ls", "-n", "2", "--json").json
    rest = cli("jobs", "ls", "--json", "--after", first["next"]).json
    assert [one["id"] for one in first["jobs"] + rest["jobs"]] == made[::-1]


def test_a_shown_job_has_payload_attempts_and_events(cli: Cli, app: App) -> None:
    app.queues.set("loud", events=True, max_attempts=1)
    job_id = app.enqueue("k", {"to": "Ada"}, queue="loud").id
    (grant,) = app.claim(queues="loud")
    app.fail(grant, "first line\nsecond line")

    plain = cli("jobs", "show", job_id)
    told = cli("jobs", "show", job_id, "--json").json

    assert plain.code == 0
    for expected in ('"to": "Ada"', "second line", "dead", "pending"):
        assert expected in plain.out
    assert told["job"]["payload"] == {"to": "Ada"}
    assert told["job"]["shown_state"] == "dead"
    assert [one["outcome"] for one in told["attempts"]] == ["dead"]
    assert [one["triage"] for one in told["dead_letters"]] == ["pending"]
    assert [one["kind"] for one in told["events"]] == ["queued", "claimed", "started", "dead"]


def test_logs_are_what_the_handler_said(cli: Cli, app: App) -> None:
    app.enqueue("k")
    (grant,) = app.claim()
    app.complete(grant, events=[NewEvent("log", '{"level":"info","message":"half way \\u001b[31m"}', grant.id)])

    found = cli("jobs", "logs", grant.id)

    assert "half way \\x1b[31m" in found.out
    assert "\x1b" not in found.out


def test_following_logs_ends_with_the_job(cli: Cli, app: App) -> None:
    app.enqueue("k")
    (grant,) = app.claim()
    ender = threading.Timer(0.3, lambda: app.complete(grant, events=[NewEvent("log", '{"message":"done"}', grant.id)]))
    ender.start()

    found = cli("jobs", "logs", "--follow", grant.id)

    ender.join()
    assert "done" in found.out


def test_waiting_tells_success_failure_and_lateness_apart(cli: Cli, app: App) -> None:
    good, bad, slow = (app.enqueue("k", queue="mail").id for _ in range(3))
    grants = {grant.id: grant for grant in app.claim(queues="mail", limit=3)}
    app.complete(grants[good])
    app.reject(grants[bad], "no")

    assert cli("jobs", "wait", good).code == 0
    assert cli("jobs", "wait", good, bad).code == 1
    late = cli("jobs", "wait", slow, "--timeout", "50ms")
    assert late.code == 124
    assert "1 of 1 not ended" in late.err


def test_waiting_ends_when_the_job_does(cli: Cli, app: App) -> None:
    job_id = app.enqueue("k").id
    (grant,) = app.claim()
    ender = threading.Timer(0.2, lambda: app.complete(grant))
    ender.start()

    found = cli("jobs", "wait", job_id, "--timeout", "20s", "--json")

    ender.join()
    assert found.code == 0
    assert found.json["jobs"][0]["state"] == "succeeded"


def test_one_job_is_cancelled_and_revived_by_its_id(cli: Cli, app: App) -> None:
    job_id = app.enqueue("k").id

    assert cli("jobs", "cancel", job_id, "--json").json["jobs"] == [
        {"job_id": job_id, "answer": "cancelled", "state": "cancelled"}
    ]
    assert cli("jobs", "revive", job_id, "--reason", "changed my mind", "--actor", "ada").code == 0
    assert app.get(job_id).state == "queued"
    assert ("ada", "changed my mind") in [(one.actor, one.reason) for one in app.access.audit(subject=job_id)]


@pytest.mark.parametrize("verb", ["cancel", "revive"])
def test_many_jobs_need_a_yes_where_nobody_can_be_asked(cli: Cli, app: App, verb: str) -> None:
    made = [app.enqueue("k", queue="mail").id for _ in range(3)]
    other = app.enqueue("k").id
    if verb == "revive":
        app.cancel_many([*made, other])
    before = {one: app.get(one).state for one in made}

    refused = cli("jobs", verb, "--queue", "mail")
    unchanged = {one: app.get(one).state for one in made}
    done = cli("jobs", verb, "--queue", "mail", "--yes")

    assert refused.code == 2
    assert f"{verb} 3 jobs with queue mail" in refused.err
    assert "--yes" in refused.err
    assert unchanged == before
    assert done.code == 0
    wanted = "cancelled" if verb == "cancel" else "queued"
    assert {app.get(one).state for one in made} == {wanted}
    assert app.get(other).state == ("queued" if verb == "cancel" else "cancelled")


def test_more_jobs_than_a_page_are_all_cancelled(cli: Cli, app: App) -> None:
    app.enqueue_many([("k", {"n": number}) for number in range(1203)])

    found = cli("jobs", "cancel", "--kind", "k", "--yes", "--json")

    assert len(found.json["jobs"]) == 1203
    assert {(one.state, one.jobs) for one in app.queues.counts()} == {("cancelled", 1203)}


def test_a_choice_of_nothing_or_of_both_is_refused(cli: Cli, app: App) -> None:
    job_id = app.enqueue("k").id

    assert cli("jobs", "cancel").code == 2
    assert cli("jobs", "cancel", job_id, "--queue", "mail", "--yes").code == 2
    assert cli("jobs", "cancel", "--state", "dead", "--yes").code == 2
    assert cli("jobs", "revive", "--state", "succeeded", "--yes").code == 2
    assert app.get(job_id).state == "queued"


def test_an_ended_job_that_is_named_in_a_list_is_refused_with_4(cli: Cli, app: App) -> None:
    done, live = (app.enqueue("k").id for _ in range(2))
    app.complete(next(grant for grant in app.claim(limit=1) if grant.id == done))

    found = cli("jobs", "cancel", done, live, "--json")

    assert found.code == 4
    assert [one["answer"] for one in found.json["jobs"]] == ["refused", "cancelled"]
