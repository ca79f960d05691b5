"""The registry: kind → handler. A kind is a stable string its author chose;
moving a function must not strand its jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Literal

from tenure.errors import HandlerError, UnknownKind, nearest
from tenure.model.frozen import frozen

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
    key_of: Callable[[str], str] | None = None
    """The payload as JSON text → the idempotency key of a job that was given none."""


class Registry(Mapping[str, Handler]):
    """Handlers by kind. Registering a kind twice is an error, unless it is the same function (a reload)."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def add(self, handler: Handler) -> None:
        """Register a handler."""
        known = self._handlers.get(handler.kind)
        if known is not None and _name(known) != _name(handler):
            raise HandlerError(
                f"Kind {handler.kind!r} is already handled by {_name(known)}, so {_name(handler)} cannot handle it "
                f"too. "
                "Give one of them another name with `kind=`."
            )
        self._handlers[handler.kind] = handler

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


def _name(handler: Handler) -> str:
    return f"{handler.function.__module__}.{handler.function.__qualname__}"
