"""Schedules: jobs that come by the clock. Declared in code, kept in the store, carried out by the worker that leads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tenure.client.operations import AsyncClient, Client, Steps, SyncClient, ask, operation
from tenure.client.state import ClientState
from tenure.errors import InvalidArgument, NotFound
from tenure.handler import arguments
from tenure.handler.arguments import Duration, Names
from tenure.handler.building import MISSING
from tenure.handler.payload import encode
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
        told = yield from _find(name)
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
    def change(
        self,
        name: str,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str | None = None,
        missed: Missed | None = None,
        queue: str | None = None,
        payload: Any = MISSING,
        actor: str | None = None,
        reason: str | None = None,
    ) -> Steps[ScheduleRow]:
        """Change in the database when a schedule happens, or what it enqueues; what is left out stays. Its last tick
        and its pause stay too, so no tick of the past is made up for by the new times.

        Code that declares the schedule puts its own version back when one of its workers starts, so change it there as
        well. `reason` goes into the audit.

        Raises: NotFound, InvalidArgument, InvalidPayload, MissingExtra.
        """
        told = yield from _find(name)
        changes: dict[str, Any] = {"tz": tz, "missed": missed, "queue": queue}
        if cron is not None and every is not None:
            raise InvalidArgument("Give a cron expression, or `every`, and not both. Nothing was changed.")
        if cron is not None or every is not None:
            seconds = None if every is None else arguments.seconds("every", every, positive=True)
            told = _changed(told, cron=cron, every_seconds=seconds)
        if payload is not MISSING:
            changes["payload"] = encode(payload, self._state.limits)
        told = _changed(told, **{key: value for key, value in changes.items() if value is not None})
        (row,) = yield from ask(SetSchedules({name: told.spec()}, self._by(actor), reason))
        return row

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


def _find(name: str) -> Steps[Schedule]:
    """A schedule that the store knows. Raises: NotFound."""
    from tenure.model.schedule import Schedule

    rows = yield from ask(ListSchedules([arguments.name("name", name)]))
    if not rows:
        raise NotFound(f"There is no schedule {name!r}. `app.schedules.all()` and `tenure schedules ls` list them.")
    return Schedule.from_spec(name, rows[0].spec)


def _changed(schedule: Schedule, **changes: Any) -> Schedule:
    """Raises: InvalidArgument."""
    try:
        return replace(schedule, **changes)
    except ValueError as exc:
        raise InvalidArgument(f"{str(exc)[:1].upper()}{str(exc)[1:]}. Nothing was changed.") from exc


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
