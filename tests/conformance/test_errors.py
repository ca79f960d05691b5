"""Errors: each has its class, its code, and a sentence that says what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tenure.errors import (
    GateClosed,
    IllegalMove,
    InvalidArgument,
    KeyConflict,
    KeyRequired,
    NotFound,
    StoreClosed,
    TenureError,
    UnknownQueue,
)
from tenure.model.ids import JobId, WorkerId, new_job_id
from tenure.model.job import NewJob
from tenure.model.policy import Backoff, QueuePolicy
from tenure.store.admin import PauseQueues, SetGate, SetQueues
from tenure.store.contract import Claim, Clone, Enqueue, Reap, Request
from tenure.store.queries import GetJobs, ListQueues
from tests.conformance.acts import Subject, claim, enqueue, make_queue, new_job, set_gate


def test_an_unknown_queue_offers_the_nearest_name(store: Subject) -> None:
    make_queue(store, "emails")

    requests: list[Request[object]] = [
        Enqueue([new_job(queue="email")]),
        Claim(WorkerId("w1"), ["email"]),
        PauseQueues(["email"], paused=True, actor="ann"),
    ]
    for request in requests:
        with pytest.raises(UnknownQueue, match="Did you mean 'emails'") as caught:
            store.do(request)
        assert caught.value.code == "unknown_queue"
        assert "'email'" in str(caught.value)


def closed_gate(store: Subject) -> None:
    set_gate(store, "master", is_open=False)
    enqueue(store)


def conflict(store: Subject) -> None:
    enqueue(store, payload={"n": 1}, key="k")
    enqueue(store, payload={"n": 2}, key="k")


def missing_key(store: Subject) -> None:
    make_queue(store, key_required=True)
    enqueue(store, queue="q")


CASES: dict[str, tuple[Callable[[Subject], object], type[TenureError], str, int]] = {
    "closed gate": (closed_gate, GateClosed, "gate_closed", 7),
    "key conflict": (conflict, KeyConflict, "key_conflict", 4),
    "missing key": (missing_key, KeyRequired, "key_required", 2),
    "unknown queue": (lambda store: enqueue(store, queue="x"), UnknownQueue, "unknown_queue", 3),
    "clone of nothing": (
        lambda store: store.do(Clone({new_job_id(): new_job_id()}, "ann", "why")),
        NotFound,
        "not_found",
        3,
    ),
    "clone of a living job": (
        lambda store: store.do(Clone({enqueue(store): new_job_id()}, "ann", "why")),
        IllegalMove,
        "illegal_move",
        4,
    ),
    "bad argument": (lambda store: enqueue(store, max_attempts=0), InvalidArgument, "invalid_argument", 2),
    "bad gate": (lambda store: store.do(SetGate("x", True, "ann")), InvalidArgument, "invalid_argument", 2),
}


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_has_its_class_its_code_and_a_sentence(store: Subject, name: str) -> None:
    act, error, code, exit_code = CASES[name]

    with pytest.raises(error) as caught:
        act(store)

    assert type(caught.value) is error
    assert (caught.value.code, caught.value.exit_code) == (code, exit_code)
    sentence = str(caught.value)
    assert sentence.rstrip().endswith((".", "?"))


def test_a_refusal_leaves_the_store_usable(store: Subject) -> None:
    for act, error, _, _ in CASES.values():
        with pytest.raises(error):
            act(store)
        set_gate(store, "master", is_open=True)

    assert enqueue(store, key="afterwards")


BAD_POLICIES = {
    "max_attempts": QueuePolicy(max_attempts=0),
    "lease_seconds": QueuePolicy(lease_seconds=0),
    "lease_max_seconds": QueuePolicy(lease_seconds=10, lease_max_seconds=5),
    "base_seconds": QueuePolicy(backoff=Backoff(base_seconds=-1)),
    "jitter": QueuePolicy(backoff=Backoff(jitter=-0.1)),
    "concurrency": QueuePolicy(concurrency=0),
    "concurrency_per_key": QueuePolicy(concurrency_per_key=0),
    "retain_seconds": QueuePolicy(retain_seconds=-1),
    "aging_seconds": QueuePolicy(aging_seconds=0),
    "key_window_seconds": QueuePolicy(key_window_seconds=0),
}


@pytest.mark.parametrize("name", BAD_POLICIES)
def test_a_policy_that_makes_no_sense_is_refused(store: Subject, name: str) -> None:
    with pytest.raises(InvalidArgument):
        store.do(SetQueues({"q": BAD_POLICIES[name]}, actor="ann"))

    assert store.do(ListQueues(["q"])) == []


@pytest.mark.parametrize("name", ["", " ", "x" * 201])
def test_a_queue_name_that_is_blank_or_too_long_is_refused(store: Subject, name: str) -> None:
    with pytest.raises(InvalidArgument):
        store.do(SetQueues({name: QueuePolicy()}, actor="ann"))


def test_a_queue_with_live_jobs_stays_with_its_profile(store: Subject) -> None:
    make_queue(store, profile="outbox")
    enqueue(store, queue="q")

    with pytest.raises(IllegalMove, match="'q'"):
        make_queue(store, profile="substrate")

    [row] = store.do(ListQueues(["q"]))
    assert row.policy.profile == "outbox"


@pytest.mark.parametrize("text", ["nul \x00 inside", "lone \ud800 surrogate"])
def test_text_that_no_engine_can_hold_is_refused_and_no_driver_error_leaks(store: Subject, text: str) -> None:
    with pytest.raises(TenureError):
        enqueue(store, source_ref=text)
    with pytest.raises(TenureError):
        enqueue(store, text)

    assert claim(store) == []


def test_a_payload_that_is_no_json_is_refused_and_no_driver_error_leaks(store: Subject) -> None:
    with pytest.raises(TenureError):
        enqueue(store, payload="{not json")

    assert claim(store) == []


@pytest.mark.parametrize("column", ["workflow_id", "run_id", "created_by_user_id", "requested_by_user_id"])
def test_an_id_column_that_holds_no_uuid_is_refused(store: Subject, column: str) -> None:
    fields: dict[str, str] = {column: "not-a-uuid"}
    job = NewJob(id=new_job_id(), kind="work", **fields)  # type: ignore[arg-type]

    with pytest.raises(InvalidArgument, match=column):
        store.do(Enqueue([job]))


def test_reading_by_an_id_that_is_no_uuid_finds_nothing(store: Subject) -> None:
    assert store.do(GetJobs([JobId("not-a-uuid")])) == [None]


def test_a_negative_limit_is_refused(store: Subject) -> None:
    with pytest.raises(InvalidArgument, match=r"(?i)limit"):
        store.do(Reap(-1))


def test_a_closed_store_says_so_and_closing_twice_is_harmless(store: Subject) -> None:
    store.store.close()
    store.store.close()

    with pytest.raises(TenureError):
        store.store.do(ListQueues())


def test_a_store_that_was_closed_says_so_and_is_closed_again_without_harm(store: Subject) -> None:
    store.store.close()
    store.store.close()

    requests: list[Request[object]] = [Reap(), GetJobs([new_job_id()])]
    for request in requests:
        with pytest.raises(StoreClosed, match="nothing was done") as caught:
            store.do(request)
        assert (caught.value.code, caught.value.exit_code) == ("store_closed", 2)
