"""Operations of App and of its async view, on real stores of both engines."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pydantic
import pytest

import tenure
from tenure.model.ids import new_job_id
from tenure.testing import ManualClock, temporary_app
from tests.conformance.engines import clocked_database

pytestmark = pytest.mark.anyio


class Welcome(pydantic.BaseModel):
    user_id: int


class Acts:
    """A client, sync or async, whose operations are awaited in either case."""

    def __init__(self, app: tenure.App, client: Any) -> None:
        self.app = app
        self._client = client

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if not callable(found):
            return Acts(self.app, found)

        async def call(*args: Any, **kwargs: Any) -> Any:
            answer = found(*args, **kwargs)
            return await answer if inspect.isawaitable(answer) else answer

        return call


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def app(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[tenure.App]:
    if request.param == "sqlite":
        with temporary_app(clock=clock) as app:
            yield app
        return
    with clocked_database(request.getfixturevalue("postgres_server"), clock) as url, tenure.App(url) as app:
        yield app


@pytest.fixture(params=["sync", "async"])
async def acts(request: pytest.FixtureRequest, app: tenure.App) -> Any:
    yield Acts(app, app if request.param == "sync" else app.aio)
    await app.aio.close()


async def test_a_job_goes_from_enqueue_to_success(acts: Acts, clock: ManualClock) -> None:
    enqueued = await acts.enqueue("welcome", {"user_id": 7}, priority=3, actor="me")

    (grant,) = await acts.claim(worker="w1", limit=5, lease_seconds=timedelta(seconds=30))
    settled = await acts.complete(grant, {"ok": True}, summary="fine")

    assert (grant.id, grant.payload, grant.worker, grant.attempt) == (enqueued.id, {"user_id": 7}, "w1", 1)
    assert grant.lease_until == clock.now() + timedelta(seconds=30)
    assert settled.state == "succeeded"
    job = await acts.get(enqueued.id)
    assert (job.state, job.result, job.result_summary, job.priority) == (
        tenure.State.SUCCEEDED,
        {"ok": True},
        "fine",
        3,
    )
    assert (job.finished_at, job.actor) == (clock.now(), "me")


async def test_a_worker_that_lost_its_lease_is_told_by_every_end(acts: Acts, clock: ManualClock) -> None:
    await acts.enqueue("kind", max_attempts=9)
    (old,) = await acts.claim(worker="old", lease_seconds=10)
    clock.advance(11)
    await acts.reap()

    ends: list[Callable[[], Any]] = [
        lambda: acts.complete(old),
        lambda: acts.fail(old, "x"),
        lambda: acts.reject(old, "x"),
        lambda: acts.release(old),
        lambda: acts.suspend(old, "event"),
        lambda: acts.stop(old),
        lambda: acts.start(old),
        lambda: acts.complete((old.id, old.token)),
    ]
    for end in ends:
        with pytest.raises(tenure.LeaseLost) as caught:
            await end()
        assert old.id in str(caught.value)
        assert "Nothing was changed" in str(caught.value)
    beat = await acts.heartbeat([old])
    assert beat.lost == {old.id}
    assert (await acts.get(old.id)).state == "queued"


async def test_failures_are_retried_by_backoff_or_as_the_handler_says_and_end_dead(
    acts: Acts, clock: ManualClock
) -> None:
    enqueued = await acts.enqueue("kind", max_attempts=2, backoff=tenure.Backoff("constant", base_seconds=8, jitter=0))

    (first,) = await acts.claim()
    settled = await acts.fail(first, ValueError("no"), retry_after=timedelta(seconds=20))
    assert settled.state == "queued"
    assert await acts.claim() == []
    clock.advance(20)
    (second,) = await acts.claim()
    assert (await acts.fail(second, "still no")).state == "dead"

    attempts = await acts.attempts(enqueued.id)
    assert [attempt.outcome for attempt in attempts] == ["retried", "dead"]
    assert attempts[0].error.startswith("ValueError: no")
    (letter,) = await acts.dead_letters.all(queue="default")
    assert (letter.job_id, letter.final_error, letter.triage) == (enqueued.id, "still no", "pending")
    (group,) = await acts.dead_letters.groups()
    assert (group.letters, group.fingerprint) == (1, letter.fingerprint)
    assert await acts.dead_letters.triage(letter.id, "acknowledged", actor="ops", note="seen") == [letter.id]
    assert await acts.dead_letters.groups() == []
    with pytest.raises(tenure.NotFound, match="no dead letter"):
        await acts.dead_letters.triage(str(new_job_id()), "closed")

    assert (await acts.revive(enqueued.id, actor="ops", reason="fixed")).state == "queued"
    assert (await acts.access.audit(subject=enqueued.id))[0].actor == "ops"


async def test_release_and_suspend_give_the_attempt_back(acts: Acts, clock: ManualClock) -> None:
    enqueued = await acts.enqueue("kind")

    (grant,) = await acts.claim()
    assert (await acts.release(grant, delay=5, reason="shutting down")).state == "queued"
    clock.advance(5)
    (grant,) = await acts.claim()
    assert grant.attempt == 1
    assert (await acts.suspend(grant, "approval:7")).state == "waiting"
    assert await acts.claim() == []
    assert await acts.wake(waiting_for="approval:7") == [enqueued.id]
    (grant,) = await acts.claim()

    assert grant.attempt == 1
    assert grant.token == 3


async def test_rejecting_is_final_whatever_attempts_are_left(acts: Acts) -> None:
    enqueued = await acts.enqueue("kind", max_attempts=9)

    (grant,) = await acts.claim()
    settled = await acts.reject(grant, "bad payload", failure_class="invalid_payload")

    assert settled.state == "failed"
    assert (await acts.get(enqueued.id)).failure_class == "invalid_payload"
    with pytest.raises(tenure.InvalidArgument, match="Did you mean 'timeout'"):
        await acts.reject(grant, "x", failure_class="time-out")


async def test_cancelling_one_raises_and_cancelling_many_answers(acts: Acts) -> None:
    queued = (await acts.enqueue("kind")).id
    done = (await acts.enqueue("other")).id
    held = (await acts.enqueue("third")).id
    (grant,) = await acts.claim(kinds=["other"])
    await acts.complete(grant)
    (held_grant,) = await acts.claim(kinds="third")
    nobody = str(new_job_id())

    assert (await acts.cancel(queued, reason="not needed")).answer == "cancelled"
    await acts.cancel(queued)
    assert (await acts.cancel(held)).answer == "requested"
    with pytest.raises(tenure.IllegalMove, match="has ended as succeeded"):
        await acts.cancel(done)
    with pytest.raises(tenure.NotFound):
        await acts.cancel(nobody)
    answers = await acts.cancel_many([done, nobody])

    assert [(a.answer, a.state) for a in answers] == [("refused", "succeeded"), ("refused", None)]
    assert (await acts.heartbeat(held_grant)).cancel_requested == {held}
    assert (await acts.stop(held_grant)).state == "cancelled"


async def test_a_job_that_cannot_be_revived_says_why(acts: Acts, clock: ManualClock) -> None:
    await acts.queues.set("final", revive="clone", max_attempts=1)
    queued = (await acts.enqueue("kind")).id
    final = (await acts.enqueue("kind", queue="final")).id
    keyed = (await acts.enqueue("kind", key="k")).id
    await acts.cancel_many([final, keyed])
    await acts.enqueue("kind", key="k")
    reason = {"reason": "again", "actor": "ops"}

    with pytest.raises(tenure.IllegalMove, match="is queued, so it cannot be revived"):
        await acts.revive(queued, **reason)
    with pytest.raises(tenure.IllegalMove, match=r"an end is final. Make a copy with `app.clone`"):
        await acts.revive(final, **reason)
    with pytest.raises(tenure.IllegalMove, match="another job holds its key 'k'"):
        await acts.revive(keyed, **reason)
    with pytest.raises(tenure.NotFound):
        await acts.revive(str(new_job_id()), **reason)
    with pytest.raises(tenure.InvalidArgument, match="`reason` is empty"):
        await acts.revive(queued, reason="")
    assert [answer.lost for answer in await acts.revive_many([queued, final], **reason)] == [True, True]

    (copy,) = await acts.clone(final, **reason)
    assert (await acts.get(copy.id)).parent_id == final


async def test_a_job_whose_payload_was_pruned_cannot_be_revived(acts: Acts, clock: ManualClock) -> None:
    job_id = (await acts.enqueue("kind")).id
    await acts.cancel(job_id)
    clock.advance(3600)

    pruned = await acts.prune(older_than=timedelta(minutes=1))

    assert pruned.cleaned == 1
    with pytest.raises(tenure.IllegalMove, match="retention removed its payload"):
        await acts.revive(job_id, reason="again")


async def test_a_handlers_queue_is_there_from_the_first_claim(acts: Acts) -> None:
    acts.app.queue("bulk", max_attempts=7)

    @acts.app.job(queue="mail")
    def welcome(payload: Welcome) -> None: ...

    assert await acts.claim() == []
    assert {row.name for row in await acts.queues.all()} == {"default", "mail", "bulk"}
    assert (await acts.queues.all("bulk"))[0].policy.max_attempts == 7
    enqueued = welcome.options(key="welcome-7").enqueue(Welcome(user_id=7))
    assert (await welcome.options(key="welcome-7").aenqueue(Welcome(user_id=7))) == tenure.Enqueued(
        enqueued.id, duplicate=True
    )
    assert [grant.id for grant in await acts.claim()] == [enqueued.id]


async def test_an_existing_queue_keeps_what_its_operators_set(acts: Acts) -> None:
    await acts.queues.set("mail", max_attempts=2)
    acts.app.queue("mail", max_attempts=9)

    job_id = (await acts.enqueue("kind", queue="mail")).id

    assert (await acts.get(job_id)).max_attempts == 2
    row = await acts.queues.set("mail", priority_order="low")
    assert (row.policy.max_attempts, row.policy.priority_order) == (2, "low")


async def test_a_queue_that_nobody_declared_is_unknown(acts: Acts) -> None:
    with pytest.raises(tenure.UnknownQueue, match="mial"):
        await acts.enqueue("kind", queue="mial")
    with pytest.raises(tenure.UnknownQueue, match="mial"):
        await acts.claim(queues=["mial"])


async def test_many_jobs_go_in_batches_and_are_answered_in_order(acts: Acts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.client.enqueue.BATCH_JOBS", 10)
    jobs = [acts.app.new_job("kind", {"n": n % 30}, key=f"k{n % 30}") for n in range(45)]

    first = await acts.enqueue_many(jobs)
    again = await acts.enqueue_many(jobs)

    assert [answer.id for answer in first[:30]] == [job.id for job in jobs[:30]]
    assert [answer.duplicate for answer in first] == [False] * 30 + [True] * 15
    assert [answer.id for answer in first[30:]] == [job.id for job in jobs[:15]]
    assert [answer.id for answer in again] == [answer.id for answer in first]
    assert sum(count.jobs for count in await acts.queues.counts()) == 30


async def test_pairs_of_kind_and_payload_can_be_enqueued_together(acts: Acts) -> None:
    @acts.app.job(queue="mail")
    def welcome(payload: Welcome) -> None: ...

    await acts.enqueue_many([("welcome", {"user_id": 1}), ("other", [1, 2])])
    welcome.options(priority=5).enqueue_many([{"user_id": n} for n in range(3)])

    counts = {(count.queue, count.kind): count.jobs for count in await acts.queues.counts(state="queued")}
    assert counts == {("mail", "welcome"): 4, ("default", "other"): 1}
    with pytest.raises(tenure.InvalidPayload):
        await acts.enqueue_many([("welcome", {"user_id": 2}), ("welcome", {})])
    assert sum(count.jobs for count in await acts.queues.counts()) == 5


async def test_follow_ups_are_committed_with_the_completion_or_not_at_all(acts: Acts, clock: ManualClock) -> None:
    @acts.app.job(queue="next")
    def after(payload: dict[str, Any]) -> None: ...

    await acts.enqueue_many([("kind", None), ("kind", None)])
    good, late = await acts.claim(queues="default", limit=2, lease_seconds=10)

    await acts.complete(good, jobs=[after.new({"from": "good"})])
    clock.advance(11)
    with pytest.raises(tenure.LeaseLost):
        await acts.complete(late, jobs=[after.new({"from": "late"})])

    assert [job.payload for job in await acts.jobs(kind="after")] == [{"from": "good"}]


async def test_settling_a_batch_answers_each_outcome(acts: Acts) -> None:
    await acts.enqueue_many([("kind", n) for n in range(3)])
    grants = await acts.claim(limit=3)

    settled = await acts.settle(
        [
            tenure.Completed(grants[0].id, grants[0].token),
            tenure.Failed(grants[1].id, grants[1].token, "no"),
            tenure.Completed(grants[2].id, tenure.Token(99)),
        ]
    )

    assert [answer.state for answer in settled] == ["succeeded", "queued", None]


async def test_a_heartbeat_extends_the_lease_and_stores_progress(acts: Acts, clock: ManualClock) -> None:
    await acts.enqueue("kind")
    (grant,) = await acts.claim(lease_seconds=10)
    clock.advance(8)

    beat = await acts.heartbeat([grant], lease_seconds=10, progress={grant.id: {"done": 0.5}})

    assert beat == tenure.Beat()
    job = await acts.get(grant.id)
    assert job.progress == {"done": 0.5}
    assert job.lease_until == clock.now() + timedelta(seconds=10)


async def test_queues_can_be_paused_and_gates_closed(acts: Acts) -> None:
    await acts.enqueue("kind")

    assert await acts.queues.pause("default", actor="ops", reason="later") == ["default"]
    assert await acts.claim() == []
    assert await acts.queues.resume(["default"]) == ["default"]
    await acts.gates.close("master", actor="ops")
    with pytest.raises(tenure.GateClosed, match="tenure gates open master"):
        await acts.enqueue("kind")
    with pytest.raises(tenure.GateClosed):
        await acts.claim()
    assert (await acts.gates.open("master")).is_open

    assert len(await acts.claim()) == 1
    assert [gate.name for gate in await acts.gates.all()][:1]
    with pytest.raises(tenure.InvalidArgument):
        await acts.gates.close("mastre")
    with pytest.raises(tenure.UnknownQueue):
        await acts.queues.pause("mial")


async def test_jobs_are_listed_newest_first_and_page_by_page(acts: Acts) -> None:
    ids = [(await acts.enqueue("kind", n)).id for n in range(5)]

    page = await acts.jobs(limit=3, state=["queued"])
    rest = await acts.jobs(limit=3, after=page.next)

    assert [job.id for job in page] + [job.id for job in rest] == ids[::-1]
    assert rest.next is None
    assert len(page) == 3
    assert [job and job.payload for job in await acts.get_many([ids[0], str(new_job_id()), ids[4]])] == [0, None, 4]
    with pytest.raises(tenure.InvalidArgument, match="Did you mean 'queued'"):
        await acts.jobs(state="queud")
    with pytest.raises(tenure.NotFound, match="There is no job"):
        await acts.get(str(new_job_id()))
    with pytest.raises(tenure.InvalidArgument, match="must be a UUID"):
        await acts.get("seven")


async def test_a_named_lease_has_one_owner_per_term(acts: Acts, clock: ManualClock) -> None:
    mine = await acts.leases.acquire("leader", "a", seconds=10)
    theirs = await acts.leases.acquire("leader", "b", seconds=10)
    clock.advance(11)
    later = await acts.leases.acquire("leader", "b", seconds=10)

    assert (mine.acquired, theirs.acquired, later.acquired) == (True, False, True)
    assert later.term == mine.term + 1
    assert not await acts.leases.release("leader", "a", mine.term)
    assert await acts.leases.release("leader", "b", later.term)


async def test_workers_are_seen_by_their_heartbeats_and_can_be_removed(acts: Acts) -> None:
    row = tenure.WorkerRow(tenure.WorkerId("w1"), "host", 7, queues=["default"])

    await acts.heartbeat([], worker=row)

    assert [seen.row.id for seen in await acts.workers.all()] == ["w1"]
    assert await acts.workers.remove("w1") == ["w1"]
    assert await acts.workers.all() == []


async def test_events_of_a_queue_that_asks_for_them_can_be_followed(acts: Acts) -> None:
    await acts.queues.set("loud", events=True)
    job_id = (await acts.enqueue("kind", queue="loud")).id
    (grant,) = await acts.claim(queues="loud")
    await acts.complete(grant)

    events = await acts.events(job_id=job_id)

    assert (events[0].kind, events[-1].kind) == ("queued", "completed")
    assert await acts.events(after=events[-1].seq) == []
    assert (await acts.effects.all(job_id=job_id)).items == []


async def test_a_delayed_job_waits_for_the_stores_clock(acts: Acts, clock: ManualClock) -> None:
    await acts.enqueue("kind", delay=timedelta(hours=1))
    await acts.enqueue("kind", run_at=clock.now() + timedelta(hours=2))

    assert await acts.claim(limit=2) == []
    clock.advance(3600)
    (first,) = await acts.claim(limit=2)
    await acts.complete(first)
    clock.advance(3599)
    assert await acts.claim(limit=2) == []
    clock.advance(1)
    assert len(await acts.claim(limit=2)) == 1


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (lambda acts: acts.claim(limit=0), "`limit`"),
        (lambda acts: acts.claim(lease_seconds=0), "`lease_seconds`"),
        (lambda acts: acts.claim(worker=""), "`worker`"),
        (lambda acts: acts.complete("not a grant"), "pair of job id and token"),
        (lambda acts: acts.complete(("x", 1)), "`job_id`"),
        (lambda acts: acts.heartbeat([(str(new_job_id()), "1")]), "`token`"),
        (lambda acts: acts.fail((str(new_job_id()), 1), "x", retry_after=-1), "`retry_after`"),
        (lambda acts: acts.release((str(new_job_id()), 1), delay="later"), "`delay`"),
        (lambda acts: acts.jobs(limit=1001), "`limit`"),
        (lambda acts: acts.prune(older_than=-1), "`older_than`"),
        (lambda acts: acts.leases.acquire("leader", "me", seconds=0), "`seconds`"),
    ],
)
async def test_bad_arguments_never_reach_the_store(acts: Acts, act: Any, sentence: str) -> None:
    with pytest.raises(tenure.InvalidArgument, match=sentence):
        await act(acts)


async def test_a_closed_app_opens_again_when_it_is_needed(acts: Acts) -> None:
    await acts.enqueue("kind")

    acts.app.close()
    acts.app.close()

    assert len(await acts.claim()) == 1


def test_threads_that_come_at_once_open_one_store(app: tenure.App) -> None:
    async def all_at_once() -> list[int]:
        stores: list[int] = []

        async def look() -> None:
            stores.append(id(await anyio.to_thread.run_sync(lambda: app.store)))

        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(look)
        return stores

    assert len(set(anyio.run(all_at_once))) == 1


def test_an_app_is_a_context_manager_and_tells_how_it_goes(tmp_path: Path) -> None:
    with tenure.App(f"sqlite:///{tmp_path}/jobs.db") as app:
        app.enqueue("kind")
        stats = app.store.stats()
        now = app.now()

    assert stats.requests >= 1
    assert abs(now - datetime.now(UTC)) < timedelta(minutes=1)


def test_migrate_never_touches_no_schema_and_migrate_builds_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"

    with tenure.App(url, migrate="never") as app:
        with pytest.raises(tenure.StoreUnavailable, match="There is no database file"):
            app.enqueue("kind")
        (tmp_path / "jobs.db").touch(mode=0o600)
        with pytest.raises(tenure.SchemaBehind):
            app.enqueue("kind")
        assert app.migrate()
        assert app.migrate() == []
        assert not app.enqueue("kind").duplicate


@pytest.mark.postgres
def test_an_empty_postgresql_database_is_set_up_and_an_old_one_left_alone(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tenure.App(postgres_url) as app:
        app.enqueue("kind")
    monkeypatch.setattr("tenure.store.postgres.migrate.newest", lambda: 999)

    with tenure.App(postgres_url) as behind, pytest.raises(tenure.SchemaBehind, match="tenure migrate"):
        behind.enqueue("kind")
    monkeypatch.setattr("tenure.store.postgres.migrate.migrations", lambda: ())
    with tenure.App(postgres_url) as ahead, pytest.raises(tenure.SchemaAhead, match="pip install -U tenure"):
        ahead.enqueue("kind")


async def test_schedules_are_declared_shown_paused_run_and_removed(acts: Acts) -> None:
    @acts.app.job(queue="mail", max_attempts=9)
    def digest(payload: Welcome) -> None: ...

    acts.app.schedule("daily", "0 7 * * *", digest, {"user_id": 1}, tz="Europe/Rome", missed="skip")
    await acts.schedules.declare()
    await acts.claim()  # makes the queue

    (row,) = await acts.schedules.all()
    assert row.name == "daily"
    assert await acts.schedules.pause("daily", actor="ops", reason="holiday") == ["daily"]
    assert (await acts.schedules.all("daily"))[0].paused_by == "ops"
    assert await acts.schedules.resume(["daily"]) == ["daily"]
    job = await acts.get((await acts.schedules.run("daily")).id)
    assert (job.kind, job.payload, job.queue, job.max_attempts) == ("digest", {"user_id": 1}, "mail", 9)
    with pytest.raises(tenure.NotFound, match="no schedule 'weekly'"):
        await acts.schedules.run("weekly")
    assert await acts.schedules.remove("daily") == ["daily"]
    assert await acts.schedules.all() == []
