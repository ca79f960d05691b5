"""Specification 002: its SQL contract on PostgreSQL. A worker that knows nothing but these functions."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.profiles.ground import Ground, PostgresGround, wait_until_blocked
from tests.profiles.test_substrate import KINDS, QUEUE
from tests.profiles.test_substrate_health import counts

pytestmark = pytest.mark.postgres

FUNCTIONS = {
    "fn_job_enqueue": 11,
    "fn_job_claim": 3,
    "fn_job_ack": 3,
    "fn_job_fail_or_retry": 4,
    "fn_job_move_to_dead_letter": 3,
    "fn_queue_heartbeat_tick": 6,
    "fn_queue_stale_check": 1,
}
WITH_TOKEN = {"fn_job_ack", "fn_job_fail_or_retry", "fn_job_move_to_dead_letter", "fn_queue_heartbeat_tick"}
NOBODY = "0192f0c1-2b3c-7def-8123-456789abcdef"


def call(ground: Ground, function: str, *values: Any, **named: Any) -> dict[str, Any]:
    places = ", ".join(["?"] * len(values) + [f"{name} => ?" for name in named])
    given = [Jsonb(value) if isinstance(value, dict) else value for value in (*values, *named.values())]
    (row,) = ground.execute(f"SELECT substrate.{function}({places}) AS answer", *given)
    answer: dict[str, Any] = row["answer"]
    return answer


def put(ground: Ground, key: str = "k1", **named: Any) -> str:
    answer = call(ground, "fn_job_enqueue", "index_unit", key, "ada", **named)
    assert answer["ok"], answer
    return str(answer["job_id"])


def claim(ground: Ground, owner: str = "w1") -> dict[str, Any]:
    answer = call(ground, "fn_job_claim", owner)
    assert answer["ok"], answer
    job: dict[str, Any] = answer["job"]
    return job


def test_the_functions_take_as_many_parameters_as_the_specification_says_and_answer_jsonb(
    server_ground: Ground,
) -> None:
    rows = server_ground.execute(
        "SELECT proname, pronargs, prosecdef, provolatile, prorettype::regtype::text AS answers, proargnames "
        "FROM pg_proc WHERE pronamespace = 'substrate'::regnamespace AND proname LIKE 'fn\\_%' "
        "AND prorettype <> 'trigger'::regtype"
    )

    found = {row["proname"]: row for row in rows}
    assert {name: row["pronargs"] - (name in WITH_TOKEN) for name, row in found.items()} == FUNCTIONS
    assert {row["answers"] for row in rows} == {"jsonb"}
    assert {name for name, row in found.items() if row["proargnames"][-1] == "p_token"} == WITH_TOKEN
    assert {name for name, row in found.items() if not row["prosecdef"]} == {"fn_queue_stale_check"}
    assert found["fn_queue_stale_check"]["provolatile"] == "s"


@pytest.mark.parametrize(
    ("function", "values", "gate"),
    [
        ("fn_job_enqueue", ("kind", "key", "ada"), "queue.job_substrate.enabled"),
        ("fn_job_claim", ("w1",), "queue.job_substrate.enabled"),
        ("fn_job_ack", (NOBODY, "w1"), "queue.job_substrate.enabled"),
        ("fn_job_fail_or_retry", (NOBODY, "w1", "no"), "queue.job_substrate.enabled"),
        ("fn_job_move_to_dead_letter", (NOBODY, "no", "w1"), "queue.job_substrate.enabled"),
        ("fn_queue_heartbeat_tick", ("x-1", "Codex"), "queue.heartbeat.enabled"),
    ],
)
def test_each_function_refuses_politely_with_the_name_of_its_gate(
    server_ground: Ground, function: str, values: tuple[str, ...], gate: str
) -> None:
    answer = call(server_ground, function, *values)

    assert (answer["ok"], answer["error"], answer["gate"]) == (False, "gate_closed", gate)
    assert gate in answer["message"]
    assert server_ground.rows(QUEUE) == server_ground.rows("substrate.queue_heartbeat") == []


def test_the_stale_check_has_no_gate(server_ground: Ground) -> None:
    assert call(server_ground, "fn_queue_stale_check")["ok"] is True


def test_claiming_by_function_needs_the_master_gate_alone(server_ground: Ground) -> None:
    server_ground.app.gates.open("substrate.master")
    put(server_ground)

    assert claim(server_ground)["job_kind"] == "index_unit"


def test_the_global_master_gate_stops_the_functions_too(server_ground: Ground) -> None:
    server_ground.open()
    server_ground.app.gates.close("master")

    answer = call(server_ground, "fn_job_enqueue", "kind", "key", "ada")

    assert (answer["ok"], answer["gate"]) == (False, "master")
    assert server_ground.rows(QUEUE) == []


def test_enqueue_answers_the_new_job_and_the_holder_for_a_duplicate(server_ground: Ground) -> None:
    server_ground.open()

    first = call(server_ground, "fn_job_enqueue", "index_unit", "k1", "ada", {"unit": 7})
    second = call(server_ground, "fn_job_enqueue", "index_unit", "k1", "ada", {"unit": 8})

    assert (first["ok"], first["duplicate"], first["state"]) == (True, False, "queued")
    assert (second["ok"], second["duplicate"], second["job_id"]) == (True, True, first["job_id"])
    assert server_ground.row(QUEUE)["payload_json"] == {"unit": 7}


def test_of_two_enqueues_at_once_with_one_key_exactly_one_makes_a_row(server_ground: Ground) -> None:
    server_ground.open()
    statement = "SELECT substrate.fn_job_enqueue('kind', 'same', 'ada') AS answer"
    second: list[dict[str, Any]] = []

    with psycopg.connect(server_ground.app.url) as winner:
        first = winner.execute(statement).fetchone()
        loser = threading.Thread(target=lambda: second.extend(server_ground.execute(statement)))
        loser.start()
        wait_until_blocked(winner)
        winner.commit()
        loser.join(20)

    assert first is not None
    assert first[0]["duplicate"] is False
    assert second[0]["answer"] == first[0] | {"duplicate": True}
    assert len(server_ground.rows(QUEUE)) == 1


def test_enqueue_takes_all_eleven_parameters(server_ground: Ground) -> None:
    server_ground.open()

    answer = call(
        server_ground, "fn_job_enqueue", "kind", "key", "ada", {"unit": 7}, "s:1", "t:2", "p:3", 5,
        "2026-01-01T01:00:00Z", 7, NOBODY,
    )  # fmt: skip

    row = server_ground.row(QUEUE, "job_id = ?", answer["job_id"])
    assert (row["source_ref"], row["target_ref"], row["payload_ref"], row["actor"]) == ("s:1", "t:2", "p:3", "ada")
    assert (row["priority"], row["max_attempts"], str(row["run_id"])) == (5, 7, NOBODY)
    assert row["scheduled_at"].isoformat() == "2026-01-01T01:00:00+00:00"
    assert claim_nothing(server_ground)


def claim_nothing(ground: Ground) -> bool:
    return call(ground, "fn_job_claim", "w1") == {"ok": True, "job": None}


@pytest.mark.parametrize(
    "values", [("", "key", "ada"), ("kind", "", "ada"), ("kind", "key", " "), ("kind", "key", "ada", {"secret": 1})]
)
def test_what_the_rules_forbid_is_an_exception(server_ground: Ground, values: tuple[Any, ...]) -> None:
    server_ground.open()

    with pytest.raises(psycopg.Error, match=r"Nothing was (enqueued|changed)"):
        call(server_ground, "fn_job_enqueue", *values)


def test_a_claim_shows_the_job_with_its_token_and_lease(server_ground: Ground) -> None:
    server_ground.open()
    job_id = put(server_ground)

    job = claim(server_ground)

    assert (job["job_id"], job["state"], job["lease_owner"], job["attempts"]) == (job_id, "leased", "w1", 1)
    assert job["token"] == 1
    assert job["lease_until"].startswith("2026-01-01T00:05:00")
    assert job["picked_at"].startswith("2026-01-01T00:00:00")


def test_a_claim_can_ask_for_kinds_and_a_lease(server_ground: Ground) -> None:
    server_ground.open()
    put(server_ground)

    assert call(server_ground, "fn_job_claim", "w1", ["other"])["job"] is None
    assert call(server_ground, "fn_job_claim", "w1", ["index_unit"], 60)["job"]["lease_until"].startswith(
        "2026-01-01T00:01:00"
    )


def test_two_claims_at_once_take_two_different_jobs(server_ground: Ground) -> None:
    server_ground.open()
    put(server_ground, "a")
    put(server_ground, "b")

    with psycopg.connect(server_ground.app.url) as other:
        first = other.execute("SELECT substrate.fn_job_claim('w1') -> 'job' ->> 'job_id'").fetchone()
        second = claim(server_ground, "w2")["job_id"]

    assert first is not None
    assert first[0] != second


def test_ack_ends_in_succeeded(server_ground: Ground) -> None:
    server_ground.open()
    job_id = put(server_ground)
    claim(server_ground)

    answer = call(server_ground, "fn_job_ack", job_id, "w1", {"rows": 3})

    assert answer == {"ok": True, "job_id": job_id, "state": "succeeded", "attempts": 1}
    assert server_ground.app.get(job_id).result == {"rows": 3}


def test_fail_or_retry_waits_by_the_backoff_and_then_goes_to_the_dead_letters(server_ground: Ground) -> None:
    server_ground.open()
    job_id = put(server_ground, p_max_attempts=2)

    claim(server_ground)
    first = call(server_ground, "fn_job_fail_or_retry", job_id, "w1", "boom")
    assert (first["state"], first["attempts"]) == ("retry_waiting", 1)
    assert first["scheduled_at"].startswith("2026-01-01T00:00:10")
    assert claim_nothing(server_ground)
    server_ground.clock.advance(10)
    claim(server_ground)
    last = call(server_ground, "fn_job_fail_or_retry", job_id, "w1", "boom again")

    assert (last["state"], last["attempts"], last["scheduled_at"]) == ("dead_letter", 2, None)
    letter = server_ground.row("substrate.job_dead_letter")
    assert (str(letter["dead_letter_id"]), letter["final_error"]) == (last["dead_letter_id"], "boom again")


def test_a_caller_may_say_when_to_retry(server_ground: Ground) -> None:
    server_ground.open()
    job_id = put(server_ground)
    claim(server_ground)

    answer = call(server_ground, "fn_job_fail_or_retry", job_id, "w1", "busy", 77)

    assert answer["scheduled_at"].startswith("2026-01-01T00:01:17")


@pytest.mark.parametrize("function", ["fn_job_ack", "fn_job_fail_or_retry", "fn_job_move_to_dead_letter"])
def test_without_a_token_the_owner_must_match(server_ground: Ground, function: str) -> None:
    server_ground.open()
    job_id = put(server_ground)
    claim(server_ground, "w1")

    values = {
        "fn_job_ack": (job_id, "w2"),
        "fn_job_fail_or_retry": (job_id, "w2", "no"),
        "fn_job_move_to_dead_letter": (job_id, "no", "w2"),
    }[function]
    answer = call(server_ground, function, *values)

    assert (answer["ok"], answer["error"]) == (False, "lease_lost")
    assert server_ground.row(QUEUE)["state"] == "leased"


def test_a_token_of_an_older_grant_changes_nothing_even_under_the_same_name(server_ground: Ground) -> None:
    server_ground.open()
    job_id = put(server_ground)
    old = claim(server_ground, "w1")["token"]
    server_ground.clock.advance(301)
    new = claim(server_ground, "w1")["token"]

    assert call(server_ground, "fn_job_ack", job_id, "w1", None, old)["error"] == "lease_lost"
    assert call(server_ground, "fn_job_ack", job_id, "w1", None, new)["ok"] is True


def test_a_lease_that_ran_out_is_lost_before_anybody_took_the_job(server_ground: Ground) -> None:
    server_ground.open()
    job_id = put(server_ground)
    claim(server_ground)
    server_ground.clock.advance(301)

    assert call(server_ground, "fn_job_ack", job_id, "w1")["error"] == "lease_lost"


def test_a_holder_may_bury_its_job_before_its_attempts_are_spent(server_ground: Ground) -> None:
    server_ground.open()
    job_id = put(server_ground)
    claim(server_ground)

    answer = call(server_ground, "fn_job_move_to_dead_letter", job_id, "unreadable input", "w1")

    assert (answer["ok"], answer["state"]) == (True, "dead_letter")
    letter = server_ground.row("substrate.job_dead_letter")
    assert (letter["final_error"], letter["moved_by"], letter["attempts"]) == ("unreadable input", "w1", 1)
    again = call(server_ground, "fn_job_move_to_dead_letter", job_id, "once more", "w1")
    assert (again["ok"], again["error"]) == (False, "illegal_move")


def test_only_an_operator_may_bury_what_nobody_holds(server_ground: Ground, postgres_ground: PostgresGround) -> None:
    server_ground.open()
    job_id = put(server_ground)
    statement = "SELECT substrate.fn_job_move_to_dead_letter(%s, 'not wanted', 'eve')"

    with psycopg.connect(postgres_ground.login("worker"), autocommit=True) as worker:
        refused = worker.execute(statement, [job_id]).fetchone()
    with psycopg.connect(postgres_ground.login("operator"), autocommit=True) as operator:
        buried = operator.execute(statement, [job_id]).fetchone()

    assert refused is not None
    assert buried is not None
    assert refused[0]["error"] == "lease_lost"
    assert (buried[0]["ok"], buried[0]["state"]) == (True, "dead_letter")
    letter = server_ground.row("substrate.job_dead_letter")
    assert (letter["moved_by"], letter["attempts"]) == ("eve", 0)


def test_who_acts_as_a_worker_buries_as_one(server_ground: Ground, postgres_ground: PostgresGround) -> None:
    """A session that has SET ROLE acts as that role. It was asked for the login behind it, here the owner's."""
    server_ground.open()
    job_id = put(server_ground)
    postgres_ground.login("worker")

    with psycopg.connect(server_ground.app.url, autocommit=True) as owner:
        owner.execute("SET ROLE profile_worker")
        answer = owner.execute("SELECT substrate.fn_job_move_to_dead_letter(%s, 'no', 'eve')", [job_id]).fetchone()

    assert answer is not None
    assert (answer[0]["ok"], answer[0]["error"]) == (False, "lease_lost")
    assert server_ground.row(QUEUE)["state"] == "queued"


@pytest.mark.parametrize("kind", KINDS)
def test_a_tick_of_each_kind_is_noted_and_counted(server_ground: Ground, kind: str) -> None:
    server_ground.open()

    first = call(server_ground, "fn_queue_heartbeat_tick", "x-1", kind)
    second = call(server_ground, "fn_queue_heartbeat_tick", "x-1", kind, "warn")

    assert (first["ticks_total"], second["ticks_total"]) == (1, 2)
    row = server_ground.row("substrate.queue_heartbeat")
    assert (row["executor_kind"], row["last_tick_status"]) == (kind, "warn")


def test_a_tick_keeps_metadata_and_lease_owner_and_refuses_the_ten_keys(server_ground: Ground) -> None:
    server_ground.open()

    call(server_ground, "fn_queue_heartbeat_tick", "x-1", "Codex", "ok", None, "w1", {"load": 3})
    row = server_ground.row("substrate.queue_heartbeat")

    assert (row["metadata"], row["lease_owner"]) == ({"load": 3}, "w1")
    with pytest.raises(psycopg.errors.CheckViolation):
        call(server_ground, "fn_queue_heartbeat_tick", "x-1", "Codex", "ok", None, "w1", {"a": {"token": 1}})


def test_a_tick_moves_its_job_to_in_progress_and_extends_the_lease(server_ground: Ground) -> None:
    server_ground.open()
    job_id = put(server_ground)
    claim(server_ground, "w1")
    server_ground.clock.advance(200)

    answer = call(server_ground, "fn_queue_heartbeat_tick", "x-1", "Codex", "ok", job_id, "w1")

    assert answer["lease_until"].startswith("2026-01-01T00:08:20")
    assert server_ground.row(QUEUE)["state"] == "in_progress"
    assert str(server_ground.row("substrate.queue_heartbeat")["current_job_id"]) == job_id
    other = call(server_ground, "fn_queue_heartbeat_tick", "x-2", "Codex", "ok", job_id, "w2")
    assert other["lease_until"] is None


def test_the_stale_check_tells_ages_by_the_threshold(server_ground: Ground) -> None:
    server_ground.open()
    call(server_ground, "fn_queue_heartbeat_tick", "old", "Codex")
    server_ground.clock.advance(400)
    call(server_ground, "fn_queue_heartbeat_tick", "new", "Codex")

    by_config = call(server_ground, "fn_queue_stale_check")
    strict = call(server_ground, "fn_queue_stale_check", 100)

    assert (by_config["threshold_seconds"], by_config["fresh"], by_config["warning"]) == (300, 1, 1)
    assert (strict["fresh"], strict["warning"], strict["stale"]) == (1, 0, 1)
    assert [one["state"] for one in strict["executors"]] == ["stale", "fresh"]


def test_an_update_of_dot_config_opens_gates_and_tunes_the_queue(server_ground: Ground) -> None:
    for key, value in (
        ("queue.job_substrate.enabled", "true"),
        ("queue.retry.max_attempts_default", "2"),
        ("queue.retry.backoff_base_sec", "7"),
        ("queue.lease.duration_sec", "60"),
        ("queue.heartbeat.stale_threshold_seconds", "30"),
    ):
        server_ground.execute("UPDATE substrate.dot_config SET value = ? WHERE key = ?", value, key)

    job_id = put(server_ground)
    job = claim(server_ground)
    assert (job["max_attempts"], job["lease_until"][:19]) == (2, "2026-01-01T00:01:00")
    answer = call(server_ground, "fn_job_fail_or_retry", job_id, "w1", "no")
    assert answer["scheduled_at"].startswith("2026-01-01T00:00:07")
    assert call(server_ground, "fn_queue_stale_check")["threshold_seconds"] == 30
    assert server_ground.app.queues.all("substrate")[0].policy.backoff.cap_seconds == 7 * 1024
    assert {row.act for row in server_ground.app.access.audit()} >= {"open_gate", "set_queue", "set_profile"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("queue.lease.duration_sec", "0"),
        ("queue.lease.duration_sec", "-1"),
        ("queue.lease.duration_sec", "NaN"),
        ("queue.lease.duration_sec", None),
        ("queue.retry.backoff_base_sec", "ten"),
        ("queue.retry.max_attempts_default", "2.5"),
        ("queue.retry.max_attempts_default", ""),
        ("queue.heartbeat.stale_threshold_seconds", "infinity"),
        ("queue.worker.enabled", "perhaps"),
        ("queue.worker.enabled", None),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(server_ground: Ground, key: str, value: str | None) -> None:
    """Some were an error of PostgreSQL's own, with the row of the queue in it; a threshold of infinity was taken."""
    before = server_ground.rows("substrate.dot_config")

    with pytest.raises(psycopg.Error, match=f"{key} must be .* Nothing was changed") as refused:
        server_ground.execute("UPDATE substrate.dot_config SET value = ? WHERE key = ?", value, key)

    assert refused.value.sqlstate == "TN007"
    assert server_ground.rows("substrate.dot_config") == before


def test_triage_by_update_and_replay_by_hand(server_ground: Ground) -> None:
    server_ground.open()
    job_id = put(server_ground, p_max_attempts=1)
    claim(server_ground)
    call(server_ground, "fn_job_fail_or_retry", job_id, "w1", "boom")

    server_ground.execute(
        "UPDATE substrate.job_dead_letter "
        "SET triage_status = 'acknowledged', triage_note = 'looking', triaged_by = 'eve'"
    )
    noted = server_ground.row("substrate.job_dead_letter")
    server_ground.execute("UPDATE substrate.job_dead_letter SET triage_status = 'manual_replay', triaged_by = 'eve'")

    assert (noted["triage_status"], noted["triage_note"], noted["triaged_by"]) == ("acknowledged", "looking", "eve")
    assert noted["triaged_at"] is not None
    assert server_ground.row("substrate.job_dead_letter")["triage_status"] == "manual_replay"
    assert claim(server_ground)["job_id"] == job_id


def test_executors_keep_the_tally_where_no_worker_of_ours_runs(server_ground: Ground) -> None:
    server_ground.open()
    job_id = put(server_ground)
    claim(server_ground)
    call(server_ground, "fn_job_ack", job_id, "w1")

    for _ in range(2):
        server_ground.clock.advance(400)
        call(server_ground, "fn_queue_heartbeat_tick", "x-1", "Codex")

    assert server_ground.execute("SELECT state, jobs FROM tenure.tally") == [{"state": "succeeded", "jobs": 1}]
    assert counts(server_ground)["succeeded"] == 1


def test_an_end_that_commits_late_is_not_lost_to_the_tally(server_ground: Ground) -> None:
    """A slow transaction stamps its end, others end and are counted meanwhile, and only then it commits."""
    server_ground.open()
    put(server_ground, "one")
    put(server_ground, "two")
    late, prompt = claim(server_ground, "w1")["job_id"], claim(server_ground, "w2")["job_id"]

    with psycopg.connect(server_ground.app.url) as slow:
        slow.execute("SELECT substrate.fn_job_ack(%s, 'w1')", [late])
        assert call(server_ground, "fn_job_ack", prompt, "w2")["ok"]
        for _ in range(3):
            server_ground.clock.advance(200)
            server_ground.app.prune()
        slow.commit()
    for _ in range(3):
        server_ground.clock.advance(200)
        server_ground.app.prune()

    assert counts(server_ground)["succeeded"] == 2
