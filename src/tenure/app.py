"""The front door: an App turns a URL into a store, functions into handlers, and calls into jobs.

Nothing is opened until it is needed, so an App may be made at import, before a fork, or without a database at hand.
Every act has an async twin with an `a` in front; both carry out the same conversation (see `tenure.door.talk`).
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack, overload

from tenure.door.effecting import Effecting
from tenure.door.function import JobDecorator, JobFunction
from tenure.door.opening import Migrate, open_store, scheme_of, shown_url
from tenure.door.operating import Operating
from tenure.door.profiling import Profiling
from tenure.door.reading import Reading
from tenure.door.scheduling import Scheduling
from tenure.door.settings import QueueSettings, check_policy, with_settings
from tenure.door.signature import read_signature
from tenure.door.talk import Ahead, Collect, OnConnection, Talk, ask, atwin, twin
from tenure.door.working import Working
from tenure.errors import ConfigError, HandlerError, UnknownQueue, nearest
from tenure.handler import arguments
from tenure.handler.arguments import Duration, Names
from tenure.handler.building import MISSING, JobOptions, backoff_json, build_job, build_jobs
from tenure.handler.payload import payload_codec
from tenure.handler.registry import Handler, Mode, Registry
from tenure.model.ids import WorkerId, new_worker_id
from tenure.model.job import Enqueued, NewJob
from tenure.model.policy import Backoff, Limits, QueuePolicy
from tenure.store.contract import Enqueue, Request, Store, StoreStats

if TYPE_CHECKING:
    from tenure.effects.kinds import Checker
    from tenure.handler.context import Context
    from tenure.handler.ledger import Verify
    from tenure.model.clock import Clock
    from tenure.model.log_event import Emit
    from tenure.model.schedule import Schedule
    from tenure.worker.worker import Worker, WorkerStats

BATCH_JOBS = 2_000
BATCH_CHARS = 16 * 1024 * 1024

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
PayloadT = TypeVar("PayloadT")


class App(Working, Operating, Reading, Scheduling, Effecting, Profiling):
    """A queue of jobs in one database, with the handlers that this code knows.

    Args:
        url: `sqlite:///jobs.db` or `postgresql://…`; TENURE_URL if left out.
        migrate: `auto` brings a SQLite file up to date and sets up an empty PostgreSQL database, but leaves the upgrade
            of a PostgreSQL database to `tenure migrate`; `always` upgrades it; `never` touches no schema.
        limits: What payloads and texts may take.
        actor: Who is written down for acts that name nobody else.
        clock: Where a SQLite store takes the time from; for tests.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        migrate: Migrate = "auto",
        limits: Limits | None = None,
        actor: str = "app",
        clock: Clock | None = None,
    ) -> None:
        if url is not None:
            scheme_of(url)  # an unknown scheme is best told where it was written
        if migrate not in {"auto", "always", "never"}:
            raise ConfigError(f"`migrate` is {migrate!r}; it must be 'auto', 'always' or 'never'.")
        self.limits = limits or Limits()
        self.actor = arguments.text("actor", actor)
        self.registry = Registry()
        self.declared: dict[str, QueuePolicy] = {}
        self.declared_schedules: dict[str, Schedule] = {}
        self.checkers: list[Checker] = []
        self.verifiers: dict[str, Verify] = {}
        self._made: set[str] = set()
        self._agents: set[str] = set()
        self._url = url
        self._migrate: Migrate = migrate
        self._clock = clock
        self._store: Store | None = None
        self._lock = threading.Lock()
        self._worker_id: tuple[int, WorkerId] | None = None

    # --- handlers and queues ---

    @overload
    def job(self, function: Callable[[], R], /) -> JobFunction[None, [], R]: ...
    @overload
    def job(self, function: Callable[[Context], R], /) -> JobFunction[None, [Context], R]: ...
    @overload
    def job(self, function: Callable[[PayloadT], R], /) -> JobFunction[PayloadT, [PayloadT], R]: ...
    @overload
    def job(self, function: Callable[[PayloadT, Context], R], /) -> JobFunction[PayloadT, [PayloadT, Context], R]: ...
    @overload
    def job(
        self,
        /,
        *,
        queue: str = ...,
        kind: str | None = ...,
        max_attempts: int | None = ...,
        priority: int | None = ...,
        timeout: Duration | None = ...,
        lease: Duration | None = ...,
        backoff: Backoff | None = ...,
        isolate: bool = ...,
    ) -> JobDecorator: ...
    def job(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        queue: str = "default",
        kind: str | None = None,
        max_attempts: int | None = None,
        priority: int | None = None,
        timeout: Duration | None = None,
        lease: Duration | None = None,
        backoff: Backoff | None = None,
        isolate: bool = False,
    ) -> Any:
        """Make a function the handler of a kind of job. It stays callable, and can enqueue itself.

        The function takes a payload, then a context, or one of them, or nothing. The payload's annotation (a pydantic
        model, dataclass, TypedDict or plain JSON type) is checked when a job is enqueued and again before it runs.

        Args:
            kind: The stable name of its jobs; the function's name if left out. Renaming strands jobs already enqueued.
            timeout: How long one attempt may take; unlimited if left out.
            lease: How long a worker holds a job between heartbeats; the queue's if left out.
            isolate: Run each job in a process of its own, which can be killed.
        """
        scope = _names_in_scope()

        def decorate(function: Callable[..., Any]) -> JobFunction[Any, ..., Any]:
            name = _kind_of(function) if kind is None else arguments.name("kind", kind)
            signature = read_signature(function, name, scope)
            encode, decode = payload_codec(signature.payload, name, self.limits)
            handler = Handler(
                kind=name,
                queue=arguments.name("queue", queue),
                function=function,
                mode=_mode(function, isolate),
                decode=decode,
                encode=encode,
                wants_payload=signature.wants_payload,
                wants_context=signature.wants_context,
                max_attempts=None if max_attempts is None else arguments.whole("max_attempts", max_attempts, 1),
                priority=None if priority is None else arguments.whole("priority", priority),
                timeout_seconds=None if timeout is None else arguments.seconds("timeout", timeout, positive=True),
                lease_seconds=None if lease is None else arguments.seconds("lease", lease, positive=True),
                backoff=None if backoff is None else backoff_json("backoff", backoff),
            )
            self.registry.add(handler)
            if handler.queue != "default":
                self.declared.setdefault(handler.queue, QueuePolicy())
            return JobFunction(function, handler, self)

        return decorate if function is None else decorate(function)

    def queue(self, name: str, policy: QueuePolicy | None = None, /, **settings: Unpack[QueueSettings]) -> QueuePolicy:
        """Declare a queue: where it does not exist yet, it is created with this policy when it is first used.

        An existing queue keeps what its operators set; `set_queue` changes it.
        """
        arguments.name("name", name)
        if name == "default":
            raise ConfigError(
                "Queue 'default' exists in every database, so declaring it would change nothing. "
                "Change its policy with `app.set_queue('default', …)`."
            )
        declared = with_settings(policy or QueuePolicy(), settings)
        check_policy(declared)
        self.declared[name] = declared
        self._made.discard(name)
        return declared

    # --- enqueue ---

    def new_job(self, kind: str, payload: Any = MISSING, **options: Unpack[JobOptions]) -> NewJob:
        """A checked job with an id, not enqueued yet. Enqueueing it twice makes one job.

        Raises: InvalidPayload, InvalidArgument.
        """
        return build_job(kind, payload, options, self.registry.get(kind), self.limits, "default")

    def new_jobs(self, kind: str, payloads: Iterable[Any], **options: Unpack[JobOptions]) -> Iterator[NewJob]:
        """Checked jobs with the same options, made as they are asked for. Raises like `new_job`."""
        return build_jobs(kind, payloads, options, self.registry.get(kind), self.limits, "default")

    def enqueue(
        self, kind: str, payload: Any = MISSING, *, connection: Any = None, **options: Unpack[JobOptions]
    ) -> Enqueued:
        """Put one job in its queue; it is durable when this returns. A key that is taken answers the job that holds it.

        A kind that has a handler here gets its payload checked, and goes to the handler's queue; others, which may be
        served in other languages, go to `queue` or `default`. With `connection` (sqlite3, psycopg, SQLAlchemy, Django)
        the job belongs to the caller's transaction: it exists exactly if that commits.

        Raises: InvalidPayload, InvalidArgument, UnknownQueue, KeyConflict, GateClosed, StoreUnavailable.
        """
        return self.enqueue_new(self.new_job(kind, payload, **options), connection)

    async def aenqueue(
        self, kind: str, payload: Any = MISSING, *, connection: Any = None, **options: Unpack[JobOptions]
    ) -> Enqueued:
        """`enqueue` for async callers; `connection` may be asyncpg's, async psycopg's or SQLAlchemy's async one."""
        return await self.aenqueue_new(self.new_job(kind, payload, **options), connection)

    def enqueue_new(self, job: NewJob, connection: Any = None) -> Enqueued:
        """Put one job in its queue that `new_job` made."""
        queue = job.queue
        if connection is None and (queue in self._made or queue not in self.declared):  # see `_knows`
            # One question and one answer, as most enqueues are, need no conversation; where the queue has gone since,
            # the conversation knows what to do.
            try:
                return (self._store or self.open_store()).do(Enqueue([job]))[0]
            except UnknownQueue:
                pass
        return self.converse(self._enqueue_new(job, connection))

    def _enqueue_new(self, job: NewJob, connection: Any = None) -> Talk[Enqueued]:
        """Put one job in its queue that `new_job` made."""
        (answer,) = yield from self._enqueue_batch([job], connection)
        return answer

    def _enqueue_many(
        self, jobs: Iterable[NewJob | tuple[str, Any]], *, connection: Any = None
    ) -> Talk[list[Enqueued]]:
        """Enqueue many jobs, made by `new_job` or given as (kind, payload); one answer each, in order.

        They go in batches of up to 2,000, each all or none. After an error, repeating the same NewJobs does no harm.
        """
        answers: list[Enqueued] = []
        batch: list[NewJob] = []
        chars = 0
        sent: Any = None
        for given in jobs:
            job = given if isinstance(given, NewJob) else self.new_job(*given)
            batch.append(job)
            chars += len(job.payload)
            if len(batch) >= BATCH_JOBS or chars >= BATCH_CHARS:
                if sent is not None:
                    answers += yield from ask(Collect(sent))
                    sent = None
                if answers and connection is None and all(map(self._knows, {job.queue for job in batch})):
                    sent = yield from ask(Ahead(Enqueue(batch)))  # the next batch is made while this one is on its way
                else:
                    answers += yield from self._enqueue_batch(batch, connection)
                batch, chars = [], 0
        if sent is not None:
            answers += yield from ask(Collect(sent))
        if batch:
            answers += yield from self._enqueue_batch(batch, connection)
        return answers

    def _knows(self, queue: str) -> bool:
        """Whether the queue has not still to be made."""
        return queue in self._made or queue not in self.declared

    def _enqueue_batch(self, jobs: list[NewJob], connection: Any) -> Talk[list[Enqueued]]:
        queues = {job.queue for job in jobs}
        declared = {name: self.declared[name] for name in queues if name in self.declared}
        if connection is not None:
            # The caller may roll back, and the queues with it: declare them each time, and remember nothing.
            return (yield from ask(OnConnection(connection, Enqueue(jobs, declared))))
        unseen = {name: policy for name, policy in declared.items() if name not in self._made}
        try:
            answers = yield from ask(Enqueue(jobs, unseen))
        except UnknownQueue:
            if declared == unseen:
                raise
            answers = yield from ask(Enqueue(jobs, declared))  # the database is not the one it was
        self._made.update(unseen)
        return answers

    aenqueue_new = atwin(_enqueue_new)
    enqueue_many = twin(_enqueue_many)
    aenqueue_many = atwin(_enqueue_many)

    # --- work ---

    @property
    def worker_id(self) -> WorkerId:  # type: ignore[override]
        """The name under which this process claims unless it says otherwise; a fork gets one of its own."""
        known, pid = self._worker_id, os.getpid()
        if known is None or known[0] != pid:
            known = self._worker_id = (pid, new_worker_id())
        return known[1]

    def worker(
        self,
        queues: Names | Mapping[str, int] | None = None,
        *,
        concurrency: int = 10,
        emit: Emit | None = None,
        **settings: Any,
    ) -> Worker:
        """A worker on this app's store that runs its handlers; `run()` or `run_sync()` starts it.

        Without `queues`: `default` and those that this app declares; a mapping gives them weights.
        `settings` are the fields of WorkerConfig. Raises: ConfigError, HandlerError.
        """
        from tenure.worker.worker import Worker, WorkerConfig

        known = {field.name for field in fields(WorkerConfig)}
        for setting in settings:
            if setting not in known:
                raise ConfigError(f"A worker has no setting {setting!r}.{nearest(setting, known)}")
        if not isinstance(queues, Mapping):
            queues = arguments.names("queues", queues) or ("default", *(q for q in self.declared if q != "default"))
        settings.setdefault("declare", self.declared)
        config = WorkerConfig(queues=queues, concurrency=concurrency, **settings)
        schedules = tuple(self.declared_schedules.values())
        return Worker(self.open_store(), self.registry, config, emit=emit, schedules=schedules, limits=self.limits)

    def run_worker(
        self,
        queues: Names | Mapping[str, int] | None = None,
        *,
        concurrency: int = 10,
        emit: Emit | None = None,
        reconcile: bool = False,
        **settings: Any,
    ) -> WorkerStats:
        """Run jobs until told to stop by SIGINT or SIGTERM. Answers what was done. See `worker` for the arguments.

        `reconcile` compares the records with the world once, beside the work, and emits what differs.
        """
        self.converse(self.declare(self.declared))
        with self.reconciling(emit) if reconcile else nullcontext():
            return self.worker(queues, concurrency=concurrency, emit=emit, **settings).run_sync()

    async def arun_worker(
        self,
        queues: Names | Mapping[str, int] | None = None,
        *,
        concurrency: int = 10,
        emit: Emit | None = None,
        reconcile: bool = False,
        **settings: Any,
    ) -> WorkerStats:
        """The same on the running event loop."""
        await self.aconverse(self.declare(self.declared))
        with self.reconciling(emit) if reconcile else nullcontext():
            return await self.worker(queues, concurrency=concurrency, emit=emit, **settings).run()

    # --- the store ---

    @property
    def url(self) -> str:
        """The database's URL, as given or from TENURE_URL. Raises: ConfigError."""
        url = self._url or os.environ.get("TENURE_URL")
        if not url:
            raise ConfigError(
                "No database is named. Pass a URL, as in tenure.App('sqlite:///jobs.db'), or set TENURE_URL."
            )
        return url

    @property
    def store(self) -> Store:
        """The store itself, opened if it is not yet. For other rooms of Tenure; its requests may change."""
        return self.open_store()

    def open_store(self) -> Store:
        """The store, opened if it is not yet. Raises: ConfigError, MissingExtra, StoreUnavailable, SchemaError."""
        store = self._store
        if store is None:
            with self._lock:
                store = self._store
                if store is None:
                    store = self._store = open_store(self.url, self._migrate, self._clock)
        return store

    async def aopen_store(self) -> Store:
        """The same without blocking the event loop."""
        if self._store is not None:
            return self._store
        import asyncio

        return await asyncio.to_thread(self.open_store)

    def do(self, request: Request[T]) -> T:
        """Carry out one request of the store's contract."""
        return self.open_store().do(request)

    async def ado(self, request: Request[T]) -> T:
        """The same for async callers."""
        return await (await self.aopen_store()).ado(request)

    def now(self) -> datetime:
        """The store's clock, which judges all leases."""
        return self.open_store().now()

    def stats(self) -> StoreStats:
        """What the store object of this process has done."""
        return self.open_store().stats()

    def migrate(self) -> list[str]:
        """Bring the schema up to this version. Answers the names of the migrations applied.

        Transactional, repeatable, safe when many start at once. Raises: SchemaAhead.
        """
        store = self._store or open_store(self.url, "never", self._clock)
        try:
            return store.migrate()
        finally:
            if store is not self._store:
                store.close()

    def close(self) -> None:
        """Let go of connections and threads. Harmless to repeat; a later call opens the store again."""
        with self._lock:
            store, self._store = self._store, None
            self._made.clear()
            self._agents.clear()
        if store is not None:
            store.close()

    async def aclose(self) -> None:
        """The same without blocking the event loop."""
        with self._lock:
            store, self._store = self._store, None
            self._made.clear()
            self._agents.clear()
        if store is not None:
            await store.aclose()

    @contextmanager
    def pointed_at(self, url: str, *, clock: Clock | None = None) -> Iterator[Self]:
        """Use another database for a while, with the same handlers; then the one before again. For tests and moves."""
        scheme_of(url)
        before = self._url, self._clock
        self.close()
        self._url, self._clock = url, clock
        try:
            yield self
        finally:
            self.close()
            self._url, self._clock = before

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        url = self._url or os.environ.get("TENURE_URL")
        return f"<tenure.App {shown_url(url) if url else 'without a URL'}, {len(self.registry)} kinds>"


def _names_in_scope() -> Mapping[str, Any]:
    """The local names where a handler is being defined, so that a payload type may be defined in a function."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    if frame is None or frame.f_locals is frame.f_globals:
        return {}
    return dict(frame.f_locals)


def _kind_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise HandlerError(f"{function!r} has no name that could be its kind. Give it one with `kind=`.")
    return name


def _mode(function: Callable[..., Any], isolate: bool) -> Mode:
    if isolate:
        return "process"
    return "async" if inspect.iscoroutinefunction(function) else "thread"
