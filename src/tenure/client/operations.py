"""Operations: each method of a client is written once, as a generator, and run by a sync or an async driver.

An operation yields requests and is sent their answers, so that argument checks, follow-up requests and the reading of
an answer stand in one place and know nothing of threads or event loops:

    class Jobs(Client):
        @operation
        def get(self, job_id: str) -> Steps[Job]:
            (found,) = yield from ask(GetJobs([job_id]))
            ...

On a `SyncClient` the method `get` returns a Job; on an `AsyncClient` it is a coroutine method that returns a Job.
"""

from __future__ import annotations

import functools
import sys
import time
import warnings
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar, overload

from tenure.client.state import ClientState
from tenure.model.job import Enqueued, Grant
from tenure.model.outcome import Released
from tenure.store.contract import Claim, Enqueue, Request, Settle, Store

if TYPE_CHECKING:
    import asyncio

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

Steps = Generator[Request[Any], Any, R]
"""Yields requests, is sent their answers, returns the caller's result. A failed request is thrown into it."""


class Client:
    """Base of every class with operations: one view, sync or async, on a client's state."""

    def __init__(self, state: ClientState) -> None:
        self._state = state

    def _by(self, actor: str | None) -> str:
        """The actor to record: the one given, else the app's."""
        return self._state.actor_or_default(actor)


class SyncClient(Client):
    """A client whose operations block until they are done."""


class AsyncClient(Client):
    """A client whose operations are awaited."""


class operation(Generic[P, R_co]):  # noqa: N801  a decorator, used like `property`
    """Make a generator method an operation: a plain method on a SyncClient, a coroutine method on an AsyncClient."""

    def __init__(self, steps: Callable[Concatenate[Any, P], Steps[R_co]]) -> None:
        self.__doc__ = steps.__doc__
        # `help()` and the reference show the result of an operation instead of the steps to it.
        result = str(steps.__annotations__["return"])
        steps.__annotations__["return"] = result.removeprefix("Steps[").removesuffix("]")
        self._sync = _sync_method(steps)
        self._async = _async_method(steps)

    @overload
    def __get__(self, client: SyncClient, owner: type[Client]) -> Callable[P, R_co]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type[Client]) -> Callable[P, Coroutine[Any, Any, R_co]]: ...
    @overload
    def __get__(self, client: None, owner: type[Client]) -> Callable[..., Any]: ...
    def __get__(self, client: Client | None, owner: type[Client]) -> Callable[..., Any]:
        method: Any = self._async if issubclass(owner, AsyncClient) else self._sync
        bound: Callable[..., Any] = method.__get__(client, owner)
        return bound


def ask(request: Request[T]) -> Steps[T]:
    """Send one request; its answer keeps its type."""
    answer: T = yield request
    return answer


class EnqueueOn(Request[list[Enqueued]]):
    """An enqueue inside the transaction of the caller's connection."""

    __slots__ = ("connection", "enqueue")

    def __init__(self, connection: Any, enqueue: Enqueue) -> None:
        self.connection: Any = connection
        self.enqueue: Enqueue = enqueue


class Blocking(Request[T]):
    """A call of the store that has no async form: the async driver runs it in a thread."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[Store], T]) -> None:
        self.call: Callable[[Store], T] = call


class Pause(Request[None]):
    """Wait for a while between two requests: blocks the thread, or suspends the coroutine."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds: float = seconds


BLOCKS = (
    "This call blocks the event loop, and every handler and request on it, until the database has answered. "
    "In async code await the async form: `await welcome.aenqueue(…)`, `await app.aio.get(…)`."
)


def is_on_event_loop() -> bool:
    """Whether the caller runs on an event loop, which a blocking call would hold up."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def run(state: ClientState, steps: Steps[R]) -> R:
    """Run an operation and block until it is done. The store is opened when the first request is sent."""
    try:
        request = next(steps)
        if is_on_event_loop():  # an operation that refuses to run there has raised by now
            warnings.warn(BLOCKS, RuntimeWarning, stacklevel=3)
        while True:
            answer: Any = None
            try:
                store = state.store or state.open_store()
                match request:
                    case EnqueueOn():
                        answer = store.enqueue_on(request.connection, request.enqueue)
                    case Blocking():
                        answer = request.call(store)
                    case Pause():
                        time.sleep(request.seconds)
                    case _:
                        answer = store.do(request)
            except Exception as exc:  # noqa: BLE001 - the operation decides what an error means
                request = steps.throw(exc)
            else:
                request = steps.send(answer)
    except StopIteration as end:
        result: R = end.value
        return result


async def run_async(state: ClientState, steps: Steps[R]) -> R:
    """Run an operation without blocking the event loop."""
    import asyncio  # late: a command that is over in a moment never needs it

    try:
        request = next(steps)
        while True:
            answer: Any = None
            try:
                store = state.store or await state.open_store_async()
                match request:
                    case EnqueueOn():
                        answer = await store.aenqueue_on(request.connection, request.enqueue)
                    case Blocking():
                        answer = await asyncio.to_thread(request.call, store)
                    case Pause():
                        await asyncio.sleep(request.seconds)
                    case Claim():
                        answer = await _claim(store, request)
                    case _:
                        answer = await store.ado(request)
            except Exception as exc:  # noqa: BLE001 - the operation decides what an error means
                request = steps.throw(exc)
            else:
                request = steps.send(answer)
    except StopIteration as end:
        result: R = end.value
        return result


async def _claim(store: Store, request: Claim) -> list[Grant]:
    """The store carries a claim out although its await is cancelled. What it takes then goes back at once, unspent."""
    import asyncio

    asked = asyncio.ensure_future(store.ado(request))
    try:
        return await asyncio.shield(asked)
    except asyncio.CancelledError:
        asked.add_done_callback(functools.partial(_give_back, store))
        raise


def _give_back(store: Store, asked: asyncio.Future[list[Grant]]) -> None:
    import asyncio

    if asked.cancelled() or asked.exception() is not None or not asked.result():
        return
    released = [Released(grant.id, grant.token, failure_class=None) for grant in asked.result()]
    settling = asyncio.ensure_future(store.ado(Settle(released)))
    _LATE.add(settling)
    settling.add_done_callback(_forget)


def _forget(settling: asyncio.Future[Any]) -> None:
    _LATE.discard(settling)
    if not settling.cancelled():
        settling.exception()  # if the database is away now, the leases run out


_LATE: Final[set[Any]] = set()
"""What gives grants back. The event loop itself keeps no task alive."""


def _sync_method(steps: Callable[..., Steps[Any]]) -> Callable[..., Any]:
    @functools.wraps(steps)
    def method(self: Client, /, *args: Any, **kwargs: Any) -> Any:
        return run(self._state, steps(self, *args, **kwargs))

    return method


def _async_method(steps: Callable[..., Steps[Any]]) -> Callable[..., Any]:
    @functools.wraps(steps)
    async def method(self: Client, /, *args: Any, **kwargs: Any) -> Any:
        return await run_async(self._state, steps(self, *args, **kwargs))

    return method
