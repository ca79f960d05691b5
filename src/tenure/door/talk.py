"""Conversations: an act is written once, as a generator, and carried out by a sync and by an async twin.

An act yields requests and is sent their answers, so that checks, follow-up questions and the reading of an answer stand
in one place and know nothing of threads or event loops. `twin` and `atwin` make of it the two methods that callers see.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from tenure.model.job import Enqueued
from tenure.model.policy import Limits
from tenure.store.contract import Enqueue, Request, Store

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Talk = Generator[Request[Any], Any, R]
"""Yields requests, is sent their answers, returns what the caller gets. A failing request is thrown into it."""


def ask(request: Request[T]) -> Talk[T]:
    """One question; its answer keeps its type."""
    answer: T = yield request
    return answer


class OnConnection(Request[list[Enqueued]], Generic[T]):
    """An enqueue that is to happen inside the caller's own transaction."""

    __slots__ = ("connection", "enqueue")

    def __init__(self, connection: T, enqueue: Enqueue) -> None:
        self.connection = connection
        self.enqueue = enqueue


class Ahead(Request[Any]):
    """A request that is sent while the act goes on preparing the next. Its answer is what `Collect` takes."""

    __slots__ = ("request",)

    def __init__(self, request: Request[Any]) -> None:
        self.request = request


class Collect(Request[Any]):
    """Wait for the answer to a request that was sent ahead."""

    __slots__ = ("sent",)

    def __init__(self, sent: Any) -> None:
        self.sent = sent


class Door:
    """Something that holds a store and can carry out conversations with it."""

    limits: Limits
    actor: str
    """Who is written down for acts that name nobody else."""

    def open_store(self) -> Store:
        """The store, opened if it is not yet."""
        raise NotImplementedError

    async def aopen_store(self) -> Store:
        """The same without blocking the event loop."""
        raise NotImplementedError

    def converse(self, talk: Talk[R]) -> R:
        """Carry out an act and wait for its end."""
        store = self.open_store()
        try:
            request = next(talk)
            while True:
                try:
                    answer = _do(store, request)
                except Exception as exc:  # noqa: BLE001 - the act decides what an error means
                    request = talk.throw(exc)
                else:
                    request = talk.send(answer)
        except StopIteration as end:
            result: R = end.value
            return result

    async def aconverse(self, talk: Talk[R]) -> R:
        """Carry out an act without blocking the event loop."""
        store = await self.aopen_store()
        try:
            request = next(talk)
            while True:
                try:
                    answer = await _ado(store, request)
                except Exception as exc:  # noqa: BLE001 - the act decides what an error means
                    request = talk.throw(exc)
                else:
                    request = talk.send(answer)
        except StopIteration as end:
            result: R = end.value
            return result


D = TypeVar("D", bound=Door)


def twin(act: Callable[Concatenate[D, P], Talk[R]]) -> Callable[Concatenate[D, P], R]:
    """The method that carries out `act` for a sync caller."""

    @wraps(act)
    def method(self: D, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.converse(act(self, *args, **kwargs))

    return _named(method, act, "")


def atwin(act: Callable[Concatenate[D, P], Talk[R]]) -> Callable[Concatenate[D, P], Coroutine[Any, Any, R]]:
    """The method that carries out `act` for an async caller."""

    @wraps(act)
    async def method(self: D, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self.aconverse(act(self, *args, **kwargs))

    return _named(method, act, "a")


def _do(store: Store, request: Request[T]) -> Any:
    if isinstance(request, OnConnection):
        return store.enqueue_on(request.connection, request.enqueue)
    if isinstance(request, Ahead):
        return _send_ahead(store, request.request)
    if isinstance(request, Collect):
        return request.sent.result()
    return store.do(request)


def _send_ahead(store: Store, request: Request[Any]) -> Any:
    """Carry out a request in a thread of its own, which ends with it."""
    from concurrent.futures import Future

    sent: Future[Any] = Future()

    def carry_out() -> None:
        try:
            sent.set_result(store.do(request))
        except BaseException as exc:  # noqa: BLE001 - whoever collects the answer must learn of it
            sent.set_exception(exc)

    threading.Thread(target=carry_out, name="tenure-ahead", daemon=True).start()
    return sent


async def _ado(store: Store, request: Request[T]) -> Any:
    if isinstance(request, OnConnection):
        return await store.aenqueue_on(request.connection, request.enqueue)
    if isinstance(request, Ahead):
        import asyncio

        sent = asyncio.ensure_future(store.ado(request.request))
        await asyncio.sleep(0)  # so that it is on its way before the act goes on
        return sent
    if isinstance(request, Collect):
        return await request.sent
    return await store.ado(request)


F = TypeVar("F", bound=Callable[..., Any])


def _named(method: F, act: Callable[..., Any], prefix: str) -> F:
    """Name the method as callers know it, and let `help()` show what it returns instead of the conversation."""
    method.__name__ = prefix + act.__name__.lstrip("_")
    method.__qualname__ = f"{act.__qualname__.rpartition('.')[0]}.{method.__name__}"
    answers = str(act.__annotations__.get("return", "")).split(" | Talk[")  # one for each overload
    if answers[0].startswith("Talk["):
        act.__annotations__["return"] = " | ".join(answer.removeprefix("Talk[")[:-1] for answer in answers)
        method.__annotations__ = act.__annotations__
    return method
