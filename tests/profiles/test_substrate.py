"""Specification 002, the job substrate: its tables, gates and rules. Health and functions have files of their own."""

from __future__ import annotations

import json
from typing import Any, Final

import psycopg
import pytest

from tenure import ForbiddenKey, GateClosed, InvalidArgument, KeyRequired
from tenure.model.ids import WorkerId
from tenure.store.contract import Heartbeat, WorkerRow
from tests.profiles.ground import Ground

TEN_KEYS: Final = (
    "body",
    "content",
    "raw",
    "vector",
    "embedding",
    "secret",
    "token",
    "password",
    "ssn",
    "personal_data",
)
"""Written out, as the specification has them: imported from the product, no test would notice a changed one."""

QUEUE = "substrate.job_queue"
COLUMNS = [
    "job_id",
    "job_kind",
    "state",
    "source_ref",
    "target_ref",
    "payload_ref",
    "payload_json",
    "priority",
    "scheduled_at",
    "picked_at",
    "finished_at",
    "lease_owner",
    "lease_until",
    "attempts",
    "max_attempts",
    "idempotency_key",
    "actor",
    "run_id",
    "last_error",
    "created_at",
    "updated_at",
]
LETTER_COLUMNS = [
    "dead_letter_id",
    "job_id",
    "job_kind",
    "source_ref",
    "target_ref",
    "payload_ref",
    "payload_json",
    "final_error",
    "attempts",
    "actor",
    "run_id",
    "idempotency_key",
    "moved_at",
    "moved_by",
    "triage_status",
    "triage_note",
    "triaged_at",
    "triaged_by",
]
HEARTBEAT_COLUMNS = [
    "executor_name",
    "executor_kind",
    "last_tick_at",
    "last_tick_status",
    "ticks_total",
    "current_job_id",
    "lease_owner",
    "metadata",
    "created_at",
    "updated_at",
]
CONFIG = {
    "queue.job_substrate.enabled": "false",
    "queue.worker.enabled": "false",
    "queue.notify.enabled": "false",
    "queue.heartbeat.enabled": "false",
    "queue.heartbeat.stale_threshold_seconds": "300",
    "queue.retry.max_attempts_default": "5",
    "queue.retry.backoff_base_sec": "10",
    "queue.lease.duration_sec": "300",
}
KINDS = ("DOT", "Agent", "Hermes", "Codex", "PG_worker", "external_worker", "future_Kestra_adapter")


def put(ground: Ground, key: str = "k1", kind: str = "index_unit", **options: Any) -> str:
    return ground.app.enqueue(kind, {"unit": 7}, queue="substrate", key=key, actor="ada", **options).id


def shown(ground: Ground, job_id: str) -> dict[str, Any]:
    return ground.row(QUEUE, "job_id = ?", job_id)


def tick(ground: Ground, name: str, kind: str = "Codex", status: str = "ok", info: str = "{}") -> None:
    worker = WorkerRow(name, "host", 1, ["substrate"], profile_kind=kind, status=status, info=info)  # type: ignore[arg-type]
    ground.app.store.do(Heartbeat((), worker=worker))


def test_the_tables_have_the_columns_of_the_specification(ground: Ground) -> None:
    ground.open()
    put(ground, max_attempts=1)
    ground.app.fail(ground.claim("substrate"), "no")
    tick(ground, "codex-1")

    assert list(ground.row(QUEUE)) == COLUMNS
    assert list(ground.row("substrate.job_dead_letter")) == LETTER_COLUMNS
    assert list(ground.row("substrate.queue_heartbeat")) == HEARTBEAT_COLUMNS


def test_every_gate_is_closed_at_install_and_the_eight_keys_have_their_defaults(ground: Ground) -> None:
    rows = ground.rows("substrate.dot_config")

    assert {row["key"]: row["value"] for row in rows} == CONFIG


def test_nothing_is_taken_in_until_the_master_gate_is_opened(ground: Ground) -> None:
    with pytest.raises(GateClosed, match=r"substrate\.master"):
        put(ground)

    ground.app.gates.open("substrate.master")

    assert shown(ground, put(ground))["state"] == "queued"


def test_a_workers_loop_gets_nothing_until_the_worker_gate_is_opened(ground: Ground) -> None:
    ground.app.gates.open("substrate.master")
    put(ground)

    with pytest.raises(GateClosed, match=r"substrate\.worker"):
        ground.app.claim(worker="w", queues="substrate")

    ground.app.gates.open("substrate.worker")
    assert ground.claim("substrate").kind == "index_unit"


def test_a_second_install_leaves_gates_and_settings_as_they_were_set(ground: Ground) -> None:
    ground.open()
    ground.app.queues.set("substrate", max_attempts=9)

    ground.app.profiles.install("substrate")

    config = {row["key"]: row["value"] for row in ground.rows("substrate.dot_config")}
    assert config["queue.job_substrate.enabled"] == "true"
    assert config["queue.retry.max_attempts_default"] == "9"


def test_the_defaults_of_a_job_are_those_of_the_specification(ground: Ground) -> None:
    ground.open()

    row = shown(ground, put(ground))

    assert (row["state"], row["priority"], row["attempts"], row["max_attempts"]) == ("queued", 100, 0, 5)
    assert (row["lease_owner"], row["lease_until"], row["finished_at"], row["picked_at"]) == (None, None, None, None)
    assert (row["actor"], row["idempotency_key"]) == ("ada", "k1")


def test_references_and_the_run_are_kept_as_signals(ground: Ground) -> None:
    ground.open()
    run = "0192f0c1-2b3c-7def-8123-456789abcdef"

    row = shown(ground, put(ground, source_ref="s:1", target_ref="t:2", payload_ref="p:3", run_id=run))

    assert (row["source_ref"], row["target_ref"], row["payload_ref"]) == ("s:1", "t:2", "p:3")
    assert str(row["run_id"]) == run


def test_a_plain_insert_enqueues(ground: Ground) -> None:
    ground.open()

    ground.execute(
        f"INSERT INTO {ground.view(QUEUE)} (job_kind, idempotency_key, actor, payload_json, priority) "
        "VALUES ('index_unit', 'k1', 'ada', '{\"unit\": 7}', 5)"
    )

    row = ground.row(QUEUE)
    assert (row["job_kind"], row["state"], row["priority"], row["max_attempts"]) == ("index_unit", "queued", 5, 5)


@pytest.mark.parametrize(
    "values",
    [
        "('', 'k', 'ada', 1)",
        "('kind', NULL, 'ada', 1)",
        "('kind', 'k', '  ', 1)",
        "('kind', 'k', 'ada', -1)",
    ],
)
def test_blank_names_a_missing_key_and_a_negative_priority_are_refused(ground: Ground, values: str) -> None:
    ground.open()

    with pytest.raises(Exception, match=r"Nothing was (enqueued|changed)"):
        ground.execute(f"INSERT INTO {ground.view(QUEUE)} (job_kind, idempotency_key, actor, priority) VALUES {values}")

    assert ground.rows(QUEUE) == []


def test_priority_0_is_taken_by_every_door(ground: Ground) -> None:
    """`priority >= 0`, says the specification: 0 is the most urgent."""
    ground.open()

    ground.execute(
        f"INSERT INTO {ground.view(QUEUE)} (job_kind, idempotency_key, actor, priority) VALUES ('x', 'k', 'ada', 0)"
    )
    put(ground, "k2", priority=0)

    assert [row["priority"] for row in ground.rows(QUEUE)] == [0, 0]


def test_a_key_is_required(ground: Ground) -> None:
    ground.open()

    with pytest.raises(KeyRequired):
        ground.app.enqueue("index_unit", {}, queue="substrate")


@pytest.mark.parametrize("key", TEN_KEYS)
def test_each_of_the_ten_keys_is_refused_in_a_payload_at_any_depth(ground: Ground, key: str) -> None:
    ground.open()

    for payload in ({key: 1}, {"deep": [{"er": {key: 1}}]}):
        with pytest.raises(ForbiddenKey):
            ground.app.enqueue("index_unit", payload, queue="substrate", key="k")
        with pytest.raises(Exception, match="forbid"):
            ground.execute(
                f"INSERT INTO {ground.view(QUEUE)} (job_kind, idempotency_key, actor, payload_json) "
                "VALUES ('index_unit', 'k', 'ada', ?)",
                json.dumps(payload),
            )

    assert ground.rows(QUEUE) == []


def test_the_ten_keys_are_exactly_those_of_the_specification(ground: Ground) -> None:
    (queue,) = ground.app.queues.all("substrate")

    assert sorted(queue.policy.forbidden_keys) == sorted(TEN_KEYS)


@pytest.mark.postgres
@pytest.mark.parametrize(("table", "column"), [("job", "payload"), ("dead_letter", "payload"), ("worker", "info")])
def test_the_tables_themselves_refuse_the_ten_keys(server_ground: Ground, table: str, column: str) -> None:
    server_ground.open()
    put(server_ground, max_attempts=1)
    server_ground.app.fail(server_ground.claim("substrate"), "no")
    tick(server_ground, "codex-1")

    with pytest.raises(Exception, match="payload_guarded"):
        server_ground.execute(f"UPDATE tenure.{table} SET {column} = '{{\"password\": 1}}'")


def test_a_key_is_taken_while_its_job_is_active_and_free_afterwards(ground: Ground) -> None:
    ground.open()
    first = put(ground)

    assert put(ground, kind="another_kind") == first  # the space is global
    ground.app.fail(ground.claim("substrate"), "no")
    assert shown(ground, first)["state"] == "retry_waiting"
    assert put(ground) == first
    ground.clock.advance(11)
    grant = ground.claim("substrate")
    assert put(ground) == first
    ground.app.complete(grant)

    assert put(ground) != first


@pytest.mark.parametrize("end", ["dead_letter", "cancelled"])
def test_a_key_is_free_after_a_bad_end_too(ground: Ground, end: str) -> None:
    ground.open()
    first = put(ground, max_attempts=1)
    if end == "cancelled":
        ground.app.cancel(first)
    else:
        ground.app.fail(ground.claim("substrate"), "no")
    assert shown(ground, first)["state"] == end

    assert put(ground) != first


def test_all_nine_states_are_shown_by_their_words(ground: Ground) -> None:
    ground.open()
    ground.app.queues.set("substrate", retain_seconds=0)
    put(ground, "cleaned", "cleaned")
    ground.app.complete(ground.claim("substrate"))
    ground.clock.advance(61)
    ground.app.prune()
    ground.app.queues.set("substrate", retain_seconds=86_400)
    put(ground, "queued", "queued", delay=600)
    ground.app.cancel(put(ground, "cancelled", "cancelled"))
    for kind in ("leased", "in_progress", "succeeded", "failed", "retry_waiting"):
        put(ground, kind, kind)
        grant = ground.claim("substrate")
        if kind == "in_progress":
            ground.app.heartbeat(grant)
        elif kind == "succeeded":
            ground.app.complete(grant)
        elif kind == "failed":
            ground.app.reject(grant, "refused")
        elif kind == "retry_waiting":
            ground.app.fail(grant, "no")
    put(ground, "dead_letter", "dead_letter", max_attempts=1)
    ground.app.fail(ground.claim("substrate"), "no")

    states = {row["job_kind"]: row["state"] for row in ground.rows(QUEUE)}

    assert len(states) == 9
    assert {kind: state for kind, state in states.items() if kind != state} == {}
    for state in states:
        assert [row["job_kind"] for row in ground.rows(QUEUE, "state = ?", state)] == [state]


def test_a_lease_has_both_owner_and_end_or_neither_and_an_end_has_its_time(ground: Ground) -> None:
    ground.open()
    job_id = put(ground)

    grant = ground.claim("substrate", worker="w1")
    row = shown(ground, job_id)
    assert (row["lease_owner"], row["lease_until"] is not None, row["finished_at"]) == ("w1", True, None)
    assert row["picked_at"] is not None
    ground.app.complete(grant)

    row = shown(ground, job_id)
    assert (row["lease_owner"], row["lease_until"], row["finished_at"] is not None) == (None, None, True)


def test_the_lease_lasts_300_seconds(ground: Ground) -> None:
    ground.open()
    put(ground)

    grant = ground.claim("substrate")

    assert (grant.lease_until - ground.clock.now()).total_seconds() == pytest.approx(300)


def test_the_backoff_is_ten_seconds_doubled_up_to_ten_times(ground: Ground) -> None:
    ground.open()
    put(ground, max_attempts=20)

    waits = []
    for _ in range(12):
        settled = ground.app.fail(ground.claim("substrate"), "no")
        assert settled.run_at_us is not None
        waits.append(round(settled.run_at_us / 1e6 - ground.clock.now().timestamp()))
        ground.clock.advance(waits[-1])

    assert waits == [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120, 10240, 10240]


@pytest.mark.parametrize("state", ["leased", "in_progress"])
def test_a_crash_is_found_whether_leased_or_in_progress(ground: Ground, state: str) -> None:
    ground.open()
    job_id = put(ground)
    grant = ground.claim("substrate")
    if state == "in_progress":
        ground.app.heartbeat(grant)
    assert shown(ground, job_id)["state"] == state

    ground.clock.advance(301)
    ground.app.reap()

    assert shown(ground, job_id)["state"] == "retry_waiting"


def test_lower_priorities_go_first(ground: Ground) -> None:
    ground.open()
    last, first, default = put(ground, "a", priority=200), put(ground, "b", priority=1), put(ground, "c")

    assert [ground.claim("substrate", worker=f"w{n}").id for n in range(3)] == [first, default, last]


@pytest.mark.postgres
@pytest.mark.parametrize(
    "change", ["final_error = 'none'", "attempts = 0, triage_status = 'closed'", "payload_json = '{}'"]
)
def test_an_update_of_what_a_dead_letter_says_is_refused(server_ground: Ground, change: str) -> None:
    """It answered UPDATE 1 and left an audit row, and what it set had not changed."""
    server_ground.open()
    put(server_ground, max_attempts=1)
    server_ground.app.fail(server_ground.claim("substrate", worker="w1"), "out of memory")
    before = server_ground.row("substrate.job_dead_letter")

    with pytest.raises(psycopg.Error, match="only triage_status, triage_note and triaged_by") as refused:
        server_ground.execute(f"UPDATE substrate.job_dead_letter SET {change}")

    assert refused.value.sqlstate == "TN008"
    assert server_ground.row("substrate.job_dead_letter") == before


@pytest.mark.postgres
@pytest.mark.parametrize("word", ["'bogus'", "NULL"])
def test_a_word_that_is_no_triage_is_refused_without_a_word_of_the_payload(server_ground: Ground, word: str) -> None:
    """The table's CHECK refused it, and told the client and the server's log the row, payload and all."""
    server_ground.open()
    put(server_ground, max_attempts=1)
    server_ground.app.fail(server_ground.claim("substrate", worker="w1"), "out of memory")

    with pytest.raises(psycopg.Error, match="A dead letter is triaged as pending") as refused:
        server_ground.execute(f"UPDATE substrate.job_dead_letter SET triage_status = {word}")

    assert refused.value.sqlstate == "TN007"
    assert "out of memory" not in str(refused.value.diag.message_detail)
    assert server_ground.row("substrate.job_dead_letter")["triage_status"] == "pending"


def test_a_dead_letter_is_a_copy_that_needs_triage_and_outlives_its_job(ground: Ground) -> None:
    ground.open()
    ground.app.queues.set("substrate", retain_seconds=0)
    job_id = put(ground, max_attempts=1, source_ref="s:1")
    ground.app.fail(ground.claim("substrate", worker="w1"), "out of memory")

    row = ground.row("substrate.job_dead_letter")
    assert (str(row["job_id"]), row["job_kind"], row["source_ref"]) == (job_id, "index_unit", "s:1")
    assert (row["final_error"], row["attempts"], row["moved_by"]) == ("out of memory", 1, "w1")
    assert (row["actor"], row["idempotency_key"]) == ("ada", "k1")
    assert (row["triage_status"], row["triage_note"], row["triaged_at"]) == ("pending", None, None)
    letter = str(row["dead_letter_id"])
    ground.app.dead_letters.triage(letter, "closed", note="known", actor="eve")
    ground.clock.advance(61)
    ground.app.prune(delete_after=0)
    ground.app.prune(delete_after=0)

    assert ground.rows(QUEUE) == []
    row = ground.row("substrate.job_dead_letter")
    assert (row["triage_status"], row["triage_note"], row["triaged_by"]) == ("closed", "known", "eve")


def test_a_job_that_was_refused_is_failed_and_has_no_row_among_the_dead_letters(ground: Ground) -> None:
    """M16. `failed` and `dead_letter` are two words: a job is moved there when its attempts are spent, or by
    fn_job_move_to_dead_letter. What was refused stays where it lies; Tenure's own triage has it all the same."""
    ground.open()
    refused = put(ground)
    ground.app.reject(ground.claim("substrate"), "this unit cannot be indexed")

    row = shown(ground, refused)

    assert (row["state"], row["last_error"]) == ("failed", "this unit cannot be indexed")
    assert row["finished_at"] is not None
    assert ground.rows("substrate.job_dead_letter") == []
    assert ground.rows("substrate.v_job_dead_letter_summary") == []
    health = ground.rows("substrate.v_queue_health")[0]
    assert (health["jobs_failed"], health["jobs_dead_letter"], health["dead_letters_pending"]) == (1, 0, 0)
    assert [letter.job_id for letter in ground.app.dead_letters.all()] == [refused]


@pytest.mark.parametrize("word", ["acknowledged", "escalated", "closed"])
def test_triage_is_shown_by_its_words(ground: Ground, word: str) -> None:
    ground.open()
    put(ground, max_attempts=1)
    ground.app.fail(ground.claim("substrate"), "no")
    letter = str(ground.row("substrate.job_dead_letter")["dead_letter_id"])

    ground.app.dead_letters.triage(letter, word, actor="eve")

    assert ground.row("substrate.job_dead_letter")["triage_status"] == word
    assert ground.row("substrate.v_job_dead_letter_summary")["triage_status"] == word


def test_a_revived_job_may_die_again_and_has_a_letter_for_each_death(ground: Ground) -> None:
    ground.open()
    job_id = put(ground, max_attempts=1)
    ground.app.fail(ground.claim("substrate"), "first")

    ground.app.revive(job_id, reason="again")
    ground.app.fail(ground.claim("substrate"), "second")

    letters = ground.rows("substrate.job_dead_letter")
    assert {row["final_error"]: row["triage_status"] for row in letters} == {
        "first": "manual_replay",
        "second": "pending",
    }


@pytest.mark.parametrize("kind", KINDS)
def test_the_seven_kinds_of_executors_are_known(ground: Ground, kind: str) -> None:
    ground.open()
    tick(ground, "x-1", kind)

    assert ground.row("substrate.queue_heartbeat")["executor_kind"] == kind


def test_a_worker_of_another_profile_is_no_executor(ground: Ground) -> None:
    ground.open()
    tick(ground, "x-1")

    ground.app.store.do(Heartbeat((), worker=WorkerRow(WorkerId("other-1"), "host", 1, ["agent_queue", "default"])))

    assert [row["executor_name"] for row in ground.rows("substrate.queue_heartbeat")] == ["x-1"]


@pytest.mark.parametrize(("kind", "status"), [("Robot", "ok"), ("Codex", "fine")])
def test_other_kinds_and_statuses_are_refused(ground: Ground, kind: str, status: str) -> None:
    ground.open()
    with pytest.raises(InvalidArgument):
        tick(ground, "x-1", kind, status)

    assert ground.rows("substrate.queue_heartbeat") == []


def test_no_tick_is_noted_until_the_heartbeat_gate_is_opened(ground: Ground) -> None:
    with pytest.raises(GateClosed, match=r"substrate\.heartbeat"):
        tick(ground, "x-1")

    assert ground.rows("substrate.queue_heartbeat") == []


def test_every_tick_counts(ground: Ground) -> None:
    ground.open()
    for _ in range(3):
        tick(ground, "x-1")

    row = ground.row("substrate.queue_heartbeat")
    assert (row["executor_name"], row["ticks_total"], row["last_tick_status"]) == ("x-1", 3, "ok")
