"""What agents did and what they remember: agent events, memories, and the searches over them.

An agent event is written by the store itself, in the transaction that ends a job, where the job's queue keeps them
(`QueuePolicy.agent_events`); with it comes a job in queue `embedding` that makes a memory of it. Vectors belong to the
model that made them: no search compares vectors of two models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import datetime
from typing import Any, Final

from tenure.model.frozen import frozen
from tenure.model.ids import JobId
from tenure.store.contract import Request

EMBEDDING_QUEUE: Final = "embedding"
"""Where the jobs wait that make memories of agent events. Made with the first queue that keeps agent events."""
EMBEDDING_KIND: Final = "embedding"
EMBEDDING_SETTINGS: Final[dict[str, Any]] = {
    "priority_order": "low",
    "priority_default": 3,
    "max_attempts": 5,
    "retain_seconds": 86_400.0,
}
"""Where that queue's policy differs from the default. PostgreSQL's `make_embedding_queue` has the same."""


@frozen
class AgentEvent:
    """What an agent did. For the end of a job, `data` has its kind as `task`, attempt, token, class, seconds, cost."""

    id: int
    at: datetime
    agent: str
    """The queue, which is the agent's name in specification 001."""
    kind: str
    """`completed`, `failed` or `dead` for the end of a job; else what its writer chose, such as `escalation`."""
    job_id: JobId | None
    workflow_id: str | None
    tenant: str | None
    key: str | None
    data: Any


@frozen
class NewAgentEvent:
    """An event that a program notes. `data` is JSON text."""

    agent: str
    kind: str
    data: str = "{}"
    job_id: JobId | None = None
    workflow_id: str | None = None
    tenant: str | None = None
    key: str | None = None
    """One event per key: written again, the first one stands."""


@frozen
class WriteAgentEvents(Request[list[int]]):
    """Note events, each with its embedding job, in one transaction. Answers their ids, in order.

    An event whose key is there is not written again: the answer is the id of the first. On PostgreSQL an event names a
    job that its login may read. Raises: InvalidArgument, Forbidden.
    """

    events: Sequence[NewAgentEvent]


@frozen
class ListAgentEvents(Request[list[AgentEvent]]):
    """Agent events, newest first."""

    agents: Sequence[str] = ()
    """Only of these; all if empty."""
    kinds: Sequence[str] = ()
    job_id: JobId | None = None
    before: int | None = None
    """Only ids below this one: the last of the page before."""
    limit: int = 50


@frozen
class EventSource:
    """An agent event with what its job says now: the text of a memory is made from it."""

    event: AgentEvent
    job_kind: str | None = None
    payload: Any = None
    result: Any = None
    result_summary: str | None = None
    last_error: str | None = None


@frozen
class ReadEvents(Request[list[EventSource]]):
    """Agent events by id, with their jobs; those that are not there are left out. A job that was pruned says less."""

    ids: Sequence[int]


@frozen
class ListUnremembered(Request[list[int]]):
    """The ids of agent events of which there is no memory, rising, above `after`.

    Looks at `limit` events at most: an empty answer with fewer than that many events above `after` is the end.
    """

    after: int = 0
    limit: int = 1000


@frozen
class NewMemory:
    """One thing to remember. `text` has no secrets any more; `meta` is JSON text."""

    id: str
    agent: str
    kind: str
    text: str
    text_hash: str
    model: str | None = None
    """Which model made the vector; None: found by words only."""
    vector: Sequence[float] | None = None
    tenant: str | None = None
    agent_event_id: int | None = None
    job_id: JobId | None = None
    workflow_id: str | None = None
    meta: str = "{}"
    at: datetime | None = None
    """When it happened; None: now."""
    ttl_seconds: float | None = None
    """How long it is kept; None: until it is forgotten."""


@frozen
class WriteMemories(Request[int]):
    """Write memories, one per id and one per agent event, in one transaction. Answers how many were written.

    Where one of that id or event is there with the same text and model, nothing is changed; otherwise text, model and
    vector are replaced, and id, agent and time stay. Raises: InvalidArgument.
    """

    memories: Sequence[NewMemory]


@frozen
class Memory:
    """One thing that an agent remembers."""

    id: str
    at: datetime
    agent: str
    kind: str
    text: str
    model: str | None
    tenant: str | None
    agent_event_id: int | None
    job_id: JobId | None
    workflow_id: str | None
    meta: Any
    expires_at: datetime | None


@frozen
class Scope:
    """Which memories a search looks at. What has expired is never among them."""

    agents: Sequence[str] = ()
    """Only of these; all if empty."""
    kinds: Sequence[str] = ()
    tenant: str | None = None
    """Only of this tenant; None: all."""


@frozen
class FindWords(Request[list[str]]):
    """The ids of memories that have one of the words, best first: more of the words and rarer ones count more.

    Words are made of letters and digits, stemmed as English, without regard to case.
    """

    words: Sequence[str]
    scope: Scope = field(default_factory=Scope)
    limit: int = 50


@frozen
class FindNear(Request[list[str] | None]):
    """The ids of memories whose vectors of this model are nearest, best first; None if the store cannot compare vectors
    itself: SQLite, and PostgreSQL without the extension `vector`."""

    model: str
    vector: Sequence[float]
    scope: Scope = field(default_factory=Scope)
    limit: int = 50


@frozen
class Vectors:
    """A page of vectors."""

    rows: Sequence[tuple[str, str, str, str | None, bytes]]
    """id, agent, kind, tenant, and the vector as 32-bit floats, the most significant byte first."""
    mark: str
    """Pass it as `after` to get the next page, or what was written since."""
    more: bool


@frozen
class ListVectors(Request[Vectors]):
    """Vectors of one model, for a process that compares them itself: all, or what was written since a mark.

    A vector may come twice, the later one counts. What was forgotten, or whose time is over by now, is not told:
    `GetMemories` does not find it.
    """

    model: str
    after: str | None = None
    """The mark of the page before; only the store that gave it can read it."""
    limit: int = 5000


@frozen
class GetMemories(Request[list[Memory | None]]):
    """Memories by id, in order; None where there is none, or it has expired."""

    ids: Sequence[str]


@frozen
class ListMemories(Request[list[Memory]]):
    """Memories that were not embedded by `model`, by rising id above `after`: what a reindex still has to do."""

    model: str | None
    after: str | None = None
    limit: int = 500


@frozen
class ForgetMemories(Request[int]):
    """Remove memories, up to `limit`; answers how many went, and is repeated until that is 0.

    Everything that is given must hold. Leaves an audit row. Agent events stay. Raises: InvalidArgument if nothing is
    given: all are forgotten only by `everything`.
    """

    actor: str
    reason: str
    ids: Sequence[str] = ()
    agents: Sequence[str] = ()
    kinds: Sequence[str] = ()
    tenant: str | None = None
    before: datetime | None = None
    everything: bool = False
    limit: int = 1000


@frozen
class MemoryCount:
    """How many memories an agent has of one model."""

    agent: str
    model: str | None
    memories: int
    oldest_at: datetime
    newest_at: datetime


@frozen
class MemoryStats:
    """What is remembered."""

    counts: Sequence[MemoryCount]
    events: int
    """Agent events altogether."""
    unremembered: int
    """Agent events of which there is no memory, yet or any more."""
    models: Mapping[str, int]
    """Memories by model; those without one under `words`."""
    compares_vectors: bool
    """The store compares vectors itself: PostgreSQL with the extension `vector`."""


@frozen
class CountMemories(Request[MemoryStats]):
    """What is remembered, by agent and model."""
