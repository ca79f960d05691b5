"""Specification 000, Agent Queue MVP: each rule as given, when, then."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest

from tenure import IllegalMove, InvalidArgument, LeaseLost
from tenure.store.contract import Claim
from tests.profiles.ground import Ground

USER_ID = "0192f0c1-2b3c-7def-8123-456789abcdef"
COLUMNS = [
    "id",
    "type",
    "status",
    "priority",
    "payload",
    "created_by_user_id",
    "requested_by_user_id",
    "affinity_key",
    "claimed_by",
    "lease_expires_at",
    "attempt",
    "max_attempts",
    "result_summary",
    "error_message",
    "artifacts_path",
    "created_at",
    "updated_at",
    "started_at",
    "finished_at",
]
VIEW = "agent_queue.agent_jobs"


def put(ground: Ground, kind: str = "codex_exec", **options: Any) -> str:
    return ground.app.enqueue(kind, {"prompt": "hello"}, queue="agent_queue", **options).id


def shown(ground: Ground, job_id: str) -> dict[str, Any]:
    return ground.row(VIEW, "id = ?", job_id)


def test_agent_jobs_has_the_fields_of_the_specification_in_its_order(ground: Ground) -> None:
    put(ground)

    assert list(ground.row(VIEW)) == COLUMNS


@pytest.mark.postgres
def test_the_columns_have_the_types_of_the_specification(server_ground: Ground) -> None:
    types = server_ground.execute(
        "SELECT attname, format_type(atttypid, atttypmod) AS type FROM pg_attribute "
        "WHERE attrelid = 'agent_queue.agent_jobs'::regclass AND attnum > 0"
    )

    told = {row["attname"]: row["type"] for row in types}
    assert {told[name] for name in ("id", "created_by_user_id", "requested_by_user_id")} == {"uuid"}
    assert {told[name] for name in ("type", "status", "affinity_key", "claimed_by", "error_message")} == {"text"}
    assert {told[name] for name in ("priority", "attempt", "max_attempts")} == {"integer"}
    assert {told[name] for name in COLUMNS if name.endswith("_at")} == {"timestamp with time zone"}
    assert told["payload"] == "jsonb"


def test_any_type_is_taken_and_shown(ground: Ground) -> None:
    kinds = {shown(ground, put(ground, kind))["type"] for kind in ("codex_exec", "codex_skill", "report", "more")}

    assert kinds == {"codex_exec", "codex_skill", "report", "more"}


def test_users_affinity_and_artifacts_path_are_kept(ground: Ground) -> None:
    job_id = put(
        ground,
        created_by_user_id=USER_ID,
        requested_by_user_id=USER_ID,
        affinity_key="repo-7",
        artifacts_path="artifacts/7",
    )

    row = shown(ground, job_id)

    assert [str(row["created_by_user_id"]), str(row["requested_by_user_id"])] == [USER_ID, USER_ID]
    assert (row["affinity_key"], row["artifacts_path"]) == ("repo-7", "artifacts/7")


def test_a_plain_insert_enqueues_with_the_defaults_of_the_specification(ground: Ground) -> None:
    ground.execute(f"INSERT INTO {ground.view(VIEW)} (type, payload) VALUES ('report', '{{\"a\": 1}}')")

    row = ground.row(VIEW)

    assert (row["status"], row["priority"], row["attempt"], row["max_attempts"]) == ("queued", 0, 1, 3)
    assert (row["claimed_by"], row["lease_expires_at"], row["finished_at"]) == (None, None, None)


@pytest.mark.postgres
def test_an_insert_returns_the_row_as_it_stands(server_ground: Ground) -> None:
    (made,) = server_ground.execute(f"INSERT INTO {VIEW} (type) VALUES ('report') RETURNING id, status, attempt")

    assert (made["status"], made["attempt"]) == ("queued", 1)
    assert server_ground.app.get(str(made["id"])).kind == "report"


@pytest.mark.parametrize("word", ["running", "resting", "succeeded"])
def test_a_job_cannot_begin_in_another_status(ground: Ground, word: str) -> None:
    with pytest.raises(Exception, match="begins as queued"):
        ground.execute(f"INSERT INTO {ground.view(VIEW)} (type, status) VALUES ('report', '{word}')")

    assert ground.rows(VIEW) == []


def test_claim_moves_queued_to_running_with_owner_lease_and_first_start(ground: Ground) -> None:
    job_id = put(ground)

    grant = ground.claim("agent_queue", worker="w1", lease_seconds=90)

    row = shown(ground, job_id)
    assert (row["status"], row["claimed_by"], row["attempt"]) == ("running", "w1", 1)
    assert row["lease_expires_at"] is not None
    assert row["started_at"] is not None
    assert (grant.lease_until - ground.clock.now()).total_seconds() == pytest.approx(90)


def test_the_first_start_stays_when_a_job_runs_again(ground: Ground) -> None:
    job_id = put(ground)
    ground.app.fail(ground.claim("agent_queue"), "no luck")
    first = shown(ground, job_id)["started_at"]

    ground.clock.advance(5)
    ground.claim("agent_queue")

    assert shown(ground, job_id)["started_at"] == first


def test_higher_numbers_are_claimed_first_and_equal_ones_in_order(ground: Ground) -> None:
    low, first, second, high = (put(ground, priority=p) for p in (-1, 0, 0, 9))

    order = [ground.claim("agent_queue", worker=f"w{n}").id for n in range(4)]

    assert order == [high, first, second, low]


def test_allowed_types_filter_what_is_eligible(ground: Ground) -> None:
    put(ground, "codex_exec")
    report = put(ground, "report")

    assert ground.claim("agent_queue", kinds=["report"]).id == report
    assert ground.app.claim(worker="w", queues="agent_queue", kinds=["report"]) == []


def test_affinity_routes_a_job_to_those_who_ask_for_it(ground: Ground) -> None:
    job_id = put(ground, affinity_key="gpu")

    assert ground.app.claim(worker="w", queues="agent_queue", affinity=["cpu"]) == []
    assert ground.claim("agent_queue", affinity=["gpu"]).id == job_id


@pytest.mark.parametrize("seconds", [0, -1, 3601])
def test_lease_seconds_must_be_positive_and_within_the_policy(ground: Ground, seconds: float) -> None:
    put(ground)

    with pytest.raises(InvalidArgument):
        ground.app.store.do(Claim(worker="w", queues=["agent_queue"], lease_seconds=seconds))  # type: ignore[arg-type]

    assert ground.row(VIEW)["status"] == "queued"


def test_a_heartbeat_extends_the_lease_and_nothing_else(ground: Ground) -> None:
    job_id = put(ground)
    grant = ground.claim("agent_queue", lease_seconds=60)
    before = shown(ground, job_id)

    ground.clock.advance(30)
    beat = ground.app.heartbeat(grant, lease_seconds=60)

    after = shown(ground, job_id)
    assert not beat.lost
    assert after["lease_expires_at"] > before["lease_expires_at"]
    assert (after["status"], after["attempt"], after["claimed_by"]) == ("running", 1, before["claimed_by"])
    assert after["updated_at"] > before["updated_at"]


def test_complete_ends_in_succeeded_with_summary_and_time(ground: Ground) -> None:
    job_id = put(ground)

    ground.app.complete(ground.claim("agent_queue"), {"ok": True}, summary="two files changed")

    row = shown(ground, job_id)
    assert (row["status"], row["result_summary"], row["claimed_by"]) == ("succeeded", "two files changed", None)
    assert row["finished_at"] is not None


def test_fail_runs_again_until_max_attempts_and_then_ends_in_failed(ground: Ground) -> None:
    job_id = put(ground)

    seen = []
    for attempt in (1, 2, 3):
        row = shown(ground, job_id)
        seen.append((row["status"], row["attempt"]))
        ground.app.fail(ground.claim("agent_queue"), f"failure {attempt}")

    row = shown(ground, job_id)
    assert seen == [("queued", 1), ("queued", 2), ("queued", 3)]
    assert (row["status"], row["attempt"], row["error_message"]) == ("failed", 3, "failure 3")
    assert row["finished_at"] is not None


def test_a_failure_that_is_permanent_ends_in_failed_at_once(ground: Ground) -> None:
    job_id = put(ground)

    ground.app.reject(ground.claim("agent_queue"), "this prompt cannot be run")

    row = shown(ground, job_id)
    assert (row["status"], row["attempt"], row["error_message"]) == ("failed", 1, "this prompt cannot be run")


def test_an_expired_job_is_taken_again_before_anything_queued(ground: Ground) -> None:
    expired = put(ground)
    ground.claim("agent_queue", worker="gone", lease_seconds=10)
    put(ground)

    ground.clock.advance(11)
    grant = ground.claim("agent_queue", worker="w2")

    assert grant.id == expired
    assert shown(ground, expired)["attempt"] == 2


@pytest.mark.parametrize("act", ["heartbeat", "complete", "fail"])
def test_only_the_owner_may_write(ground: Ground, act: str) -> None:
    job_id = put(ground)
    late = ground.claim("agent_queue", worker="w1", lease_seconds=10)
    ground.clock.advance(11)
    ground.claim("agent_queue", worker="w1")  # the same name, restarted: the name alone must not do

    if act == "heartbeat":
        assert ground.app.heartbeat(late).lost == {job_id}
    else:
        with pytest.raises(LeaseLost):
            ground.app.complete(late) if act == "complete" else ground.app.fail(late, "late")

    row = shown(ground, job_id)
    assert (row["status"], row["attempt"]) == ("running", 2)
    assert row["error_message"] != "late"


def test_a_queued_job_can_be_cancelled(ground: Ground) -> None:
    job_id = put(ground)

    ground.app.cancel(job_id, reason="no longer wanted")

    row = shown(ground, job_id)
    assert row["status"] == "cancelled"
    assert row["finished_at"] is not None
    assert ground.app.claim(worker="w", queues="agent_queue") == []


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled"])
def test_an_end_is_final_and_only_a_clone_goes_on(ground: Ground, end: str) -> None:
    job_id = put(ground)
    if end == "cancelled":
        ground.app.cancel(job_id)
    elif end == "succeeded":
        ground.app.complete(ground.claim("agent_queue"))
    else:
        ground.app.reject(ground.claim("agent_queue"), "no")

    with pytest.raises(IllegalMove):
        ground.app.revive(job_id, reason="try again")

    assert shown(ground, job_id)["status"] == end
    (copy,) = ground.app.clone(job_id, reason="try again")
    assert shown(ground, copy.id)["status"] == "queued"
    assert shown(ground, job_id)["status"] == end


def test_every_move_refreshes_updated_at(ground: Ground) -> None:
    job_id = put(ground)
    seen = [shown(ground, job_id)["updated_at"]]
    for move in ("claim", "beat", "fail", "claim", "complete"):
        ground.clock.advance(1)
        if move == "claim":
            grant = ground.claim("agent_queue")
        elif move == "beat":
            ground.app.heartbeat(grant)
        elif move == "fail":
            ground.app.fail(grant, "no")
        else:
            ground.app.complete(grant)
        seen.append(shown(ground, job_id)["updated_at"])

    assert seen == sorted(set(seen))
    assert len(seen) == 6


@pytest.mark.postgres
def test_a_claim_skips_what_another_transaction_holds(server_ground: Ground) -> None:
    first, second = put(server_ground), put(server_ground)

    with psycopg.connect(server_ground.app.url) as winner:
        winner.execute("SELECT 1 FROM tenure.job WHERE id = %s FOR UPDATE", [first])
        grants: list[str] = []
        claimer = threading.Thread(target=lambda: grants.append(server_ground.claim("agent_queue").id))
        claimer.start()
        claimer.join(10)

    assert grants == [second]


def test_the_status_is_one_of_the_five_words_for_every_state(ground: Ground) -> None:
    put(ground, delay=60)
    put(ground, "dead", max_attempts=1)
    put(ground, "rejected")
    put(ground, "done")
    ground.app.cancel(put(ground, "cancelled"))
    put(ground, "held")
    for kind, end in (("dead", "fail"), ("rejected", "reject"), ("done", "complete"), ("held", None)):
        grant = ground.claim("agent_queue", kinds=[kind])
        if end == "complete":
            ground.app.complete(grant)
        elif end is not None:
            getattr(ground.app, end)(grant, "no")

    words = {row["type"]: row["status"] for row in ground.rows(VIEW)}

    assert words == {
        "codex_exec": "queued",
        "dead": "failed",
        "rejected": "failed",
        "done": "succeeded",
        "cancelled": "cancelled",
        "held": "running",
    }
