"""What agents remember: `app.memory`. Search, remember, forget, reindex."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from tenure.client.operations import AsyncClient, Blocking, Client, Steps, SyncClient, ask, operation
from tenure.handler import arguments
from tenure.handler.arguments import Duration, Names
from tenure.model.frozen import frozen
from tenure.model.ids import new_job_id
from tenure.model.job import NewJob
from tenure.model.policy import QueuePolicy
from tenure.store.contract import Enqueue, Request
from tenure.store.memory import (
    EMBEDDING_KIND,
    EMBEDDING_QUEUE,
    EMBEDDING_SETTINGS,
    AgentEvent,
    CountMemories,
    ForgetMemories,
    ListAgentEvents,
    ListMemories,
    ListUnremembered,
    MemoryStats,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from tenure.flow.memory import AgentMemory, Hit

PAGE = 1000
REINDEX_PAGE = 500
EVENT_MAX = 2**63 - 1


@frozen
class Reindexed:
    """What a reindex enqueued."""

    model: str
    """The embedder's name; `words` if it makes no vectors."""
    jobs: int
    memories: int
    """Memories that another model embedded, or none."""
    events: int
    """Agent events of which there was no memory."""


class Memories(Client):
    """What agents remember: `app.memory`."""

    @operation
    def search(
        self,
        text: str,
        *,
        agent: Names | None = None,
        kind: Names | None = None,
        tenant: str | None = None,
        limit: int = 10,
        by: Literal["both", "words", "meaning"] = "both",
    ) -> Steps[list[Hit]]:
        """Memories that suit the text, best first: by words, by meaning, or by both, fused.

        Without an embedder `both` is by words alone. Vectors of different models are never compared.

        Raises: ConfigError (by meaning, where no embedder knows any), MissingExtra, InvalidArgument.
        """
        from tenure.flow.memory import search_terms

        steps = self._memory().search(*search_terms(text, agent, kind, tenant, limit, by))
        found: list[Hit] = yield from _steps(steps)
        return found

    @operation
    def remember(
        self,
        text: str,
        *,
        agent: str,
        kind: str = "note",
        ttl: Duration | None = None,
        tenant: str | None = None,
        meta: Any = None,
    ) -> Steps[str]:
        """Remember a text as an agent, without the secrets in it. Answers the memory's id.

        `ttl` is how long it is kept; `meta` any JSON value. Raises: InvalidArgument.
        """
        from tenure.flow.memory import TEXT_BYTES

        steps = self._memory().remember(
            arguments.text("text", text, TEXT_BYTES),
            arguments.name("agent", agent),
            kind=arguments.name("kind", kind),
            ttl_seconds=None if ttl is None else arguments.seconds("ttl", ttl, positive=True),
            tenant=None if tenant is None else arguments.text("tenant", tenant),
            meta=meta,
        )
        memory_id: str = yield from _steps(steps)
        return memory_id

    @operation
    def forget(
        self,
        ids: str | Iterable[str] = (),
        *,
        agent: Names | None = None,
        kind: Names | None = None,
        tenant: str | None = None,
        before: datetime | None = None,
        everything: bool = False,
        actor: str | None = None,
        reason: str = "forgotten on request",
    ) -> Steps[int]:
        """Remove memories: by id, agent, kind, tenant and time, all of which must hold, or all. Answers how many.

        Agent events and jobs stay. Leaves an audit row. Raises: InvalidArgument, if nothing is named.
        """
        given = arguments.several("ids", ids)
        request = ForgetMemories(
            self._by(actor),
            arguments.text("reason", reason),
            ids=[arguments.uuid_text("ids", one) for one in given],
            agents=arguments.names("agent", agent),
            kinds=arguments.names("kind", kind),
            tenant=None if tenant is None else arguments.text("tenant", tenant),
            before=None if before is None else arguments.moment("before", before),
            everything=everything,
            limit=PAGE,
        )
        forgotten = 0
        while gone := (yield from ask(request)):
            forgotten += gone
        return forgotten

    @operation
    def reindex(self) -> Steps[Reindexed]:
        """Enqueue jobs that embed, by the embedder at hand, what another one embedded, and what is not remembered yet.

        By pages; workers with `app.use(embeddings())` do them. Harmless to repeat.
        """
        embedder = self._memory().embedder
        model = embedder.name if embedder.dim else None
        policy = {EMBEDDING_QUEUE: QueuePolicy(**EMBEDDING_SETTINGS)}
        jobs = memories = events = 0
        last_id: str | None = None
        while page := (yield from ask(ListMemories(model, last_id, REINDEX_PAGE))):
            last_id = page[-1].id
            payload = json.dumps({"memory_ids": [one.id for one in page]})
            key = f"reindex:{embedder.name}:{page[0].id}:{last_id}"
            yield from ask(Enqueue([_embedding(payload, key)], policy))
            jobs, memories = jobs + 1, memories + len(page)
        after = 0
        while missing := (yield from ask(ListUnremembered(after, PAGE))):
            after = missing[-1]
            made = [_embedding(json.dumps({"agent_event_id": one}), str(one)) for one in missing]
            answers = yield from ask(Enqueue(made, policy))
            jobs, events = jobs + sum(not one.duplicate for one in answers), events + len(missing)
        return Reindexed(embedder.name, jobs, memories, events)

    @operation
    def stats(self) -> Steps[MemoryStats]:
        """What is remembered, by agent and model."""
        return (yield from ask(CountMemories()))

    @operation
    def events(
        self,
        *,
        agent: Names | None = None,
        kind: Names | None = None,
        job_id: str | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> Steps[list[AgentEvent]]:
        """What agents did, newest first; `before` is the id of the last one of the page before."""
        request = ListAgentEvents(
            arguments.names("agent", agent),
            arguments.names("kind", kind),
            None if job_id is None else arguments.job_id("job_id", job_id),
            None if before is None else arguments.whole("before", before, 0, EVENT_MAX),
            arguments.whole("limit", limit, 1, PAGE),
        )
        return (yield from ask(request))

    @property
    def embedder(self) -> str:
        """The name of the embedder at hand. Raises: ConfigError, MissingExtra."""
        return str(self._memory().embedder.name)

    def _memory(self) -> AgentMemory:
        return self._state.memory


class SyncMemories(Memories, SyncClient):
    """`app.memory`."""


class AsyncMemories(Memories, AsyncClient):
    """`app.aio.memory`."""


def _steps(steps: Generator[Any, Any, Any]) -> Steps[Any]:
    """An operation of flow as one of a client: functions that may block run where blocking is allowed."""
    try:
        wanted = next(steps)
        while True:
            request = wanted if isinstance(wanted, Request) else Blocking(_call(wanted))
            wanted = steps.send((yield from ask(request)))
    except StopIteration as end:
        return end.value


def _call(function: Any) -> Any:
    return lambda _store: function()


def _embedding(payload: str, key: str) -> NewJob:
    return NewJob(id=new_job_id(), kind=EMBEDDING_KIND, payload=payload, queue=EMBEDDING_QUEUE, key=key)
