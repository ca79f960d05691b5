"""The rules of durable steps, without a store: what is called, what is recorded, and what is refused before that."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel

import tenure
from tenure.errors import HandlerError, InvalidArgument
from tenure.handler.context import Context, Flag, WorkerServices
from tenure.handler.payload import payload_codec
from tenure.handler.registry import Handler
from tenure.handler.signals import Parked, Permanent
from tenure.handler.steps import Record
from tenure.model.ids import JobId, Token, WorkerId, new_job_id
from tenure.model.job import Grant
from tenure.model.step import NewStep, Step

pytestmark = pytest.mark.anyio


NO_JOB = JobId("")


@dataclass
class Desk:
    """Keeps steps as a store does: the first record of a key stays, an open one may be closed once."""

    rows: dict[str, Step] = field(default_factory=dict)
    records: list[tuple[str, ...]] = field(default_factory=list)
    version: str | None = None
    is_durable: bool = True

    def answer(self, context: Context, question: Any) -> list[Step]:
        assert isinstance(question, Record)
        self.records.append(tuple(step.key for step in question.steps))
        return [self.put(step, context.id) for step in question.steps]

    async def aanswer(self, context: Context, question: Any) -> list[Step]:
        return self.answer(context, question)

    def put(self, new: NewStep, job_id: JobId = NO_JOB) -> Step:
        known = self.rows.get(new.key)
        if known is None or (known.state == "open" and new.state != "open"):
            at = datetime.now(UTC)
            ordinal = len(self.rows) + 1 if known is None else known.ordinal
            known = Step(
                job_id, new.key, ordinal, new.kind, new.state, Token(1), new.value, new.error, new.awaits, None, at, at
            )
            self.rows[new.key] = known
        return known

    def attempt(self) -> Context:
        """A new attempt of the job, with what is on record."""
        encode, decode = payload_codec(Any, "k")
        handler = Handler(
            "k", "default", print, "async", decode, encode, is_durable=self.is_durable, version=self.version
        )
        grant = Grant(
            new_job_id(), "default", "k", Token(1), 1, 3, "{}", 0, WorkerId("w"),
            steps=tuple(self.rows.values()),
        )  # fmt: skip
        services = WorkerServices(
            Flag(), lambda _: handler, lambda _: None, lambda _: None, flow=self.answer, aflow=self.aanswer
        )
        context = Context(grant, services)
        if self.is_durable:
            context.journal.settle_in()
        return context


@dataclass
class Calls:
    """A function that counts its calls."""

    value: Any = 1
    errors: list[Exception] = field(default_factory=list)
    count: int = 0

    def __call__(self, *args: Any) -> Any:
        self.count += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.value(*args) if callable(self.value) else self.value


async def test_a_step_is_called_once_and_read_back_by_later_attempts() -> None:
    desk, call = Desk(), Calls({"eur": 3})

    async def quote() -> Any:
        return call()

    first = await desk.attempt().step("quote", quote)
    second = await desk.attempt().step("quote", quote)

    assert first == second == {"eur": 3}
    assert call.count == 1


def test_a_step_of_a_sync_handler_blocks() -> None:
    desk, call = Desk(), Calls(lambda part: [part, 2])

    assert desk.attempt().step("quote", call, "disc", key="disc") == ["disc", 2]
    assert desk.attempt().step("quote", call, "disc", key="disc") == ["disc", 2]
    assert call.count == 1
    assert list(desk.rows) == ["quote/disc"]


def test_a_coroutine_function_may_be_the_step_of_a_sync_handler() -> None:
    async def quote() -> int:
        await asyncio.sleep(0)
        return 7

    assert Desk().attempt().step("quote", quote) == 7


def test_a_step_that_raises_is_not_recorded() -> None:
    desk, call = Desk(), Calls(5, [ValueError("no")])

    with pytest.raises(ValueError, match="no"):
        desk.attempt().step("a", call)

    assert not desk.rows
    assert desk.attempt().step("a", call) == 5


def test_the_value_is_in_terms_of_json_the_first_time_too() -> None:
    assert Desk().attempt().step("a", lambda: {"t": (1, 2)}) == {"t": [1, 2]}


def test_a_repeated_key_is_refused_and_the_message_says_how_to_tell_steps_apart() -> None:
    context = Desk().attempt()
    context.step("fetch", lambda: 1)

    with pytest.raises(tenure.RepeatedStep, match="key="):
        context.step("fetch", lambda: 2)

    assert context.step("fetch", lambda: 3, key=3) == 3


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), b"x", "x" * 2_000_000, {1: 2}])
def test_a_value_that_no_store_can_hold_is_a_permanent_error_and_nothing_is_written(value: Any) -> None:
    desk = Desk()

    with pytest.raises(Permanent, match="Step 'a'"):
        desk.attempt().step("a", lambda: value, retries=3)

    assert not desk.records


@pytest.mark.parametrize("name", ["", "a/b", "$a", " a", "x" * 400, None])
def test_a_name_that_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidArgument):
        Desk().attempt().step(name, lambda: 1)


class Quote(BaseModel):
    eur: int


class NewQuote(BaseModel):
    eur: int
    currency: str


@pytest.mark.parametrize("key", [len, {"a", "b"}, object(), 0.1, ("a", 1)], ids=lambda key: type(key).__name__)
def test_a_key_whose_text_may_change_is_refused(key: Any) -> None:
    """With an address in its key a step ran again in every attempt, and a map created all its children anew."""
    desk = Desk()
    calls: list[Callable[[Context], Any]] = [
        lambda ctx: ctx.step("a", int, key=key),
        lambda ctx: ctx.map("a", "k", [1], key=key),
        lambda ctx: ctx.gather(ctx.spawn("a", "k", 1), key=key),
        lambda ctx: ctx.wait_for("a", key=key),
        lambda ctx: ctx.on_failure("a", print, key=key),
        lambda ctx: ctx.approve("a", args=1, key=key),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument, match="text may be another in the next attempt"):
            call(desk.attempt())
    assert desk.records == []


def test_a_call_without_its_name_is_told_how_to_write_it() -> None:
    with pytest.raises(
        InvalidArgument, match=r'The first argument is a name, .* got 60\. Write .*ctx\.sleep\("pause", 60\)'
    ):
        Desk().attempt().sleep(60)  # type: ignore[arg-type]


def test_a_typed_step_answers_its_type_in_every_attempt() -> None:
    desk = Desk()

    assert desk.attempt().step("q", lambda: {"eur": 3}, returns=Quote) == Quote(eur=3)
    assert desk.attempt().step("q", lambda: Quote(eur=4), returns=Quote) == Quote(eur=3)


def test_a_recorded_value_that_does_not_fit_any_more_is_a_stale_step() -> None:
    desk = Desk()
    desk.attempt().step("q", lambda: Quote(eur=3), returns=Quote)

    with pytest.raises(tenure.StaleStep, match="'q'"):
        desk.attempt().step("q", lambda: Quote(eur=3), returns=NewQuote)


def test_a_value_that_does_not_fit_when_it_is_made_is_not_recorded() -> None:
    desk = Desk()

    with pytest.raises(Permanent, match="does not fit Quote"):
        desk.attempt().step("q", lambda: {"usd": 3}, returns=Quote)

    assert not desk.records


def test_a_step_is_tried_again_within_the_attempt() -> None:
    call = Calls(5, [OSError("1"), OSError("2")])

    assert Desk().attempt().step("a", call, retries=2) == 5
    assert call.count == 3


def test_an_end_that_the_step_chose_is_not_tried_again() -> None:
    call = Calls(5, [tenure.Snooze(9)])

    with pytest.raises(tenure.Snooze):
        Desk().attempt().step("a", call, retries=5)

    assert call.count == 1


async def test_a_step_that_takes_too_long_is_stopped() -> None:
    async def slow() -> None:
        await asyncio.sleep(60)

    with pytest.raises(tenure.StepTimeout, match="'a'"):
        await Desk().attempt().step("a", slow, timeout=0.01)


def test_a_step_in_a_thread_that_takes_too_long_is_left_behind() -> None:
    stuck = threading.Event()

    with pytest.raises(tenure.StepTimeout, match="'a'"):
        Desk().attempt().step("a", stuck.wait, 60, timeout=0.01)

    stuck.set()


async def test_a_timeout_of_the_functions_own_stays_its_own() -> None:
    async def fail() -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine") as caught:
        await Desk().attempt().step("a", fail, timeout=60)

    assert not isinstance(caught.value, tenure.StepTimeout)


def test_durable_calls_need_a_durable_handler() -> None:
    with pytest.raises(HandlerError, match="durable=True"):
        Desk(is_durable=False).attempt().step("a", lambda: 1)


# --- waits ---


def parked(call: Callable[[], Any]) -> tuple[NewStep, ...]:
    with pytest.raises(Parked) as caught:
        call()
    return caught.value.parking.steps


def test_a_long_sleep_gives_the_slot_back_and_is_over_once_its_step_is_done() -> None:
    desk = Desk()

    (step,) = parked(lambda: desk.attempt().sleep("cool-off", hours=2, minutes=1))
    assert (step.key, step.kind, step.state, step.due_seconds) == ("cool-off", "sleep", "open", 7260.0)
    desk.put(step)
    parked(lambda: desk.attempt().sleep("cool-off", hours=2))  # woken for another reason
    desk.put(NewStep("cool-off", "sleep", "done"))
    desk.attempt().sleep("cool-off", hours=2)


def test_a_short_sleep_stays_in_the_process_and_is_recorded_with_the_next_step() -> None:
    desk = Desk()
    context = desk.attempt()

    context.sleep("breathe", 0.01)
    assert not desk.records
    context.step("a", lambda: 1)

    assert desk.records == [("breathe", "a")]


def test_except_exception_does_not_catch_a_wait_and_no_step_runs_after_one_that_was_caught() -> None:
    context = Desk().attempt()
    called = Calls()

    def careless() -> None:
        try:
            context.wait_for("paid")
        except Exception:  # noqa: BLE001 - what this test is about
            called()

    with pytest.raises(Parked):
        careless()
    with pytest.raises(Parked):
        context.step("a", called)

    assert not called.count
    assert context.parked is not None


async def test_a_wait_inside_a_step_is_refused() -> None:
    context = Desk().attempt()

    async def nested() -> None:
        await context.wait_for("paid")

    with pytest.raises(HandlerError, match=r"inside step 'a'"):
        await context.step("a", nested)


def test_a_step_inside_a_step_is_refused_in_a_thread_too() -> None:
    context = Desk().attempt()

    with pytest.raises(HandlerError, match=r"inside step 'a'"):
        context.step("a", lambda: context.step("b", lambda: 1))


async def test_two_waits_at_once_are_refused_and_two_steps_are_not() -> None:
    context = Desk().attempt()

    with pytest.raises(HandlerError, match="not its own"):
        await asyncio.gather(context.wait_for("a"), context.sleep("b", hours=1))
    assert context.parked is None
    assert [*await asyncio.gather(context.step("x", lambda: 1), context.step("y", lambda: 2))] == [1, 2]


def test_a_signal_answers_its_value() -> None:
    desk = Desk()
    (step,) = parked(lambda: desk.attempt().wait_for("paid:7", timeout=60))
    assert (step.key, step.awaits, step.due_seconds) == ("wait/paid:7", "signal:paid:7", 60.0)

    desk.put(NewStep("wait/paid:7", "signal", "done", value='{"eur": 3}'))

    assert desk.attempt().wait_for("paid:7", timeout=60) == {"eur": 3}
    assert desk.attempt().wait_for("paid:7", returns=Quote) == Quote(eur=3)


def test_a_wait_that_timed_out_answers_its_default_or_raises() -> None:
    desk = Desk()
    desk.put(NewStep("wait/paid", "signal", "failed", error="timeout"))

    assert desk.attempt().wait_for("paid", timeout=60, default=None) is None
    with pytest.raises(tenure.WaitTimeout, match="'paid'"):
        desk.attempt().wait_for("paid", timeout=60)


def test_which_of_two_signals_came_first_is_recorded_and_the_other_is_not_waited_for_any_more() -> None:
    desk = Desk()
    steps = parked(lambda: desk.attempt().wait_for("a", "b"))
    assert [step.awaits for step in steps] == ["signal:a", "signal:b"]
    for step in steps:
        desk.put(step)
    desk.put(NewStep("wait/a|b:1", "signal", "done", value="5"))

    assert desk.attempt().wait_for("a", "b") == tenure.Received("b", 5)
    assert desk.rows["wait/a|b:0"].state == "failed"
    assert desk.attempt().wait_for("a", "b") == tenure.Received("b", 5)
    assert len(desk.records) == 1


def test_two_signals_that_both_time_out_are_one_timeout() -> None:
    desk = Desk()
    for place in (0, 1):
        desk.put(NewStep(f"wait/a|b:{place}", "signal", "failed", error="timeout"))

    assert desk.attempt().wait_for("a", "b", default="none") == "none"
    assert desk.attempt().wait_for("a", "b", default="none") == "none"


# --- marks ---


def test_what_is_drawn_is_the_same_in_every_attempt_once_a_step_was_recorded() -> None:
    desk = Desk()
    context = desk.attempt()
    drawn = context.now(), context.uuid("order"), context.random()
    context.step("a", lambda: 1)

    again = desk.attempt()

    assert (again.now(), again.uuid("order"), again.random()) == drawn
    assert desk.records == [("$now", "$uuid/order", "$random", "a")]


def test_the_version_under_which_a_job_began_is_kept() -> None:
    desk = Desk(version="1")
    desk.attempt().step("a", lambda: 1)
    desk.version = "2"

    assert desk.attempt().version == "1"
    assert Desk(version="2").attempt().version == "2"


def test_a_job_that_began_before_there_was_a_version_has_none() -> None:
    desk = Desk()
    desk.attempt().step("a", lambda: 1)
    desk.version = "2"

    assert desk.attempt().version is None


def test_changed_code_is_taken_by_jobs_that_have_not_passed_the_place() -> None:
    past, before = Desk(), Desk()
    for desk in (past, before):
        desk.attempt().step("a", lambda: 1)
    past_attempt = past.attempt()
    past_attempt.step("a", lambda: 1)
    past_attempt.step("b", lambda: 2)

    for _ in range(2):
        old, new = past.attempt(), before.attempt()
        for context in (old, new):
            context.step("a", lambda: 1)
        assert not old.changed("use-baz")
        assert new.changed("use-baz")
        new.step("c", lambda: 3)  # recorded after the place, which must not turn it back


def test_the_place_of_a_change_may_be_named() -> None:
    desk = Desk()
    context = desk.attempt()
    context.step("a", lambda: 1)
    context.step("b", lambda: 1)

    assert not desk.attempt().changed("x", after="a")
    assert desk.attempt().changed("x", after="b")


# --- children and undos ---


def test_children_are_created_with_the_wait_for_them() -> None:
    desk = Desk()
    context = desk.attempt()
    one, two = context.spawn("fit", "Fit", {"n": 1}), context.spawn("seo", "Seo", {"n": 2})

    with pytest.raises(Parked) as caught:
        context.gather(one, two, tolerate="50%")

    (group,) = caught.value.parking.groups
    assert [json.loads(job.payload) for job in group.jobs] == [{"n": 1}, {"n": 2}]
    assert {job.parent_id for job in group.jobs} == {context.id}
    assert (group.tolerate, group.fail_fast, group.step_key) == (1, False, "gather/spawn/fit+spawn/seo")
    assert not desk.records
    assert context.left_over() == ()


def test_a_child_that_is_not_gathered_goes_along_with_the_completion() -> None:
    context = Desk().attempt()
    child = context.spawn("fit", "Fit")

    assert [job.id for job in context.left_over()] == [child.id]


def test_the_share_of_failures_is_rounded_down_and_needs_a_length() -> None:
    from tenure.handler.children import tolerated

    assert [tolerated("5%", n) for n in (19, 20, 1000)] == [0, 1, 50]
    assert (tolerated("0.57%", 10_000), tolerated("0.29%", 100_000)) == (57, 290)  # in floats one less
    assert tolerated(3, None) == 3
    for bad in ("5", "101%", "-1%", -1, 2.5):
        with pytest.raises(InvalidArgument):
            tolerated(bad, 10)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="list"):
        tolerated("5%", None)


def test_a_bad_item_of_a_map_is_refused_before_anything_is_written() -> None:
    desk = Desk()

    with pytest.raises(tenure.InvalidPayload):
        desk.attempt().map("all", "Child", [*range(1500), {1, 2}])

    assert not desk.records


def test_a_map_over_nothing_waits_for_nothing() -> None:
    assert Desk().attempt().map("all", "Child", []).counts == {"total": 0, "succeeded": 0, "failed": 0, "cancelled": 0}


def test_an_undo_is_on_record_before_the_step_that_it_undoes_begins() -> None:
    desk = Desk()
    context = desk.attempt()
    context.on_failure("release", lambda: None)

    with pytest.raises(ValueError, match="crash"):
        context.step("hold", Calls(1, [ValueError("crash")]))

    assert desk.records == [("undo/release",)]
    assert desk.rows["undo/release"].state == "armed"
