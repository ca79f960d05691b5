"""`tenure dlq`."""

from __future__ import annotations

import pytest

from tenure import App
from tests.cli.conftest import Cli


@pytest.fixture
def dead(app: App) -> list[str]:
    """Three jobs that died of the same, and one of something else."""
    app.queues.set("grave", max_attempts=1)
    jobs: list[str] = [app.enqueue("send", {"n": number}, queue="grave").id for number in range(4)]
    for number, grant in enumerate(app.claim(queues="grave", limit=4)):
        app.fail(grant, f"SMTPError: 421 try {number} later" if number < 3 else "KeyError: 'to'")
    return jobs


def test_letters_are_grouped_by_what_they_died_of(cli: Cli, app: App, dead: list[str]) -> None:
    groups = cli("dlq", "groups", "--json").json["groups"]

    assert [(one["letters"], one["kind"]) for one in groups] == [(3, "send"), (1, "send")]
    assert "421" in groups[0]["sample_error"]


def test_a_letter_is_found_by_its_own_id_and_by_its_jobs(cli: Cli, app: App, dead: list[str]) -> None:
    letter = app.dead_letters.all(job_id=dead[3]).items[0]

    by_letter = cli("dlq", "show", letter.id)
    by_job = cli("dlq", "show", dead[3], "--json").json

    assert "KeyError: 'to'" in by_letter.out
    assert by_job["dead_letter"]["id"] == letter.id
    assert by_job["dead_letter"]["payload"] == {"n": 3}
    assert cli("dlq", "show", "0" * 8 + "-0000-7000-8000-" + "0" * 12).code == 3


@pytest.mark.parametrize(("verb", "triage"), [("ack", "acknowledged"), ("escalate", "escalated"), ("close", "closed")])
def test_a_decision_is_kept_with_note_and_name(cli: Cli, app: App, dead: list[str], verb: str, triage: str) -> None:
    letter = app.dead_letters.all(job_id=dead[0]).items[0]

    found = cli("dlq", verb, letter.id, "--note", "looked into it", "--actor", "ada", "--json")

    assert found.json == {"changed": [letter.id]}
    now = app.dead_letters.all(ids=[letter.id]).items[0]
    assert (now.triage, now.triage_note, now.triaged_by) == (triage, "looked into it", "ada")


def test_a_whole_group_is_replayed_after_a_yes(cli: Cli, app: App, dead: list[str]) -> None:
    fingerprint = app.dead_letters.groups()[0].fingerprint

    refused = cli("dlq", "replay", "--fingerprint", fingerprint)
    done = cli("dlq", "replay", "--fingerprint", fingerprint, "--yes", "--reason", "the server is back")

    assert refused.code == 2
    assert "replay 3 dead letters of kind send" in refused.err
    assert done.code == 0
    assert [app.get(one).state for one in dead] == ["queued", "queued", "queued", "dead"]
    assert {one.triage for one in app.dead_letters.all(fingerprint=fingerprint).items} == {"manual_replay"}


def test_a_group_that_is_not_there_offers_those_that_are(cli: Cli, app: App, dead: list[str]) -> None:
    known = app.dead_letters.groups()[0].fingerprint

    found = cli("dlq", "replay", "--fingerprint", "0000000000000000", "--yes")

    assert found.code == 3
    assert known in found.err


def test_a_list_narrows_by_triage_and_fingerprint(cli: Cli, app: App, dead: list[str]) -> None:
    fingerprint = app.dead_letters.groups()[0].fingerprint
    cli("dlq", "ack", dead[0])

    assert len(cli("dlq", "ls").rows) == 4
    assert len(cli("dlq", "ls", "--triage", "pending", "-f", fingerprint).rows) == 2
    assert cli("dlq", "ls", "--triage", "pendign").code == 2
    assert "Did you mean 'pending'" in cli("dlq", "ls", "--triage", "pendign").err
