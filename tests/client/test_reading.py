"""What is printed is accepted, and what holds nothing can be removed: on both engines."""

from __future__ import annotations

import pytest

import tenure


def test_jobs_are_found_by_the_states_that_are_shown(app: tenure.App) -> None:
    """U12: `retry_waiting` and `cleaned` are shown, and a filter takes them."""
    waiting, ended, fresh = (app.enqueue(kind, max_attempts=3).id for kind in ("fails", "ends", "waits"))
    app.fail(app.claim(kinds=["fails"])[0], "not now", retry_after=600)
    app.complete(app.claim(kinds=["ends"])[0])
    app.prune(older_than=0)

    found = {state: [job.id for job in app.jobs(state=state)] for state in ("retry_waiting", "cleaned", "queued")}

    assert found == {"retry_waiting": [waiting], "cleaned": [ended], "queued": [fresh, waiting]}
    assert {job.id for job in app.jobs(state=["retry_waiting", "cleaned"])} == {waiting, ended}


def test_a_queue_without_jobs_can_be_removed(app: tenure.App) -> None:
    """U9: there was no way to remove a queue."""
    for name in ("typo", "used", "ended"):
        app.queues.set(name)
    app.enqueue("k", queue="used")
    app.enqueue("k", queue="ended")
    app.complete(app.claim(queues=["ended"])[0])

    for name in ("used", "ended", "default"):
        with pytest.raises(tenure.IllegalMove, match=f"Queue '{name}' cannot be removed"):
            app.queues.remove(["typo", name], actor="me")
    with pytest.raises(tenure.UnknownQueue, match=r"no queue .tipo.\. Did you mean .typo."):
        app.queues.remove("tipo")

    assert app.queues.remove("typo", actor="me", reason="a slip") == ["typo"]
    assert {row.name for row in app.queues.all()} == {"default", "used", "ended"}
    (entry,) = [one for one in app.access.audit() if one.act == "remove_queue"]
    assert (entry.actor, entry.subject, entry.reason) == ("me", "typo", "a slip")


def test_differences_between_code_and_database_are_found_and_applied(app: tenure.App) -> None:
    """U9: a policy that was changed in code was ignored without a word."""
    app.queues.set("mail", max_attempts=2)
    app.queue("mail", max_attempts=9, lease_seconds=30)
    app.queue("new", max_attempts=4)

    found = app.policies.differences()
    app.policies.apply()

    assert {(one.setting, one.in_code, one.in_database) for one in found} == {
        ("max_attempts", 9, 2),
        ("lease_seconds", 30, 60.0),
    }
    assert app.policies.differences() == []
    assert app.queues.all("new")[0].policy.max_attempts == 4
