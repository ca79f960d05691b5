"""Specification 002: health, backlog and triage at a glance, exact however far the tally has come."""

from __future__ import annotations

from tenure.store.admin import RemoveWorkers
from tenure.worker.config import WorkerConfig
from tests.profiles.ground import Ground
from tests.profiles.test_substrate import QUEUE, put, tick


def test_health_has_25_columns_four_of_them_gates(ground: Ground) -> None:
    ground.app.gates.open("substrate.notify")

    row = ground.row("substrate.v_queue_health")

    assert len(row) == 25
    gates = [bool(row[name]) for name in list(row)[-4:]]
    assert list(row)[-4:] == ["job_substrate_enabled", "worker_enabled", "notify_enabled", "heartbeat_enabled"]
    assert gates == [False, False, True, False]


def test_health_tells_fresh_from_warning_and_stale_by_the_threshold_and_twice_it(ground: Ground) -> None:
    ground.open()
    ground.clock.advance(-700)
    tick(ground, "stale-1")
    ground.clock.advance(300)
    tick(ground, "warning-1")
    ground.clock.advance(390)
    tick(ground, "fresh-1")
    ground.clock.advance(10)
    # What a leader does each minute: by its default it took silent executors away before they could be stale.
    ground.app.store.do(RemoveWorkers(unseen_seconds=WorkerConfig().worker_timeout))

    states = {row["executor_name"]: row["heartbeat_state"] for row in ground.rows("substrate.v_queue_health")}

    assert states == {"stale-1": "stale", "warning-1": "warning", "fresh-1": "fresh"}


def test_health_counts_every_state_and_the_open_letters_exactly(ground: Ground) -> None:
    ground.open()
    for n in range(5):
        put(ground, f"done{n}")
        ground.app.complete(ground.claim("substrate"))
    for n in range(2):
        put(ground, f"dead{n}", max_attempts=1)
        ground.app.fail(ground.claim("substrate"), "no")
    put(ground, "retry")
    ground.app.fail(ground.claim("substrate"), "no")
    put(ground, "held")
    ground.claim("substrate", worker="w9")
    for n in range(3):
        put(ground, f"q{n}", delay=5 * n)

    before = counts(ground)
    ground.clock.advance(120)
    for _ in range(3):  # the tally catches up behind the scenes; the sum must not move
        ground.app.prune()
        ground.clock.advance(61)

    assert before == {
        "queued": 3, "leased": 1, "in_progress": 0, "succeeded": 5, "failed": 0,
        "retry_waiting": 1, "dead_letter": 2, "cancelled": 0, "cleaned": 0, "pending": 2,
    }  # fmt: skip
    assert counts(ground) == before
    assert sum(row["jobs"] for row in ground.execute(f"SELECT jobs FROM tenure{dot(ground)}tally")) == 5


def test_health_stays_exact_while_jobs_are_cleaned_and_deleted(ground: Ground) -> None:
    ground.open()
    for n in range(6):
        put(ground, f"done{n}")
        ground.app.complete(ground.claim("substrate"))
        ground.clock.advance(100)
    for _ in range(2):
        ground.app.prune()
        ground.clock.advance(100)
    put(ground, "late")
    ground.app.complete(ground.claim("substrate"))

    ground.app.prune(older_than=500)
    cleaned = [len(ground.rows(QUEUE, "state = ?", state)) for state in ("cleaned", "succeeded")]
    told = counts(ground)
    ground.app.prune(older_than=10_000, delete_after=600)
    left = [len(ground.rows(QUEUE, "state = ?", state)) for state in ("cleaned", "succeeded")]
    after = counts(ground)

    assert cleaned[0] > 0
    assert [told["cleaned"], told["succeeded"]] == cleaned
    assert left[0] < cleaned[0]
    assert [after["cleaned"], after["succeeded"]] == left


def test_the_backlog_is_rolled_up_by_kind_and_state(ground: Ground) -> None:
    ground.open()
    put(ground, "a", "one")
    put(ground, "b", "one", delay=60)
    put(ground, "c", "two")
    ground.app.fail(ground.claim("substrate", kinds=["two"]), "no")
    put(ground, "d", "two")
    ground.app.complete(ground.claim("substrate", kinds=["two"]))

    rows = {(row["job_kind"], row["state"]): row for row in ground.rows("substrate.v_job_queue_backlog")}

    assert {place: row["row_count"] for place, row in rows.items()} == {
        ("one", "queued"): 2,
        ("two", "retry_waiting"): 1,
        ("two", "succeeded"): 1,
    }
    assert list(rows[("one", "queued")])[2:] == [
        "row_count", "oldest_created_at", "newest_created_at", "next_scheduled_at", "avg_attempts", "max_attempts_made",
    ]  # fmt: skip
    assert rows[("two", "retry_waiting")]["max_attempts_made"] == 1
    assert rows[("one", "queued")]["next_scheduled_at"] is not None
    assert rows[("two", "succeeded")]["next_scheduled_at"] is None


def test_health_counts_nothing_of_other_profiles(ground: Ground) -> None:
    """Jobs of another profile in every state, and its dead letters: none of them shows here."""
    ground.open()
    for end in ("dead", "failed", "succeeded", "retried", "held", "queued"):
        ground.app.enqueue(end, {}, queue="agent_queue", max_attempts=9 if end == "retried" else 1)
        if end == "queued":
            continue
        grant = ground.claim("agent_queue")
        if end in {"dead", "retried"}:
            ground.app.fail(grant, "no", retry_after=600)
        elif end == "failed":
            ground.app.reject(grant, "no")
        elif end == "succeeded":
            ground.app.complete(grant)

    assert set(counts(ground).values()) == {0}
    assert ground.rows("substrate.v_job_queue_backlog") == []
    assert ground.rows("substrate.v_job_dead_letter_summary") == []


def test_dead_letters_are_rolled_up_by_kind_and_triage(ground: Ground) -> None:
    ground.open()
    for n in range(3):
        put(ground, f"k{n}", "one", max_attempts=1)
        ground.app.fail(ground.claim("substrate"), "no")
    first = ground.rows("substrate.job_dead_letter")[0]
    ground.app.dead_letters.triage(str(first["dead_letter_id"]), "escalated")

    rows = ground.rows("substrate.v_job_dead_letter_summary")

    assert {(row["job_kind"], row["triage_status"]): row["row_count"] for row in rows} == {
        ("one", "pending"): 2,
        ("one", "escalated"): 1,
    }


def counts(ground: Ground) -> dict[str, int]:
    row = ground.rows("substrate.v_queue_health")[0]
    told = {name.removeprefix("jobs_"): int(value) for name, value in row.items() if name.startswith("jobs_")}
    return told | {"pending": int(row["dead_letters_pending"])}


def dot(ground: Ground) -> str:
    return "." if ground.engine == "postgres" else "_"
