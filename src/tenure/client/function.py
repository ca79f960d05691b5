"""A function that `@app.job` made a handler: still callable as it was, and able to enqueue itself."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from tenure.client.enqueue import enqueue_batch, enqueue_jobs
from tenure.client.handle import JobHandle
from tenure.client.operations import run, run_async
from tenure.client.signature import Signature
from tenure.client.state import ClientState
from tenure.handler.building import JobBuilder, JobOptions
from tenure.handler.registry import Handler
from tenure.model.job import NewJob

if TYPE_CHECKING:
    from tenure.handler.context import Context

A = ParamSpec("A")
"""What a job is enqueued with: the function's parameters without the context."""
P = ParamSpec("P")
"""What the function is called with."""
R = TypeVar("R")
T = TypeVar("T")
"""The job's result: what the function returns, or what its coroutine does."""
PayloadT = TypeVar("PayloadT")


class EnqueueOptions(JobOptions, total=False):
    """What `options` takes: what a job may say beside its arguments, and the caller's own transaction."""

    connection: Any
    """The job belongs to the transaction of this connection: it exists exactly if that commits."""


class Enqueuer(Generic[A, T]):
    """Enqueues jobs of one kind, with some options already chosen."""

    def __init__(
        self, handler: Handler, signature: Signature, state: ClientState, options: JobOptions, connection: Any
    ) -> None:
        self.handler = handler
        self._signature = signature
        self._state = state
        self._options = options
        self._connection = connection
        self._builder = JobBuilder(handler.kind, options, handler, state.limits, "default")

    def options(self, **options: Unpack[EnqueueOptions]) -> Enqueuer[A, T]:
        """Choose options for an enqueue: `resize.options(key="7", delay=60).enqueue(7, width=80)`.

        With `connection`, the jobs belong to the caller's transaction: they exist exactly if that commits.
        """
        chosen: dict[str, Any] = {**self._options, **options}
        connection = chosen.pop("connection", self._connection)
        return Enqueuer(self.handler, self._signature, self._state, chosen, connection)  # type: ignore[arg-type]

    def enqueue(self, *args: A.args, **kwargs: A.kwargs) -> JobHandle[T]:
        """Put one job in the queue; it is durable when this returns. A key that is taken answers the job that holds it.

        Takes what the function takes, without the context. Raises: InvalidArgument, InvalidPayload.
        """
        (job,) = run(self._state, enqueue_batch(self._state, [self.new(*args, **kwargs)], self._connection))
        return job

    async def aenqueue(self, *args: A.args, **kwargs: A.kwargs) -> JobHandle[T]:
        """`enqueue` for async callers."""
        batch = enqueue_batch(self._state, [self.new(*args, **kwargs)], self._connection)
        (job,) = await run_async(self._state, batch)
        return job

    def enqueue_many(self, payloads: Iterable[Any]) -> list[JobHandle[T]]:
        """Enqueue many payloads with the same options; one answer each, in order. See `App.enqueue_many`.

        Where the function takes several arguments, each payload is a tuple of them, or a dict by name.
        """
        return run(self._state, enqueue_jobs(self._state, self._new_many(payloads), self._connection))

    async def aenqueue_many(self, payloads: Iterable[Any]) -> list[JobHandle[T]]:
        """`enqueue_many` for async callers."""
        return await run_async(self._state, enqueue_jobs(self._state, self._new_many(payloads), self._connection))

    def new(self, *args: A.args, **kwargs: A.kwargs) -> NewJob:
        """A checked job that is not enqueued yet: for `App.enqueue_many` with a key each, or to follow a completion."""
        return self._builder.build(self._signature.bind(args, kwargs))

    def _new_many(self, payloads: Iterable[Any]) -> Iterator[NewJob]:
        if self._signature.is_spread:
            payloads = (self._signature.bind(one, {}) if isinstance(one, tuple) else one for one in payloads)
        return map(self._builder.build, payloads)


class JobFunction(Enqueuer[A, T], Generic[A, P, R, T]):
    """A handler. Calling it runs the function here and now; enqueueing it leaves that to a worker."""

    __name__: str
    __qualname__: str

    def __init__(self, function: Callable[P, R], handler: Handler, signature: Signature, state: ClientState) -> None:
        super().__init__(handler, signature, state, {}, None)
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

    def __repr__(self) -> str:
        return f"<job {self.kind!r} on queue {self.queue!r}>"


class JobDecorator(Protocol):
    """What `@app.job(…)` answers: it takes a function, sync or async, whose context comes first, or last after one
    payload, or not at all."""

    @overload
    def __call__(
        self, function: Callable[[PayloadT, Context], Coroutine[Any, Any, T]], /
    ) -> JobFunction[[PayloadT], [PayloadT, Context], Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # a payload that is itself a Context
        self, function: Callable[[PayloadT, Context], T], /
    ) -> JobFunction[[PayloadT], [PayloadT, Context], T, T]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, A], Coroutine[Any, Any, T]], /
    ) -> JobFunction[A, Concatenate[Context, A], Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, A], T], /
    ) -> JobFunction[A, Concatenate[Context, A], T, T]: ...
    @overload
    def __call__(
        self, function: Callable[A, Coroutine[Any, Any, T]], /
    ) -> JobFunction[A, A, Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(self, function: Callable[A, T], /) -> JobFunction[A, A, T, T]: ...
