"""Who calls, and what they may do: the user of a pipe, or the holder of a token over HTTP.

Every request has one caller, set before its handler runs. Tools ask `caller()` and never look at the transport.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from itertools import product
from typing import Final, Protocol

from tenure.app import App
from tenure.errors import ConfigError, Forbidden
from tenure.model.access import MCP, Scope, allows, groups_of
from tenure.model.frozen import frozen
from tenure.model.job import Job

TOOLSETS: Final[Mapping[str, tuple[str, ...]]] = {
    "use": ("enqueue", "run", "status", "wait", "cancel"),
    "inspect": ("overview", "list_jobs", "get_job", "explain", "logs", "usage"),
    "triage": ("dead_letters", "triage", "replay"),
    "work": ("claim", "heartbeat", "progress", "complete", "fail", "release", "ask"),
    "approve": ("inbox", "decide"),
    "admin": ("queues", "gates", "pause_queue", "resume_queue", "close_gate", "open_gate", "revive"),
}
READS: Final = frozenset({"status", "wait", *TOOLSETS["inspect"], "dead_letters", "inbox", "queues", "gates"})
VERB_OF: Final[Mapping[str, str]] = {
    "use": "enqueue",
    "inspect": "read:meta",
    "triage": "operate",
    "work": "worker",
    "approve": "approve",
    "admin": "admin",
}
"""The scope by which a token gets a toolset."""
CALLS_PER_MINUTE: Final = 600
WORKER_NAME_CHARS: Final = 100
"""The name is cut, never the id behind it: the id tells who holds a grant and who asked an approval."""


@frozen
class Access:
    """What a server on a pipe lets its client do. Empty `kinds` and `queues` allow all."""

    toolsets: tuple[str, ...] = ("inspect",)
    read_only: bool = False
    kinds: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    show_data: bool = False
    """Answers contain payloads, results, errors and progress. A claim hands its payload over in any case."""
    confirm: bool = True
    """A person must agree to what is hard to take back."""


class Principal(Protocol):
    """The holder of a token, as the HTTP server found it."""

    @property
    def name(self) -> str: ...
    @property
    def scopes(self) -> tuple[Scope, ...]: ...
    @property
    def app(self) -> App: ...
    @property
    def address(self) -> str: ...
    @property
    def token_id(self) -> str | None: ...


async def _take_any(_jobs: int) -> None:
    """The user of a pipe has no quotas."""


@frozen
class Caller:
    """One caller. `id` is what grants, tasks and quotas belong to; `name` stands in the audit as the actor. `person` is
    who answers approvals: at a token its name, on a pipe the user who started the server."""

    app: App
    id: str
    name: str
    person: str
    tools: frozenset[str]
    scopes: tuple[Scope, ...]
    show_data: bool
    confirm: bool
    address: str | None = None
    """Where the request came from; None on a pipe."""
    take_jobs: Callable[[int], Awaitable[None]] = _take_any
    """Awaited before so many jobs are queued: refuses those beyond the tenant's quotas."""

    @property
    def worker(self) -> str:
        """The name under which this caller claims. Callers of one name are kept apart by their ids."""
        return f"{self.name[:WORKER_NAME_CHARS]}@{self.id}"

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups in whose name the caller answers, as its token has them. The user of a pipe has none."""
        return groups_of(self.scopes)

    @property
    def owner(self) -> str:
        """What stands at `source_ref` of the jobs that this caller enqueued."""
        return f"mcp:{self.id}"

    @property
    def unmasks(self) -> bool:
        """Whether what this caller reads leaves an audit row: it sees job data by a token."""
        return self.show_data and self.address is not None

    async def is_valid(self) -> bool:
        """Whether its token still holds. The user of a pipe has none."""
        return self.address is None or await self.app.aio.access.is_valid(token_id=self.id)

    def may(self, verb: str, *, queue: str | None = None, kind: str | None = None) -> bool:
        """Whether it may do this to jobs of this queue and kind. None asks for all of them."""
        return allows(self.scopes, Scope(verb, queue, kind))

    def owns(self, job: Job) -> bool:
        """Whether the caller enqueued this job."""
        return job.source_ref == self.owner

    def sees(self, job: Job) -> bool:
        """Whether the caller may know of this job."""
        return self.owns(job) or self.may("read:meta", queue=job.queue, kind=job.kind)

    def bounds(self, verb: str) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
        """Queues and kinds outside of which the caller may certainly not do this; None where there is no bound.

        Raises: Forbidden.
        """
        held = [scope for scope in self.scopes if scope.verb == verb or scope.covers(Scope(verb))]
        if not held:
            raise Forbidden(f"This caller lacks the scope {verb!r}. Nothing was changed.")
        queues = sorted({scope.queue or "" for scope in held})
        kinds = sorted({scope.kind or "" for scope in held})
        return (None if "" in queues else tuple(queues)), (None if "" in kinds else tuple(kinds))


def check_toolsets(names: Iterable[str]) -> tuple[str, ...]:
    """The toolsets. Raises: ConfigError."""
    chosen = tuple(names)
    strange = [one for one in chosen if one not in TOOLSETS]
    if strange or not chosen:
        raise ConfigError(f"There is no toolset {', '.join(strange)!r}. There are: {', '.join(TOOLSETS)}.")
    return chosen


def on_pipe(app: App, access: Access, name: str, person: str | None = None) -> Caller:
    """The user of a pipe: `name` is their agent's, `person` their own. Raises: ConfigError."""
    chosen = check_toolsets(access.toolsets)
    tools = {one for toolset in chosen for one in TOOLSETS[toolset]}
    places = list(product(access.queues or (None,), access.kinds or (None,)))
    verbs = [VERB_OF[toolset] for toolset in chosen]
    # Who may enqueue or work there may also look at what became of it.
    scopes = [Scope(verb, queue, kind) for verb in {*verbs, "read:meta", "operate"} for queue, kind in places]
    return Caller(
        app=app,
        id=f"pipe:{name}"[:90],
        name=name,
        person=person or name,
        tools=frozenset(tools & READS if access.read_only else tools),
        scopes=tuple(scopes),
        show_data=access.show_data,
        confirm=access.confirm,
    )


def by_token(who: Principal, toolsets: Iterable[str], take_jobs: Callable[[int], Awaitable[None]]) -> Caller:
    """The holder of a token: its scopes decide which of the offered toolsets it has."""
    scopes = tuple(scope for scope in who.scopes if scope.verb != MCP)
    held = [
        one
        for one in toolsets
        if any(scope.verb == VERB_OF[one] or scope.covers(Scope(VERB_OF[one])) for scope in scopes)
    ]
    return Caller(
        app=who.app,
        id=who.token_id or who.name,
        name=who.name,
        person=who.name,
        tools=frozenset(tool for toolset in held for tool in TOOLSETS[toolset]),
        scopes=scopes,
        show_data=any(scope.verb == "read:payload" for scope in scopes),
        confirm=True,
        address=who.address,
        take_jobs=take_jobs,
    )


_CALLER: ContextVar[Caller] = ContextVar("tenure_mcp_caller")


def caller() -> Caller:
    """Who made the request that is being answered."""
    return _CALLER.get()


def set_caller(who: Caller) -> None:
    """Say who made this request; holds for the task that answers it."""
    _CALLER.set(who)
