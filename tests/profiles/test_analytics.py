"""The kind `analytics`: a report of a day, an agent event, and an escalation where a threshold is broken."""

from __future__ import annotations

import time

import pytest

import tenure
from tenure.model.job import NewJob
from tenure.store.contract import Enqueue
from tenure.store.metrics import RollUp
from tests.conformance.engines import START
from tests.conformance.test_metrics import id_at
from tests.profiles.ground import Ground

DAY = 86_400.0


def work(ground: Ground, agent: str, done: int, failed: int, wait: float = 1.0) -> None:
    """An agent completes some tasks and fails others for good."""
    app = ground.app
    jobs = [
        NewJob(id=id_at(ground.clock.now()), kind="task", payload="{}", queue=agent, max_attempts=1)
        for _ in range(done + failed)
    ]
    app.store.do(Enqueue(jobs))
    ground.clock.advance(wait)
    for number, grant in enumerate(app.claim(worker="w", queues=agent, limit=done + failed)):
        if number < failed:
            app.fail(grant, error="no")
        else:
            app.complete(grant)


def pass_a_day(ground: Ground) -> str:
    """To the next midnight, counting what happened. Answers which day it was."""
    day = ground.clock.now().date().isoformat()
    passed = (ground.clock.now() - START).total_seconds() % DAY
    ground.clock.advance(DAY - passed + 180)
    deadline = time.monotonic() + 60
    while ground.app.store.do(RollUp(minutes=1440)).more:
        assert time.monotonic() < deadline
    return day


def agents(ground: Ground) -> None:
    for name in ("FitmentAgent", "PricingAgent"):
        ground.app.queues.set(name, profile="automechanica", agent_events="none")
    ground.app.store.do(RollUp())
    pass_a_day(ground)


def analyse(ground: Ground, payload: dict[str, object]) -> tenure.Job:
    job_id = ground.app.enqueue("analytics", payload, queue="analytics").id
    ground.app.run_worker(["analytics"], drain=True)
    return ground.app.get(job_id)


def test_a_day_out_of_bounds_is_reported_and_escalated_once(ground: Ground) -> None:
    ground.app.use(tenure.analytics(escalate_to="ops", cron=None))
    agents(ground)
    for _ in range(5):
        work(ground, "FitmentAgent", 19, 1)
        work(ground, "PricingAgent", 10, 0)
        pass_a_day(ground)
    work(ground, "FitmentAgent", 4, 8)
    work(ground, "PricingAgent", 10, 0)
    day = pass_a_day(ground)
    thresholds = [{"figure": "error_rate", "times_median": 3, "at_least": 0.05}]

    report = analyse(ground, {"thresholds": thresholds, "escalate_to": "ops"})

    assert report.state == "succeeded", report.last_error
    assert report.result["day"] == day
    queues = {one["queue"]: one for one in report.result["queues"]}
    assert (queues["FitmentAgent"]["completed"], queues["FitmentAgent"]["failed"]) == (4, 8)
    assert queues["PricingAgent"]["error_rate"] == 0.0
    broken = {"queue": "FitmentAgent", "figure": "error_rate", "value": 0.666667, "limit": 0.15}
    assert report.result["broken"] == [broken]
    assert "FitmentAgent error_rate" in str(report.result_summary)
    [event] = ground.app.memory.events(kind="escalation")
    assert (event.agent, event.data, event.job_id) == ("analytics", {"day": day, **broken}, report.id)
    [own] = ground.app.memory.events(agent="analytics", kind="completed")
    assert own.job_id == report.id
    [job] = ground.app.jobs(queue="ops").items
    assert (job.kind, job.payload) == ("escalation", {"day": day, "broken": [broken]})

    again = analyse(ground, {"thresholds": thresholds, "escalate_to": "ops", "day": day})

    assert again.result["broken"] == [broken]
    assert len(ground.app.memory.events(kind="escalation")) == 1
    assert len(ground.app.jobs(queue="ops").items) == 1


def test_a_day_within_bounds_escalates_nothing(ground: Ground) -> None:
    ground.app.use(tenure.analytics(escalate_to="ops", cron=None))
    agents(ground)
    work(ground, "FitmentAgent", 10, 0, wait=30)
    pass_a_day(ground)
    thresholds = [
        {"figure": "total_p95", "above": 32.0},
        {"figure": "wait_p95", "above": 1.0, "queues": ["PricingAgent"]},
        {"figure": "error_rate", "times_median": 3.0},  # there are too few days before for a median
    ]

    report = analyse(ground, {"thresholds": thresholds, "escalate_to": "ops"})

    assert report.result["broken"] == []
    assert report.result["queues"][0]["wait_p95"] == pytest.approx(30, rel=0.05)
    assert ground.app.memory.events(kind="escalation") == []
    assert ground.app.jobs(queue="ops").items == []

    above = analyse(ground, {"thresholds": [{"figure": "total_p95", "above": 28.0}]})
    assert [one["figure"] for one in above.result["broken"]] == ["total_p95"]


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({"thresholds": [{"figure": "eror_rate", "above": 1}]}, "error_rate"),
        ({"thresholds": [{"figure": "error_rate"}]}, "never break"),
        ({"day": "yesterday"}, "2026-01-31"),
    ],
)
def test_thresholds_that_mean_nothing_are_refused(ground: Ground, payload: dict[str, object], said: str) -> None:
    ground.app.use(tenure.analytics(cron=None))

    refused = analyse(ground, payload)

    assert refused.state == "failed"
    assert said in str(refused.last_error)


def test_a_database_without_metrics_is_no_error(ground: Ground) -> None:
    ground.app.use(tenure.analytics(cron=None))

    report = analyse(ground, {})

    assert report.result == {"day": None, "queues": [], "broken": []}


def test_it_is_scheduled_daily_with_its_thresholds_as_data(ground: Ground) -> None:
    ground.app.use(tenure.analytics([{"figure": "failed", "above": 10.0}], escalate_to="ops"))

    [row] = ground.app.schedules.declare()

    assert row.name == "analytics"
    assert "0 3 * * *" in row.spec
    assert "failed" in row.spec
