"""Quotas: how much of a server and its databases one tenant may take, so that its neighbours keep theirs.

What a database holds is read at most once a second for each tenant, by a question whose cost is bounded by the quotas
themselves; what was let in since is added. So several server processes on one database may together exceed a quota by
what they take within that second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tenure.model.frozen import frozen
from tenure.observe.stats import QuotaUse, usage_of
from tenure.web.problems import Problem

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.web.site import Limits

READ_SECONDS: Final = 1.0
TAKES: Final[Mapping[str, str]] = {
    "clone": "job",
    "revive": "job",
    "act_on_job/clone": "job",
    "act_on_job/revive": "job",
    "run_schedule": "job",
    "act_on_schedule/run": "job",
    "new_token": "token",
    "mint_token": "token",
}
"""What an act takes, by the word that the audit has for it; of a page's acts with the act behind it. How many jobs an
enqueue or a replay takes, its handler knows."""


@frozen
class _Read:
    at: float
    usage: QuotaUse


class Quotas:
    """The quotas of one server. Used on its event loop only."""

    def __init__(self, tenants: Mapping[str, App], limits: Limits) -> None:
        self._tenants = tenants
        self._limits = limits
        self._known: dict[str, _Read] = {}
        self._reading = {name: asyncio.Lock() for name in tenants}

    async def take_for(self, word: str | None, tenant: str, act: str | None = None) -> None:
        """Make room for what an act takes, by its audit word. Raises: Problem 429."""
        match TAKES.get(f"{word}/{act}" if act is not None else word or ""):
            case "job":
                await self.take_jobs(tenant, 1)
            case "token":
                await self.take_token(tenant)

    async def take_jobs(self, tenant: str, jobs: int) -> None:
        """Refuse jobs beyond the tenant's quotas of waiting jobs and of bytes. Raises: Problem 429."""
        queued, size = self._limits.queued, self._limits.bytes
        if queued is None and size is None:
            return
        usage = await self._usage(tenant)
        if queued is not None and usage.queued + jobs > queued:
            raise _full(
                f"At most {queued:,} jobs may wait here, and {usage.queued:,} do. Nothing was enqueued. Enqueue them "
                "when workers have caught up, or ask the operator for a larger `--max-queued`.", 5)  # fmt: skip
        if size is not None and usage.bytes >= size:
            raise _full(
                f"This tenant's database may take {size:,} bytes, and it has {usage.bytes:,}. Nothing was enqueued. "
                "Let `tenure prune` make room, or ask the operator for a larger `--max-bytes`.", 60)  # fmt: skip
        self._note(tenant, replace(usage, queued=usage.queued + jobs))

    async def take_token(self, tenant: str) -> None:
        """Refuse a token beyond the tenant's quota. Raises: Problem 429."""
        most = self._limits.tokens
        if most is None:
            return
        usage = await self._usage(tenant)
        if usage.tokens >= most:
            raise _full(
                f"At most {most:,} tokens may be valid here, and so many are. None was made. Revoke one that is not "
                "used, or ask the operator for a larger `--max-tokens`.", 60)  # fmt: skip
        self._note(tenant, replace(usage, tokens=usage.tokens + 1))

    async def take_queue(self, tenant: str, name: str) -> None:
        """Refuse a queue that is not there yet, beyond the tenant's quota. Raises: Problem 429."""
        most = self._limits.queues
        if most is None or await self._tenants[tenant].aio.queues.all(name):
            return
        usage = await self._usage(tenant)
        if usage.queues >= most:
            raise _full(
                f"At most {most:,} queues may be here, and so many are. Nothing was changed. Remove one that is not "
                "used with `tenure queues rm`, or ask the operator for a larger `--max-queues`.", 60)  # fmt: skip
        self._note(tenant, replace(usage, queues=usage.queues + 1))

    async def _usage(self, tenant: str) -> QuotaUse:
        async with self._reading[tenant]:  # one read for all that ask at once: each would forget what the others took
            known = self._known.get(tenant)
            if known is None or time.monotonic() - known.at >= READ_SECONDS:
                limits = self._limits
                cap = max(one for one in (1, limits.queued, limits.queues, limits.tokens) if one is not None)
                found = await asyncio.to_thread(usage_of, self._tenants[tenant].store, cap + 1)
                self._known[tenant] = _Read(time.monotonic(), found)
        return self._known[tenant].usage

    def _note(self, tenant: str, usage: QuotaUse) -> None:
        self._known[tenant] = replace(self._known[tenant], usage=usage)


def _full(detail: str, seconds: int) -> Problem:
    return Problem(429, "quota", detail, headers={"Retry-After": str(seconds)})
