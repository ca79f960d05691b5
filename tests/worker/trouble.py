"""A real store behind a connection that a test can cut: before a request reaches it, or before its answer is back."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tenure.errors import StoreUnavailable
from tenure.store.contract import Request, Store

T = TypeVar("T")
Cut = Callable[[Request[Any]], bool]


class Troubled:
    """Passes everything on, but what the test cuts. A cut request was not carried out; a cut answer was."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self.requests: Cut = lambda _: False
        self.answers: Cut = lambda _: False
        self.meanwhile: Callable[[Request[Any]], Awaitable[None]] | None = None
        """What happens between the carrying out of a request and its answer."""
        self.cut = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def do(self, request: Request[T]) -> T:
        self._check(self.requests, request)
        answer = self._store.do(request)
        self._check(self.answers, request)
        return answer

    async def ado(self, request: Request[T]) -> T:
        self._check(self.requests, request)
        answer = await self._store.ado(request)
        if self.meanwhile is not None:
            await self.meanwhile(request)
        self._check(self.answers, request)
        return answer

    def _check(self, cut: Cut, request: Request[Any]) -> None:
        if cut(request):
            with self._lock:
                self.cut += 1
            raise StoreUnavailable("the connection was cut by the test")


def as_store(store: Troubled) -> Store:
    """What passes everything on is a store."""
    return store


def once(matches: Cut) -> Cut:
    """Cut the first request that matches, and no other."""
    is_spent = False

    def cut(request: Request[Any]) -> bool:
        nonlocal is_spent
        if is_spent or not matches(request):
            return False
        is_spent = True
        return True

    return cut
