"""What an enqueue answers: the job's id, and a way to wait for its result."""

from __future__ import annotations

import time
from typing import Any, Generic, TypeVar

from tenure.client.operations import Pause, Steps, ask, is_on_event_loop, run, run_async
from tenure.client.state import ClientState
from tenure.errors import JobFailed, NotFound, ResultTimeout, UsageError
from tenure.handler import arguments
from tenure.handler.arguments import Duration
from tenure.model.ids import JobId
from tenure.model.job import Enqueued, Job
from tenure.model.state import TERMINAL, State
from tenure.store.queries import GetJobs

T_co = TypeVar("T_co", covariant=True)

FIRST_PAUSE_SECONDS = 0.005
LONGEST_PAUSE_SECONDS = 0.25


class JobHandle(Enqueued, Generic[T_co]):
    """A job that was enqueued, or that holds the key: `id`, `duplicate`, and its result once it has ended."""

    __slots__ = ("_state",)

    def __init__(self, id: JobId, duplicate: bool, state: ClientState) -> None:  # noqa: A002
        super().__init__(id, duplicate)
        object.__setattr__(self, "_state", state)

    def result(self, timeout: Duration | None = None) -> T_co:
        """Wait until the job has ended and answer what its handler returned. Attempts in between are waited for.

        It asks the database, a few times a second at most: a worker has to run somewhere.

        Raises: ResultTimeout, if it had not ended after `timeout`; JobFailed, if it failed, died or was cancelled;
        NotFound, if retention deleted it or the transaction it belongs to is not committed; UsageError on an event
        loop, which it would block: await `aresult` there.
        """
        state: ClientState = self._state  # type: ignore[attr-defined]
        answer: T_co = run(state, wait_for_result(state, self.id, timeout, blocks=True))
        return answer

    async def aresult(self, timeout: Duration | None = None) -> T_co:
        """`result` for async callers."""
        state: ClientState = self._state  # type: ignore[attr-defined]
        answer: T_co = await run_async(state, wait_for_result(state, self.id, timeout, blocks=False))
        return answer

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Enqueued) and (self.id, self.duplicate) == (other.id, other.duplicate)

    def __hash__(self) -> int:
        return hash((self.id, self.duplicate))

    def __repr__(self) -> str:
        return f"<job {self.id}{', a duplicate' if self.duplicate else ''}>"


def wait_for_result(state: ClientState, job_id: JobId, timeout: Duration | None, *, blocks: bool) -> Steps[Any]:
    """Look until the job has ended. Answers its result as the handler's annotation types it."""
    if blocks and is_on_event_loop():
        raise UsageError(
            f"Job {job_id}: waiting for its result here would block the event loop, and every handler on it. "
            "Use `await job.aresult()`, or `await app.aio.result(job_id)`."
        )
    seconds = None if timeout is None else arguments.seconds("timeout", timeout)
    deadline = None if seconds is None else time.monotonic() + seconds
    pause = FIRST_PAUSE_SECONDS
    while True:
        (job,) = yield from ask(GetJobs([job_id]))
        if job is None:
            raise NotFound(
                f"There is no job {job_id}. Retention may have deleted it, or the transaction in which it was enqueued "
                "has not been committed."
            )
        if job.state in TERMINAL:
            return _result_of(job, state)
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise ResultTimeout(
                f"Job {job_id} of kind {job.kind!r} was still {job.shown_state} after {seconds:g} s. It goes on; wait "
                f"again for its result, or see `tenure jobs explain {job_id}`."
            )
        yield from ask(Pause(pause if left is None else min(pause, left)))
        pause = min(pause * 1.5, LONGEST_PAUSE_SECONDS)


def _result_of(job: Job, state: ClientState) -> Any:
    if job.state is not State.SUCCEEDED:
        raise JobFailed(job.id, job.kind, job.state.value, job.last_error)
    if job.cleaned_at is not None:
        raise NotFound(f"Job {job.id} succeeded, and retention has removed its result since.")
    handler = state.registry.get(job.kind)
    if handler is None or handler.decode_result is None:
        return job.result
    return handler.decode_result(job.result)
