"""How a worker stops.

1. Asked once (SIGINT, SIGTERM, SIGHUP, `stop()`): it claims nothing more, gives back what has not begun, and lets
   running handlers go on. `ctx.stopping` is set: a long handler saves what it has and gives its job back.
2. Asked twice, cancelled, or the grace period is over: running handlers are stopped. Their jobs are released, attempts
   refunded.
3. A handler that does not stop even so (a thread cannot be forced) is left behind: its job is released all the same,
   and the token keeps whatever it still does from counting.
4. If the database is away, what could not be written is given up after a while: the leases run out.

A third signal meets Python's own signal handlers again and ends the process at once. SIGHUP is left alone where it is
ignored, as under nohup.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable

from tenure.model.frozen import frozen

FORCE_SECONDS = 1.0
"""How long a handler has to stop once it was cancelled."""
WRITE_SECONDS = 5.0
"""How long outcomes are tried to be written when everything else has stopped."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@frozen
class Steps:
    """What a stop does, one after the other."""

    ask: Callable[[], None]
    force: Callable[[], None]
    abandon: Callable[[], None]
    give_up: Callable[[], None]


class Shutdown:
    """Takes a worker through the steps. `request` may be called from any thread."""

    def __init__(self, steps: Steps, grace_seconds: float) -> None:
        self._steps = steps
        self._grace_seconds = grace_seconds
        self._loop = asyncio.get_running_loop()
        self._asked = asyncio.Event()
        self._asked_again = asyncio.Event()
        self._installed: list[signal.Signals] = []

    def request(self) -> None:
        """Stop; a second time: stop now. Nothing, if the worker has ended and its loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._requested)

    async def run(self) -> None:
        """Wait for a request and go through the steps. Cancelled when the worker is done before the last one."""
        await self._asked.wait()
        self._steps.ask()
        await _within(self._asked_again.wait(), self._grace_seconds)
        self._steps.force()
        await asyncio.sleep(FORCE_SECONDS)
        self._steps.abandon()
        await asyncio.sleep(WRITE_SECONDS)
        self._steps.give_up()

    def install(self) -> None:
        """Handle the signals, if this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            self._loop.add_signal_handler(number, self._requested)
            self._installed.append(number)

    def uninstall(self) -> None:
        """Restore the signals' default handlers."""
        while self._installed:
            self._loop.remove_signal_handler(self._installed.pop())

    def _requested(self) -> None:
        if self._asked.is_set():
            self._asked_again.set()
            self.uninstall()
        self._asked.set()


async def _within(waiting: asyncio.Future[object] | object, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await waiting  # type: ignore[misc]
    except TimeoutError:
        return
