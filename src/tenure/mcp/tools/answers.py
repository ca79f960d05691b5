"""What tools take and answer: the fields' types, and jobs as a caller may see them."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, ParamSpec, TypeVar

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from tenure.errors import Forbidden, GateClosed, InternalError, NotFound, OperatorError, TenureError
from tenure.mcp.caller import Caller, caller
from tenure.mcp.envelope import untrusted
from tenure.model.job import DeadLetter, Job
from tenure.model.outcome import Settled

WAIT_MAX: Final = 25.0
POLL_SECONDS: Final = 0.25

_log: Final = logging.getLogger("tenure.mcp")
P = ParamSpec("P")
T = TypeVar("T")

Answer = dict[str, Any]
JobIdField = Annotated[str, Field(description="The job's id.", max_length=64)]
TokenField = Annotated[str, Field(description="The token that the claim gave out.", max_length=500)]
Wait = Annotated[float, Field(description="Seconds to wait at most.", ge=0, le=WAIT_MAX)]
Lease = Annotated[float | None, Field(description="Seconds until the job is lost without a heartbeat.", gt=0)]
Count = Annotated[int, Field(ge=1, le=100)]
Name = Annotated[str | None, Field(max_length=255)]
Kind = Annotated[str, Field(max_length=255)]
Key = Annotated[str | None, Field(description="Repeating a key makes no second job.", max_length=255)]
Text = Annotated[str, Field(max_length=4_000)]
Reason = Annotated[str, Field(description="Why; it goes into the audit.", min_length=1, max_length=2_000)]
Ids = Annotated[list[str], Field(description="Ids of dead letters.", min_length=1, max_length=100)]


async def get_job(who: Caller, job_id: str) -> Job:
    """One job. Raises: NotFound, also for a job that the caller may not know of."""
    job = await who.app.aio.get(job_id)
    if not who.sees(job):
        raise NotFound(f"There is no job {job_id} among those that this caller may see.")
    return job


async def get_letters(who: Caller, ids: list[str]) -> list[DeadLetter]:
    """Dead letters. Raises: NotFound, also for those that the caller may not know of."""
    page = await who.app.aio.dead_letters.all(ids=ids, limit=len(ids))
    found = [one for one in page.items if who.may("read:meta", queue=one.queue, kind=one.kind)]
    missing = set(ids) - {one.id for one in found}
    if missing:
        raise NotFound(f"There is no dead letter {min(missing)} among those that this caller may see.")
    return found


def wanted(given: str | None, bound: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """What to ask the store for: the given name if it is within the bound, else the bound. Raises: Forbidden."""
    if given is None:
        return bound
    if bound is not None and given not in bound:
        raise out_of_reach()
    return (given,)


def out_of_reach() -> Forbidden:
    """The refusal of a queue or a kind."""
    return Forbidden(
        "This caller may not touch that kind or queue. Nothing was changed. An operator allows it: by --kind and "
        "--queue of `tenure mcp`, or by the scopes of the token."
    )


def told(function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """The function, with our errors told as code and sentence."""

    @functools.wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await function(*args, **kwargs)
        except TenureError as exc:
            raise ToolError(error_text(exc)) from exc

    return call


def error_text(exc: TenureError, **more: Any) -> str:
    """Code and sentence; a sentence may quote data (the nearest name of a queue), so it stands in the envelope too.

    Sentences for operators may name files and servers: the caller gets the class's own, and the log gets the rest.
    """
    said = str(exc)
    if isinstance(exc, OperatorError | InternalError) and not isinstance(exc, GateClosed):
        _log.error("%s: %s", exc.code, exc)
        said = (type(exc).__doc__ or "").partition("\n")[0]
    return json.dumps({"error": {"code": exc.code, **more, **untrusted(message=said)}}, ensure_ascii=False)


def shown_job(job: Job) -> Answer:
    """A job, with what it is about only for callers that may see it."""
    data: dict[str, Any] = {}
    if caller().show_data:
        data = {
            "waiting_for": job.waiting_for,
            "progress": job.progress,
            "error": job.last_error,
            "result": job.result,
            "payload": job.payload,
        }
    return {
        "job_id": job.id,
        "state": job.shown_state,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "created_at": job.created_at.isoformat(),
        "run_at": job.run_at.isoformat(),
        "finished_at": None if job.finished_at is None else job.finished_at.isoformat(),
        **untrusted(queue=job.queue, kind=job.kind, **data),
    }


def shown_letter(letter: DeadLetter) -> Answer:
    """A dead letter likewise."""
    data = {"error": letter.final_error, "payload": letter.payload} if caller().show_data else {}
    return {
        "id": letter.id,
        "job_id": letter.job_id,
        "attempts": letter.attempts,
        "moved_at": letter.moved_at.isoformat(),
        **untrusted(queue=letter.queue, kind=letter.kind, fingerprint=letter.fingerprint, **data),
    }


def settled(done: Settled) -> Answer:
    """How an attempt was settled."""
    return {"job_id": done.job_id, "state": None if done.state is None else str(done.state)}
