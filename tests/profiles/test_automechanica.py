"""Specification 001, AutoMechanica: each rule as given, when, then. What logins may do is in test_agents."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from typing import Any

import psycopg
import pytest

from tenure import Escalation, Forbidden, Grant, IllegalMove, InvalidArgument, LeaseLost, Workflow
from tenure.model.ids import JobId, Token, new_job_id, new_worker_id
from tenure.model.job import NewJob
from tenure.model.outcome import Completed, Outcome, Suspended
from tenure.model.policy import QueuePolicy
from tenure.model.step import NewGroup, NewStep
from tenure.store.contract import Enqueue, Exchange
from tenure.store.flow import FillGroup, ListSteps, RecordSteps
from tenure.store.metrics import RollUp
from tests.profiles.ground import Ground

VIEW = "automechanica.tasks"
COLUMNS = [
    "id",
    "workflow_id",
    "agent_name",
    "task_type",
    "payload",
    "priority",
    "status",
    "attempts",
    "max_attempts",
    "available_at",
    "lease_owner",
    "lease_expires_at",
    "error_info",
    "created_at",
    "updated_at",
]
WORKFLOW = "0192f0c1-2b3c-7def-8123-456789abcdef"


def create(ground: Ground, **fields: Any) -> str:
    task = {"agent_name": "FitmentAgent", "task_type": "generate_fitment", "payload": {"sku": 7}}
    return ground.app.create_task(task | fields).id


def shown(ground: Ground, task_id: str) -> dict[str, Any]:
    return ground.row(VIEW, "id = ?", task_id)


def info(row: dict[str, Any]) -> Any:
    return json.loads(row["error_info"]) if isinstance(row["error_info"], str) else row["error_info"]


def test_tasks_has_the_columns_of_the_specification_in_its_order(ground: Ground) -> None:
    create(ground)

    assert list(ground.row(VIEW)) == COLUMNS


def test_a_task_that_ended_was_last_updated_when_it_ended(ground: Ground) -> None:
    task_id = create(ground)
    ground.app.queues.set("FitmentAgent", retain_seconds=0)
    made = shown(ground, task_id)["updated_at"]
    ground.clock.advance(5)
    ground.app.complete(ground.claim("FitmentAgent"))
    ended = shown(ground, task_id)["updated_at"]
    ground.clock.advance(61)

    ground.app.prune()

    assert shown(ground, task_id)["payload"] is None
    assert shown(ground, task_id)["updated_at"] == ended > made


def test_create_task_takes_the_structured_definition_of_the_orchestrator(ground: Ground) -> None:
    task_id = ground.app.create_task(
        {
            "workflow_id": WORKFLOW,
            "agent_name": "FitmentAgent",
            "task_type": "generate_fitment",
            "payload": {"sku": 7},
            "priority": 0,
            "max_attempts": 3,
        }
    ).id

    row = shown(ground, task_id)
    assert (str(row["workflow_id"]), row["agent_name"], row["task_type"]) == (
        WORKFLOW,
        "FitmentAgent",
        "generate_fitment",
    )
    assert (row["priority"], row["status"], row["attempts"], row["max_attempts"]) == (0, "pending", 0, 3)


@pytest.mark.parametrize("values", ["('FitmentAgent', 'k')", "('FitmentAgent', 'k', NULL)"], ids=["left out", "null"])
def test_a_task_inserted_without_a_payload_has_an_empty_one(ground: Ground, values: str) -> None:
    """On PostgreSQL it was JSON null, for which no handler's payload type has a place."""
    columns = "agent_name, task_type" + (", payload" if "NULL" in values else "")

    ground.execute(f"INSERT INTO {ground.view(VIEW)} ({columns}) VALUES {values}")

    assert ground.claim("FitmentAgent").payload == {}


@pytest.mark.parametrize("told", ["plain", ["a", 1], None, 7])
def test_an_error_info_that_is_no_object_leaves_the_message_where_it_is(ground: Ground, told: object) -> None:
    """On PostgreSQL error_info became an array, in which `error_info ->> 'message'` found nothing; on SQLite a text
    made every look at the view fail with "malformed JSON"."""
    task_id, beside = create(ground), create(ground)
    ground.app.queues.set("FitmentAgent", max_attempts=1)
    grant = ground.claim("FitmentAgent")
    ground.app.heartbeat(grant, progress={"error_info": told})

    ground.app.fail(grant, "no fit")

    assert {row["id"] if isinstance(row["id"], str) else str(row["id"]) for row in ground.rows(VIEW)} == {
        task_id,
        beside,
    }
    assert info(shown(ground, task_id)) == {"class": "error", "message": "no fit"}


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("told", "message"),
    [("NULL", "failed"), ("'\"plain\"'", "plain"), ("'[1]'", "[1]"), ("""'{"message": "m"}'""", "m")],
)
def test_fail_task_says_the_error_whatever_json_it_is_given(server_ground: Ground, told: str, message: str) -> None:
    task_id = create(server_ground)
    server_ground.claim("FitmentAgent")

    [row] = server_ground.execute(f"SELECT automechanica.fail_task(?, 'host-1-a', {told}) AS answer", task_id)

    assert row["answer"]["task"]["error_info"] == {"class": "error", "message": message}


@pytest.mark.postgres
@pytest.mark.parametrize("moment", ["nonsense", "2026-13-01", "99999999-01-01"])
def test_create_task_in_sql_refuses_what_is_no_moment_in_our_own_words(server_ground: Ground, moment: str) -> None:
    task = json.dumps({"agent_name": "A", "task_type": "k", "available_at": moment})

    with pytest.raises(psycopg.Error, match="available_at is a moment, not") as refused:
        server_ground.execute("SELECT automechanica.create_task(?)", task)

    assert refused.value.sqlstate == "TN007"
    assert server_ground.rows(VIEW) == []


def test_create_task_names_what_is_wrong(ground: Ground) -> None:
    with pytest.raises(InvalidArgument, match="agent_nam"):
        ground.app.create_task({"agent_nam": "A", "task_type": "t"})
    with pytest.raises(InvalidArgument, match="priority"):
        create(ground, priority=4)
    with pytest.raises(Forbidden, match="outbox"):
        create(ground, agent_name="outbox")

    assert ground.rows(VIEW) == []


def test_an_agents_queue_is_made_with_its_first_task_by_the_policy(ground: Ground) -> None:
    create(ground, agent_name="PricingAgent")

    (queue,) = ground.app.queues.all("PricingAgent")
    assert (queue.policy.profile, queue.policy.lease_seconds, queue.policy.priority_order) == (
        "automechanica",
        30.0,
        "low",
    )


def test_a_plain_insert_creates_a_task_and_its_agents_queue(ground: Ground) -> None:
    ground.execute(
        f"INSERT INTO {ground.view(VIEW)} (agent_name, task_type, payload, workflow_id) "
        f"VALUES ('SeoAgent', 'refresh', '{{}}', '{WORKFLOW}')"
    )

    row = ground.row(VIEW)
    assert (row["agent_name"], row["priority"], row["max_attempts"]) == ("SeoAgent", 2, 3)
    assert str(row["workflow_id"]) == WORKFLOW
    assert ground.app.queues.all("SeoAgent")[0].policy.backoff.power == 2


def test_lower_numbers_go_first_and_equal_ones_by_age(ground: Ground) -> None:
    low, medium, critical, high, critical_too = (create(ground, priority=p) for p in (3, 2, 0, 1, 0))

    order = [ground.claim("FitmentAgent", worker=f"w{n}").id for n in range(5)]

    assert order == [critical, critical_too, high, medium, low]


def test_the_life_of_a_task_is_pending_leased_running_completed(ground: Ground) -> None:
    task_id = create(ground)
    seen = [shown(ground, task_id)["status"]]

    grant = ground.claim("FitmentAgent", worker="host-1-a")
    row = shown(ground, task_id)
    seen.append(row["status"])
    assert row["lease_owner"] == "host-1-a"
    assert (grant.lease_until - ground.clock.now()).total_seconds() == pytest.approx(30)
    ground.app.start(grant)
    seen.append(shown(ground, task_id)["status"])
    ground.app.complete(grant)
    seen.append(shown(ground, task_id)["status"])

    assert seen == ["pending", "leased", "running", "completed"]


def test_a_failure_waits_attempts_squared_times_five_seconds_and_the_third_is_the_end(ground: Ground) -> None:
    task_id = create(ground)

    waits = []
    for _ in range(2):
        settled = ground.app.fail(ground.claim("FitmentAgent"), "no fit")
        assert settled.run_at_us is not None
        waits.append(settled.run_at_us / 1e6 - ground.clock.now().timestamp())
        assert shown(ground, task_id)["status"] == "pending"
        assert ground.app.claim(worker="w", queues="FitmentAgent") == []
        ground.clock.advance(waits[-1])
    ground.app.fail(ground.claim("FitmentAgent"), "no fit")

    assert waits == pytest.approx([5, 20], abs=1e-3)
    assert shown(ground, task_id)["status"] == "dead"
    policy = ground.app.queues.all("FitmentAgent")[0].policy
    assert [policy.backoff.delay_seconds(n) for n in (1, 2, 3)] == [5, 20, 45]


def test_a_dead_task_shows_error_agent_type_payload_and_attempts(ground: Ground) -> None:
    task_id = create(ground, max_attempts=1)

    ground.app.fail(ground.claim("FitmentAgent"), "KeyError: 'sku'")

    row = ground.row(VIEW, "status = 'dead'")
    assert str(row["id"]) == task_id
    assert info(row) == {"class": "error", "message": "KeyError: 'sku'"}
    assert (row["agent_name"], row["task_type"], row["attempts"]) == ("FitmentAgent", "generate_fitment", 1)
    assert row["payload"] in ({"sku": 7}, '{"sku":7}', '{"sku": 7}')
    (letter,) = ground.app.dead_letters.all(job_id=task_id)
    assert (letter.queue, letter.kind, letter.payload, letter.attempts) == (
        "FitmentAgent",
        "generate_fitment",
        {"sku": 7},
        1,
    )


def test_a_dead_task_can_be_revived_by_hand_with_all_its_attempts(ground: Ground) -> None:
    task_id = create(ground, max_attempts=1)
    ground.app.fail(ground.claim("FitmentAgent"), "no")

    ground.app.revive(task_id, reason="the supplier is back")

    row = shown(ground, task_id)
    assert (row["status"], row["attempts"], row["error_info"]) == ("pending", 0, None)
    assert ground.claim("FitmentAgent").id == task_id


def test_a_lease_without_heartbeat_runs_out_and_the_task_is_eligible_again(ground: Ground) -> None:
    task_id = create(ground)
    lost = ground.claim("FitmentAgent", worker="w1")

    ground.clock.advance(31)
    again = ground.claim("FitmentAgent", worker="w2")

    assert (again.id, again.attempt) == (task_id, 2)
    with pytest.raises(LeaseLost):
        ground.app.complete(lost)


def test_a_heartbeat_keeps_the_lease(ground: Ground) -> None:
    create(ground)
    grant = ground.claim("FitmentAgent")

    for _ in range(5):
        ground.clock.advance(20)
        assert not ground.app.heartbeat(grant).lost

    assert ground.app.claim(worker="w2", queues="FitmentAgent") == []
    ground.app.complete(grant)


def test_a_task_that_kills_its_worker_dies_after_max_attempts(ground: Ground) -> None:
    task_id = create(ground)

    for _ in range(3):
        ground.claim("FitmentAgent")
        ground.clock.advance(31)
    ground.app.reap()

    row = shown(ground, task_id)
    assert (row["status"], row["attempts"]) == ("dead", 3)
    assert info(row)["class"] == "crash"


def test_agents_work_in_parallel_and_no_task_is_given_out_twice(ground: Ground) -> None:
    made = {create(ground) for _ in range(20)}

    claimed = [grant.id for n in range(4) for grant in ground.app.claim(worker=f"w{n}", queues="FitmentAgent", limit=5)]

    assert sorted(claimed) == sorted(made)


def test_a_workers_claim_is_limited_to_its_own_agent(ground: Ground) -> None:
    create(ground, agent_name="FitmentAgent")

    create(ground, agent_name="PricingAgent")

    assert ground.claim("PricingAgent").queue == "PricingAgent"
    assert ground.app.claim(worker="w", queues="PricingAgent") == []


def handed_on(way: str, grant: Grant, queue: str) -> Exchange | RecordSteps | FillGroup:
    """A request by which a held task makes work for a queue: each way that a worker has."""
    jobs = (NewJob(new_job_id(), "refresh", "{}", queue=queue),)
    held: tuple[JobId, Token] = (grant.id, grant.token)
    if way == "spawn":
        return RecordSteps(*held, (NewStep("spawned", "mark", "done", value="null"),), jobs)
    if way == "page":
        return FillGroup(*held, NewGroup("parts", jobs), 0, 1)
    outcome: Outcome = (
        Completed(*held, jobs=jobs)
        if way == "complete"
        else Suspended(*held, "parts", groups=(NewGroup("parts", jobs),))
    )
    return Exchange([outcome], None)


@pytest.mark.parametrize("way", ["complete", "spawn", "gather", "page"])
def test_a_task_makes_work_for_its_own_agent_and_for_no_other(ground: Ground, way: str) -> None:
    task_id = create(ground)
    create(ground, agent_name="PricingAgent")
    before = ground.rows(VIEW, "agent_name = 'PricingAgent'")
    grant = ground.claim("FitmentAgent")
    held = shown(ground, task_id)
    told = f"Job {task_id} of 'FitmentAgent' may not create work for 'PricingAgent'.*Nothing was changed"

    with pytest.raises(Forbidden, match=told):
        ground.app.store.do(handed_on(way, grant, "PricingAgent"))

    assert ground.rows(VIEW, "agent_name = 'PricingAgent'") == before
    assert shown(ground, task_id) == held
    assert ground.app.store.do(ListSteps(JobId(task_id))) == []
    ground.app.store.do(handed_on(way, grant, "FitmentAgent"))
    assert len(ground.rows(VIEW, "agent_name = 'FitmentAgent' AND task_type = 'refresh'")) == 1


def test_a_worker_id_is_host_process_and_something_random() -> None:
    first, second = new_worker_id(), new_worker_id()

    assert re.fullmatch(r".+-\d+-[0-9a-z]+", first)
    assert first != second
    assert first.rpartition("-")[0] == second.rpartition("-")[0]


@pytest.mark.parametrize("view", ["workflows", "task_queue_metrics", "agent_events", "embedding_jobs"])
def test_the_other_views_stand_and_are_empty(ground: Ground, view: str) -> None:
    assert ground.rows(f"automechanica.{view}") == []


def test_the_orchestrator_moves_a_workflow_by_the_ends_of_its_tasks_thresholds_and_escalation(ground: Ground) -> None:
    for agent in ("SupplierAgent", "FitmentAgent", "PricingAgent"):
        ground.app.agent(agent)
    flow = Workflow("onboard", on_breach="escalate", escalate_to=Escalation(person="ops"))
    first = flow.task("normalise", agent="SupplierAgent", task_type="normalise")
    flow.task("fitment", agent="FitmentAgent", task_type="generate_fitment", after=[first], max_attempts=1)
    flow.task("price", agent="PricingAgent", task_type="refresh", after=[first])
    run = ground.app.workflows.start(flow, key="supplier-7").id
    shown = ground.row("automechanica.workflows")
    assert (str(shown["id"]), shown["workflow_type"], shown["status"]) == (run, "onboard", "running")
    assert (shown["tasks_total"], shown["tasks_completed"], shown["escalation"]) == (3, 0, None)

    ground.app.complete(ground.claim("SupplierAgent"))
    ground.app.workflows.advance()
    ground.app.fail(ground.claim("FitmentAgent"), error="no fit")
    ground.app.workflows.advance()

    shown = ground.row("automechanica.workflows")
    assert (shown["status"], shown["tasks_failed"], shown["escalation"]) == ("escalated", 1, "ops")
    [asked] = ground.app.workflows.escalations(person="ops")
    ground.app.workflows.answer(asked.id, "go_on")
    ground.app.complete(ground.claim("PricingAgent"))
    ground.app.workflows.advance()
    shown = ground.row("automechanica.workflows")
    assert (shown["status"], shown["tasks_completed"], shown["completed_at"] is not None) == ("completed", 2, True)


def test_a_workflow_waits_while_its_released_tasks_do_whatever_others_and_later_ones_do(ground: Ground) -> None:
    for agent in ("FitmentAgent", "PricingAgent"):
        ground.app.agent(agent)
    runs = []
    for agent in ("FitmentAgent", "PricingAgent"):
        flow = Workflow(f"onboard-{agent}")
        first = flow.task("done", agent=agent, task_type="t")
        second = flow.task("now", agent=agent, task_type="t", after=[first])
        flow.task("later", agent=agent, task_type="t", after=[second])
        runs.append(ground.app.workflows.start(flow).id)
        ground.app.complete(ground.claim(agent))
        ground.app.workflows.advance()

    ground.app.suspend(ground.claim("FitmentAgent"), "a person")

    states = {str(row["id"]): row["status"] for row in ground.rows("automechanica.workflows")}
    assert states == {runs[0]: "waiting", runs[1]: "running"}


def test_a_created_task_joins_the_running_workflow_that_it_names(ground: Ground) -> None:
    ground.app.agent("FitmentAgent")
    flow = Workflow("onboard")
    flow.task("only", agent="FitmentAgent", task_type="t")
    run = ground.app.workflows.start(flow).id

    create(ground, agent_name="FitmentAgent", task_type="more", workflow_id=run)
    ground.execute(
        f"INSERT INTO {ground.view(VIEW)} (agent_name, task_type, workflow_id) VALUES ('FitmentAgent', 'most', '{run}')"
    )

    assert ground.row("automechanica.workflows")["tasks_total"] == 3
    for _ in range(3):
        ground.app.complete(ground.claim("FitmentAgent"))
    ground.app.workflows.advance()
    assert ground.row("automechanica.workflows")["status"] == "completed"
    with pytest.raises(IllegalMove, match="is completed"):
        create(ground, agent_name="FitmentAgent", task_type="late", workflow_id=run)


def test_a_task_may_name_a_workflow_that_its_orchestrator_keeps(ground: Ground) -> None:
    """No foreign key to Tenure's workflows: decision 6. An id that is none is refused all the same."""
    own = "5f0c6f9e-7a7b-4d8e-9a3e-0d8f2b1c4e5a"

    task = create(ground, workflow_id=own)
    ground.execute(
        f"INSERT INTO {ground.view(VIEW)} (agent_name, task_type, workflow_id) VALUES ('FitmentAgent', 't', '{own}')"
    )
    for _ in range(2):
        ground.app.complete(ground.claim("FitmentAgent"))

    assert [str(row["workflow_id"]) for row in ground.rows(VIEW)] == [own, own]
    assert shown(ground, task)["status"] == "completed"
    assert ground.rows("automechanica.workflows") == []
    with pytest.raises(InvalidArgument, match="workflow_id"):
        create(ground, workflow_id="onboarding-7")


def test_a_completed_task_writes_an_agent_event_and_an_embedding_job(ground: Ground) -> None:
    task = create(ground, agent_name="FitmentAgent", task_type="generate_fitment")
    grant = ground.claim("FitmentAgent")

    ground.app.complete(grant, result={"fits": True})

    event = ground.row("automechanica.agent_events")
    assert (event["agent_name"], event["event_type"], str(event["task_id"])) == ("FitmentAgent", "completed", task)
    job = ground.row("automechanica.embedding_jobs")
    assert (job["agent_event_id"], job["status"], job["attempts"]) == (event["id"], "pending", 0)


def test_an_agent_that_speaks_sql_alone_writes_them_too(ground: Ground) -> None:
    if ground.engine != "postgres":
        pytest.skip("SQLite has no functions of ours")
    task = create(ground, agent_name="FitmentAgent", task_type="generate_fitment")
    ground.execute("SELECT automechanica.claim_task('FitmentAgent', 'host-1')")

    ground.execute("SELECT automechanica.complete_task(?::uuid, 'host-1', '{}')", task)

    assert str(ground.row("automechanica.agent_events")["task_id"]) == task
    assert ground.row("automechanica.embedding_jobs")["status"] == "pending"


def test_a_leader_fills_the_metrics_of_each_agent(ground: Ground) -> None:
    started = ground.clock.now()
    ground.clock.advance(61 - started.second - started.microsecond / 1e6)  # a second into a minute
    moment = ground.clock.now()
    for agent in ("FitmentAgent", "FitmentAgent", "PricingAgent"):
        job = NewJob(id=_id_at(moment), kind="generate", payload="{}", queue=agent, max_attempts=1)
        ground.app.store.do(Enqueue([job], {agent: QueuePolicy(profile="automechanica")}))
    ground.clock.advance(4)
    ground.app.complete(ground.claim("FitmentAgent", kinds=["generate"], limit=1))
    ground.app.fail(ground.claim("FitmentAgent", kinds=["generate"], limit=1), error="no")
    ground.clock.advance(170)

    deadline = time.monotonic() + 20
    while ground.app.store.do(RollUp()).more:
        assert time.monotonic() < deadline

    fitment = ground.row("automechanica.task_queue_metrics", "agent_name = 'FitmentAgent'")
    assert (fitment["tasks_created"], fitment["tasks_completed"], fitment["tasks_failed"]) == (2, 1, 1)
    assert (fitment["average_latency"], fitment["error_rates_per_agent"]) == (pytest.approx(4.0), 0.5)
    pricing = ground.row("automechanica.task_queue_metrics", "agent_name = 'PricingAgent'")
    assert (pricing["tasks_created"], pricing["tasks_completed"], pricing["average_latency"]) == (1, 0, None)


def _id_at(moment: datetime) -> JobId:
    ms = f"{round(moment.timestamp() * 1000):012x}"
    return JobId(f"{ms[:8]}-{ms[8:]}{new_job_id()[13:]}")


@pytest.mark.postgres
def test_the_claim_query_of_section_4_runs_as_printed_and_finds_what_would_be_claimed(server_ground: Ground) -> None:
    create(server_ground, priority=3)
    create(server_ground, priority=1, agent_name="PricingAgent")
    wanted = create(server_ground, priority=0)

    server_ground.execute("SET search_path = automechanica")
    found = server_ground.execute(
        """
        SELECT *
        FROM tasks
        WHERE status = 'pending'
          AND available_at <= now()
        ORDER BY priority, created_at
        FOR UPDATE SKIP LOCKED
        LIMIT 1;
        """
    )
    server_ground.execute("RESET search_path")

    assert [str(row["id"]) for row in found] == [wanted]
    assert server_ground.claim("FitmentAgent").id == wanted


@pytest.mark.postgres
def test_an_update_of_tasks_is_refused_with_the_functions_to_use(server_ground: Ground) -> None:
    create(server_ground)

    with pytest.raises(Exception, match="not changed by UPDATE"):
        server_ground.execute(f"UPDATE {VIEW} SET status = 'leased', lease_owner = 'w'")

    assert server_ground.row(VIEW)["status"] == "pending"
