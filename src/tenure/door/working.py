"""The moves of a job, for workers of one's own: claim, heartbeat, and the ends of an attempt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tenure.door.talk import Door, Talk, ask, atwin, twin
from tenure.errors import InternalError, InvalidArgument, LeaseLost
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
from tenure.model.policy import QueuePolicy
from tenure.store.admin import SetQueues
from tenure.store.contract import Claim, Heartbeat, Hold, Settle, Start, WorkerRow
from tenure.store.queries import ListQueues

Held = Grant | tuple[str, int]
"""What proves that a job is held: the grant, or its job id and token."""

CLAIM_MAX = 10_000
SETTLE_MAX = 1_000
_NOTHING: Any = object()


class Working(Door):
    """Claims, keeps and ends jobs."""

    worker_id: WorkerId
    declared: dict[str, QueuePolicy]
    """Queues that the code declares; they are created when first needed."""
    _made: set[str]

    def _claim(
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
        wants_wake: bool | None = None,
    ) -> Talk[list[Grant]]:
        """Take up to `limit` due jobs under a lease. Leases that ran out are taken back first.

        No job is ever granted twice at once. Without `queues`: those that this app declares, and `default`.
        `held`: when repeating a claim whose reply was lost, what this worker knows it holds.

        Raises: UnknownQueue, GateClosed, InvalidArgument.
        """
        wanted = arguments.names("queues", queues) or ("default", *(q for q in self.declared if q != "default"))
        request = Claim(
            worker=WorkerId(arguments.name("worker", worker)) if worker is not None else self.worker_id,
            queues=wanted,
            limit=arguments.whole("limit", limit, 1, CLAIM_MAX),
            kinds=None if kinds is None else arguments.names("kinds", kinds),
            affinity=affinity,
            lease_seconds=_lease(lease_seconds),
            strict=strict,
            held=None if held is None else [_held(one)[0] for one in held],
            wants_wake=wants_wake,
        )
        yield from self.declare(wanted)
        return (yield from ask(request))

    def declare(self, queues: Iterable[str]) -> Talk[None]:
        """Create those of the queues that the code declares and this process has not seen yet.

        Looks before it asks: a login that may work but not create queues gets by if an operator has made them.
        """
        unseen = {name: self.declared[name] for name in queues if name in self.declared and name not in self._made}
        if unseen:
            known = {row.name for row in (yield from ask(ListQueues(list(unseen))))}
            missing = {name: policy for name, policy in unseen.items() if name not in known}
            if missing:
                yield from ask(SetQueues(missing, actor=self.actor, only_new=True))
            self._made.update(unseen)

    def _heartbeat(
        self,
        grants: Held | Iterable[Held],
        *,
        lease_seconds: Duration | None = None,
        progress: Mapping[str, Any] | None = None,
        worker: WorkerRow | None = None,
    ) -> Talk[Beat]:
        """Extend the leases of held jobs. Says which are lost and which are asked to stop; raises for neither.

        `progress` maps job ids to any JSON value to be shown beside the job.
        """
        told = {str(key): encode(value, self.limits, what="The progress") for key, value in (progress or {}).items()}
        holds = [Hold(job_id, token, told.get(job_id)) for job_id, token in _all_held(grants)]
        return (yield from ask(Heartbeat(holds, _lease(lease_seconds), worker)))

    def _start(self, grant: Held) -> Talk[Settled]:
        """leased → running, for queues that do not start on claim. A running job stays so. Raises: LeaseLost."""
        job_id, token = _held(grant)
        answers = yield from ask(Start([Hold(job_id, token)]))
        return _accepted(grant, answers, "was not started")

    def _complete(
        self,
        grant: Held,
        result: Any = _NOTHING,
        *,
        summary: str | None = None,
        artifacts_path: str | None = None,
        jobs: Iterable[NewJob] = (),
        events: Iterable[NewEvent] = (),
        effects: Iterable[EffectRecord] = (),
    ) -> Talk[Settled]:
        """End an attempt well. Follow-up jobs, events and effects are committed with it or not at all.

        Repeating it answers as the first time. Raises: LeaseLost, and nothing was changed; InvalidPayload.
        """
        job_id, token = _held(grant)
        followers = tuple(jobs)
        yield from self.declare({job.queue for job in followers})
        done = Completed(
            job_id,
            token,
            result=None if result is _NOTHING else encode(result, self.limits, what=f"Job {job_id}: the result"),
            result_summary=None if summary is None else arguments.text("summary", summary, self.limits.error_chars),
            artifacts_path=None if artifacts_path is None else arguments.text("artifacts_path", artifacts_path),
            jobs=followers,
            events=tuple(events),
            effects=tuple(effects),
        )
        return (yield from _settle_one(grant, done, "was not saved"))

    def _fail(
        self,
        grant: Held,
        error: str | BaseException,
        *,
        retry_after: Duration | None = None,
        failure_class: FailureClass | str = FailureClass.ERROR,
    ) -> Talk[Settled]:
        """End an attempt badly: queued again by backoff (or after `retry_after`), or dead when no attempts are left."""
        job_id, token = _held(grant)
        wait = None if retry_after is None else arguments.seconds("retry_after", retry_after)
        said = arguments.error_text(error, self.limits.error_chars)
        failed = Failed(job_id, token, said, _failure_class(failure_class), wait)
        return (yield from _settle_one(grant, failed, "was not recorded as failed"))

    def _reject(
        self,
        grant: Held,
        error: str | BaseException,
        *,
        failure_class: FailureClass | str = FailureClass.PERMANENT,
    ) -> Talk[Settled]:
        """Say that the job can never succeed: failed at once, whatever attempts are left, with a dead letter."""
        job_id, token = _held(grant)
        said = arguments.error_text(error, self.limits.error_chars)
        rejected = Rejected(job_id, token, said, _failure_class(failure_class))
        return (yield from _settle_one(grant, rejected, "was not recorded as rejected"))

    def _release(
        self,
        grant: Held,
        *,
        delay: Duration = 0.0,
        reason: str | None = None,
        failure_class: FailureClass | str = FailureClass.SHUTDOWN,
    ) -> Talk[Settled]:
        """Give the job back unspent: queued, attempt refunded, due after `delay`."""
        job_id, token = _held(grant)
        why = None if reason is None else arguments.error_text(reason, self.limits.error_chars)
        released = Released(job_id, token, arguments.seconds("delay", delay), _failure_class(failure_class), why)
        return (yield from _settle_one(grant, released, "was not given back"))

    def _suspend(self, grant: Held, waiting_for: str, *, delay: Duration | None = None) -> Talk[Settled]:
        """Let the job wait without a slot until somebody wakes it, or `delay` passes. Attempt refunded."""
        job_id, token = _held(grant)
        wait = None if delay is None else arguments.seconds("delay", delay)
        suspended = Suspended(job_id, token, arguments.text("waiting_for", waiting_for), wait)
        return (yield from _settle_one(grant, suspended, "was not suspended"))

    def _stop(self, grant: Held, *, reason: str | None = None) -> Talk[Settled]:
        """End an attempt because a cancel was asked for: cancelled."""
        job_id, token = _held(grant)
        why = None if reason is None else arguments.error_text(reason, self.limits.error_chars)
        return (yield from _settle_one(grant, Stopped(job_id, token, why), "was not recorded as cancelled"))

    def _settle(self, outcomes: Iterable[Outcome]) -> Talk[list[Settled]]:
        """End many attempts at once; one answer each, in order. A lost lease is an answer, not an error."""
        given = list(outcomes)
        answers: list[Settled] = []
        for first in range(0, len(given), SETTLE_MAX):
            answers += yield from ask(Settle(given[first : first + SETTLE_MAX]))
        return answers

    claim = twin(_claim)
    aclaim = atwin(_claim)
    heartbeat = twin(_heartbeat)
    aheartbeat = atwin(_heartbeat)
    start = twin(_start)
    astart = atwin(_start)
    complete = twin(_complete)
    acomplete = atwin(_complete)
    fail = twin(_fail)
    afail = atwin(_fail)
    reject = twin(_reject)
    areject = atwin(_reject)
    release = twin(_release)
    arelease = atwin(_release)
    suspend = twin(_suspend)
    asuspend = atwin(_suspend)
    stop = twin(_stop)
    astop = atwin(_stop)
    settle = twin(_settle)
    asettle = atwin(_settle)


def _settle_one(grant: Held, outcome: Outcome, refused: str) -> Talk[Settled]:
    answers = yield from ask(Settle([outcome]))
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
    return [_held(grant) for grant in grants]


def _lease(value: Duration | None) -> float | None:
    return None if value is None else arguments.seconds("lease_seconds", value, positive=True)


def _failure_class(value: FailureClass | str) -> FailureClass:
    if isinstance(value, FailureClass):
        return value
    return FailureClass(arguments.one_of("failure_class", value, FailureClass)[0])
