"""The kind `embedding`: jobs that make memories of agent events. `app.use(embeddings())` lets an app's workers do them.

Jobs that run at the same time are done together: while one batch is embedded and written, the next gathers. One job
that cannot be done does not stop its neighbours: a batch that fails is done again one by one. Writing is safe to
repeat, since there is one memory per event.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol, TypedDict

from tenure.flow.memory import AgentMemory, arun
from tenure.handler.context import Context, WorkerServices
from tenure.handler.payload import Later, payload_codec
from tenure.handler.registry import Handler, Registry
from tenure.handler.signals import Permanent
from tenure.model.frozen import frozen
from tenure.model.policy import QueuePolicy
from tenure.store.memory import EMBEDDING_KIND, EMBEDDING_QUEUE, EMBEDDING_SETTINGS

BATCH: Final = 100
"""How many events are embedded and written at once."""


class Embedding(TypedDict, total=False):
    """The payload: one event, or a page of memories that another model embedded."""

    agent_event_id: int
    memory_ids: list[str]


class Host(Protocol):
    """What a kit needs of an app."""

    registry: Registry


@frozen
class Embeddings:
    """The kit of `embedding`."""

    embedder: str | None

    def install(self, app: Host) -> None:
        """Called by `app.use`."""
        memory: AgentMemory = app.registry.memory
        if self.embedder is not None:
            memory.use(self.embedder)
        encode, decode = payload_codec(Later(lambda: Embedding), EMBEDDING_KIND, app.registry.limits)
        app.registry.add(
            Handler(
                kind=EMBEDDING_KIND,
                queue=EMBEDDING_QUEUE,
                function=_Batches(memory).embedding,
                mode="async",
                decode=decode,
                encode=encode,
                wants_payload=True,
                wants_context=True,
                needs_store=True,
            )
        )
        app.registry.queues.setdefault(EMBEDDING_QUEUE, QueuePolicy(**EMBEDDING_SETTINGS))


def embeddings(embedder: str | None = None) -> Embeddings:
    """The kind `embedding`, for `app.use(embeddings())`. The embedder is the app's, unless another is named."""
    return Embeddings(embedder)


class _Batches:
    """Gathers the events of jobs that run at the same time."""

    def __init__(self, memory: AgentMemory) -> None:
        self._memory = memory
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def embedding(self, payload: Embedding, ctx: Context) -> dict[str, Any]:
        """Make a memory of an event, or embed memories again."""
        if ctx.services.acall is None:
            raise Permanent("Embedding needs the store, so it cannot run in a process of its own.")
        if "memory_ids" in payload:
            changed = await arun(self._memory.embed_again(payload["memory_ids"]), ctx.services.acall)
            return {"memories": changed, "model": self._memory.embedder.name}
        if "agent_event_id" not in payload:
            raise Permanent("An embedding job names an agent_event_id, or memory_ids; this one names neither.")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((payload["agent_event_id"], done))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(ctx.services))
        await done
        return {"model": self._memory.embedder.name}

    async def _work(self, services: WorkerServices) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
            try:
                await self._embed([event_id for event_id, _ in batch], services)
            except Exception as exc:  # noqa: BLE001 - each job gets its own
                await self._one_by_one(batch, services, exc)
            else:
                for _, done in batch:
                    _end(done, None)

    async def _one_by_one(
        self, batch: list[tuple[int, asyncio.Future[None]]], services: WorkerServices, error: Exception
    ) -> None:
        for event_id, done in batch:
            if len(batch) > 1:
                try:
                    await self._embed([event_id], services)
                except Exception as exc:  # noqa: BLE001 - it ends the job that it belongs to
                    _end(done, exc)
                else:
                    _end(done, None)
            else:
                _end(done, error)

    async def _embed(self, event_ids: list[int], services: WorkerServices) -> None:
        assert services.acall is not None
        await arun(self._memory.embed_events(event_ids), services.acall)


def _end(done: asyncio.Future[None], error: Exception | None) -> None:
    if done.done():  # its job was cancelled meanwhile
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
