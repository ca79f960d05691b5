"""What a server does beside answering: seals the audit's new rows, and writes the chain's head down elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tenure.errors import TenureError

if TYPE_CHECKING:
    from tenure.web.site import Site

SEAL_SECONDS: Final = 30.0
"""How long rows that no request of this process made may wait."""
HEADS_SECONDS: Final = 60.0

_log: Final = logging.getLogger("tenure.web")


class Background:
    """Starts with the first request that is audited, or with the server; ends with the server."""

    def __init__(self, site: Site, heads: Path | None = None) -> None:
        self._site = site
        self._heads = heads
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._written: dict[str, str] = {}
        self._written_at = -HEADS_SECONDS

    def wake(self) -> None:
        """There is something to seal."""
        self.start()
        self._wanted.set()

    def start(self) -> None:
        """Begin, unless it has."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End, and seal what is left."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._seal(is_last=True)

    async def _run(self) -> None:
        while True:
            await self._seal()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SEAL_SECONDS):
                    await self._wanted.wait()
            await asyncio.sleep(1.0)  # one link of the chain for many requests
            self._wanted.clear()

    async def _seal(self, *, is_last: bool = False) -> None:
        for name, app in self._site.tenants.items():
            try:
                sealed = await app.aio.access.seal()
                while sealed.more:
                    sealed = await app.aio.access.seal()
                await asyncio.to_thread(self._write_down, name, sealed.number, sealed.hash, is_last=is_last)
            except (TenureError, OSError) as exc:
                _log.warning("The audit of %s was not sealed: %s", name, exc)

    def _write_down(self, tenant: str, number: int, head: str, *, is_last: bool) -> None:
        """A line in the file of heads, once a minute: what `tenure audit verify --heads` takes."""
        if self._heads is None or not number or self._written.get(tenant) == head:
            return
        now = time.monotonic()
        if not is_last and now - self._written_at < HEADS_SECONDS:
            return
        self._written_at, self._written[tenant] = now, head
        with self._heads.open("a", encoding="utf-8") as file:
            file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {tenant} {number} {head}\n")
