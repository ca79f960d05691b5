"""`tenure.finish` and the success statement carry out what model.state says, in every case of every end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, Final

import psycopg
import pytest

from tenure.model.ids import WorkerId
from tenure.model.policy import Backoff, QueuePolicy
from tenure.model.state import BAD_ENDS, RULES, SUSPICION_MAX, Move, Rule, State, end_rule, undo_first
from tenure.model.step import NewStep
from tenure.store.admin import SetQueues
from tenure.store.contract import Claim, Enqueue
from tenure.store.flow import RecordSteps
from tenure.store.postgres.store import PostgresStore
from tests.conformance.acts import new_job

pytestmark = pytest.mark.postgres

WORDS: Final = {
    Move.RETRY: "fail",
    Move.REJECT: "reject",
    Move.RELEASE: "release",
    Move.SUSPEND: "suspend",
    Move.EXPIRE: "expire",
    Move.CANCEL: "stop",
    Move.COMPLETE: "complete",
}
FACTS: Final = {
    Move.RETRY: ("cancel_requested", "attempts_left", "is_crash"),
    Move.REJECT: ("cancel_requested",),
    Move.RELEASE: ("cancel_requested", "has_class"),
    Move.SUSPEND: ("cancel_requested", "is_met"),
    Move.EXPIRE: ("cancel_requested", "attempts_left", "is_alone", "is_vanished"),
    Move.CANCEL: (),
}
CASES: Final = [
    (move, dict(zip(names, values, strict=True)))
    for move, names in FACTS.items()
    for values in product((False, True), repeat=len(names))
] + [(Move.COMPLETE, {"cancel_requested": True})]
DELAY: Final = 100.0
SUSPICION: Final = 3
FINISH: Final = """
SELECT tenure.finish(
    j, %(word)s, %(class)s, 'boom', %(delay)s, 'signal', tenure.now(), %(alone)s, %(vanished)s, %(met)s)
FROM tenure.job AS j WHERE j.id = %(id)s
"""
READ: Final = """
SELECT state::text, attempt::integer, crashes::integer, suspicion, run_at, finished_at IS NOT NULL AS is_finished,
    last_error, failure_class, cancel_requested_at IS NOT NULL AS is_asked,
    dedup_slot IS NULL AS is_free, lease_owner, tenure.now() AS at
FROM tenure.job WHERE id = %s
"""


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    made = PostgresStore(url)
    backoff = Backoff(shape="constant", base_seconds=7.0, jitter=0.0)
    made.do(SetQueues({"q": QueuePolicy(events=True, max_attempts=3, backoff=backoff)}, "test"))
    yield made
    made.close()


def held(store: PostgresStore, admin: psycopg.Connection, facts: dict[str, bool], *, has_undo: bool = False) -> str:
    """A held job in its second attempt, as the facts ask for it."""
    store.do(Enqueue([new_job(queue="q", key="key")]))
    [grant] = store.do(Claim(WorkerId("w"), ["q"]))
    if has_undo:  # recorded by an earlier attempt, so that this one is no progress
        store.do(RecordSteps(grant.id, grant.token, (NewStep("$undo:a", kind="undo", state="armed"),)))
        admin.execute("UPDATE tenure.job SET step_token = 0")
    most = 3 if facts.get("attempts_left", True) else 2
    admin.execute(
        "UPDATE tenure.job SET attempt = 2, crashes = 1, suspicion = %s, max_attempts = %s, cancel_requested_at = %s",
        [SUSPICION, most, store.now() if facts.get("cancel_requested") else None],
    )
    return grant.id


def read(admin: psycopg.Connection, job_id: str) -> dict[str, Any]:
    with admin.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        row = cursor.execute(READ, [job_id]).fetchone()
    assert row is not None
    return row


def all_of(admin: psycopg.Connection, query: str) -> list[tuple[Any, ...]]:
    return admin.execute(query.encode()).fetchall()


@pytest.mark.parametrize("has_undo", [False, True], ids=["", "undo"])
@pytest.mark.parametrize(("move", "facts"), CASES, ids=str)
def test_an_end_does_what_its_rule_says(
    store: PostgresStore, admin: psycopg.Connection, move: Move, facts: dict[str, bool], *, has_undo: bool
) -> None:
    rule = end_rule(move, **facts)
    rule = undo_first(rule) if has_undo and rule.to in BAD_ENDS else rule
    assert rule in RULES
    job_id = held(store, admin, facts, has_undo=has_undo)
    before = read(admin, job_id)
    failure_class: str | None = "crash" if facts.get("is_crash") or move is Move.EXPIRE else "error"
    if move is Move.RELEASE and not facts["has_class"]:
        failure_class = None
    asked = {
        "word": WORDS[move],
        "class": failure_class,
        "delay": DELAY if move in {Move.RELEASE, Move.SUSPEND} else None,
        "alone": facts.get("is_alone", True),
        "vanished": facts.get("is_vanished", True),
        "met": facts.get("is_met", False),
        "id": job_id,
    }

    admin.execute(FINISH, asked)

    after = read(admin, job_id)
    assert after["state"] == rule.to
    counts = (0, rule.crashes) if rule.resets else (2 + rule.attempt, 1 + rule.crashes)
    assert (after["attempt"], after["crashes"]) == counts
    assert after["is_asked"] is (facts.get("cancel_requested", False) and not rule.resets)
    assert after["suspicion"] == {"keep": 3, "clear": 0, "raise": 4, "isolate": 3}[rule.suspicion]
    assert after["lease_owner"] is None
    assert after["is_finished"] is (rule.to in {State.DEAD, State.FAILED, State.CANCELLED})
    assert after["is_free"] is rule.frees_key
    assert (after["last_error"] == "boom") is rule.records_error
    _check_run_at(rule, before, after)
    _check_rows(admin, rule, after)


def _check_run_at(rule: Rule, before: dict[str, Any], after: dict[str, Any]) -> None:
    if rule.run_at == "keep":
        assert after["run_at"] == before["run_at"]
    else:
        delay = 7.0 if rule.run_at == "backoff" else DELAY
        assert delay - 5.0 < (after["run_at"] - after["at"]).total_seconds() <= delay


def _check_rows(admin: psycopg.Connection, rule: Rule, after: dict[str, Any]) -> None:
    attempts = all_of(admin, "SELECT outcome, attempt, worker, fingerprint IS NOT NULL, run_at FROM tenure.attempt")
    if rule.attempt_row is None:
        assert attempts == []
    else:
        has_fingerprint = rule.attempt_row not in {"released", "cancelled"}
        next_at = after["run_at"] if rule.to is State.QUEUED else None
        assert attempts == [(rule.attempt_row, 2, "w", has_fingerprint, next_at)]
    letters = all_of(admin, "SELECT attempts, crashes, moved_by FROM tenure.dead_letter")
    assert letters == ([(after["attempt"], after["crashes"], "w")] if rule.dead_letter else [])
    assert all_of(admin, "SELECT kind FROM tenure.event ORDER BY seq DESC LIMIT 1") == [(rule.event,)]


def test_the_number_that_ends_the_ladder_is_the_models(admin: psycopg.Connection) -> None:
    assert admin.execute("SELECT tenure.suspicion_max()").fetchone() == (SUSPICION_MAX,)


def test_a_row_that_cannot_be_taken_back_does_not_stop_the_others(
    store: PostgresStore, admin: psycopg.Connection
) -> None:
    admin.execute(
        "CREATE OR REPLACE FUNCTION tenure.restart_grace() RETURNS interval LANGUAGE sql IMMUTABLE PARALLEL SAFE "
        "AS $$ SELECT interval '0 seconds' $$"
    )
    bad, good = store.do(Enqueue([new_job(queue="q", kind="bad"), new_job(queue="q", kind="good")]))
    store.do(Claim(WorkerId("w1"), ["q"], kinds=["bad"]))
    store.do(Claim(WorkerId("w2"), ["q"], kinds=["good"]))
    admin.execute("UPDATE tenure.job SET lease_until = tenure.now() - interval '1 hour', max_attempts = 1")
    admin.execute("ALTER TABLE tenure.dead_letter ADD CONSTRAINT no_bad CHECK (kind <> 'bad')")

    assert store.do(Claim(WorkerId("w3"), ["q"])) == []

    rows = dict(all_of(admin, "SELECT id::text, state::text FROM tenure.job"))
    assert rows == {bad.id: "running", good.id: "dead"}
