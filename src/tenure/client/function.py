"""A function that `@app.job` made a handler: still callable as it was, and able to enqueue itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from tenure.client.enqueue import enqueue_job, enqueue_jobs
from tenure.client.operations import run, run_async
from tenure.client.state import ClientState
from tenure.handler.building import MISSING, JobOptions, build_job, build_jobs
from tenure.handler.registry import Handler
from tenure.model.job import Enqueued, NewJob

if TYPE_CHECKING:
    from tenure.handler.context import Context

PayloadT = TypeVar("PayloadT")
P = ParamSpec("P")
R = TypeVar("R")


class JobFunction(Generic[PayloadT, P, R]):
    """A handler. Calling it runs the function here and now; enqueueing it leaves that to a worker."""

    __name__: str
    __qualname__: str

    def __init__(self, function: Callable[P, R], handler: Handler, state: ClientState) -> None:
        self.handler = handler
        self._state = state
        self._function = function
        update_wrapper(self, function)

    @property
    def kind(self) -> str:
        """The stable name under which its jobs are stored."""
        return self.handler.kind

    @property
    def queue(self) -> str:
        """Where its jobs wait unless an enqueue says otherwise."""
        return self.handler.queue

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    @overload
    def enqueue(
        self: JobFunction[None, P, R], payload: None = ..., *, connection: Any = ..., **options: Unpack[JobOptions]
    ) -> Enqueued: ...
    @overload
    def enqueue(
        self, payload: PayloadT | Mapping[str, Any], *, connection: Any = ..., **options: Unpack[JobOptions]
    ) -> Enqueued: ...
    def enqueue(self, payload: Any = MISSING, *, connection: Any = None, **options: Unpack[JobOptions]) -> Enqueued:
        """Put one job in the queue; it is durable when this returns. A key that is taken answers the job that holds it.

        With `connection`, the job belongs to the caller's transaction: it exists exactly if that commits.
        """
        return run(self._state, enqueue_job(self._state, self.new(payload, **options), connection))

    @overload
    async def aenqueue(
        self: JobFunction[None, P, R], payload: None = ..., *, connection: Any = ..., **options: Unpack[JobOptions]
    ) -> Enqueued: ...
    @overload
    async def aenqueue(
        self, payload: PayloadT | Mapping[str, Any], *, connection: Any = ..., **options: Unpack[JobOptions]
    ) -> Enqueued: ...
    async def aenqueue(
        self, payload: Any = MISSING, *, connection: Any = None, **options: Unpack[JobOptions]
    ) -> Enqueued:
        """`enqueue` for async callers."""
        return await run_async(self._state, enqueue_job(self._state, self.new(payload, **options), connection))

    def enqueue_many(
        self,
        payloads: Iterable[PayloadT | Mapping[str, Any]],
        *,
        connection: Any = None,
        **options: Unpack[JobOptions],
    ) -> list[Enqueued]:
        """Enqueue many payloads with the same options; one answer each, in order. See `App.enqueue_many`."""
        return run(self._state, enqueue_jobs(self._state, self._new_many(payloads, options), connection))

    async def aenqueue_many(
        self,
        payloads: Iterable[PayloadT | Mapping[str, Any]],
        *,
        connection: Any = None,
        **options: Unpack[JobOptions],
    ) -> list[Enqueued]:
        """`enqueue_many` for async callers."""
        return await run_async(self._state, enqueue_jobs(self._state, self._new_many(payloads, options), connection))

    def new(self, payload: Any = MISSING, **options: Unpack[JobOptions]) -> NewJob:
        """A checked job that is not enqueued yet: for `App.enqueue_many` with a key each, or to follow a completion."""
        return build_job(self.kind, payload, options, self.handler, self._state.limits, "default")

    def _new_many(self, payloads: Iterable[Any], options: JobOptions) -> Iterator[NewJob]:
        return build_jobs(self.kind, payloads, options, self.handler, self._state.limits, "default")

    def __repr__(self) -> str:
        return f"<job {self.kind!r} on queue {self.queue!r}>"


class JobDecorator(Protocol):
    """What `@app.job(…)` answers: it takes a function of one of the four shapes that a handler may have."""

    @overload
    def __call__(self, function: Callable[[], R], /) -> JobFunction[None, [], R]: ...
    @overload
    def __call__(self, function: Callable[[Context], R], /) -> JobFunction[None, [Context], R]: ...
    @overload
    def __call__(self, function: Callable[[PayloadT], R], /) -> JobFunction[PayloadT, [PayloadT], R]: ...
    @overload
    def __call__(
        self, function: Callable[[PayloadT, Context], R], /
    ) -> JobFunction[PayloadT, [PayloadT, Context], R]: ...
