"""The moves of a job, for workers of one's own: claim, heartbeat, and the ends of an attempt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tenure.client.enqueue import declare_queues
from tenure.client.operations import Client, Steps, ask, operation
from tenure.errors import InternalError, InvalidArgument, LeaseLost, NotFound
from tenure.handler import arguments
from tenure.handler.arguments import Duration, Names
from tenure.handler.payload import encode
from tenure.model.event import NewEvent
from tenure.model.ids import JobId, Token, WorkerId
from tenure.model.job import Grant, NewJob
from tenure.model.outcome import (
    Beat,
    Completed,
    EffectRecord,
    Failed,
    FailureClass,
    Outcome,
    Rejected,
    Released,
    Settled,
    Stopped,
    Suspended,
)
from tenure.store.admin import AppendEvents
from tenure.store.contract import Claim, Heartbeat, Hold, Settle, Start, WorkerRow
from tenure.store.queries import GetJobs

Held = Grant | tuple[str, int]
"""What proves that a job is held: the grant, or its job id and token."""

CLAIM_MAX = 10_000
SETTLE_MAX = 1_000
_NOTHING: Any = object()


class Work(Client):
    """Claims, keeps and ends jobs."""

    @operation
    def claim(
        self,
        *,
        worker: str | None = None,
        queues: Names | None = None,
        kinds: Names | None = None,
        limit: int = 1,
        lease_seconds: Duration | None = None,
        affinity: Sequence[str | None] | None = None,
        strict: bool = False,
        held: Iterable[Held] | None = None,
    ) -> Steps[list[Grant]]:
        """Take up to `limit` due jobs under a lease. Leases that ran out are taken back first.

        No job is ever granted twice at once. Without `queues`: those that this app declares, and `default`.
        `held`: when repeating a claim whose reply was lost, what this worker knows it holds. In async code a claim
        whose await is cancelled needs no repeat: what it takes goes back, unspent.

        Raises: UnknownQueue, GateClosed, InvalidArgument.
        """
        wanted = arguments.names("queues", queues) or self._state.own_queues()
        request = Claim(
            worker=WorkerId(arguments.name("worker", worker)) if worker is not None else self._state.worker_id,
            queues=wanted,
            limit=arguments.whole("limit", limit, 1, CLAIM_MAX),
            kinds=None if kinds is None else arguments.names("kinds", kinds),
            affinity=affinity,
            lease_seconds=_lease(lease_seconds),
            strict=strict,
            held=None if held is None else [_held(one)[0] for one in held],
        )
        yield from declare_queues(self._state, wanted)
        return (yield from ask(request))

    @operation
    def heartbeat(
        self,
        grants: Held | Iterable[Held],
        *,
        lease_seconds: Duration | None = None,
        progress: Mapping[str, Any] | None = None,
        worker: WorkerRow | None = None,
        events: Mapping[str, Sequence[NewEvent]] | None = None,
    ) -> Steps[Beat]:
        """Extend the leases of held jobs. Says which are lost and which are asked to stop; raises for neither.

        `progress` maps job ids to any JSON value to be shown beside the job, `events` to events to append to it.
        """
        told = {
            str(key): encode(value, self._state.limits, what="The progress") for key, value in (progress or {}).items()
        }
        holds = [Hold(job_id, token, told.get(job_id)) for job_id, token in _all_held(grants)]
        beat = yield from ask(Heartbeat(holds, _lease(lease_seconds), worker))
        for hold in holds:
            said = (events or {}).get(hold.job_id)
            if said and hold.job_id not in beat.lost:
                yield from ask(AppendEvents(hold.job_id, hold.token, said))
        return beat

    @operation
    def start(self, grant: Held) -> Steps[Settled]:
        """leased → running, for queues that do not start on claim. A running job stays so. Raises: LeaseLost."""
        job_id, token = _held(grant)
        answers = yield from ask(Start([Hold(job_id, token)]))
        return _accepted(grant, answers, "was not started")

    @operation
    def complete(
        self,
        grant: Held,
        result: Any = _NOTHING,
        *,
        summary: str | None = None,
        artifacts_path: str | None = None,
        jobs: Iterable[NewJob] = (),
        events: Iterable[NewEvent] = (),
        effects: Iterable[EffectRecord] = (),
    ) -> Steps[Settled]:
        """End an attempt well. Follow-up jobs, events and effects are committed with it or not at all.

        Repeating it answers as the first time. Raises: LeaseLost, and nothing was changed; InvalidPayload.
        """
        job_id, token = _held(grant)
        followers = tuple(jobs)
        yield from declare_queues(self._state, {job.queue for job in followers})
        done = Completed(
            job_id,
            token,
            result=None if result is _NOTHING else encode(result, self._state.limits, what=f"Job {job_id}: the result"),
            result_summary=None
            if summary is None
            else arguments.text("summary", summary, self._state.limits.error_chars),
            artifacts_path=None if artifacts_path is None else arguments.text("artifacts_path", artifacts_path),
            jobs=followers,
            events=tuple(events),
            effects=tuple(effects),
        )
        return (yield from _settle_one(grant, done, "was not saved"))

    @operation
    def fail(
        self,
        grant: Held,
        error: str | BaseException,
        *,
        retry_after: Duration | None = None,
        failure_class: FailureClass | str = FailureClass.ERROR,
    ) -> Steps[Settled]:
        """End an attempt badly: queued again by backoff (or after `retry_after`), or dead when no attempts are left."""
        job_id, token = _held(grant)
        wait = None if retry_after is None else arguments.seconds("retry_after", retry_after)
        said = arguments.error_text(error, self._state.limits.error_chars)
        failed = Failed(job_id, token, said, _failure_class(failure_class), wait)
        return (yield from _settle_one(grant, failed, "was not recorded as failed"))

    @operation
    def reject(
        self,
        grant: Held,
        error: str | BaseException,
        *,
        failure_class: FailureClass | str = FailureClass.PERMANENT,
    ) -> Steps[Settled]:
        """Say that the job can never succeed: failed at once, whatever attempts are left, with a dead letter."""
        job_id, token = _held(grant)
        said = arguments.error_text(error, self._state.limits.error_chars)
        rejected = Rejected(job_id, token, said, _failure_class(failure_class))
        return (yield from _settle_one(grant, rejected, "was not recorded as rejected"))

    @operation
    def release(
        self,
        grant: Held,
        *,
        delay: Duration = 0.0,
        reason: str | None = None,
        failure_class: FailureClass | str = FailureClass.SHUTDOWN,
        limiter: str | None = None,
    ) -> Steps[Settled]:
        """Give the job back unspent: queued, attempt refunded, due after `delay`.

        `limiter`: a service refused, so no job that carries this key starts before `delay` is over; see `app.limits`.
        """
        job_id, token = _held(grant)
        why = None if reason is None else arguments.error_text(reason, self._state.limits.error_chars)
        given = FailureClass.RATE_LIMITED if limiter is not None else _failure_class(failure_class)
        key = None if limiter is None else arguments.text("limiter", limiter)
        released = Released(job_id, token, arguments.seconds("delay", delay), given, why, key)
        return (yield from _settle_one(grant, released, "was not given back"))

    @operation
    def suspend(self, grant: Held, waiting_for: str, *, delay: Duration | None = None) -> Steps[Settled]:
        """Let the job wait without a slot until it is woken, or `delay` passes. Attempt refunded."""
        job_id, token = _held(grant)
        wait = None if delay is None else arguments.seconds("delay", delay)
        suspended = Suspended(job_id, token, arguments.text("waiting_for", waiting_for), wait)
        return (yield from _settle_one(grant, suspended, "was not suspended"))

    @operation
    def stop(self, grant: Held, *, reason: str | None = None) -> Steps[Settled]:
        """End an attempt because a cancel was asked for: cancelled."""
        job_id, token = _held(grant)
        why = None if reason is None else arguments.error_text(reason, self._state.limits.error_chars)
        return (yield from _settle_one(grant, Stopped(job_id, token, why), "was not recorded as cancelled"))

    @operation
    def settle(self, outcomes: Iterable[Outcome]) -> Steps[list[Settled]]:
        """End many attempts at once; one answer each, in order. A lost lease is an answer, not an error."""
        given = arguments.several("outcomes", outcomes)
        for one in given:
            if not isinstance(one, Outcome):
                raise InvalidArgument(
                    f"`outcomes` must be outcomes, such as tenure.Completed, got {type(one).__name__}."
                )
        answers: list[Settled] = []
        for first in range(0, len(given), SETTLE_MAX):
            answers += yield from ask(Settle(given[first : first + SETTLE_MAX]))
        return answers


def _settle_one(grant: Held, outcome: Outcome, refused: str) -> Steps[Settled]:
    answers = yield from ask(Settle([outcome]))
    if len(answers) == 1 and answers[0].lost and not isinstance(grant, Grant):
        (found,) = yield from ask(GetJobs([outcome.job_id]))
        if found is None:
            raise NotFound(f"There is no job {outcome.job_id}. Check the id; retention may have deleted the job.")
    return _accepted(grant, answers, refused)


def _accepted(grant: Held, answers: list[Settled], refused: str) -> Settled:
    if len(answers) != 1:
        raise InternalError(f"The store gave {len(answers)} answers to one outcome of job {_held(grant)[0]}.")
    if answers[0].lost:
        raise _lease_lost(grant, refused)
    return answers[0]


def _lease_lost(grant: Held, refused: str) -> LeaseLost:
    if isinstance(grant, Grant):
        return LeaseLost(
            f"Job {grant.id}: attempt {grant.attempt} {refused}, because its lease (granted until "
            f"{grant.lease_until:%H:%M:%S} UTC) has ended or the job was handed on. Nothing was changed. "
            f"Give {grant.kind!r} a longer lease, or send a heartbeat while it works."
        )
    return LeaseLost(
        f"Job {grant[0]}: the attempt with token {grant[1]} {refused}, because its lease has ended or the job was "
        "handed on. Nothing was changed. Ask for a longer lease, or send a heartbeat while it works."
    )


def _held(grant: Held) -> tuple[JobId, Token]:
    if isinstance(grant, Grant):
        return grant.id, grant.token
    if type(grant) is tuple and len(grant) == 2:
        return arguments.job_id("job_id", grant[0]), Token(arguments.whole("token", grant[1], 0, 2**63 - 1))
    raise InvalidArgument(f"A grant, or a pair of job id and token, was expected; got {type(grant).__name__}.")


def _all_held(grants: Held | Iterable[Held]) -> list[tuple[JobId, Token]]:
    if isinstance(grants, Grant) or (isinstance(grants, tuple) and len(grants) == 2 and isinstance(grants[0], str)):
        return [_held(grants)]
    return [_held(grant) for grant in arguments.several("grants", grants)]


def _lease(value: Duration | None) -> float | None:
    return None if value is None else arguments.seconds("lease_seconds", value, positive=True)


def _failure_class(value: FailureClass | str) -> FailureClass:
    if isinstance(value, FailureClass):
        return value
    return FailureClass(arguments.word("failure_class", value, FailureClass))
