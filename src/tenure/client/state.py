"""The state that `App` and its async view share: settings, handlers, declared queues, and the open store."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from tenure.client.connect import Migrate, open_store, scheme_of, without_driver
from tenure.errors import ConfigError
from tenure.flow.memory import AgentMemory
from tenure.handler import arguments
from tenure.handler.registry import Registry
from tenure.model.ids import WorkerId, new_worker_id
from tenure.model.policy import Limits, QueuePolicy
from tenure.store.contract import Store

if TYPE_CHECKING:
    from tenure.model.clock import Clock
    from tenure.model.schedule import Schedule


class ClientState:
    """Settings and declarations of one app, and its store, which is opened on first use."""

    def __init__(
        self,
        url: str | Callable[[], str] | None,
        migrate: Migrate,
        limits: Limits,
        actor: str,
        clock: Clock | None,
        embedder: str | None = None,
    ) -> None:
        if isinstance(url, str):
            scheme_of(url)  # report an unknown scheme where it was written, not on first use
        if migrate not in {"auto", "always", "existing", "never"}:
            raise ConfigError(f"`migrate` is {migrate!r}; it must be 'auto', 'always', 'existing' or 'never'.")
        self.given_url: str | Callable[[], str] | None = url
        self.migrate: Migrate = migrate
        self.clock = clock
        self.limits = limits
        self.actor: str = arguments.text("actor", actor)
        self.registry: Registry = Registry()
        self.registry.limits = limits
        self.memory: AgentMemory = AgentMemory(embedder)
        self.registry.memory = self.memory
        self.declared: dict[str, QueuePolicy] = self.registry.queues
        """Queues that the code declares; they are created when first needed."""
        self.declared_schedules: dict[str, Schedule] = {}
        self.seen_queues: set[str] = set()
        """Declared queues that this process knows to exist in the database at hand."""
        self.named_kinds: set[str] = set()
        """Kinds without a handler that this process has named in its log."""
        self.seen_agents: set[str] = set()
        """Agents whose queues are known to belong to the profile, in the database at hand."""
        self.store: Store | None = None
        self._lock = threading.Lock()
        self._worker_id: tuple[int, WorkerId] | None = None

    @property
    def url(self) -> str:
        """The database's URL, as given or from TENURE_URL. Raises: ConfigError."""
        given = self.given_url
        url = given() if callable(given) else given or os.environ.get("TENURE_URL")
        if not url:
            raise ConfigError(
                "No database is named. Pass a URL, as in tenure.App('sqlite:///jobs.db'), or set TENURE_URL."
            )
        return without_driver(url)

    @property
    def worker_id(self) -> WorkerId:
        """The name under which this process claims by default; a forked process gets one of its own."""
        known, pid = self._worker_id, os.getpid()
        if known is None or known[0] != pid:
            known = self._worker_id = (pid, new_worker_id())
        return known[1]

    def own_queues(self) -> tuple[str, ...]:
        """The queues that are worked on by default: `default` and those that the code declares."""
        return ("default", *(name for name in self.declared if name != "default"))

    def actor_or_default(self, actor: str | None) -> str:
        """The actor to record: the one given, else the app's."""
        return self.actor if actor is None else arguments.text("actor", actor)

    def open_store(self) -> Store:
        """The store, opened if it is not yet. Raises: ConfigError, MissingExtra, StoreUnavailable, SchemaError."""
        store = self.store
        if store is None:
            with self._lock:
                store = self.store
                if store is None:
                    store = self.store = open_store(self.url, self.migrate, self.clock)
        return store

    async def open_store_async(self) -> Store:
        """`open_store` without blocking the event loop."""
        if self.store is not None:
            return self.store
        import asyncio

        return await asyncio.to_thread(self.open_store)

    def close(self) -> None:
        """Close the store; the next use opens it again."""
        store = self._detach()
        if store is not None:
            store.close()

    async def close_async(self) -> None:
        """`close` without blocking the event loop."""
        store = self._detach()
        if store is not None:
            await store.aclose()

    def _detach(self) -> Store | None:
        with self._lock:
            store, self.store = self.store, None
            self.seen_queues.clear()
            self.seen_agents.clear()
            self.memory.reset()
        return store
