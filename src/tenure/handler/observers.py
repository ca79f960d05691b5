"""Observers: code that looks at enqueues and settles of a whole app, as tracing does. Handlers have `middleware`.

An app keeps them in its registry: `app.registry.around_enqueue` and `app.registry.settle_observers`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

from tenure.model.job import Grant, NewJob
from tenure.model.outcome import Outcome

AroundEnqueue = Callable[[Sequence[NewJob]], AbstractContextManager[None]]
"""Entered with the jobs of a batch before they are sent, left once they are durable. May set their `trace`."""
ObserveSettle = Callable[[Sequence[tuple[Grant, Outcome]], int, int], None]
"""Called with ends that the store has taken in, and when the request began and was answered, in nanoseconds UTC."""

_log = logging.getLogger("tenure.client")


@contextmanager
def around(hooks: Sequence[AroundEnqueue], jobs: Sequence[NewJob]) -> Iterator[None]:
    """Inside all of them; the first is the outermost."""
    with ExitStack() as stack:
        for hook in hooks:
            stack.enter_context(hook(jobs))
        yield


def tell(
    observers: Sequence[ObserveSettle], ends: Sequence[tuple[Grant, Outcome]], began_ns: int, ended_ns: int
) -> None:
    """Call all of them. What one raises is logged: it must not keep a worker from its jobs."""
    for observe in observers:
        try:
            observe(ends, began_ns, ended_ns)
        except Exception:  # noqa: BLE001 - it is the user's code
            _log.exception("An observer of settles raised an error; the jobs are settled all the same.")
