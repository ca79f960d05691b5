"""Schedules: jobs that come by the clock. Declared in code, kept in the store, carried out by the worker that leads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from tenure.door.function import JobFunction
from tenure.door.talk import Door, Talk, ask, atwin, twin
from tenure.errors import InvalidArgument, NotFound
from tenure.handler import arguments
from tenure.handler.arguments import Names
from tenure.handler.building import MISSING, JobOptions
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


class Scheduling(Door):
    """Declares schedules, and shows, pauses and runs them."""

    declared_schedules: dict[str, Schedule]

    def new_job(self, kind: str, payload: Any = MISSING, **options: Unpack[JobOptions]) -> NewJob:
        """See App.new_job."""
        raise NotImplementedError

    def schedule(
        self,
        name: str,
        cron: str,
        job: str | JobFunction[Any, ..., Any],
        payload: Any = MISSING,
        *,
        tz: str = "UTC",
        missed: Missed = "one",
        queue: str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
    ) -> Schedule:
        """Declare a job for every tick of a cron expression. Workers of this app carry it to the store when they start.

        Exactly one job per tick, however many workers there are. `missed` says what becomes of ticks at which no worker
        was there: `skip` drops them, `one` makes up for them with a single job, `all` with a job each.

        Raises: InvalidArgument, InvalidPayload.
        """
        from tenure.model.schedule import Schedule

        kind = job if isinstance(job, str) else job.kind
        made = self.new_job(kind, payload, queue=queue, priority=priority, max_attempts=max_attempts)
        try:
            declared = Schedule(
                name=arguments.name("name", name),
                cron=cron,
                kind=kind,
                payload=made.payload,
                queue=made.queue,
                tz=tz,
                missed=missed,
                priority=made.priority,
                max_attempts=made.max_attempts,
                backoff=made.backoff,
            )
        except ValueError as exc:
            raise InvalidArgument(f"{str(exc)[:1].upper()}{str(exc)[1:]}.") from exc
        self.declared_schedules[name] = declared
        return declared

    def _schedules(self, name: Names | None = None) -> Talk[list[ScheduleRow]]:
        """Schedules that the store knows, with their last tick."""
        return (yield from ask(ListSchedules(arguments.names("name", name) or None)))

    def _declare_schedules(self) -> Talk[list[ScheduleRow]]:
        """Carry the schedules of this code to the store now; workers do so when they start."""
        specs: Mapping[str, str] = {name: schedule.spec() for name, schedule in self.declared_schedules.items()}
        return (yield from ask(SetSchedules(specs, self.actor)))

    def _run_schedule(self, name: str) -> Talk[Enqueued]:
        """Enqueue a schedule's job once, now, whatever its clock says. Raises: NotFound."""
        from tenure.model.schedule import Schedule

        rows = yield from ask(ListSchedules([arguments.name("name", name)]))
        if not rows:
            raise NotFound(f"There is no schedule {name!r}. `app.schedules()` and `tenure schedules ls` list them.")
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

    def _pause_schedules(self, names: Names, *, actor: str | None = None, reason: str | None = None) -> Talk[list[str]]:
        """Let schedules make no jobs until they are resumed. Answers the names that changed."""
        by = self.actor if actor is None else arguments.text("actor", actor)
        return (yield from ask(PauseSchedules(arguments.names("names", names), True, by, reason)))

    def _resume_schedules(
        self, names: Names, *, actor: str | None = None, reason: str | None = None
    ) -> Talk[list[str]]:
        """Let schedules go on from now; ticks of the pause are not made up for."""
        by = self.actor if actor is None else arguments.text("actor", actor)
        return (yield from ask(PauseSchedules(arguments.names("names", names), False, by, reason)))

    def _remove_schedules(self, names: Names, *, actor: str | None = None) -> Talk[list[str]]:
        """Forget schedules; the jobs they made stay. Answers the names that were there."""
        by = self.actor if actor is None else arguments.text("actor", actor)
        return (yield from ask(RemoveSchedules(arguments.names("names", names), by)))

    schedules = twin(_schedules)
    aschedules = atwin(_schedules)
    declare_schedules = twin(_declare_schedules)
    adeclare_schedules = atwin(_declare_schedules)
    run_schedule = twin(_run_schedule)
    arun_schedule = atwin(_run_schedule)
    pause_schedules = twin(_pause_schedules)
    apause_schedules = atwin(_pause_schedules)
    resume_schedules = twin(_resume_schedules)
    aresume_schedules = atwin(_resume_schedules)
    remove_schedules = twin(_remove_schedules)
    aremove_schedules = atwin(_remove_schedules)
