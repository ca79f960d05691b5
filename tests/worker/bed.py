"""A test bed: a real store, handlers, and workers on it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tenure.handler.payload import payload_codec
from tenure.handler.registry import Handler, Mode, Registry
from tenure.model.ids import JobId, new_job_id
from tenure.model.job import Attempt, DeadLetter, Enqueued, Job, NewJob
from tenure.model.log_event import DEBUG, LogEvent
from tenure.model.policy import Backoff, QueuePolicy
from tenure.store.admin import SetQueues
from tenure.store.contract import Enqueue, Store
from tenure.store.queries import GetJobs, ListAttempts, ListDeadLetters
from tenure.worker.worker import Worker, WorkerConfig, WorkerStats

AT_ONCE = QueuePolicy(backoff=Backoff(shape="none"))
"""Failed jobs are due again at once."""


class EventLog:
    """Keeps every log event."""

    level = DEBUG

    def __init__(self) -> None:
        self.events: list[LogEvent] = []

    def __call__(self, event: LogEvent) -> None:
        self.events.append(event)

    def names(self, job: JobId | None = None) -> list[str]:
        return [event.name for event in self.events if job is None or event.job == job]


async def _nothing() -> None: ...


@dataclass
class Bed:
    """Handlers and jobs on one store."""

    store: Store
    registry: Registry = field(default_factory=Registry)
    log: EventLog = field(default_factory=EventLog)

    def handle(
        self,
        function: Callable[..., Any],
        *,
        kind: str | None = None,
        mode: Mode | None = None,
        payload: Any = Any,
        **settings: Any,
    ) -> str:
        """Register a handler; parameters named `payload` and `ctx` are what it wants."""
        name = kind or function.__name__
        encode, decode = payload_codec(payload, name)
        wants = inspect.signature(function).parameters
        self.registry.add(
            Handler(
                kind=name,
                queue=settings.pop("queue", "default"),
                function=function,
                mode=mode or ("async" if inspect.iscoroutinefunction(function) else "thread"),
                decode=decode,
                encode=encode,
                wants_payload="payload" in wants,
                wants_context="ctx" in wants,
                **settings,
            )
        )
        return name

    def queue(self, policy: QueuePolicy, name: str = "default") -> None:
        self.store.do(SetQueues({name: policy}, "test"))

    def enqueue(self, kind: str, payload: str = "{}", **columns: Any) -> JobId:
        return self.enqueue_many([NewJob(id=new_job_id(), kind=kind, payload=payload, **columns)])[0].id

    def enqueue_many(self, jobs: list[NewJob]) -> list[Enqueued]:
        return self.store.do(Enqueue(jobs, {job.queue: AT_ONCE for job in jobs}))

    def job(self, job_id: JobId) -> Job:
        (job,) = self.store.do(GetJobs([job_id]))
        assert job is not None
        return job

    def attempts(self, job_id: JobId) -> list[Attempt]:
        return self.store.do(ListAttempts(job_id))

    def letters(self, job_id: JobId) -> list[DeadLetter]:
        return self.store.do(ListDeadLetters(job_id=job_id)).items

    def worker(self, **settings: Any) -> Worker:
        defaults: dict[str, Any] = {"handle_signals": False, "maintain": False, "poll_seconds": 0.2}
        schedules = settings.pop("schedules", ())
        if not self.registry:  # a worker without handlers refuses to start
            self.handle(_nothing, kind="nothing")
        config = WorkerConfig(**{**defaults, **settings})
        return Worker(self.store, self.registry, config, emit=self.log, schedules=schedules)

    async def drain(self, **settings: Any) -> WorkerStats:
        """Run a worker until nothing is due."""
        async with asyncio.timeout(60):
            return await self.worker(drain=True, **settings).run()

    @asynccontextmanager
    async def working(self, **settings: Any) -> AsyncIterator[Worker]:
        """A worker that is at work meanwhile."""
        worker = self.worker(**{"grace_seconds": 5.0, **settings})
        task = asyncio.ensure_future(worker.run())
        try:
            async with asyncio.timeout(30):
                await worker.ready.wait()
            yield worker
        finally:
            for _ in range(3):  # a stop that the test asked for is heard
                await asyncio.sleep(0)
            if not worker.stats().is_stopping:
                worker.stop()
            async with asyncio.timeout(30):
                await task
