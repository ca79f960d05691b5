"""Schedules: jobs that come by the clock. Declared in code, kept in the store, carried out by the worker that leads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tenure.client.operations import AsyncClient, Client, Steps, SyncClient, ask, operation
from tenure.client.state import ClientState
from tenure.errors import InvalidArgument, NotFound
from tenure.handler import arguments
from tenure.handler.arguments import Duration, Names
from tenure.model.ids import new_job_id
from tenure.model.job import Enqueued, NewJob
from tenure.store.contract import Enqueue
from tenure.store.schedules import (
    ListSchedules,
    PauseSchedules,
    RemoveSchedules,
    ScheduleRow,
    SetSchedules,
)

if TYPE_CHECKING:
    from tenure.model.schedule import Missed, Schedule


class Schedules(Client):
    """Schedules that the store knows: `app.schedules`."""

    @operation
    def all(self, name: Names | None = None) -> Steps[list[ScheduleRow]]:
        """Schedules that the store knows, with their last tick."""
        return (yield from ask(ListSchedules(arguments.names("name", name) or None)))

    @operation
    def declare(self) -> Steps[list[ScheduleRow]]:
        """Carry the schedules of this code to the store now; workers do so when they start."""
        specs: Mapping[str, str] = {name: schedule.spec() for name, schedule in self._state.declared_schedules.items()}
        return (yield from ask(SetSchedules(specs, self._state.actor)))

    @operation
    def run(self, name: str) -> Steps[Enqueued]:
        """Enqueue a schedule's job once, now, whatever its clock says. Raises: NotFound."""
        from tenure.model.schedule import Schedule

        rows = yield from ask(ListSchedules([arguments.name("name", name)]))
        if not rows:
            raise NotFound(f"There is no schedule {name!r}. `app.schedules.all()` and `tenure schedules ls` list them.")
        told = Schedule.from_spec(name, rows[0].spec)
        job = NewJob(
            id=new_job_id(),
            kind=told.kind,
            payload=told.payload,
            queue=told.queue,
            priority=told.priority,
            max_attempts=told.max_attempts,
            backoff=told.backoff,
            actor=f"schedule:{name}"[:200],
        )
        (answer,) = yield from ask(Enqueue([job]))
        return answer

    @operation
    def pause(self, names: Names, *, actor: str | None = None, reason: str | None = None) -> Steps[list[str]]:
        """Let schedules make no jobs until they are resumed. Answers the names that changed."""
        return (yield from ask(PauseSchedules(arguments.names("names", names), True, self._by(actor), reason)))

    @operation
    def resume(self, names: Names, *, actor: str | None = None, reason: str | None = None) -> Steps[list[str]]:
        """Let schedules go on from now; ticks of the pause are not made up for."""
        return (yield from ask(PauseSchedules(arguments.names("names", names), False, self._by(actor), reason)))

    @operation
    def remove(self, names: Names, *, actor: str | None = None) -> Steps[list[str]]:
        """Forget schedules; the jobs they made stay. Answers the names that were there."""
        return (yield from ask(RemoveSchedules(arguments.names("names", names), self._by(actor))))


class SyncSchedules(Schedules, SyncClient):
    """`app.schedules`."""


class AsyncSchedules(Schedules, AsyncClient):
    """`app.aio.schedules`."""


def declare_schedule(
    state: ClientState, name: str, cron: str | None, every: Duration | None, job: NewJob, tz: str, missed: Missed
) -> Schedule:
    """Check a schedule and keep it until a worker carries it to the store. Raises: InvalidArgument."""
    from tenure.model.schedule import Schedule

    try:
        declared = Schedule(
            name=arguments.name("name", name),
            cron=cron,
            kind=job.kind,
            payload=job.payload,
            queue=job.queue,
            tz=tz,
            missed=missed,
            priority=job.priority,
            max_attempts=job.max_attempts,
            backoff=job.backoff,
            every_seconds=None if every is None else arguments.seconds("every", every, positive=True),
        )
    except ValueError as exc:
        raise InvalidArgument(f"{str(exc)[:1].upper()}{str(exc)[1:]}.") from exc
    state.declared_schedules[name] = declared
    return declared
