"""An effect is written down before it is done: after any crash it is read back, verified, or left to a person."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import tenure
from tenure.effects import EffectCall, NotDone, Verdict, effect
from tenure.handler.ledger import EffectReused
from tenure.store.contract import Heartbeat, Hold
from tenure.testing import adrain, crash_at
from tests.worker.conftest import url  # noqa: F401 - a fixture

pytestmark = pytest.mark.anyio


class Killed(BaseException):
    """Stands for a process that dies in the middle of a call: nothing after it runs, and nothing is recorded."""


@dataclass
class Sink:
    """The world outside. What arrives is what happened, whether or not the caller learns of it."""

    lose: list[BaseException | None] = field(default_factory=list)
    """What each call raises after it has arrived; None, and all calls after the last, are answered."""
    calls: list[EffectCall] = field(default_factory=list)

    def __call__(self, call: EffectCall) -> dict[str, Any]:
        self.calls.append(call)
        trouble = self.lose[len(self.calls) - 1] if len(self.calls) <= len(self.lose) else None
        if trouble is not None:
            raise trouble
        return {"id": len(self.calls), "args": call.args}

    def has(self, call: EffectCall) -> Verdict:
        found = [number for number, one in enumerate(self.calls, 1) if one.key == call.key]
        return Verdict(bool(found), {"id": found[0]} if found else None)


@pytest.fixture
async def app(url: str) -> AsyncIterator[tenure.App]:  # noqa: F811
    app = tenure.App(url)
    app.queues.set("default", backoff=tenure.Backoff(shape="none"))
    yield app
    await app.aio.close()


Build = Callable[..., Callable[..., Any]]


@pytest.fixture(params=["async", "sync"])
def build(request: pytest.FixtureRequest) -> Build:
    """A handler around one effect, async or sync, with something to do after it."""

    def make(sink: Sink, after: Callable[[tenure.Context], None] | None = None, **settings: Any) -> Callable[..., Any]:
        async def handler(ctx: tenure.Context) -> Any:
            answer = await ctx.effect("mail", settings.get("args", {"to": 7}), do=sink, **_rest(settings))
            if after is not None:
                after(ctx)
            return answer

        def sync_handler(ctx: tenure.Context) -> Any:
            answer = ctx.effect("mail", settings.get("args", {"to": 7}), do=sink, **_rest(settings))
            if after is not None:
                after(ctx)
            return answer

        return handler if request.param == "async" else sync_handler

    return make


def _rest(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "args"}


async def run(app: tenure.App, handler: Callable[..., Any], **options: Any) -> tenure.Job:
    """Enqueue one job for the handler and run until nothing is due."""
    app.job(kind="work")(handler)
    job_id = app.enqueue("work", **options).id
    await adrain(app, raise_errors=False)
    return app.get(job_id)


def fail_in_attempts(*attempts: int) -> Callable[[tenure.Context], None]:
    def after(ctx: tenure.Context) -> None:
        if ctx.attempt in attempts:
            raise RuntimeError("after the effect")

    return after


async def test_an_effect_is_recorded_around_its_call(app: tenure.App, build: Build) -> None:
    sink = Sink()
    seen: list[str] = []

    def do(call: EffectCall) -> dict[str, Any]:
        seen.extend(row.state for row in app.effects.all(job_id=call.job_id))
        return sink(call)

    job = await run(app, build(do))

    assert job.result == {"id": 1, "args": {"to": 7}}
    assert seen == ["sent"]
    (row,) = app.effects.all(job_id=job.id)
    assert (row.state, row.name, row.args, row.result) == ("confirmed", "mail", {"to": 7}, job.result)
    assert (sink.calls[0].key, sink.calls[0].token) == (row.key, job.token)
    assert job.id in row.key


async def test_a_confirmed_effect_is_read_back_and_not_done_again(app: tenure.App, build: Build) -> None:
    sink = Sink()

    job = await run(app, build(sink, fail_in_attempts(1, 2)))

    assert (job.state, job.attempt, job.result["id"], len(sink.calls)) == ("succeeded", 3, 1, 1)


async def test_after_a_death_in_the_call_verify_finds_that_it_happened(app: tenure.App, build: Build) -> None:
    sink = Sink([Killed()])

    job = await run(app, build(sink, verify=sink.has))

    assert (job.state, job.attempt, job.result, len(sink.calls)) == ("succeeded", 2, {"id": 1}, 1)


async def test_what_verify_does_not_find_is_done_again_with_the_same_key_and_a_higher_token(
    app: tenure.App, build: Build
) -> None:
    sink = Sink([Killed()])

    job = await run(app, build(sink, verify=lambda _: False))

    first, second = sink.calls
    assert (job.state, first.key, second.token) == ("succeeded", second.key, first.token + 1)


async def test_a_lost_reply_is_verified_by_the_next_attempt(app: tenure.App, build: Build) -> None:
    sink = Sink([ConnectionError("the line went dead, password=hunter2")])

    job = await run(app, build(sink, verify=sink.has))

    assert (job.state, job.attempt, len(sink.calls)) == ("succeeded", 2, 1)
    (row,) = app.effects.all(job_id=job.id)
    assert row.state == "confirmed"
    assert "hunter2" not in repr(row)


@pytest.mark.parametrize("death", [ConnectionError("the line went dead"), Killed()], ids=["error", "killed"])
async def test_without_verify_a_doubt_is_left_to_a_person_and_nothing_is_sent_again(
    app: tenure.App, build: Build, death: BaseException
) -> None:
    sink = Sink([death])

    job = await run(app, build(sink))

    assert (job.state, job.waiting_for, len(sink.calls)) == ("waiting", f"effect:{job.id}:mail", 1)
    (row,) = app.effects.all(job_id=job.id)
    assert row.state == "unknown"
    app.wake(job.id)  # somebody wakes it without having decided anything
    await adrain(app, raise_errors=False)
    assert (app.get(job.id).state, len(sink.calls)) == ("waiting", 1)


async def test_a_person_may_confirm_with_a_result(app: tenure.App, build: Build) -> None:
    sink = Sink([Killed()])
    job = await run(app, build(sink))

    app.effects.resolve(job.id, "mail", "confirmed", actor="ann", note="it is in the outbox", result={"id": 99})
    await adrain(app, raise_errors=False)

    assert (app.get(job.id).result, len(sink.calls)) == ({"id": 99}, 1)
    assert app.access.audit(subject=job.id)[0].reason == "it is in the outbox"


async def test_a_person_may_let_it_be_done_again(app: tenure.App, build: Build) -> None:
    sink = Sink([Killed()])
    job = await run(app, build(sink))

    await app.aio.effects.resolve(job.id, "mail", "retry", actor="ann")
    await adrain(app, raise_errors=False)

    assert (app.get(job.id).state, len(sink.calls)) == ("succeeded", 2)


async def test_a_person_may_give_it_up_and_the_job_with_it(app: tenure.App, build: Build) -> None:
    sink = Sink([Killed()])
    job = await run(app, build(sink))

    app.effects.resolve(job.id, "mail", "failed", actor="ann", note="the account is closed")
    await adrain(app, raise_errors=False)

    ended = app.get(job.id)
    assert (ended.state, ended.failure_class, len(sink.calls)) == ("failed", "permanent", 1)
    assert "given up by ann: the account is closed" in (ended.last_error or "")


async def test_a_receiver_that_knows_keys_is_called_again_with_the_same_one(app: tenure.App, build: Build) -> None:
    sink = Sink([Killed(), ConnectionError("again")])

    job = await run(app, build(sink, keyed=True))

    assert (job.state, len(sink.calls), len({call.key for call in sink.calls})) == ("succeeded", 3, 1)


@pytest.mark.parametrize("proof", [NotDone("refused"), ConnectionRefusedError("no one there"), tenure.RetryAfter(0)])
async def test_what_surely_did_not_happen_is_tried_again(app: tenure.App, build: Build, proof: Exception) -> None:
    sink = Sink([proof])

    job = await run(app, build(sink, safe_errors=(ConnectionRefusedError,)))

    assert (job.state, job.attempt, len(sink.calls)) == ("succeeded", 2, 2)


async def test_a_refusal_for_good_is_recorded_as_failed(app: tenure.App, build: Build) -> None:
    job = await run(app, build(Sink([tenure.Permanent("the account is closed")])))

    (row,) = app.effects.all(job_id=job.id)
    assert (job.state, row.state) == ("failed", "failed")


async def test_arguments_are_those_of_the_first_attempt_whatever_a_later_one_says(app: tenure.App) -> None:
    sink = Sink([NotDone()])

    async def handler(ctx: tenure.Context) -> Any:
        return await ctx.effect("mail", {"written_by_a_model": f"draft {ctx.attempt}"}, do=sink)

    job = await run(app, handler)

    assert [call.args for call in sink.calls] == [{"written_by_a_model": "draft 1"}] * 2
    assert any("other arguments" in str(event.data) for event in app.events(job_id=job.id))


async def test_one_place_for_two_effects_in_one_attempt_is_an_error(app: tenure.App) -> None:
    sink = Sink()

    def handler(ctx: tenure.Context) -> None:
        for to in (1, 2):
            ctx.effect("mail", {"to": to}, do=sink)

    job = await run(app, handler, max_attempts=1)

    assert job.state == "dead"
    assert EffectReused.__name__ in (job.last_error or "")
    assert len(sink.calls) == 1


async def test_steps_tell_effects_of_one_name_apart(app: tenure.App) -> None:
    sink = Sink()

    def handler(ctx: tenure.Context) -> list[Any]:
        return [ctx.effect("mail", {"to": to}, do=sink, step=f"to {to}")["id"] for to in (1, 2)]

    job = await run(app, handler)

    assert job.result == [1, 2]
    assert len({call.key for call in sink.calls}) == 2


async def test_an_attempt_that_lost_its_lease_sends_nothing(app: tenure.App) -> None:
    sink = Sink()

    def handler(ctx: tenure.Context) -> None:
        if ctx.token == 1:  # somebody else takes the job while this attempt sleeps
            app.store.do(Heartbeat([Hold(ctx.id, ctx.token)]))
            app.workers.remove([ctx.job.worker])
        ctx.effect("mail", do=sink)

    job = await run(app, handler)

    assert (job.state, [call.token for call in sink.calls]) == ("succeeded", [2])


async def test_a_database_that_loses_the_reply_to_a_record_is_asked_again(app: tenure.App, build: Build) -> None:
    sink = Sink()

    def do(call: EffectCall) -> dict[str, Any]:
        answer = sink(call)
        lost.__enter__()
        return answer

    lost = crash_at("after_commit_before_reply", error=lambda: tenure.StoreUnavailable("the reply was lost"))
    try:
        job = await run(app, build(do))
    finally:
        lost.__exit__(None, None, None)

    assert (job.state, job.attempt, len(sink.calls)) == ("succeeded", 1, 1)


async def test_a_verify_that_says_neither_yes_nor_no_is_an_error(app: tenure.App, build: Build) -> None:
    job = await run(app, build(Sink([Killed()]), verify=lambda _: None), max_attempts=2)

    assert job.state == "dead"
    assert "True, False or a tenure.Verdict" in (job.last_error or "")


async def test_a_result_that_is_not_json_is_not_done_again(app: tenure.App, build: Build) -> None:
    calls = []

    def do(call: EffectCall) -> object:
        calls.append(call)
        return object()

    job = await run(app, build(do))

    assert (job.state, len(calls)) == ("failed", 1)
    (row,) = app.effects.all(job_id=job.id)
    assert row.state == "confirmed"


async def test_an_async_effect_in_an_async_handler_and_in_a_sync_one(app: tenure.App) -> None:
    async def do(call: EffectCall) -> str:
        return call.name

    async def handler(ctx: tenure.Context) -> str:
        return await ctx.effect("mail", do=do)

    def sync_handler(ctx: tenure.Context) -> Any:
        return ctx.effect("mail", do=do)

    app.job(kind="sync")(sync_handler)
    other = app.enqueue("sync").id
    job = await run(app, handler)

    assert (job.result, app.get(other).result) == ("mail", "mail")


async def test_an_effect_may_be_declared_as_a_function(app: tenure.App) -> None:
    sink = Sink([Killed()])

    @effect()
    def send(call: EffectCall) -> dict[str, Any]:
        return sink(call)

    @send.verify
    def has(call: EffectCall) -> Verdict:
        return sink.has(call)

    async def handler(ctx: tenure.Context) -> Any:
        return await send(ctx, {"to": 7})

    app.use(send)
    job = await run(app, handler)

    assert (job.result, len(sink.calls)) == ({"id": 1}, 1)
    assert app.registry.verifiers == {"send": has}


async def test_rate_limited_spends_no_attempt(app: tenure.App) -> None:
    async def handler() -> None:
        raise tenure.RateLimited(600, "429")

    job = await run(app, handler)

    assert (job.state, job.attempt) == ("queued", 0)
    (attempt,) = app.attempts(job.id)
    assert (attempt.outcome, attempt.failure_class) == ("released", "rate_limited")


def isolated_mail(ctx: tenure.Context) -> Any:
    def do(call: EffectCall) -> str:
        if ctx.attempt == 1:
            raise ConnectionError("lost")
        return f"{call.key} {call.token}"

    return ctx.effect("mail", {"to": 7}, do=do, verify=lambda _: False)


async def isolated_mail_async(ctx: tenure.Context) -> Any:
    def do(call: EffectCall) -> str:
        return f"{call.key} {call.token}"

    return await ctx.effect("mail", {"to": 7}, do=do)


isolated_app = tenure.App()
isolated_app.job(isolate=True)(isolated_mail)
isolated_app.job(isolate=True)(isolated_mail_async)


async def test_a_handler_in_a_process_of_its_own_keeps_the_ledger_too(url: str) -> None:  # noqa: F811
    with isolated_app.pointed_at(url) as app:
        app.queues.set("default", backoff=tenure.Backoff(shape="none"))
        jobs = [app.enqueue("isolated_mail").id, app.enqueue("isolated_mail_async").id]
        await adrain(app, concurrency=2, raise_errors=False)

        for job_id, token in zip(jobs, (2, 1), strict=True):
            (row,) = app.effects.all(job_id=job_id)
            assert (row.state, row.result) == ("confirmed", f"{row.key} {token}")
            assert app.get(job_id).result == row.result
