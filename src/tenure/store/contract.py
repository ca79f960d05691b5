"""The contract: what every store promises, request by request.

A request is a value; `Store.do` carries it out for a sync caller and `Store.ado` for an async one, so each promise is
written once. Every request that touches jobs takes a batch. The promises that hold for all of them:

- **Atomic**: a request happens whole or not at all, in one transaction.
- **Accepted means committed**: when the answer is there, the change is durable.
- **Safe to repeat**: after `StoreUnavailable` the outcome is unknown; sending the same request again does no harm and
  answers as the first one did. Ids are made by the client, and keys and tokens do the rest.
- **Fenced**: what a worker writes carries its token. The write counts only while that token is the newest *and* the
  lease has not run out by the store's clock; otherwise nothing is changed and the answer says that the lease is lost.
- **The store's clock judges**: no argument is a worker's own time.

The moves of a job stand here, reads in `queries`, operators' acts in `admin`; each further subject (`flow`,
`workflows`, `budgets`, …) has a module of its own. The conformance suite quotes these docstrings; both engines pass the
same suite.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tenure.errors import DiskFull, GateClosed
from tenure.model.frozen import frozen
from tenure.model.ids import JobId, Token, WorkerId
from tenure.model.job import Enqueued, Grant, Job, NewJob
from tenure.model.outcome import Beat, Outcome, Settled
from tenure.model.policy import QueuePolicy

if TYPE_CHECKING:
    from tenure.store.admin import InstalledProfile, InstallProfile
    from tenure.store.moving import TableAccess

SOON_SECONDS = 5.0
"""Workers are woken for jobs that come due within this time: as long as an idle one sleeps between two polls."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Request(Generic[T_co]):
    """One thing asked of a store; the type parameter is its answer."""

    __slots__ = ()


# --- jobs: the path of one job ----------------------------------------------------------------------------------------


@frozen
class Enqueue(Request[list[Enqueued]]):
    """Put jobs in state `queued`. All or none; one answer per job, in order.

    A job whose key is taken (the unique index on the slot decides, never a look beforehand) is not created: its
    answer is the id of the job that holds the key, with `duplicate=True`; where that is a job of another login that the
    caller may not read (PostgreSQL), the id is the caller's own, and there is no such job. Two jobs in one batch with
    the same key: the first wins. A job whose *id* is already there was enqueued by an earlier try of the same request
    and counts as created. The wake-up goes out with the commit.

    Raises: UnknownQueue (unless in `create_queues`), GateClosed, KeyConflict (key taken by another payload, where the
    queue's policy says error), KeyRequired, ForbiddenKey, InvalidArgument (max_attempts < 1, priority out of 32 bits,
    …).
    """

    jobs: Sequence[NewJob]
    create_queues: Mapping[str, QueuePolicy] = field(default_factory=dict)
    """Queues the caller declares: those that don't exist yet are created with this policy, in the same transaction, as
    SetQueues with `only_new` does. Forbidden if the policy names a profile and the queue belongs to another."""


@frozen
class Claim(Request[list[Grant]]):
    """Take up to `limit` due jobs under a lease: queued → leased (→ running where the queue starts on claim).

    token + 1, attempt + 1, lease set. First, leases that ran out are taken back (as Reap does) and jobs that came due
    are made claimable; then new work is granted in order of rank, run_at, id. No job is ever granted to two claims.
    A row that cannot be taken back is skipped and does not stop the claim.

    Paused queues give nothing, nor do kinds whose gate `kind:NAME` is closed. `kinds` and `affinity` filter; `affinity`
    lists keys, None in it stands for jobs without one. Concurrency limits of a queue and of a concurrency key are exact
    across all claimers. `lease_seconds` None means the queue's; a number must be positive and at most the queue's
    `lease_max_seconds`.

    `held`: on a repeat after a lost reply, the jobs this worker knows it holds. Others leased to it are granted again,
    with the same token and a lease that begins anew, before anything new; they carry all their columns, as the first
    grant did.

    Jobs whose `suspicion` is ALONE_FROM or more (model.state) go first, and a worker holds at most one of them at a
    time: further ones wait until that one has ended.

    Raises: UnknownQueue, GateClosed (master, worker, the profile's, or all queues' own gates), InvalidArgument (a blank
    worker name among others).
    """

    worker: WorkerId
    queues: Sequence[str]
    limit: int = 1
    kinds: Sequence[str] | None = None
    affinity: Sequence[str | None] | None = None
    lease_seconds: float | None = None
    strict: bool = False
    """Queues are served in the order given; otherwise they are merged by rank."""
    held: Sequence[JobId] | None = None


@frozen
class Settle(Request[list[Settled]]):
    """End attempts. One answer per outcome, in order; each is fenced by its own token, and one refusal does not stop
    the rest.

    Completed → succeeded. Failed → queued at now + backoff (or `retry_after_seconds`), or dead with a dead letter if
    attempts are spent. Rejected → failed with a dead letter. Released → queued, attempt refunded. Suspended →
    waiting, attempt refunded; or queued, where what it waits for has happened already. Stopped → cancelled. If a cancel
    was requested, every one of them ends in `cancelled` instead. What each end does to the row, and whether it writes
    an attempt row, stands in model.state.RULES; what a Suspended with steps does, in store.flow.

    Jobs, events and effects of a Completed are committed with it, and only if it was accepted; such jobs pass every
    gate, for a settle is never gated. A slot of scope `active` is free again once the job has ended.
    """

    outcomes: Sequence[Outcome]


@frozen
class Exchanged:
    """The answer to an Exchange."""

    settled: Mapping[tuple[JobId, Token], Settled]
    """By grant. Only outcomes that did not end as a plain success: everything else than Completed, and every
    Completed that was lost or cancelled."""
    grants: list[Grant]
    refused: GateClosed | DiskFull | None = None
    """Why nothing was granted although something was settled. Without outcomes it is raised instead."""
    has_flow_events: bool = False
    """It left events for SweepFlow (store.flow): the end of a child, or a job that parked."""
    due_in_seconds: float | None = None
    """When the next job of the claimed queues comes due, if the claim gave less than was asked for and that is within
    SOON_SECONDS. A hint: a job of them that comes due meanwhile and was enqueued or suspended later is told by a
    wake-up, or found by the poll."""
    taken_back: Sequence[Settled] = ()
    """Jobs of any queue whose lease had run out, and that this claim took back, each with the state it is in now."""


@frozen
class Exchange(Request[Exchanged]):
    """Settle what ended and claim for the free slots: one transaction, one round trip. The worker's one call.

    Promises what Settle and Claim promise. The settling stands even if a gate refuses the claim: `refused` says so.
    """

    outcomes: Sequence[Outcome]
    claim: Claim | None


@frozen
class Hold:
    """One held job in a heartbeat. `progress` is JSON text to store, None leaves it;
    `started` moves leased → running."""

    job_id: JobId
    token: Token
    progress: str | None = None
    started: bool = True


@frozen
class WorkerRow:
    """A worker's own row: who it is and what it serves."""

    id: WorkerId
    hostname: str
    pid: int
    queues: Sequence[str] = ()
    kinds: Sequence[str] = ()
    concurrency: int = 1
    version: str = ""
    profile_kind: str = "external_worker"
    """The executor kind of specification 002."""
    status: str = "ok"
    current_job_id: JobId | None = None
    info: str = "{}"
    """JSON text."""

    @property
    def denied(self) -> tuple[str, ...]:
        """Duties of a leader that its login may not do, as it says in `info`, where a worker may say anything."""
        try:
            told = json.loads(self.info)
        except (ValueError, RecursionError):
            return ()
        denied = told.get("denied") if isinstance(told, dict) else None
        return tuple(str(duty) for duty in denied) if isinstance(denied, list) else ()


@frozen
class Heartbeat(Request[Beat]):
    """Extend the leases of all held jobs, store progress and refresh the worker's row, in one transaction.

    Never revives a lost lease, never shortens one, never extends beyond now + lease_seconds (bounded by the queue's
    policy; None means the queue's). Says which are lost, which are asked to stop, and of which the deadline (step
    `$deadline`) has passed; not of jobs that are being undone. A closed `heartbeat` gate keeps the worker row from
    being written (GateClosed if there is nothing else to do), never the leases.
    """

    holds: Sequence[Hold]
    lease_seconds: float | None = None
    worker: WorkerRow | None = None


@frozen
class Start(Request[list[Settled]]):
    """leased → running, for workers that say so themselves. A running job stays so. Fenced; answers as Settle does."""

    holds: Sequence[Hold]


@frozen
class Wake(Request[list[JobId]]):
    """waiting → queued, with the place in its queue that it had before. Answers which were woken.

    With `waiting_for`, all that wait for it now. Of the jobs named by id, one that a worker holds is not woken, but its
    next suspend under that grant goes straight back to `queued`: a wake-up that comes before the suspend is not lost.
    What may happen before a job waits for it by name is a Signal (store.flow). Others are left alone.
    """

    job_ids: Sequence[JobId] = ()
    waiting_for: str | None = None


@frozen
class Cancelled:
    """What a Cancel did with one job: `cancelled`, `requested` (a worker holds it), or `refused` with the state it
    is in."""

    job_id: JobId
    answer: str
    state: str | None


@frozen
class Cancel(Request[list[Cancelled]]):
    """Cancel jobs: queued and waiting ones at once, held ones by request (their worker learns of it and settles).
    With `children` also the members of their groups, and theirs, by pages that SweepFlow carries out.

    After `cancelled` the job never starts; after `requested` it never succeeds. Terminal jobs and unknown ids are
    refused (state None: not found). Repeating is harmless. Leaves an audit row with actor and reason.

    Raises: Outdated, if a job of `versions` has changed since it was read; then no job of the request is changed. One
    that is cancelled or asked to stop already is not compared: a repeat is harmless.
    """

    job_ids: Sequence[JobId]
    actor: str
    reason: str
    children: bool = True
    versions: Mapping[JobId, str] = field(default_factory=dict)
    """What `Job.version` said of the jobs that the caller has read. Jobs that are absent here are not compared."""


@frozen
class Revive(Request[list[Settled]]):
    """failed, dead, cancelled → queued: attempts and crashes 0, due at once, an operator's act with actor and reason.

    Its pending dead letters become `manual_replay`. A job that is not in one of these states, whose queue allows only
    a clone, whose payload was pruned, that lacks `from_step`, or whose key is held by another job answers with state
    None and is left alone; `why` in the audit row tells. Leaves an audit row per job.

    Raises: Outdated, if a job of `versions` has changed since it was read; then no job of the request is changed.
    """

    job_ids: Sequence[JobId]
    actor: str
    reason: str
    from_step: str | None = None
    """Forget this step and all that were first recorded after it (store.flow). Otherwise steps are kept, so the job
    goes on where it was; but where a step was undone, all are forgotten, because what they tell no longer holds."""
    versions: Mapping[JobId, str] = field(default_factory=dict)
    """As that of Cancel."""


@frozen
class Clone(Request[list[Enqueued]]):
    """Enqueue copies of ended jobs under the given new ids, with `parent_id` set to the original, and `actor` to who
    has it done again. Raises NotFound, IllegalMove."""

    job_ids: Mapping[JobId, JobId]
    actor: str
    reason: str


@frozen
class EditJob(Request[Job]):
    """Give a job that waits in its queue another payload, another priority, or both. Answers the job as it stands now.

    Only a `queued` job, which no worker holds; and its payload only while it has recorded no step, because steps go by
    the payload that they saw. The new values are checked as those of an enqueue are: the queue's payload guard, the
    priorities that its profile takes. Key, concurrency key and limiters stay; `payload_hash` becomes that of the new
    payload, so a repeated enqueue of the key is compared with what the job carries now. A new priority ranks the job by
    the queue's policy of today and the moment at which it was created.

    `version`: what `Job.version` said when the caller read the job. A job that has changed since is left alone, so two
    editors never overwrite each other; `updated_at` rises with every edit, even within one tick of the clock. Leaves an
    audit row with the hashes of both payloads and both priorities, and an event `edited`.

    A repeat is harmless: where all that is asked for stands already, nothing is written and the job is answered, in
    whatever state it is.

    Raises: NotFound; IllegalMove, if it is not queued or has steps; Outdated, if `version` is not the newest;
    ForbiddenKey, InvalidArgument.
    """

    job_id: JobId
    actor: str
    reason: str
    payload: str | None = None
    """JSON text. None: it keeps its own."""
    priority: int | None = None
    """None: it keeps its own."""
    version: str | None = None
    """None: whatever it is now."""


@frozen
class Reap(Request[list[Settled]]):
    """Take back up to `limit` jobs whose lease ran out: queued, or dead when attempts are spent. Any process may.

    Queued means claimable at once, with its old `run_at`, so that it comes before newer work of its rank; a backoff
    is for failures that a handler reported. Each leaves an attempt row with class `crash`, or `lease_lost` where its
    worker was seen after the lease had ended. Its error names no worker, so that equal deaths have one fingerprint.

    What it proves depends on what else the worker held when the first of its leases ran out. *Alone*: the crash is the
    job's own; the attempt that the claim counted stands, `crashes` + 1, `suspicion` + 1. *Beside others*: it is
    unknown whose crash it was, so the attempt is refunded; `suspicion` + 1 if the worker has vanished. The jobs that a
    vanished worker still holds under leases that have not run out yet are marked then, so that they count as held
    beside others whenever theirs run out. `suspicion` of SUSPICION_MAX counts as alone.

    A cancel that was requested ends in `cancelled`. A row that cannot be taken back is skipped: it never stops the
    others, and `doctor` names it.

    **Quarantine.** A crash that is a job's own (here, or of a handler's own process in Settle) may be one too many for
    its kind: if QUARANTINE_JOBS jobs of it have crashed QUARANTINE_CRASHES times each within QUARANTINE_SECONDS, and
    since the gate was last opened, the gate `kind:NAME` is closed in the same transaction, with an audit row that names
    them.
    """

    limit: int = 1000


@frozen
class Pruned:
    """What a Prune removed."""

    cleaned: int
    deleted: int
    events: int
    workers: int
    more: bool
    """The limit was reached; call again."""
    metrics: int = 0
    """Rows of counted minutes."""
    memories: int = 0
    """Memories whose time was over."""


@frozen
class Prune(Request[Pruned]):
    """Retention: the payload, result and error of jobs that ended longer ago than their queue retains go;
    the row stays (`cleaned_at`).

    `delete_after_seconds` removes cleaned rows that ended longer ago than that, with their attempts,
    effects and events. Dead letters are never touched, nor jobs that have one which is not closed.
    """

    limit: int = 1000
    older_than_seconds: float | None = None
    """Instead of each queue's own retention."""
    delete_after_seconds: float | None = None
    worker_seconds: float = 86_400.0
    """Rows of workers that were not seen for this long go; jobs they held are taken back first."""
    metric_seconds: float = 2_592_000.0
    """Counted minutes that lie further back go: 30 days."""


# --- the store --------------------------------------------------------------------------------------------------------


@frozen
class StoreStats:
    """What a store object has done in this process."""

    requests: int
    transactions: int
    statements: int
    retries: int


class Subscription(Protocol):
    """A live wake-up. `close` ends it; closing twice is harmless."""

    def close(self) -> None: ...

    def is_alive(self) -> bool:
        """Whether wake-ups are believed to arrive; a silent listener turns False within 15 s.
        The poll behind it goes on either way."""
        ...


class Store(Protocol):
    """A place where jobs live. Thread-safe; safe to create before a fork and use after it; closing is idempotent."""

    url: str

    def do(self, request: Request[T]) -> T:
        """Carry out a request and wait for the answer. Must not be called on a running event loop's thread for long
        work."""
        ...

    async def ado(self, request: Request[T]) -> T:
        """Carry out a request without blocking the event loop.

        A cancelled await leaves the outcome unknown, as a lost reply does, and the store as usable as before.
        """
        ...

    def enqueue_on(self, connection: Any, request: Enqueue) -> list[Enqueued]:
        """Enqueue inside the caller's transaction: the jobs exist exactly if the caller commits, and the wake-up
        goes out then.

        A duplicate key does not break the transaction. `connection` is a sqlite3, psycopg, SQLAlchemy or Django
        connection. Raises ConfigError if it belongs to another engine, or another database file on SQLite.
        """
        ...

    async def aenqueue_on(self, connection: Any, request: Enqueue) -> list[Enqueued]:
        """The same for asyncpg, async psycopg and SQLAlchemy's AsyncConnection and AsyncSession."""
        ...

    def subscribe(self, queues: Sequence[str], wake: Callable[[], None]) -> Subscription:
        """Call `wake` when jobs may have arrived in these queues, or a held job was asked to stop.

        `wake` is called from any thread, must be cheap and must not block. It is a hint: it may come too often, and
        once in a while not at all, so callers poll behind it.
        """
        ...

    def migrate(self) -> list[str]:
        """Bring the schema up to this version; answers the names of the migrations applied, none if it was there.

        Transactional, repeatable, and safe when ten processes start at once. Raises SchemaAhead.
        """
        ...

    def migration_sql(self) -> str:
        """The SQL that `migrate` would run, as one script for the engine's shell.

        On SQLite for this file, because its shell cannot ask what is there: for one that does not exist, the whole
        schema. On PostgreSQL for any database. Creates nothing.
        """
        ...

    def schema_version(self) -> int:
        """The version of the schema in the database, 0 if there is none.

        A newer version is answered if it says that this program may use it.

        Raises: SchemaAhead; SchemaError (the schema was made from another text than this version's).
        """
        ...

    def tables(self) -> TableAccess:
        """Whole tables, for `tenure move`."""
        ...

    def install_profile(self, install: InstallProfile) -> InstalledProfile:
        """Run a profile's script and note it down, in one transaction. Repeatable, and safe when several do it at once.

        Raises: IllegalMove (its queue belongs to another profile, or has live jobs), AccessDenied, SchemaError (the
        script is refused).
        """
        ...

    def now(self) -> datetime:
        """The store's clock."""
        ...

    def stats(self) -> StoreStats:
        """Counters since this object was made."""
        ...

    def close(self) -> None:
        """Let go of connections and threads. Requests in flight finish first; later ones raise StoreClosed."""
        ...

    async def aclose(self) -> None:
        """The same without blocking the event loop."""
        ...
