"""What a handler's end means: one `match`, one branch per way to end.

Runs where the handler ran: on the loop, in a thread, or in an isolated child, which sends the outcome home as data.
"""

from __future__ import annotations

import re
import traceback
from typing import Any

from tenure.errors import InvalidPayload, LeaseLost, StoreUnavailable
from tenure.handler.context import Context
from tenure.handler.payload import encode
from tenure.handler.registry import Handler
from tenure.handler.signals import (
    HandlerEnd,
    Interrupt,
    Interrupted,
    Permanent,
    RateLimited,
    RetryAfter,
    Snooze,
    Suspend,
)
from tenure.model.frozen import frozen
from tenure.model.job import Grant
from tenure.model.outcome import Completed, Failed, FailureClass, Outcome, Rejected, Released, Stopped, Suspended
from tenure.model.policy import Limits, UnknownKindRule

ERROR_CHARS = Limits().error_chars
NO_HANDLER_DELAY_SECONDS = 30.0
UNAVAILABLE_DELAY_SECONDS = 5.0
_FRAMES_SHOWN = 30

# Each begins with plain characters and has bounds: an error may hold what a stranger wrote, and a pattern that he can
# make slow would stop every job of the worker.
_SECRETS = re.compile(
    r"(?P<url>://[^\s:/@]{0,256}:)[^\s@/]{1,1024}(?=@)"
    r"|(?P<bearer>\b(?:bearer|basic)\s{1,8})[A-Za-z0-9._~+/=-]{8,}"
    r"|(?P<name>(?:password|passwd|secret|api[_-]?key|access[_-]?key|auth[_-]?token)[\w-]{0,64}"
    r"[\"']?\s{0,8}[=:]\s{0,8}[\"']?)[^\s\"',;)&]+",
    re.IGNORECASE,
)
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


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


def outcome_of(  # noqa: C901 - one branch per way to end, on one screen
    grant: Grant, end: End, context: Context | None = None, handler: Handler | None = None
) -> Outcome | None:
    """How the attempt ended, for the store. None: the lease is lost, and there is nothing that may be written."""
    job, token = grant.id, grant.token
    match end:
        case Returned(value):
            return completed(grant, value, context)
        case Permanent():
            return Rejected(job, token, error_text(end))
        case RetryAfter():
            return Failed(job, token, error_text(end), FailureClass.RATE_LIMITED, end.delay_seconds)
        case RateLimited():
            return Released(job, token, end.delay_seconds, FailureClass.RATE_LIMITED, clean(str(end)))
        case Snooze():
            return Released(job, token, end.delay_seconds, FailureClass.SNOOZED, clean(str(end)))
        case Suspend():
            return Suspended(job, token, end.waiting_for, end.delay_seconds)
        case BadPayload(error):
            return Rejected(job, token, clean(f"InvalidPayload: {error}"), FailureClass.INVALID_PAYLOAD)
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
        case Interrupted(why=Interrupt.FENCED):
            return Released(job, token, 0.0, FailureClass.LEASE_LOST, "the lease could not be extended in time")
        case Interrupted() | LeaseLost():
            return None
        case StoreUnavailable():  # the database was away: no fault of the job's
            return Released(job, token, UNAVAILABLE_DELAY_SECONDS, FailureClass.SHUTDOWN, error_text(end))
        case BaseException():
            return Failed(job, token, error_text(end))


def interrupted_or(end: BaseException, why: Interrupt | None) -> BaseException:
    """What ended a handler that had been asked to stop: the asking, unless the handler chose its own end."""
    if why is None or isinstance(end, HandlerEnd):
        return end
    return Interrupted(why)


def completed(grant: Grant, value: Any, context: Context | None) -> Outcome:
    """The attempt succeeded. A result that cannot be stored is a dead letter: doing the work again would not help."""
    if value is None and context is None:  # most of them
        return Completed(grant.id, grant.token)
    try:
        result = None if value is None else encode(value, what="The result")
    except InvalidPayload as exc:
        return Rejected(grant.id, grant.token, clean(f"InvalidResult: {exc} The work itself was done."))
    except Exception as exc:  # noqa: BLE001 - the value's own way to become JSON broke
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
        tuple(context.follow_ups),
        context.take_events(),
    )


def error_text(exc: BaseException) -> str:
    """`Type: message`, then where it happened; secrets taken out, cut to what the store keeps."""
    lines = traceback.format_exception(type(exc), exc, _without_our_frames(exc), limit=-_FRAMES_SHOWN)
    return clean(f"{_headline(exc)}\n{''.join(lines)}".rstrip())


def clean(text: str) -> str:
    """Text that both engines can hold and that gives no secret away. The middle goes if it is too long."""
    if len(text) > 4 * ERROR_CHARS:  # what is cut below anyway need not be searched
        text = text[: 2 * ERROR_CHARS] + text[-2 * ERROR_CHARS :]
    text = _SECRETS.sub(lambda found: (found["url"] or found["bearer"] or found["name"] or "") + "[redacted]", text)
    text = _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)
    if len(text) <= ERROR_CHARS:
        return text
    half = ERROR_CHARS // 2 - 10
    return f"{text[:half]}\n[…]\n{text[-half:]}"


def _headline(exc: BaseException) -> str:
    """`Type: message`, or the type alone where there is no message or it cannot be had."""
    try:
        message = str(exc)
    except Exception:  # noqa: BLE001 - an error of the author's own whose text breaks is an error all the same
        message = ""
    return f"{type(exc).__name__}: {message}".rstrip(": ")


def _without_our_frames(exc: BaseException) -> Any:
    """The traceback from where the handler's own code begins."""
    found = exc.__traceback__
    while found is not None and found.tb_frame.f_globals.get("__package__") == __package__:
        found = found.tb_next
    return found or exc.__traceback__


def _no_handler(grant: Grant) -> str:
    return (
        f"NoHandler: no handler is registered for kind {grant.kind!r} in the worker that claimed it. "
        "Start a worker with the app that has it, or give this one `kinds=`."
    )


def _timeout(grant: Grant, handler: Handler | None) -> str:
    seconds = f" of {handler.timeout_seconds:g} s" if handler and handler.timeout_seconds else ""
    return f"Timeout: kind {grant.kind!r} was still running after its time limit{seconds}"
