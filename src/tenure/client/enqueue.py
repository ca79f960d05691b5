"""Enqueue: from a kind and a payload to a durable job."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any, Unpack

from tenure.client.handle import JobHandle
from tenure.client.operations import Client, EnqueueOn, Steps, ask, operation
from tenure.client.state import ClientState
from tenure.errors import InvalidArgument, UnknownQueue
from tenure.handler.building import MISSING, JobOptions, build_job
from tenure.handler.observers import around
from tenure.model.job import Enqueued, NewJob
from tenure.model.log_event import INFO
from tenure.store.admin import SetQueues
from tenure.store.contract import Enqueue
from tenure.store.queries import ListQueues

LOGGER = "tenure.client"
BATCH_JOBS = 2_000
BATCH_CHARS = 16 * 1024 * 1024
NAMED_KINDS_MAX = 1_000


class Enqueueing(Client):
    """Builds and enqueues jobs."""

    def new_job(self, kind: str, payload: Any = MISSING, **options: Unpack[JobOptions]) -> NewJob:
        """A checked job with an id, not enqueued yet. Enqueueing it twice makes one job.

        Raises: InvalidPayload, InvalidArgument.
        """
        handler = self._state.registry.get(kind)
        job = build_job(kind, payload, options, handler, self._state.limits, "default")
        if handler is None:
            _name_likely_slip(self._state, kind)
        return job

    @operation
    def enqueue(
        self, kind: str | NewJob, payload: Any = MISSING, *, connection: Any = None, **options: Unpack[JobOptions]
    ) -> Steps[JobHandle[Any]]:
        """Put one job in its queue; it is durable when this returns. A key that is taken answers the job that holds it.

        In place of a kind it takes a job that `new_job` made; enqueueing that twice makes one job.

        A kind that has a handler here gets its payload checked, and goes to the handler's queue; others, which may be
        served in other languages, go to `queue` or `default`. With `connection` (sqlite3, psycopg, SQLAlchemy, Django;
        for async callers also asyncpg and aiosqlite) the job belongs to the caller's transaction: it exists exactly if
        that commits.

        Raises: InvalidPayload, InvalidArgument, UnknownQueue, KeyConflict, GateClosed, StoreUnavailable.
        """
        job = kind if isinstance(kind, NewJob) else self.new_job(kind, payload, **options)
        (handle,) = yield from enqueue_batch(self._state, [job], connection)
        return handle

    @operation
    def enqueue_many(
        self, jobs: Iterable[NewJob | tuple[str, Any]], *, connection: Any = None
    ) -> Steps[list[JobHandle[Any]]]:
        """Enqueue many jobs, made by `new_job` or given as (kind, payload); one answer each, in order.

        They go in batches of up to 2,000, each all or none. After an error, repeating the same NewJobs does no harm.
        """
        if not isinstance(jobs, Iterable):
            raise InvalidArgument(f"`jobs` must be several jobs, got {type(jobs).__name__}.")
        return (yield from enqueue_jobs(self._state, map(self._made, jobs), connection))

    def _made(self, job: NewJob | tuple[str, Any]) -> NewJob:
        if isinstance(job, NewJob):
            return job
        pair: Any = job
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidArgument(
                f"`jobs` takes jobs made by `new_job`, or pairs of kind and payload, got {type(job).__name__}."
            )
        return self.new_job(*pair)


def enqueue_jobs(state: ClientState, jobs: Iterable[NewJob], connection: Any) -> Steps[list[JobHandle[Any]]]:
    """Enqueue jobs batch by batch, as they are made."""
    handles: list[JobHandle[Any]] = []
    batch: list[NewJob] = []
    chars = 0
    for job in jobs:
        batch.append(job)
        chars += len(job.payload)
        if len(batch) >= BATCH_JOBS or chars >= BATCH_CHARS:
            handles += yield from enqueue_batch(state, batch, connection)
            batch, chars = [], 0
    if batch:
        handles += yield from enqueue_batch(state, batch, connection)
    return handles


def enqueue_batch(state: ClientState, jobs: list[NewJob], connection: Any) -> Steps[list[JobHandle[Any]]]:
    """Enqueue jobs by one request: all or none."""
    declared = {job.queue: state.declared[job.queue] for job in jobs if job.queue in state.declared}
    unseen = {name: policy for name, policy in declared.items() if name not in state.seen_queues}
    answers: list[Enqueued]
    hooks = state.registry.around_enqueue
    with around(hooks, jobs) if hooks else nullcontext():
        if connection is not None:
            # The caller may roll back, and the queues with it: declare them each time, and remember nothing.
            answers = yield EnqueueOn(connection, Enqueue(jobs, declared))
        else:
            try:
                answers = yield Enqueue(jobs, unseen)
            except UnknownQueue:
                if declared == unseen:
                    raise
                answers = yield Enqueue(jobs, declared)  # the database was replaced since the queues were seen
    if connection is None:
        state.seen_queues.update(unseen)
        log_moves(
            "queued",
            (
                {"job": job.id, "kind": job.kind, "queue": job.queue}
                for job, answer in zip(jobs, answers, strict=True)
                if not answer.duplicate
            ),
        )
    return [JobHandle(answer.id, answer.duplicate, state) for answer in answers]


def log_moves(event: str, moves: Iterable[Mapping[str, str]]) -> None:
    """Say what this process did to jobs, as workers say what becomes of them."""
    if "logging" not in sys.modules:  # a program that never imported it reads no log
        return
    logger = sys.modules["logging"].getLogger(LOGGER)
    if logger.isEnabledFor(INFO):
        for move in moves:
            told = {"event": event, **move}
            text = " ".join(f"{name}={value}" for name, value in told.items())
            logger.info("%s", text, extra={"tenure": told})


def _name_likely_slip(state: ClientState, kind: str) -> None:
    """Log a kind that has no handler in this app and is spelled almost like one that has; once for each.

    Other kinds may well be served by other programs, and a job of an unknown kind waits, so neither is an error.
    """
    if not state.registry or kind in state.named_kinds or len(state.named_kinds) >= NAMED_KINDS_MAX:
        return
    from difflib import get_close_matches

    state.named_kinds.add(kind)
    for known in get_close_matches(kind, state.registry, n=1, cutoff=0.8):
        import logging

        logging.getLogger(LOGGER).warning(
            "Kind %r has no handler in this app, so its jobs wait for another worker. Did you mean %r?", kind, known
        )


def declare_queues(state: ClientState, queues: Iterable[str]) -> Steps[None]:
    """Create those of the queues that the code declares and this process has not seen yet.

    Asks which exist before it creates any: a login that may not create queues can use those that an operator made.
    """
    unseen = {name: state.declared[name] for name in queues if name in state.declared and name not in state.seen_queues}
    if unseen:
        known = {row.name for row in (yield from ask(ListQueues(list(unseen))))}
        missing = {name: policy for name, policy in unseen.items() if name not in known}
        if missing:
            yield from ask(SetQueues(missing, actor=state.actor, only_new=True))
        state.seen_queues.update(unseen)
