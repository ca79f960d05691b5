"""What agents used: sums over the steps of the jobs of a span, bounded, whatever their values hold."""

from __future__ import annotations

import json

import pytest

from tenure.model.ids import JobId
from tenure.model.step import NewStep
from tenure.model.usage import Usage, UsageRow, first_id
from tenure.store.contract import Enqueue
from tenure.store.flow import RecordSteps
from tenure.store.usage import SumUsage
from tests.conformance.acts import Subject, claim_one, complete, make_queue, new_job
from tests.conformance.engines import SteeredClock

DOORS = ("do", "ado")


def called(store: Subject, *values: object, queue: str = "default", kind: str = "work", job_id: str = "") -> JobId:
    """A job whose steps have these values."""
    made = new_job(kind, None, JobId(job_id) if job_id else None, queue=queue)
    store.do(Enqueue([made]))
    grant = claim_one(store, queue=queue)
    steps = [NewStep(f"model/{number}", value=json.dumps(one)) for number, one in enumerate(values)]
    store.do(RecordSteps(grant.id, grant.token, steps))
    complete(store, grant)
    return made.id


def used(tokens: object, output: object = 0, cost: object = None) -> dict[str, object]:
    return {"parts": [], "usage": {"input_tokens": tokens, "output_tokens": output, "cost": cost}}


def test_calls_are_summed_by_agent_kind_and_job(store: Subject) -> None:
    make_queue(store, "writer")
    one = called(store, used(10, 5, 0.25), used(1, 1), {"text": "no usage"}, kind="plan")
    two = called(store, used(100, 50, "0.000001"), queue="writer", kind="plan")
    three = called(store, used(2), queue="writer", kind="write")

    def rows(by: str, **more: object) -> list[UsageRow]:
        return list(store.do(SumUsage(by, **more)).rows)  # type: ignore[arg-type]

    assert rows("agent") == [UsageRow("writer", 2, 2, 102, 50, 1), UsageRow("default", 1, 2, 11, 6, 250_000)]
    assert rows("kind") == [UsageRow("plan", 2, 3, 111, 56, 250_001), UsageRow("write", 1, 1, 2, 0, 0)]
    assert [(row.name, row.calls) for row in rows("job")] == [(two, 1), (one, 2), (three, 1)]
    assert rows("agent", queues=["writer"], kinds=["write"]) == [UsageRow("writer", 1, 1, 2, 0, 0)]
    assert len(rows("job", limit=1)) == 1


@pytest.mark.parametrize(
    "value",
    [
        1,
        "usage",
        [used(1)],
        {"usage": 7},
        {"usage": {"input_tokens": "7", "output_tokens": -3, "cost": "a lot"}},
        {"usage": {"input_tokens": True, "output_tokens": 1.5, "cost": -1}},
        {"usage": {"input_tokens": {"a": 1}, "output_tokens": None, "cost": {}}},
    ],
)
def test_a_value_that_tells_no_usage_counts_nothing(store: Subject, value: object) -> None:
    called(store, value, used(3))

    [row] = store.do(SumUsage("agent")).rows

    assert (row.input_tokens, row.output_tokens, row.usd_micro) == (3, 0, 0)


def test_amounts_that_no_model_uses_are_bounded(store: Subject) -> None:
    called(store, *[used(10**17, 10**17, 10**11)] * 20)

    [row] = store.do(SumUsage("agent")).rows

    assert (row.input_tokens, row.usd_micro) == (20 * 10**12, 20 * 10**12)


def test_a_span_is_that_of_the_jobs_and_steps_are_bounded(store: Subject, clock: SteeredClock) -> None:
    begin = clock.now()
    old = called(store, used(1), job_id=first_id(begin))
    clock.advance(3600)
    new = called(store, used(2), used(4), job_id=first_id(clock.now()))

    def names(**span: object) -> list[str]:
        return [row.name for row in store.do(SumUsage("job", **span)).rows]  # type: ignore[arg-type]

    assert names() == [new, old]
    assert names(since=clock.now()) == [new]
    assert names(until=clock.now()) == [old]
    assert names(since=begin, until=begin) == []
    cut = store.do(SumUsage("job", steps=2))
    assert (cut.is_cut, [row.name for row in cut.rows]) == (True, [new])
    assert not store.do(SumUsage("job")).is_cut
    assert store.do(SumUsage("job", queues=["none"])) == Usage((), False)
