"""The client: an App turns a URL into a store, functions into handlers, and calls into jobs.

Nothing is opened until it is needed, so an App may be made at import, before a fork, or without a database at hand.
`app.aio` has the same operations for async callers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import datetime
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from tenure.client.admin import Admin, SyncGates, SyncLeases
from tenure.client.connect import Migrate, open_store, scheme_of, shown_url
from tenure.client.effects import Effects, find_discrepancies, reconciling
from tenure.client.enqueue import declare_queues
from tenure.client.function import JobDecorator, JobFunction
from tenure.client.jobs import Jobs
from tenure.client.operations import SyncClient, run
from tenure.client.profiles import AgentTasks, SyncProfiles
from tenure.client.schedules import SyncSchedules, declare_schedule
from tenure.client.settings import QueueSettings, check_policy, with_settings
from tenure.client.signature import read_signature
from tenure.client.state import ClientState
from tenure.client.work import Work
from tenure.client.worker import Queues, make_worker
from tenure.errors import ConfigError, HandlerError
from tenure.handler import arguments
from tenure.handler.arguments import Duration
from tenure.handler.building import MISSING, backoff_json
from tenure.handler.payload import payload_codec
from tenure.handler.registry import Handler, Mode
from tenure.model.policy import Backoff, Limits, QueuePolicy
from tenure.store.contract import Request, Store

if TYPE_CHECKING:
    from tenure.async_app import AsyncApp
    from tenure.effects.kinds import Kit
    from tenure.effects.reconcile import Discrepancy, Progress
    from tenure.handler.context import Context
    from tenure.model.clock import Clock
    from tenure.model.log_event import Emit
    from tenure.model.schedule import Missed, Schedule
    from tenure.worker.worker import Worker, WorkerStats

T = TypeVar("T")
R = TypeVar("R")
PayloadT = TypeVar("PayloadT")


class App(AgentTasks, Jobs, Work, Admin, Effects, SyncClient):
    """A queue of jobs in one database, with the handlers that this code knows.

    Args:
        url: `sqlite:///jobs.db` or `postgresql://…`; TENURE_URL if left out.
        migrate: `auto` brings a SQLite file up to date and sets up an empty PostgreSQL database, but leaves the upgrade
            of a PostgreSQL database to `tenure migrate`; `always` upgrades it; `never` touches no schema.
        limits: What payloads and texts may take.
        actor: Recorded for changes that name no actor of their own.
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
        state = ClientState(url, migrate, limits or Limits(), actor, clock)
        super().__init__(state)
        self.limits = state.limits
        self.registry = state.registry
        self.declared = state.declared
        self.checkers = state.checkers
        self.verifiers = state.verifiers
        self.gates = SyncGates(state)
        self.leases = SyncLeases(state)
        self.schedules = SyncSchedules(state)
        self.profiles = SyncProfiles(state)

    @cached_property
    def aio(self) -> AsyncApp:
        """The same operations for async callers: `await app.aio.claim(…)`."""
        from tenure.async_app import AsyncApp

        return AsyncApp(self._state)

    # --- handlers, queues, schedules, kits ---

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
            return JobFunction(function, handler, self._state)

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
        self._state.seen_queues.discard(name)
        return declared

    def schedule(
        self,
        name: str,
        cron: str,
        job: str | JobFunction[Any, ..., Any],
        payload: Any = MISSING,
        *,
        tz: str = "UTC",
        missed: Missed = "one",
        queue: str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
    ) -> Schedule:
        """Declare a job for every tick of a cron expression. Workers of this app carry it to the store when they start.

        Exactly one job per tick, however many workers there are. `missed` says what becomes of ticks at which no worker
        was there: `skip` drops them, `one` makes up for them with a single job, `all` with a job each.

        Raises: InvalidArgument, InvalidPayload.
        """
        kind = job if isinstance(job, str) else job.kind
        made = self.new_job(kind, payload, queue=queue, priority=priority, max_attempts=max_attempts)
        return declare_schedule(self._state, name, cron, made, tz, missed)

    def use(self, *kits: Kit) -> Self:
        """Take in ready-made kinds and effects: `app.use(files(root="data"), reports(root="data"))`."""
        for kit in kits:
            kit.install(self)
        return self

    # --- work ---

    def worker(
        self,
        queues: Queues | None = None,
        *,
        concurrency: int = 10,
        emit: Emit | None = None,
        **settings: Any,
    ) -> Worker:
        """A worker on this app's store that runs its handlers; `run()` or `run_sync()` starts it.

        Without `queues`: `default` and those that this app declares; a mapping gives them weights.
        `settings` are the fields of WorkerConfig. Raises: ConfigError, HandlerError.
        """
        return make_worker(self._state, queues, concurrency, emit, settings)

    def run_worker(
        self,
        queues: Queues | None = None,
        *,
        concurrency: int = 10,
        emit: Emit | None = None,
        reconcile: bool = False,
        **settings: Any,
    ) -> WorkerStats:
        """Run jobs until told to stop by SIGINT or SIGTERM. Answers what was done. See `worker` for the arguments.

        `reconcile` compares the records with the world once, beside the work, and emits what differs.
        """
        run(self._state, declare_queues(self._state, self._state.declared))
        with reconciling(self._state, emit) if reconcile else nullcontext():
            return self.worker(queues, concurrency=concurrency, emit=emit, **settings).run_sync()

    def reconcile(self, *, since: datetime | None = None, progress: Progress | None = None) -> Iterator[Discrepancy]:
        """Compare what succeeded with the world, for every kind and effect that knows how; report what differs.

        Streams: neither the jobs nor the files are held in memory. Changes nothing. `since` leaves out what finished
        before.
        """
        return find_discrepancies(self._state, since, progress)

    # --- the store ---

    @property
    def url(self) -> str:
        """The database's URL, as given or from TENURE_URL. Raises: ConfigError."""
        return self._state.url

    @property
    def store(self) -> Store:
        """The store itself, opened if it is not yet. For other rooms of Tenure; its requests may change.

        Raises: ConfigError, MissingExtra, StoreUnavailable, SchemaError.
        """
        return self._state.open_store()

    def do(self, request: Request[T]) -> T:
        """Carry out one request of the store's contract."""
        return self.store.do(request)

    def now(self) -> datetime:
        """The store's clock, which judges all leases."""
        return self.store.now()

    def migrate(self) -> list[str]:
        """Bring the schema up to this version. Answers the names of the migrations applied.

        Transactional, repeatable, safe when many start at once. Raises: SchemaAhead.
        """
        state = self._state
        store = state.store or open_store(state.url, "never", state.clock)
        try:
            return store.migrate()
        finally:
            if store is not state.store:
                store.close()

    def close(self) -> None:
        """Let go of connections and threads. Harmless to repeat; a later call opens the store again."""
        self._state.close()

    @contextmanager
    def pointed_at(self, url: str, *, clock: Clock | None = None) -> Iterator[Self]:
        """Use another database for a while, with the same handlers; then the one before again. For tests and moves."""
        scheme_of(url)
        state = self._state
        before = state.given_url, state.clock
        self.close()
        state.given_url, state.clock = url, clock
        try:
            yield self
        finally:
            self.close()
            state.given_url, state.clock = before

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
        await self.aio.close()

    def __repr__(self) -> str:
        try:
            where = shown_url(self.url)
        except ConfigError:
            where = "without a URL"
        return f"<tenure.App {where}, {len(self.registry)} kinds>"


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
