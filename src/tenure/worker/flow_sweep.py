"""Sweeps of flow events: what this worker's exchanges left for others is dealt with soon, in transactions of its own.

One sweep at a time; events that come meanwhile are in the next one. A sweep that fails leaves its events where they
are: any other worker's sweep, or the leader's each second, finds them. A worker that drains may be alone, so a sweep
that met a lock or a lost connection is tried again a few times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tenure.errors import StoreUnavailable
from tenure.model.log_event import ERROR
from tenure.store.contract import Store
from tenure.store.flow import SweepFlow
from tenure.worker.log import WorkerLog, code_of

TRIES = 5
PAUSE_SECONDS = 0.1


class FlowSweep:
    """Lives on the event loop's thread. `done` is called after each sweep: jobs may have become claimable."""

    def __init__(self, store: Store, log: WorkerLog, done: Callable[[], None]) -> None:
        self._store = store
        self._log = log
        self._done = done
        self._wanted = asyncio.Event()
        self.is_busy = False
        """A sweep is wanted or in flight."""

    def soon(self) -> None:
        """Events may have been left: by an exchange of this worker, or by others before it started."""
        self.is_busy = True
        self._wanted.set()

    async def run(self) -> None:
        """Sweep whenever it is wanted, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            for number in range(1, TRIES + 1):
                try:
                    while (await self._store.ado(SweepFlow())).more:
                        pass
                    break
                except StoreUnavailable:
                    await asyncio.sleep(number * PAUSE_SECONDS)
                except Exception as exc:  # noqa: BLE001 - the events stay, and another sweep finds them
                    self._log.event("upkeep_failed", ERROR, str(exc), code=code_of(exc))
                    break
            self.is_busy = self._wanted.is_set()
            self._done()
