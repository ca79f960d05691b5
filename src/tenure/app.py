"""The client: an App turns a URL into a store, functions into handlers, and calls into jobs.

Nothing is opened until it is needed, so an App may be made at import, before a fork, or without a database at hand.
`app.aio` has the same operations for async callers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import datetime
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload

from tenure.client.access import SyncAccess
from tenure.client.admin import SyncGates, SyncLeases, SyncWorkers, Upkeep
from tenure.client.approvals import Inbox, SyncApprovals
from tenure.client.budgets import SyncBudgets
from tenure.client.connect import Migrate, open_store, scheme_of
from tenure.client.dead_letters import SyncDeadLetters
from tenure.client.effects import SyncEffects, reconciling
from tenure.client.enqueue import declare_queues
from tenure.client.flow import Signals, SyncSteps
from tenure.client.function import JobDecorator, JobFunction
from tenure.client.jobs import Jobs
from tenure.client.limits import SyncLimits
from tenure.client.memory import SyncMemories
from tenure.client.metrics import Metrics
from tenure.client.operations import SyncClient, run
from tenure.client.policies import SyncPolicies, log_differences
from tenure.client.profiles import AgentTasks, SyncProfiles
from tenure.client.queues import SyncQueues
from tenure.client.schedules import SyncSchedules, declare_schedule
from tenure.client.settings import QueueSettings, check_policy, with_settings
from tenure.client.signature import Signature, codec_of, key_maker, read_signature
from tenure.client.state import ClientState
from tenure.client.streams import SyncStreams
from tenure.client.work import Work
from tenure.client.worker import LogTo, Queues, WorkerSettings, log_to, make_worker
from tenure.client.workflows import SyncWorkflows
from tenure.errors import ConfigError, HandlerError, InvalidArgument
from tenure.handler import arguments
from tenure.handler.arguments import Duration, Names
from tenure.handler.building import MISSING, backoff_json, limiter_keys
from tenure.handler.middleware import AroundAll, AroundAsync, AroundSync, read_middleware
from tenure.handler.payload import result_decoder
from tenure.handler.registry import Handler, Mode, Registry
from tenure.model.memo import TTL_SECONDS_MAX
from tenure.model.policy import Backoff, Limits, QueuePolicy
from tenure.model.url import shown_url
from tenure.store.contract import Store

if TYPE_CHECKING:
    from tenure.async_app import AsyncApp
    from tenure.client.agents import Agent
    from tenure.effects.kinds import Kit
    from tenure.handler.context import Context
    from tenure.model.clock import Clock
    from tenure.model.schedule import Missed, Schedule
    from tenure.worker.worker import Worker, WorkerStats

A = ParamSpec("A")
T = TypeVar("T")
PayloadT = TypeVar("PayloadT")
MiddlewareT = TypeVar("MiddlewareT", bound=AroundAll | AroundSync | AroundAsync)

Errors = type[Exception] | tuple[type[Exception], ...]
"""One class of exceptions or several."""


class App(AgentTasks, Jobs, Inbox, Signals, Work, Upkeep, Metrics, SyncClient):
    """A queue of jobs in one database, with the handlers that this code knows.

    Args:
        url: `sqlite:///jobs.db` or `postgresql://…`; TENURE_URL if left out. A function is asked when
            the database is first needed.
        migrate: `auto` brings a SQLite file up to date and sets up an empty PostgreSQL database, but leaves the upgrade
            of a PostgreSQL database to `tenure migrate`; `always` upgrades it; `existing` makes no file and sets up no
            empty database; `never` touches no schema.
        limits: What payloads and texts may take.
        actor: Recorded for changes that name no actor of their own.
        clock: Where a SQLite store takes the time from; for tests.
        embedder: How memories are embedded: `words`, `wordllama:256`, `file:FOLDER` or `openai:URL#MODEL?dim=N`;
            TENURE_EMBEDDER if left out, else wordllama where the extra `memory` is installed, else words.
    """

    registry: Registry
    """The handlers of this app, by kind."""
    access: SyncAccess
    """Tokens, browser sessions, and the audit with its chain."""
    approvals: SyncApprovals
    """Questions to people, and their answers."""
    budgets: SyncBudgets
    """What jobs may spend, and what model calls used."""
    dead_letters: SyncDeadLetters
    """Jobs that ended badly, grouped by cause, and what was decided about them."""
    effects: SyncEffects
    """The ledger of side effects, and their comparison with the world."""
    gates: SyncGates
    """Switches in the database that stop work."""
    leases: SyncLeases
    """Named leases, by which one of many processes leads."""
    limits: SyncLimits
    """Limiters of services that jobs share."""
    memory: SyncMemories
    """What agents remember."""
    policies: SyncPolicies
    """Queue policies in this code beside those in the database."""
    profiles: SyncProfiles
    """Vocabularies of other queues over the same jobs."""
    queues: SyncQueues
    """Queues: their policies, pause, backlog, counts."""
    schedules: SyncSchedules
    """Jobs that come by the clock."""
    steps: SyncSteps
    """Steps, children and memos of durable jobs."""
    streams: SyncStreams
    """Output of jobs while they run."""
    workers: SyncWorkers
    """Worker processes: list, drain, resume."""
    workflows: SyncWorkflows
    """Graphs of tasks."""

    def __init__(
        self,
        url: str | Callable[[], str] | None = None,
        *,
        migrate: Migrate = "auto",
        limits: Limits | None = None,
        actor: str = "app",
        clock: Clock | None = None,
        embedder: str | None = None,
    ) -> None:
        state = ClientState(url, migrate, limits or Limits(), actor, clock, embedder)
        super().__init__(state)
        self.registry = state.registry
        self.access = SyncAccess(state)
        self.approvals = SyncApprovals(state)
        self.budgets = SyncBudgets(state)
        self.dead_letters = SyncDeadLetters(state)
        self.effects = SyncEffects(state)
        self.gates = SyncGates(state)
        self.memory = SyncMemories(state)
        self.policies = SyncPolicies(state)
        self.leases = SyncLeases(state)
        self.limits = SyncLimits(state)
        self.schedules = SyncSchedules(state)
        self.profiles = SyncProfiles(state)
        self.queues = SyncQueues(state)
        self.steps = SyncSteps(state)
        self.streams = SyncStreams(state)
        self.workers = SyncWorkers(state)
        self.workflows = SyncWorkflows(state)

    @cached_property
    def aio(self) -> AsyncApp:
        """The same operations for async callers: `await app.aio.claim(…)`."""
        from tenure.async_app import AsyncApp

        return AsyncApp(self._state)

    # --- handlers, queues, schedules, kits ---

    @overload
    def job(
        self, function: Callable[[PayloadT, Context], Coroutine[Any, Any, T]], /
    ) -> JobFunction[[PayloadT], [PayloadT, Context], Coroutine[Any, Any, T], T]: ...
    @overload
    def job(  # type: ignore[overload-overlap]  # a payload that is itself a Context
        self, function: Callable[[PayloadT, Context], T], /
    ) -> JobFunction[[PayloadT], [PayloadT, Context], T, T]: ...
    @overload
    def job(
        self, function: Callable[Concatenate[Context, A], Coroutine[Any, Any, T]], /
    ) -> JobFunction[A, Concatenate[Context, A], Coroutine[Any, Any, T], T]: ...
    @overload
    def job(
        self, function: Callable[Concatenate[Context, A], T], /
    ) -> JobFunction[A, Concatenate[Context, A], T, T]: ...
    @overload
    def job(self, function: Callable[A, Coroutine[Any, Any, T]], /) -> JobFunction[A, A, Coroutine[Any, Any, T], T]: ...
    @overload
    def job(self, function: Callable[A, T], /) -> JobFunction[A, A, T, T]: ...
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
        key: Callable[..., str] | None = ...,
        concurrency_key: Callable[..., str] | None = ...,
        limits: Names | None = ...,
        retry_on: Errors = ...,
        give_up_on: Errors = ...,
        upgrade: Callable[[Any], Any] | None = ...,
        durable: bool = ...,
        version: str | None = ...,
        deadline: Duration | None = ...,
        memo: Duration | None = ...,
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
        key: Callable[..., str] | None = None,
        concurrency_key: Callable[..., str] | None = None,
        limits: Names | None = None,
        retry_on: Errors = (),
        give_up_on: Errors = (),
        upgrade: Callable[[Any], Any] | None = None,
        durable: bool = False,
        version: str | None = None,
        deadline: Duration | None = None,
        memo: Duration | None = None,
    ) -> Any:
        """Make a function the handler of a kind of job. It stays callable, and can enqueue itself.

        The function takes any arguments, and a context where it asks for one (named `ctx`, or annotated with
        tenure.Context). Their annotations (pydantic models, dataclasses, TypedDicts or plain JSON types) are checked
        when a job is enqueued and again before it runs. A single argument is the payload as a whole; several are stored
        as one JSON object by name.

        Args:
            kind: The stable name of its jobs; the function's name if left out. Renaming strands jobs already enqueued.
            timeout: How long one attempt may take; unlimited if left out.
            lease: How long a worker holds a job between heartbeats; the queue's if left out.
            isolate: Run each job in a process of its own, which can be killed.
            key: Makes the idempotency key of a job from its arguments, if an enqueue gives none.
            concurrency_key: Makes the concurrency key likewise.
            limits: Keys of the limiters that its jobs carry: services that they share with others. See `app.limits`.
            retry_on: If given, only these exceptions are retried; any other ends the job as `failed`.
            give_up_on: These exceptions end the job as `failed` at once.
            upgrade: Takes a stored payload as parsed JSON, before it is checked, and answers it in today's form.
            durable: It has steps, waits and children (`ctx.step` and others) and takes a context.
            version: Of a durable handler: recorded when a job begins, and read by `ctx.version`.
            deadline: Of a durable handler: how long the whole life of a job may take, waits included.
            memo: Work the result out once for each payload within a tenant, and keep it so long; jobs with the same
                payload read it. Only for handlers whose answer may be shared. A durable one uses `ctx.memo`.
        """
        scope = _names_in_scope()

        def decorate(function: Callable[..., Any]) -> JobFunction[..., ..., Any, Any]:
            name = _kind_of(function) if kind is None else arguments.name("kind", kind)
            signature = read_signature(function, name, scope)
            encode, decode = codec_of(signature, name, self._state.limits, upgrade)
            _check_durable(name, signature, durable, version, deadline)
            if memo is not None and durable:
                raise HandlerError(
                    f"Kind {name!r}: `memo` keeps the whole result as one step, in which nothing durable can happen. "
                    "Leave `durable` out, or call `ctx.memo` inside the handler."
                )
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
                key_of=key_maker("key", key, signature, decode),
                concurrency_key_of=key_maker("concurrency_key", concurrency_key, signature, decode),
                limiter=None if limits is None else limiter_keys("limits", limits),
                absent=signature.absent,
                payload=signature.payload if signature.wants_payload else type(None),
                apply=signature.apply,
                decode_result=result_decoder(signature.returns, name),
                retry_on=_errors("retry_on", retry_on),
                give_up_on=_errors("give_up_on", give_up_on),
                is_durable=durable or memo is not None,
                memo_seconds=None if memo is None else _memo_seconds(memo),
                version=None if version is None else arguments.text("version", version),
                deadline_seconds=None if deadline is None else arguments.seconds("deadline", deadline, positive=True),
            )
            self.registry.add(handler)
            if handler.queue != "default":
                self.registry.queues.setdefault(handler.queue, QueuePolicy())
            return JobFunction(function, self.registry[name], signature, self._state)

        return decorate if function is None else decorate(function)

    def middleware(self, function: MiddlewareT, /) -> MiddlewareT:
        """Run a function around every handler of this app: connections, tracing, timing. Added first is outermost.

        `def name(ctx, call)` goes around sync handlers, `async def name(ctx, call)` around async ones, and `def
        name(ctx)` with one `yield` around both. Raises: HandlerError for any other shape.
        """
        self.registry.middleware.append(read_middleware(function))
        return function

    def queue(self, name: str, policy: QueuePolicy | None = None, /, **settings: Unpack[QueueSettings]) -> QueuePolicy:
        """Declare a queue: where it does not exist yet, it is created with this policy when it is first used.

        An existing queue keeps what its operators set: a worker that starts names the difference, and `tenure apply` or
        `app.policies.apply()` brings the code's policy over. `profile="substrate"` starts from that profile's rules.
        """
        arguments.name("name", name)
        if name == "default":
            raise ConfigError(
                "Queue 'default' exists in every database, so declaring it would change nothing. "
                "Change its policy with `app.queues.set('default', …)`."
            )
        if policy is None and settings.get("profile", "default") != "default":
            policy = self.profiles.read(settings.pop("profile")).policy
        declared = with_settings(policy or QueuePolicy(), settings)
        check_policy(declared)
        self.registry.queues[name] = declared
        self.registry.declared.add(name)
        self._state.seen_queues.discard(name)
        return declared

    def agent(self, name: str) -> Agent:
        """An agent: declares its queue, as specification 001 has it, and answers what the agent may do.

        `@agent.job()` makes a function the handler of one of its task types. An agent acts on its own queue alone.
        """
        from tenure.client.agents import declare_agent

        return declare_agent(self, name)

    def schedule(
        self,
        name: str,
        cron: str | None = None,
        job: str | JobFunction[..., ..., Any, Any] | None = None,
        payload: Any = MISSING,
        *,
        every: Duration | None = None,
        tz: str = "UTC",
        missed: Missed = "one",
        queue: str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
    ) -> Schedule:
        """Declare a job for every tick of a cron expression, or `every` so many seconds (or a timedelta).

        Workers of this app carry it to the store when they start. Cron expressions need the extra `cron`.

        Exactly one job per tick, however many workers there are. `missed` says what becomes of ticks at which no worker
        was there: `skip` drops them, `one` makes up for them with a single job, `all` with a job each.

        Raises: InvalidArgument, InvalidPayload, MissingExtra.
        """
        kind = job if isinstance(job, str) else getattr(job, "kind", None)
        if not isinstance(kind, str):
            raise InvalidArgument(
                f"A schedule needs a kind: a name, or a handler made by `@app.job`; {job!r} is neither. "
                "Put `@app.job` above the function."
            )
        made = self.new_job(kind, payload, queue=queue, priority=priority, max_attempts=max_attempts)
        return declare_schedule(self._state, name, cron, every, made, tz, missed)

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
        emit: LogTo | None = None,
        **settings: Unpack[WorkerSettings],
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
        emit: LogTo | None = None,
        reconcile: bool = False,
        **settings: Unpack[WorkerSettings],
    ) -> WorkerStats:
        """Run jobs until told to stop by SIGINT or SIGTERM. Answers what was done. See `worker` for the arguments.

        Log events go to the logger `tenure.worker` of the standard library; `emit` sends them elsewhere.

        `reconcile` compares the records with the world once, beside the work, and emits what differs.
        """
        run(self._state, declare_queues(self._state, self._state.declared))
        run(self._state, log_differences(self._state, log_to(emit)))
        with reconciling(self._state, log_to(emit)) if reconcile else nullcontext():
            return self.worker(queues, concurrency=concurrency, emit=emit, **settings).run_sync()

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
    if not callable(function):
        raise HandlerError(
            f"`@app.job` takes its options by name, got {function!r}. Write @app.job(kind={function!r}), or "
            f"@app.job(queue={function!r})."
        )
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise HandlerError(f"{function!r} has no name that could be its kind. Give it one with `kind=`.")
    return name


def _errors(argument: str, given: Any) -> tuple[type[BaseException], ...]:
    classes = given if isinstance(given, tuple) else (given,)
    for one in classes:
        if not (isinstance(one, type) and issubclass(one, Exception)):
            raise HandlerError(f"`{argument}` takes classes of exceptions, as in {argument}=(OSError,), got {one!r}.")
    return classes


def _check_durable(
    kind: str, signature: Signature, durable: bool, version: str | None, deadline: Duration | None
) -> None:
    if durable and not signature.wants_context:
        raise HandlerError(f"Kind {kind!r} is durable, so its handler takes a context: `def handler(payload, ctx)`.")
    if not durable and (version is not None or deadline is not None):
        raise HandlerError(f"Kind {kind!r}: `version` and `deadline` belong to durable handlers. Add `durable=True`.")


def _memo_seconds(memo: Duration) -> float:
    seconds = arguments.seconds("memo", memo, positive=True)
    if seconds > TTL_SECONDS_MAX:
        raise InvalidArgument(f"`memo` is {seconds:g} s; a result is kept for ten years at most.")
    return seconds


def _mode(function: Callable[..., Any], isolate: bool) -> Mode:
    if isolate:
        return "process"
    return "async" if inspect.iscoroutinefunction(function) else "thread"
