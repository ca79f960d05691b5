"""What a handler's end means: one `match`, one branch per way to end.

Runs where the handler ran: on the loop, in a thread, or in a child process, which sends the outcome as data.
"""

from __future__ import annotations

import traceback
from typing import Any

from tenure.errors import InvalidPayload, LeaseLost, StoreUnavailable
from tenure.handler.context import Context, storable
from tenure.handler.payload import DEFAULT_LIMITS, encode
from tenure.handler.registry import Handler
from tenure.handler.signals import (
    DeadlinePassed,
    HandlerEnd,
    Interrupt,
    Interrupted,
    Parked,
    Permanent,
    RateLimited,
    RetryAfter,
    Snooze,
)
from tenure.handler.steps import StaleStep
from tenure.model.frozen import frozen
from tenure.model.job import Grant
from tenure.model.limiter import BLOCK_SECONDS_MAX, keys_of
from tenure.model.outcome import Completed, Failed, FailureClass, Outcome, Rejected, Released, Stopped, Suspended
from tenure.model.policy import Limits, UnknownKindRule
from tenure.model.redact import clean
from tenure.model.step import OVERDUE

NO_HANDLER_DELAY_SECONDS = 30.0
UNAVAILABLE_DELAY_SECONDS = 5.0
_FRAMES_SHOWN = 30
_OUR_PACKAGES = frozenset({"tenure.worker", "tenure.handler", "tenure.client"})
"""Whose frames lead to a handler. The handlers that come with Tenure stand in others."""
_LOST = (Interrupt.LOST, Interrupt.FENCED)


@frozen
class Returned:
    """The handler returned a value."""

    value: Any


@frozen
class BadPayload:
    """The payload does not fit the handler."""

    error: InvalidPayload


@frozen
class NoHandler:
    """This worker has no handler for the kind."""

    rule: UnknownKindRule


@frozen
class Crashed:
    """The process of an isolated handler ended without an answer."""

    how: str


End = Returned | BadPayload | NoHandler | Crashed | BaseException


def outcome_of(
    grant: Grant, end: End, context: Context | None = None, handler: Handler | None = None
) -> Outcome | None:
    """How the attempt ended, for the store. None: the lease is lost, so nothing may be written. Never raises.

    An exception may have methods of its author that raise anything, SystemExit included, when it is shown.
    """
    try:
        return _outcome_of(grant, end, context, handler)
    except BaseException as exc:  # noqa: BLE001 - every way out of a handler ends in an outcome
        return Failed(
            grant.id, grant.token, f"{_type_name(end)}: it cannot be shown, for that raises {_type_name(exc)}"
        )


def only_waited(grant: Grant, delay_seconds: float = 0.0) -> Released:
    """The job did not start in this worker and is given back: no attempt is spent, no attempt row written."""
    return Released(grant.id, grant.token, delay_seconds, None)


def _outcome_of(  # noqa: C901 - one branch per way to end, on one screen
    grant: Grant, end: End, context: Context | None, handler: Handler | None
) -> Outcome | None:
    job, token = grant.id, grant.token
    end = _parked_or(end, context)
    match end:
        case Parked(parking=parking):
            return Suspended(job, token, storable(parking.waiting_for), None, parking.steps, parking.groups)
        case Returned(value):
            return completed(grant, value, context, DEFAULT_LIMITS if context is None else context.services.limits)
        case DeadlinePassed():
            return Rejected(job, token, error_text(end), FailureClass.DEADLINE)
        case Permanent():
            return Rejected(job, token, error_text(end))
        case RetryAfter():
            return Failed(job, token, error_text(end), FailureClass.RATE_LIMITED, end.delay_seconds)
        case RateLimited():
            return _rate_limited(grant, end)
        case Snooze():
            return Released(job, token, end.delay_seconds, FailureClass.SNOOZED, clean(str(end)))
        case StaleStep():
            return Failed(job, token, error_text(end), FailureClass.STALE_STEP)
        case BadPayload(error):
            return Rejected(job, token, clean(f"InvalidPayload: {error}"), FailureClass.INVALID_PAYLOAD)
        case NoHandler("leave"):  # claimed before this worker knew of the rule
            return only_waited(grant, UNAVAILABLE_DELAY_SECONDS)
        case NoHandler("release"):
            return Released(job, token, NO_HANDLER_DELAY_SECONDS, FailureClass.NO_HANDLER, _no_handler(grant))
        case NoHandler():
            return Rejected(job, token, _no_handler(grant), FailureClass.NO_HANDLER)
        case Crashed(how):
            return Failed(job, token, clean(f"Crash: the process of the handler {how}"), FailureClass.CRASH)
        case Interrupted(why=Interrupt.SHUTDOWN):
            return Released(job, token, 0.0, FailureClass.SHUTDOWN, "the worker was stopped")
        case Interrupted(why=Interrupt.CANCEL):
            return Stopped(job, token, "stopped on request")
        case Interrupted(why=Interrupt.TIMEOUT):
            return Failed(job, token, _timeout(grant, handler), FailureClass.TIMEOUT)
        case Interrupted(why=Interrupt.DEADLINE):
            return Rejected(job, token, OVERDUE, FailureClass.DEADLINE)
        case Interrupted(why=Interrupt.FENCED):
            return Released(job, token, 0.0, FailureClass.LEASE_LOST, "the lease could not be extended in time")
        case Interrupted() | LeaseLost():
            return None
        case StoreUnavailable():  # not the job's fault
            return Released(job, token, UNAVAILABLE_DELAY_SECONDS, FailureClass.SHUTDOWN, error_text(end))
        case BaseException() if handler is not None and not handler.may_retry(end):
            return Rejected(job, token, error_text(end))
        case BaseException():
            return Failed(job, token, error_text(end))


def interrupted_or(end: BaseException, why: Interrupt | None) -> BaseException:
    """What ended a handler that had been asked to stop: the asking, unless the handler chose its own end."""
    if why is None or isinstance(end, HandlerEnd) or (isinstance(end, Parked) and why not in _LOST):
        return end
    return Interrupted(why)


def _rate_limited(grant: Grant, end: RateLimited) -> Released:
    """A refusal by a service. It holds for the key that it names, else for the job's only one."""
    keys = keys_of(grant.extra("limiter"))  # noqa: S610 - no Django
    key = end.key or (keys[0] if len(keys) == 1 else None)
    delay = end.delay_seconds if key is None else min(end.delay_seconds, BLOCK_SECONDS_MAX)
    return Released(grant.id, grant.token, delay, FailureClass.RATE_LIMITED, clean(str(end)), key)


def _parked_or(end: End, context: Context | None) -> End:
    """A job that has begun to wait is suspended, whatever its handler made of that afterwards."""
    if context is None or context.parked is None or isinstance(end, Parked | LeaseLost):
        return end
    if isinstance(end, Interrupted) and end.why in _LOST:
        return end
    how = "returned" if isinstance(end, Returned) else f"raised {_type_name(end)}"
    context.logger.warning(
        "the handler caught the signal by which a wait gives its slot back and then %s; the job waits all the same. "
        "Let BaseException pass.",
        how,
    )
    return Parked(context.parked)


def completed(grant: Grant, value: Any, context: Context | None, limits: Limits = DEFAULT_LIMITS) -> Outcome:
    """The attempt succeeded. A result that cannot be stored is a dead letter: doing the work again would not help."""
    if value is None and context is None:  # most of them
        return Completed(grant.id, grant.token)
    if context is not None and context.parked is not None:
        outcome = outcome_of(grant, Returned(value), context)
        assert outcome is not None
        return outcome
    try:
        result = None if value is None else encode(value, limits, what="The result")
    except InvalidPayload as exc:
        return Rejected(grant.id, grant.token, clean(f"InvalidResult: {exc} The work itself was done."))
    except BaseException as exc:  # noqa: BLE001 - a method of the value that turns it into JSON raised
        why = f"InvalidResult: The result cannot be written as JSON: {_headline(exc)}. The work itself was done."
        return Rejected(grant.id, grant.token, clean(why))
    if context is None:
        return Completed(grant.id, grant.token, result)
    return Completed(
        grant.id,
        grant.token,
        result,
        context.result_summary,
        context.artifacts_path,
        (*context.follow_ups, *context.left_over()),
        context.take_events(),
    )


def error_text(exc: BaseException) -> str:
    """`Type: message`, then where it happened; secrets taken out, cut to what the store keeps."""
    lines = traceback.format_exception(type(exc), exc, _without_our_frames(exc), limit=-_FRAMES_SHOWN)
    return clean(f"{_headline(exc)}\n{''.join(lines)}".rstrip())


def _headline(exc: BaseException) -> str:
    """`Type: message`, or the type alone where there is no message or it cannot be had."""
    try:
        message = str(exc)
    except BaseException:  # noqa: BLE001 - an exception whose text cannot be made is still the handler's end
        message = ""
    return f"{_type_name(exc)}: {message}".rstrip(": ")


def _type_name(end: object) -> str:
    return str(type.__dict__["__name__"].__get__(type(end)))


def _without_our_frames(exc: BaseException) -> Any:
    """The traceback from where the handler's own code begins."""
    found = exc.__traceback__
    while found is not None and found.tb_frame.f_globals.get("__package__") in _OUR_PACKAGES:
        found = found.tb_next
    return found or exc.__traceback__


def _no_handler(grant: Grant) -> str:
    return (
        f"NoHandler: no handler is registered for kind {grant.kind!r} in the worker that claimed it. "
        "Start a worker with the app that has it, or set `on_unknown_kind` of the queue to 'leave'."
    )


def _timeout(grant: Grant, handler: Handler | None) -> str:
    seconds = f" of {handler.timeout_seconds:g} s" if handler and handler.timeout_seconds else ""
    return f"Timeout: kind {grant.kind!r} was still running after its time limit{seconds}"
