"""What agents remember: making memories of what they did, and finding them by words and by meaning.

Words and meaning each give a list, best first; a memory's score is the sum of weight / (60 + its place) over the
lists that have it (reciprocal rank fusion). Words with a digit in them are names (a part, a status, an order), for
which words count more; otherwise meaning does.

The operations are generators, as those of a client are: they yield requests of the store, and plain functions that may
block (embedding a text), and are sent the answers. Secrets are taken out of every text before it is embedded or stored.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from tenure.errors import ConfigError, InvalidArgument
from tenure.flow.embedders import Embedder, open_embedder
from tenure.handler import arguments
from tenure.handler.arguments import Duration, Names
from tenure.handler.payload import encode
from tenure.model.frozen import frozen
from tenure.model.ids import JobId, new_job_id
from tenure.store.contract import Request
from tenure.store.memory import (
    EventSource,
    FindNear,
    FindWords,
    GetMemories,
    ListVectors,
    Memory,
    NewMemory,
    ReadEvents,
    Scope,
    WriteMemories,
)

if TYPE_CHECKING:
    from tenure.flow.vectors import VectorCache
    from tenure.handler.context import Context

By = Literal["both", "words", "meaning"]
BY: Final = ("both", "words", "meaning")
TEXT_CHARS: Final = 4000
"""How much of a text is remembered."""
PART_CHARS: Final = 1500
QUERY_CHARS: Final = 2000
LIMIT_MAX: Final = 1000
TEXT_BYTES: Final = 1 << 20
"""How long a text that is handed in may be; what is beyond TEXT_CHARS is left out."""
DEPTH: Final = 50
"""How many of each list are fused at least."""
RANK_OFFSET: Final = 60
LIGHTER: Final = 0.8
"""What the list that suits the query less well counts."""
VECTOR_PAGE: Final = 5000
_WORD: Final = re.compile(r"[^\W_]+")
_STOP_WORDS: Final = frozenset(
    {"a", "an", "and", "are", "as", "at", "be", "by", "did", "do", "does", "for", "from", "had", "has", "have", "how"}
    | {"in", "is", "it", "its", "of", "on", "or", "our", "that", "the", "their", "there", "they", "this", "to", "was"}
    | {"we", "were", "what", "when", "where", "which", "who", "why", "will", "with"}
)

R = TypeVar("R")
Ask = Request[Any] | Callable[[], Any]
"""A request of the store, or a function that may block."""
Steps = Generator[Ask, Any, R]


@frozen
class Hit:
    """A memory that was found."""

    id: str
    text: str
    agent: str
    kind: str
    at: datetime
    score: float
    by: tuple[str, ...]
    """`words`, `meaning`, or both."""
    job_id: JobId | None
    workflow_id: str | None
    agent_event_id: int | None
    tenant: str | None
    meta: Any


class AgentMemory:
    """The memory of one app: its embedder, opened when first needed, and the vectors that this process has read."""

    def __init__(self, embedder: str | None = None) -> None:
        self._named = embedder
        self._embedder: Embedder | None = None
        self._cache: VectorCache | None = None

    @property
    def embedder(self) -> Embedder:
        """The embedder. Raises: ConfigError, MissingExtra."""
        if self._embedder is None:
            self._embedder = open_embedder(self._named)
        return self._embedder

    def use(self, name: str | None) -> None:
        """Embed by another embedder from now on. Raises: ConfigError, MissingExtra."""
        embedder = open_embedder(name)
        self._named, self._embedder, self._cache = name, embedder, None

    def reset(self) -> None:
        """Another database is meant from now on."""
        self._cache = None

    # --- finding ------------------------------------------------------------------------------------------------------

    def search(self, text: str, scope: Scope, limit: int, by: By) -> Steps[list[Hit]]:
        """Memories that suit the text, best first."""
        text = text[:QUERY_CHARS]
        depth = max(DEPTH, 2 * limit)
        lists: dict[str, list[str]] = {}
        if by != "meaning":
            lists["words"] = yield FindWords(words_of(text), scope, depth)
        if by == "meaning" and not self.embedder.dim:
            raise ConfigError(
                "There is no embedder that knows meanings, so nothing can be found by meaning. "
                "Install one with pip install 'tenure[memory]', or name one by TENURE_EMBEDDER; or search by words."
            )
        if by != "words" and self.embedder.dim:
            lists["meaning"] = yield from self._near(text, scope, depth)
        scores = fuse(lists, text)
        best = sorted(scores, key=lambda one: (-scores[one], one))[: limit + DEPTH]
        found = yield GetMemories(best)
        if None in found and self._cache is not None:
            self._cache.clear()  # something was forgotten, and its vector takes a place that another may need
        hits = [
            _hit(memory, scores[memory.id], tuple(name for name, ids in lists.items() if memory.id in ids))
            for memory in found
            if memory is not None
        ]
        return hits[:limit]

    def _near(self, text: str, scope: Scope, depth: int) -> Steps[list[str]]:
        embedder = self.embedder
        [vector] = yield lambda: embedder.embed([text])
        if not any(vector):
            return []
        found: list[str] | None = yield FindNear(embedder.name, vector, scope, depth)
        if found is not None:
            return found
        cache = self._cache
        if cache is None:
            from tenure.flow.vectors import VectorCache

            cache = self._cache = VectorCache(embedder.name, embedder.dim)
        more = True
        while more:
            page = yield ListVectors(embedder.name, cache.mark, VECTOR_PAGE)
            cache.take(page)
            more = page.more
        near: list[str] = yield lambda: cache.nearest(vector, scope, depth)
        return near

    # --- remembering --------------------------------------------------------------------------------------------------

    def remember(
        self,
        text: str,
        agent: str,
        *,
        kind: str,
        ttl_seconds: float | None,
        tenant: str | None,
        meta: Any,
        job_id: JobId | None = None,
        workflow_id: str | None = None,
    ) -> Steps[str]:
        """Remember a text, without the secrets in it. Answers the memory's id; within one job a repeat changes
        nothing."""
        from tenure.model.redact import clean, process_redactor

        told = clean(text, TEXT_CHARS).strip()
        if not told:
            raise InvalidArgument("There is nothing to remember: the text is empty.")
        hashed = _hash(told)
        memory_id = new_job_id() if job_id is None else _id_from(f"{job_id}:{kind}:{hashed}")
        model, [vector] = yield from self._embedded([told])
        memory = NewMemory(
            id=memory_id,
            agent=agent,
            kind=kind,
            text=told,
            text_hash=hashed,
            model=model,
            vector=vector,
            tenant=tenant,
            job_id=job_id,
            workflow_id=workflow_id,
            meta=encode(process_redactor().data({} if meta is None else meta), what="`meta`"),
            ttl_seconds=ttl_seconds,
        )
        yield WriteMemories([memory])
        return str(memory_id)

    def embed_events(self, event_ids: Sequence[int]) -> Steps[int]:
        """Make memories of agent events. Answers how many were written; what is remembered already is not again."""
        sources: list[EventSource] = yield ReadEvents(sorted(event_ids))
        texts = [text_of(source) for source in sources]
        model, vectors = yield from self._embedded(texts)
        memories = [
            NewMemory(
                id=_id_from(f"event:{source.event.id}:{source.event.at.isoformat()}"),
                agent=source.event.agent,
                kind=source.event.kind,
                text=text,
                text_hash=_hash(text),
                model=model,
                vector=vector,
                tenant=source.event.tenant,
                agent_event_id=source.event.id,
                job_id=source.event.job_id,
                workflow_id=source.event.workflow_id,
                at=source.event.at,
            )
            for source, text, vector in zip(sources, texts, vectors, strict=True)
        ]
        written: int = yield WriteMemories(memories)
        return written

    def embed_again(self, memory_ids: Sequence[str]) -> Steps[int]:
        """Embed memories by the embedder at hand. Answers how many were changed."""
        found: list[Memory | None] = yield GetMemories(list(memory_ids))
        there = [memory for memory in found if memory is not None]
        model, vectors = yield from self._embedded([memory.text for memory in there])
        changed = [
            NewMemory(
                id=memory.id,
                agent=memory.agent,
                kind=memory.kind,
                text=memory.text,
                text_hash=_hash(memory.text),
                model=model,
                vector=vector,
            )
            for memory, vector in zip(there, vectors, strict=True)
        ]
        written: int = yield WriteMemories(changed)
        return written

    def _embedded(self, texts: Sequence[str]) -> Steps[tuple[str | None, Sequence[Sequence[float] | None]]]:
        """The model's name and a vector for each text; None where there are no vectors."""
        embedder = self.embedder
        if not embedder.dim or not texts:
            return (None, [None for _ in texts]) if not embedder.dim else (embedder.name, [])
        vectors = yield lambda: embedder.embed(texts)
        return embedder.name, vectors

    # --- for handlers: see Context.recall and Context.remember --------------------------------------------------------

    def recall_for(self, ctx: Context, text: str, agent: Names | None, kind: Names | None, limit: int, by: By) -> Any:
        """`search` on behalf of a job: the list in a sync handler, an awaitable of it in an async one. A tenant's job
        never sees what another's did."""
        tenant = ctx.job.extra("tenant")  # noqa: S610 - no Django here
        return carry_out(ctx, self.search(*search_terms(text, agent, kind, tenant, limit, by)))

    def remember_for(self, ctx: Context, text: str, kind: str, ttl: Duration | None, meta: Any) -> Any:
        """`remember` on behalf of a job: its agent is the job's queue."""
        steps = self.remember(
            text,
            ctx.queue,
            kind=arguments.name("kind", kind),
            ttl_seconds=None if ttl is None else arguments.seconds("ttl", ttl, positive=True),
            tenant=ctx.job.extra("tenant"),  # noqa: S610 - no Django here
            meta=meta,
            job_id=ctx.id,
            workflow_id=ctx.job.extra("workflow_id"),  # noqa: S610 - no Django here
        )
        return carry_out(ctx, steps)


def search_terms(
    text: str, agent: Names | None, kind: Names | None, tenant: str | None, limit: int, by: str
) -> tuple[str, Scope, int, Any]:
    """The arguments of a search, checked. Raises: InvalidArgument."""
    within = None if tenant is None else arguments.text("tenant", tenant)
    scope = Scope(arguments.names("agent", agent), arguments.names("kind", kind), within)
    checked = arguments.whole("limit", limit, 1, LIMIT_MAX)
    return arguments.text("text", text, TEXT_BYTES), scope, checked, arguments.word("by", by, BY)


def carry_out(ctx: Context, steps: Steps[R]) -> Any:
    """Run an operation by the store of a job's worker: at once in a thread, as a coroutine on an event loop."""
    call, acall = ctx.services.call, ctx.services.acall
    if call is None or acall is None:
        raise ConfigError(f"Job {ctx.id} runs in a process of its own, which has no store to remember in.")
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(steps, call)
    return arun(steps, acall)


def _run(steps: Steps[R], call: Callable[[Any], Any]) -> R:
    try:
        ask = next(steps)
        while True:
            ask = steps.send(call(ask) if isinstance(ask, Request) else ask())
    except StopIteration as end:
        result: R = end.value
        return result


async def arun(steps: Steps[R], acall: Callable[[Any], Any]) -> R:
    """Run an operation on an event loop."""
    import asyncio

    try:
        ask = next(steps)
        while True:
            answer = await (acall(ask) if isinstance(ask, Request) else asyncio.to_thread(ask))
            ask = steps.send(answer)
    except StopIteration as end:
        result: R = end.value
        return result


def words_of(text: str) -> list[str]:
    """The words to look for: without those that say nothing, unless there are no others."""
    words = list(dict.fromkeys(word.lower() for word in _WORD.findall(text)))
    return [word for word in words if word not in _STOP_WORDS] or words


def fuse(lists: Mapping[str, Sequence[str]], text: str) -> dict[str, float]:
    """Scores by reciprocal rank."""
    is_name = any(character.isdigit() for character in text)
    weights = {"words": 1.0 if is_name else LIGHTER, "meaning": LIGHTER if is_name else 1.0}
    scores: dict[str, float] = {}
    for name, ids in lists.items():
        for place, memory_id in enumerate(ids, 1):
            scores[memory_id] = scores.get(memory_id, 0.0) + weights[name] / (RANK_OFFSET + place)
    return scores


def text_of(source: EventSource) -> str:
    """What is remembered of an event: what the agent did, what came of it, what it was given. Without secrets."""
    from tenure.model.redact import clean

    event = source.event
    data = event.data if isinstance(event.data, Mapping) else {}
    own = {} if event.job_id is not None and source.job_kind is not None else data
    parts = [
        f"{source.job_kind or data.get('task') or event.agent} {event.kind}",
        source.result_summary,
        _told(source.result),
        _told(source.payload),
        source.last_error if event.kind != "completed" else None,
        _told(own),
    ]
    told = ". ".join(clean(part, PART_CHARS).strip() for part in parts if part and part.strip())
    return clean(told, TEXT_CHARS)


def _told(value: Any) -> str:
    """A JSON value as words: keys and values, without the marks of JSON. Secrets are taken out by key first."""
    from tenure.model.redact import process_redactor

    return ", ".join(_leaves(process_redactor().data(value), ""))[: 4 * PART_CHARS]


def _leaves(value: Any, name: str) -> list[str]:
    if isinstance(value, Mapping):
        return [leaf for key, one in value.items() for leaf in _leaves(one, str(key))]
    if isinstance(value, list):
        return [leaf for one in value for leaf in _leaves(one, name)]
    if value is None:
        return []
    return [f"{name}: {value}" if name else str(value)]


def _hit(memory: Memory, score: float, by: tuple[str, ...]) -> Hit:
    return Hit(
        id=memory.id,
        text=memory.text,
        agent=memory.agent,
        kind=memory.kind,
        at=memory.at,
        score=score,
        by=by,
        job_id=memory.job_id,
        workflow_id=memory.workflow_id,
        agent_event_id=memory.agent_event_id,
        tenant=memory.tenant,
        meta=memory.meta,
    )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def _id_from(seed: str) -> str:
    """A UUID that follows from the seed (version 8: made by a rule of our own)."""
    made = hashlib.sha256(seed.encode()).hexdigest()
    return f"{made[:8]}-{made[8:12]}-8{made[12:15]}-8{made[15:18]}-{made[18:30]}"
