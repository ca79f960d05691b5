"""How kinds that come with Tenure join an app: explicitly, by `app.use(…)`, never by a name in a payload.

A kit makes handlers and hands them to a host. Payload types are pydantic models, imported when the first job comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

from tenure.errors import ConfigError, LeaseLost
from tenure.handler.context import Context
from tenure.handler.payload import Later, payload_codec
from tenure.handler.registry import Handler, Mode, Registry
from tenure.handler.signals import Interrupt, Interrupted, Permanent
from tenure.model.frozen import frozen
from tenure.model.job import Job
from tenure.model.policy import QueuePolicy
from tenure.store.contract import Heartbeat, Hold, Request


@frozen
class Finding:
    """What is not as a job left it."""

    sort: str
    """missing, changed, still_there, not_a_file, not_verified, unreadable."""
    subject: str
    expected: str
    found: str


class Checker(Protocol):
    """Compares jobs that succeeded with the world."""

    @property
    def kinds(self) -> Sequence[str]: ...

    @property
    def scope(self) -> str:
        """Where its subjects are, such as a root folder: equal subjects in one scope are one thing, across checkers."""
        ...

    def subject(self, job: Job) -> str | None:
        """What the job is about; of several jobs about one thing the last to finish counts. None: nothing to check."""
        ...

    def check(self, job: Job) -> Finding | None:
        """Look. Changes nothing."""
        ...


class Host(Protocol):
    """What a kit needs of an app."""

    registry: Registry


class Kit(Protocol):
    """Something that `app.use` takes in."""

    def install(self, app: Host) -> None: ...


@frozen
class Terms:
    """How the jobs of a kit are queued and run, where they differ from the queue's own ways."""

    queue: str = "default"
    policy: QueuePolicy | None = None
    """For a queue that does not exist yet."""
    max_attempts: int | None = None
    timeout_seconds: float | None = None
    lease_seconds: float | None = None
    limiter: str | None = None
    """The limiters that the jobs carry; see model.limiter."""


def register(
    app: Host,
    kind: str,
    function: Callable[..., Any],
    payload: Callable[[], Any],
    terms: Terms,
    *,
    mode: Mode = "thread",
    key_of: Callable[[str], str] | None = None,
    is_durable: bool = False,
) -> None:
    """Make `function(payload, ctx)` the handler of a kind."""
    encode, decode = payload_codec(Later(payload), kind, app.registry.limits)
    app.registry.add(
        Handler(
            kind=kind,
            queue=terms.queue,
            function=function,
            mode=mode,
            decode=decode,
            encode=encode,
            wants_payload=True,
            wants_context=True,
            max_attempts=terms.max_attempts,
            timeout_seconds=terms.timeout_seconds,
            lease_seconds=terms.lease_seconds,
            limiter=terms.limiter,
            key_of=key_of,
            needs_store=True,
            is_durable=is_durable,
            payload=Later(payload),
        )
    )
    if terms.queue != "default":
        app.registry.queues.setdefault(terms.queue, terms.policy or QueuePolicy())


def call(ctx: Context, request: Request[Any]) -> Any:
    """Ask the store on behalf of a job."""
    if ctx.services.call is None:
        raise ConfigError(f"Kind {ctx.kind!r} needs the store, so it cannot run in a process of its own.")
    return ctx.services.call(request)


FENCE_SECONDS = 1.0
"""The lease that a check leaves at least. How long a lease is otherwise, the worker decides: a heartbeat never
shortens one, so asking for little leaves the worker's own (`tenure worker --lease`) as it is."""


def fence(ctx: Context) -> Callable[..., None]:
    """A check that asks the store, right before an act, whether this attempt still holds the job. It takes the job's
    progress as JSON text, which is then stored before the next act."""

    def check(progress: str | None = None) -> None:
        beat = call(ctx, Heartbeat([Hold(ctx.id, ctx.token, progress)], FENCE_SECONDS))
        if ctx.id in beat.lost:
            raise LeaseLost(
                f"Job {ctx.id}: attempt {ctx.attempt} did not act, because its lease has ended or the job was handed "
                "on. Nothing was changed; the newer attempt settles the job."
            )
        if ctx.id in beat.cancel_requested:
            raise Interrupted(Interrupt.CANCEL)
        if ctx.id in beat.overdue:
            raise Interrupted(Interrupt.DEADLINE)

    return check


def give_up(exc: Exception) -> NoReturn:
    """The job can never succeed, for the reason that the error says."""
    raise Permanent(f"{type(exc).__name__}: {exc}") from exc
