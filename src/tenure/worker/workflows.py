"""What follows from the ends of tasks: releases, skips and judgements of workflows, soon after they are settled.

The store has committed an event with each end; folding it is any worker's to do. A worker that settled tasks does it at
once, and the leader looks each second for what a worker left behind when it died.
"""

from __future__ import annotations

import asyncio

from tenure.errors import StoreUnavailable, TenureError
from tenure.model.log_event import ERROR
from tenure.store.contract import Store
from tenure.store.workflows import AdvanceWorkflows
from tenure.worker.log import WorkerLog


class Workflows:
    """One worker's share in moving workflows forward."""

    def __init__(self, store: Store, log: WorkerLog) -> None:
        self._store = store
        self._log = log
        self._wanted = asyncio.Event()

    def wake(self) -> None:
        """Tasks have ended. On the event loop's thread."""
        self._wanted.set()

    async def run(self) -> None:
        """Fold until cancelled. While one fold is in flight, further ends gather for the next."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                while (await self._store.ado(AdvanceWorkflows())).more:
                    pass
            except StoreUnavailable:
                pass  # the fetcher logs it already; the leader folds what is left
            except TenureError as exc:
                self._log.event("workflows_failed", ERROR, str(exc), code=exc.code)
