"""Effects as functions: declared once, with how to verify them, and called with a context wherever a job needs them.

The ledger itself, and the essay on what it promises, is `tenure.handler.ledger`; `Context.effect` is its door.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any, Generic, TypeVar

from tenure.effects.kinds import Host
from tenure.handler.context import Context
from tenure.handler.ledger import EffectCall, NotDone, Verdict, Verify

__all__ = ["EffectCall", "EffectFunction", "NotDone", "Verdict", "Verify", "effect"]

R = TypeVar("R")


class EffectFunction(Generic[R]):
    """A function that acts on the outside world, with the way to find out whether it did.

    Calling it with a context carries it out under the ledger. `app.use(it)` lets `tenure reconcile` verify it later.
    """

    __name__: str

    def __init__(
        self,
        do: Callable[[EffectCall], R],
        name: str,
        verify: Verify | None,
        keyed: bool,
        safe_errors: tuple[type[Exception], ...],
    ) -> None:
        self.do = do
        self.name = name
        self._verify = verify
        self._keyed = keyed
        self._safe_errors = safe_errors
        update_wrapper(self, do)

    def __call__(self, ctx: Context, args: Any = None, *, step: str = "") -> Any:
        """Carry it out at most once for this job and step. Await it in an async handler."""
        return ctx.effect(
            self.name,
            args,
            do=self.do,
            verify=self._verify,
            step=step,
            keyed=self._keyed,
            safe_errors=self._safe_errors,
        )

    def verify(self, function: Verify) -> Verify:
        """As a decorator: this is how one finds out whether it happened."""
        self._verify = function
        return function

    def install(self, app: Host) -> None:
        """Called by `app.use`: confirmed effects of this name are verified by `reconcile`."""
        if self._verify is not None:
            app.registry.verifiers[self.name] = self._verify


def effect(
    name: str | None = None,
    *,
    verify: Verify | None = None,
    keyed: bool = False,
    safe_errors: tuple[type[Exception], ...] = (),
) -> Callable[[Callable[[EffectCall], R]], EffectFunction[R]]:
    """Make a function an effect. It takes an EffectCall, and its return value is what the ledger keeps.

        @effect(keyed=True)
        def charge(call: EffectCall) -> dict: ...

        charge(ctx, {"cents": 500})          # in a handler; `await charge(ctx, …)` in an async one

    Args are those of `Context.effect`; the name is the function's if left out, and as stable as a job's kind.
    """

    def decorate(do: Callable[[EffectCall], R]) -> EffectFunction[R]:
        return EffectFunction(do, name or str(getattr(do, "__name__", "effect")), verify, keyed, safe_errors)

    return decorate
