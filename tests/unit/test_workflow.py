"""Workflows as data: what a graph takes, what it refuses, and how it is laid out."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

import tenure
from tenure.errors import InvalidArgument
from tenure.model import workflow as model
from tenure.model.workflow import Escalation, FailureThreshold, Graph, Node, Workflow, is_reached, is_threshold


def diamond() -> Workflow:
    flow = Workflow("diamond")
    top = flow.task("top", agent="A", task_type="t")
    left = flow.task("left", agent="B", task_type="t", after=[top])
    right = flow.task("right", agent="B", task_type="t", after=[top], optional=True)
    flow.task("bottom", agent="A", task_type="t", after=[left, right.ended])
    return flow


def test_a_plan_says_how_many_others_each_task_needs_and_how_deep_it_lies() -> None:
    plan = diamond().plan()

    assert [task.name for task in plan.tasks] == ["top", "left", "right", "bottom"]
    assert list(plan.needs) == [0, 1, 1, 2]
    assert list(plan.depths) == [0, 1, 1, 2]
    assert sorted(plan.edges) == [(0, 1, "ok"), (0, 2, "ok"), (1, 3, "ok"), (2, 3, "ended")]


def test_a_task_named_twice_in_after_is_one_edge_and_success_wins() -> None:
    flow = Workflow("twice")
    first = flow.task("first", agent="A", task_type="t")
    flow.task("second", agent="A", task_type="t", after=[first.ended, first, "first"])

    plan = flow.plan()

    assert plan.edges == [(0, 1, "ok")]
    assert list(plan.needs) == [0, 1]


def test_a_cycle_is_refused_and_named() -> None:
    flow = Workflow("circle")
    one = flow.task("one", agent="A", task_type="t")
    two = flow.task("two", agent="A", task_type="t", after=[one])
    three = flow.task("three", agent="A", task_type="t", after=[two])
    two.needs(three)

    with pytest.raises(InvalidArgument, match=r"in a circle: '(two|three)' → '(three|two)' → '(two|three)'"):
        flow.plan()


def test_a_task_that_waits_for_itself_is_a_cycle() -> None:
    flow = Workflow("circle")
    flow.task("one", agent="A", task_type="t", after=["one"])

    with pytest.raises(InvalidArgument, match="'one' → 'one'"):
        flow.plan()


def test_names_are_unique_and_must_exist() -> None:
    flow = Workflow("names")
    flow.task("fitment", agent="A", task_type="t")

    with pytest.raises(InvalidArgument, match="has a task 'fitment' already"):
        flow.task("fitment", agent="A", task_type="t")
    flow.task("price", agent="A", task_type="t", after=["fitmnet"])
    with pytest.raises(InvalidArgument, match=r"does not have.*fitment"):
        flow.plan()


@pytest.mark.parametrize("name", ["", "  ", None, 7, "x" * 201, "a\0b"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument):
        Workflow("w").task(name, agent="A", task_type="t")
    with pytest.raises(InvalidArgument):
        Workflow("w").task("t", agent=name, task_type="t")


def test_a_task_needs_a_function_or_an_agent_and_its_task_type() -> None:
    def plain() -> None: ...

    flow = Workflow("w")
    app = tenure.App("sqlite:///never.db")
    known = app.job(plain)
    with pytest.raises(
        InvalidArgument, match=r"'a' needs what does it: a function .* or both `agent=` and `task_type=`"
    ):
        flow.task("a", agent="A")
    with pytest.raises(InvalidArgument, match=r"<function .*plain.* is no function of `@app\.job`"):
        flow.task("a", plain)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="leave out `agent` and `task_type`"):
        flow.task("a", known, agent="A")
    assert not flow.tasks


def test_a_workflow_without_tasks_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no tasks"):
        Workflow("empty").plan()


def test_the_limit_of_tasks_is_told_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MAX_TASKS", 10)
    flow = Workflow("many")
    for number in range(10):
        flow.task(f"t{number}", agent="A", task_type="t")

    with pytest.raises(InvalidArgument, match=r"10 tasks, which is the limit.*Nothing was written"):
        flow.task("one more", agent="A", task_type="t")


def test_the_limit_of_edges_is_told_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MAX_EDGES", 10)
    flow = Workflow("many")
    first = [flow.task(f"a{number}", agent="A", task_type="t") for number in range(4)]
    for number in range(3):
        flow.task(f"b{number}", agent="A", task_type="t", after=first)

    with pytest.raises(InvalidArgument, match="more than 10 dependencies"):
        flow.plan()


def test_a_hundred_thousand_tasks_are_laid_out_in_linear_time() -> None:
    flow = Workflow("large")
    for number in range(100_000):
        before = {f"t{number * 7 % number}", f"t{number // 2}", f"t{number - 1}"} if number else set()
        flow.task(f"t{number}", agent="A", task_type="t", after=before)

    begun = time.process_time()
    plan = flow.plan()

    assert plan.depths[-1] == 99_999
    assert 200_000 < len(plan.edges) <= 300_000
    assert time.process_time() - begun < 20  # quadratic would take hours


@pytest.mark.parametrize(
    ("threshold", "failed", "total", "expected"),
    [
        (FailureThreshold(share=0.05), 49, 1000, False),
        (FailureThreshold(share=0.05), 50, 1000, True),
        (FailureThreshold(share=0.05), 51, 1000, True),
        (FailureThreshold(share=0.07), 7, 100, True),
        (FailureThreshold(share=0.07), 6, 100, False),
        (FailureThreshold(share=1.0), 0, 0, False),
        (FailureThreshold(count=1), 0, 10, False),
        (FailureThreshold(count=1), 1, 10, True),
        (FailureThreshold(count=3), 2, 10, False),
    ],
)
def test_a_threshold_is_reached_at_its_number(
    threshold: FailureThreshold, failed: int, total: int, expected: bool
) -> None:
    assert is_reached(threshold.spec(), failed=failed, ended=total, total=total) is expected


def test_a_share_is_judged_only_once_enough_have_ended() -> None:
    threshold = FailureThreshold(share=0.05, at_least=20)

    assert not is_reached(threshold.spec(), failed=10, ended=19, total=100)
    assert is_reached(threshold.spec(), failed=10, ended=20, total=100)


@pytest.mark.parametrize(
    "wrong",
    [
        *({}, {"count": 1, "share": 0.5}, {"count": 0}, {"share": 0.0}, {"share": 1.1}, {"count": 1, "at_least": -1}),
        *({"count": 10**9}, {"count": 1.5}, {"count": True}, {"count": "5"}, {"share": "5 %"}, {"share": True}),
        *({"share": float("nan")}, {"share": 0.1, "at_least": 0.5}, {"share": 0.1, "at_least": 10**9}),
    ],
)
def test_a_threshold_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match="threshold"):
        FailureThreshold(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "threshold", [FailureThreshold(count=1), FailureThreshold(count=999_999_999), FailureThreshold(share=1e-9)]
)
def test_what_a_threshold_says_is_one(threshold: FailureThreshold) -> None:
    assert is_threshold(threshold.spec())


@pytest.mark.parametrize("wrong", [3600, timedelta(), timedelta(seconds=-1), timedelta.max, "1 h"])
def test_a_duration_that_no_store_can_hold_is_refused(wrong: timedelta) -> None:
    with pytest.raises(InvalidArgument, match="deadline is a timedelta"):
        Workflow("w", deadline=wrong)
    with pytest.raises(InvalidArgument, match="`after` is a timedelta"):
        Escalation(person="ops", after=wrong)


@pytest.mark.parametrize(
    "settings", [{"fail": 3}, {"escalate_to": "ops"}, {"escalate_to": ["ops"]}, {"escalate_to": 7}], ids=str
)
def test_a_policy_of_another_type_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match=r"is an? (FailureThreshold|Escalation)"):
        Workflow("w", **settings)  # type: ignore[arg-type]


def test_one_task_to_wait_for_need_not_be_in_a_list() -> None:
    flow = Workflow("w")
    first = flow.task("first", agent="A", task_type="t")
    flow.task("second", agent="A", task_type="t", after=first)
    flow.task("third", agent="A", task_type="t", after=first.ended)
    flow.task("fourth", agent="A", task_type="t", after="second")

    assert sorted(flow.plan().edges) == [(0, 1, "ok"), (0, 2, "ended"), (1, 3, "ok")]
    with pytest.raises(InvalidArgument, match="takes tasks"):
        flow.task("fifth", agent="A", task_type="t", after=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"agent": "A"},
        {"agent": "A", "person": "ops", "task_type": "t"},
        {"person": "ops", "after": timedelta()},
        {"agent": "A", "task_type": "t", "then_person": "ops"},
    ],
)
def test_an_escalation_that_makes_no_sense_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument):
        Escalation(**wrong)  # type: ignore[arg-type]


def test_a_ladder_has_at_most_five_levels_and_each_but_the_last_ends() -> None:
    hour = timedelta(hours=1)
    with pytest.raises(InvalidArgument, match="at most 5"):
        Workflow("w", on_breach="escalate", escalate_to=[Escalation(person=f"p{n}", after=hour) for n in range(6)])
    with pytest.raises(InvalidArgument, match="every level but the last"):
        Workflow("w", on_breach="escalate", escalate_to=[Escalation(person="a"), Escalation(person="b")])
    with pytest.raises(InvalidArgument, match="needs `escalate_to`"):
        Workflow("w", on_breach="escalate")

    flow = Workflow(
        "w",
        on_breach="escalate",
        escalate_to=Escalation(agent="Supervisor", task_type="review", then_person="ops", after=hour),
    )

    assert flow.ladder() == [
        {"to": "agent", "queue": "Supervisor", "kind": "review", "after": 3600.0},
        {"person": "ops", "after": None},
    ]


def test_a_fan_out_waits_for_the_task_whose_result_it_reads() -> None:
    flow = Workflow("fan")
    norm = flow.task("norm", agent="A", task_type="t")
    made = flow.each("pictures", agent="P", task_type="resize", over=norm.result["pictures"][0], tolerate="10%")

    assert made.after == (("norm", "ok"),)
    assert made.fan_out() == {"of": "norm", "path": ["pictures", 0], "tolerate_ppm": 100_000}


@pytest.mark.parametrize("tolerate", ["ten", "101%", "-1%", -1, True, "%"])
def test_a_tolerance_that_makes_no_sense_is_refused(tolerate: str) -> None:
    flow = Workflow("fan")
    norm = flow.task("norm", agent="A", task_type="t")

    with pytest.raises(InvalidArgument, match="tolerate"):
        flow.each("x", agent="P", task_type="t", over=norm.result, tolerate=tolerate)


def test_pictures_quote_what_would_break_them() -> None:
    graph = Graph(
        [Node("1", 'say "hi"', "A", "t", "queued", 0), Node("2", "b", "A", "t", "dead", 1)], [("1", "2", "ended")], {}
    )

    assert '[label="say \\"hi\\"\\nA · queued"' in graph.to_dot()
    assert "t0 -> t1 [style=dashed]" in graph.to_dot()
    assert 't0["say #quot;hi#quot;<br/>A · queued"]' in graph.to_mermaid()
    assert "t0 -.-> t1" in graph.to_mermaid()


def test_the_names_are_public() -> None:
    assert tenure.Workflow is Workflow
    assert tenure.FailureThreshold is FailureThreshold
    assert tenure.Escalation is Escalation
