"""The registry: kind → handler. A kind is a stable string its author chose;
moving a function must not strand its jobs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any, Literal

from tenure.errors import HandlerError, UnknownKind, nearest
from tenure.handler.middleware import Middleware, Middlewares, within
from tenure.handler.observers import AroundEnqueue, ObserveSettle
from tenure.model.frozen import frozen
from tenure.model.policy import Limits, QueuePolicy

Mode = Literal["async", "thread", "process"]


@frozen
class Handler:
    """A function that does jobs of one kind, and how it wants to be run."""

    kind: str
    queue: str
    function: Callable[..., Awaitable[Any] | Any]
    mode: Mode
    decode: Callable[[str | bytes], Any]
    """JSON text → the payload argument; raises InvalidPayload with the path of the field."""
    encode: Callable[[Any], str]
    """The payload argument → JSON text, checked; raises InvalidPayload."""
    wants_payload: bool = True
    wants_context: bool = False
    max_attempts: int | None = None
    priority: int | None = None
    timeout_seconds: float | None = None
    """Wall-clock limit of one attempt; separate from the lease, off unless set."""
    lease_seconds: float | None = None
    backoff: str | None = None
    """JSON of a Backoff that overrides the queue's."""
    needs_store: bool = False
    """It asks the store while it runs, so it cannot run in a process of its own."""
    is_durable: bool = False
    """It has steps, waits and children; see handler.steps."""
    version: str | None = None
    """Recorded when a durable job begins."""
    deadline_seconds: float | None = None
    """How long the whole life of a durable job may take, waits included."""
    key_of: Callable[[str], str] | None = None
    """The payload as JSON text → the idempotency key of a job that was given none."""
    concurrency_key_of: Callable[[str], str] | None = None
    """The payload as JSON text → the concurrency key of a job that was given none."""
    memo_seconds: float | None = None
    """Its result is worked out once for each payload within a tenant, and kept so long; see handler.memo."""
    limiter: str | None = None
    """The keys of the limiters that its jobs carry, joined; see model.limiter."""
    absent: Any = field(default_factory=dict)
    """The payload of a job that is enqueued without one."""
    apply: Callable[[Any, Any], Any] | None = None
    """Calls the function with a decoded payload and a context, where `function(payload, context)` is not its shape."""
    decode_result: Callable[[Any], Any] | None = None
    """The stored result, as parsed JSON → what the function's annotation says it returns."""
    retry_on: tuple[type[BaseException], ...] = ()
    """If set, only these exceptions are retried; others end the job as `failed`."""
    give_up_on: tuple[type[BaseException], ...] = ()
    """These exceptions end the job as `failed` at once."""
    payload: Any = Any
    """The payload's type, as `payload_codec` takes it."""
    middleware: Middlewares = ()
    """The app's middleware: shared with the app, so what is added later counts too."""

    def call(self, payload: Any, context: Any) -> Any:
        """Call the function, inside the app's middleware. Answers what it returns: a coroutine, if it is async."""
        if self.apply is not None:
            do = functools.partial(self.apply, payload, context)
        else:
            do = functools.partial(self.function, *[payload] * self.wants_payload, *[context] * self.wants_context)
        if self.memo_seconds is not None:
            once = functools.partial(_awaited, do) if self.mode == "async" else do
            do = functools.partial(context.memo_whole, self.memo_seconds, once)
        if self.middleware:
            return within(self.middleware, inspect.iscoroutinefunction(self.function), context, do)
        return do()

    def may_retry(self, error: BaseException) -> bool:
        """Whether another attempt may follow this exception."""
        if self.give_up_on and isinstance(error, self.give_up_on):
            return False
        return not self.retry_on or not isinstance(error, Exception) or isinstance(error, self.retry_on)


class Registry(Mapping[str, Handler]):
    """Handlers by kind. Registering a kind twice is an error, unless it is the same function (a reload)."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self.middleware: list[Middleware] = []
        """Goes around every handler, whenever it was added."""
        self.around_enqueue: list[AroundEnqueue] = []
        """Goes around every enqueue of the app: given the jobs before they are sent."""
        self.settle_observers: list[ObserveSettle] = []
        """Told of every batch of ends that the store has taken in."""
        self.queues: dict[str, QueuePolicy] = {}
        """Queues that the code declares; they are created when first needed."""
        self.declared: set[str] = set()
        """Queues whose policy the code states, beside those that a handler merely names."""
        self.checkers: list[Any] = []
        """Compare jobs that succeeded with the world: `tenure.effects.kinds.Checker`."""
        self.limits: Limits = Limits()
        """What payloads and texts may take."""
        self.memory: Any = None
        """What agents remember: `tenure.flow.memory.AgentMemory`, set by the app."""
        self.verifiers: dict[str, Callable[..., Any]] = {}
        """Effect → asks the world whether it happened: `tenure.handler.ledger.Verify`."""

    def add(self, handler: Handler) -> None:
        """Register a handler."""
        known = self._handlers.get(handler.kind)
        if known is not None and _name(known) != _name(handler):
            raise HandlerError(
                f"Kind {handler.kind!r} is already handled by {_name(known)}, so {_name(handler)} cannot handle it "
                f"too. "
                "Give one of them another name with `kind=`."
            )
        self._handlers[handler.kind] = replace(handler, middleware=self.middleware)

    def find(self, kind: str) -> Handler:
        """The handler of `kind`; UnknownKind with the nearest known name otherwise."""
        handler = self._handlers.get(kind)
        if handler is None:
            raise UnknownKind(f"No handler is registered for kind {kind!r}.{nearest(kind, self._handlers)}")
        return handler

    def get(self, kind: str, default: Any = None) -> Any:
        """As for any mapping, in one step: it is asked for every job."""
        return self._handlers.get(kind, default)

    def __getitem__(self, kind: str) -> Handler:
        return self._handlers[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)


async def _awaited(do: Callable[[], Awaitable[Any]]) -> Any:
    return await do()


def _name(handler: Handler) -> str:
    return f"{handler.function.__module__}.{handler.function.__qualname__}"
