"""Random scripts of requests, written step by step against what a store holds at that moment.

A step is a whole request with ids and tokens in it, so a script is a plain list that any store can replay, and that
stays meaningful when steps are left out. The same seed writes the same script as long as the stores behave the same.

The writer steers: now and then it takes a pair of (state, move) from the table of moves that no step has taken yet, so
that short scripts reach them all.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from random import Random
from typing import Any, TypeVar

from tenure.model.clock import from_us
from tenure.model.event import NewEvent
from tenure.model.frozen import frozen
from tenure.model.ids import JobId, Token, WorkerId
from tenure.model.job import NewJob
from tenure.model.outcome import (
    Completed,
    EffectRecord,
    Failed,
    FailureClass,
    Outcome,
    Rejected,
    Released,
    Stopped,
    Suspended,
    Triage,
)
from tenure.model.policy import Backoff, QueuePolicy
from tenure.model.state import HELD, MOVES, TERMINAL, Move, State
from tenure.store.admin import (
    AcquireLease,
    AppendEvents,
    PauseQueues,
    RecordEffect,
    ReleaseLease,
    RemoveWorkers,
    ResolveEffect,
    SetGate,
    SetQueues,
)
from tenure.store.contract import (
    Cancel,
    Claim,
    Clone,
    EditJob,
    Enqueue,
    Exchange,
    Heartbeat,
    Hold,
    Prune,
    Reap,
    Request,
    Revive,
    Settle,
    Start,
    Wake,
    WorkerRow,
)
from tenure.store.queries import (
    CountJobs,
    GetJobs,
    GroupDeadLetters,
    ListAttempts,
    ListAudit,
    ListDeadLetters,
    ListEffects,
    ListEvents,
    ListGates,
    ListJobs,
    ListQueues,
    ListWorkers,
)

T = TypeVar("T")

POLICIES: dict[str, QueuePolicy] = {
    "plain": QueuePolicy(backoff=Backoff("exponential", 5.0, jitter=0.0)),
    "told": QueuePolicy(
        start_on_claim=False,
        events=True,
        agent_events="completed",
        lease_seconds=30.0,
        backoff=Backoff("linear", 3.0, jitter=0.0),
        key_scope="forever",
        key_conflict="tolerate",
        retain_seconds=90.0,
    ),
    "aging": QueuePolicy(
        priority_order="low",
        priority_default=3,
        aging_seconds=60.0,
        lease_seconds=20.0,
        lease_max_seconds=40.0,
        backoff=Backoff("power", 1.0, power=1.5, cap_seconds=4.0, jitter=0.0),
        key_scope="window",
        key_space="global",
        key_window_seconds=120.0,
        retain_seconds=None,
    ),
    "narrow": QueuePolicy(
        events=True,
        agent_events="ends",
        max_attempts=1,
        backoff=Backoff("none", jitter=0.0),
        concurrency=3,
        concurrency_per_key=1,
        revive="clone",
        key_scope="none",
        retain_seconds=30.0,
    ),
    "guarded": QueuePolicy(
        start_on_claim=False,
        max_attempts=2,
        backoff=Backoff("constant", 0.3, jitter=0.0),
        key_required=True,
        forbidden_keys=("secret", "raw"),
    ),
}
"""Jitter is 0 everywhere: with it the two engines would draw different moments."""
EMBEDDING = QueuePolicy(backoff=Backoff("constant", 1.0, jitter=0.0))
"""The queue that agent events fill; the store would make it with jitter."""
QUEUES = tuple(POLICIES)
KINDS = ("mail", "report", "import")
WORKERS = tuple(WorkerId(name) for name in ("w1", "w2", "w3"))
KEYS = ("k1", "k2", "k3")
AFFINITIES: tuple[list[str | None], ...] = (["red"], [None], ["blue", None], [])
PAYLOADS = (
    "{}",
    '{"a":1}',
    '{"a": 1}',
    '{"a": 1.0}',
    '{"b": [1, 2.5, null, true], "a": {"deep": "é\\u2028\\ud83d\\ude00"}}',
    '{"a": {"deep": "é"}, "b": 2}',
    '{"n": 12345678901234567890}',
    "null",
    '"text"',
    "[]",
    '{"secret": 1}',
)
ERRORS = (
    "boom",
    "Boom 17 at 0x7f\nsecond line",
    "job 0190a000-0000-7000-8000-000000000001 is broken",
    "ÄRGER 3",
    "x" * 600,
    "",
    "   ",
)


@frozen
class Advance:
    """Move both clocks."""

    seconds: float


@frozen
class TriageLetters:
    """TriageDeadLetters, with the letters named by the death they tell of: their ids differ between the engines."""

    deaths: tuple[tuple[JobId, Token], ...]
    triage: Triage
    actor: str
    note: str | None


Step = Request[Any] | Advance | TriageLetters


@frozen
class KnownJob:
    """The part of a job's row by which the writer chooses."""

    id: JobId
    queue: str
    state: State
    token: Token
    attempt: int
    max_attempts: int
    lease_owner: WorkerId | None
    lease_until: int | None
    waiting_for: str | None
    is_cancel_requested: bool


@frozen
class World:
    """What a store holds when the next step is written."""

    now_us: int
    jobs: Sequence[KnownJob]
    deaths: Sequence[tuple[JobId, Token]]
    effects: Sequence[tuple[JobId, str, str]]
    closed_gates: Sequence[str]
    paused: Sequence[str]

    def is_held(self, job: KnownJob) -> bool:
        """Under a lease that has not run out."""
        return job.state in HELD and job.lease_until is not None and job.lease_until > self.now_us


class ScriptWriter:
    """Writes one script, and counts what its steps do."""

    def __init__(self, seed: int) -> None:
        self.pairs: Counter[tuple[State, Move]] = Counter()
        """Pairs of the table of moves that a step has taken."""
        self.requested: Counter[str] = Counter()
        """Requests and outcomes by their name."""
        self._random = Random(seed)
        self._made = 0
        self._next: deque[Step] = deque([SetQueues(POLICIES | {"embedding": EMBEDDING}, actor="script")])

    def write(self, world: World) -> Step:
        """The next step, given what the store holds now."""
        step = self._next.popleft() if self._next else self._choose(world)
        self._count(step, world)
        return step

    def missing(self) -> list[tuple[State, Move]]:
        """Pairs of the table of moves that no step has taken yet."""
        return [pair for pair in MOVES if pair not in self.pairs]

    def _choose(self, world: World) -> Step:
        if self._random.random() < 0.4:
            missing = self.missing()
            chances = [(job, move) for state, move in missing for job in world.jobs if job.state is state]
            if chances:
                step = self._towards(world, *self._random.choice(chances))
                if step is not None:
                    return step
        while True:
            [write] = self._random.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()))
            step = write(self, world)
            if step is not None:
                return step

    # --- one pair of the table of moves

    def _towards(self, world: World, job: KnownJob, move: Move) -> Step | None:
        """A step by which `job` takes `move`, or comes nearer to it."""
        if job.state in HELD and not world.is_held(job) and move is not Move.EXPIRE:
            return None
        match move:
            case Move.CLAIM:
                if job.queue in world.paused or any(gate != "heartbeat" for gate in world.closed_gates):
                    return None
                return Claim(self._pick(WORKERS), [job.queue], limit=5)
            case Move.START:
                return Start([Hold(job.id, job.token)])
            case Move.HEARTBEAT:
                return Heartbeat([Hold(job.id, job.token, started=self._chance(0.5))])
            case Move.COMPLETE | Move.REJECT | Move.RELEASE | Move.SUSPEND:
                return Settle([self._ending(move, job.id, job.token)])
            case Move.RETRY | Move.EXHAUST:
                wanted = job.attempt < job.max_attempts if move is Move.RETRY else job.attempt >= job.max_attempts
                return Settle([self._failed(job.id, job.token)]) if wanted or move is Move.EXHAUST else None
            case Move.EXPIRE:
                assert job.lease_until is not None
                self._next.append(Reap())
                return Advance(max(0, job.lease_until - world.now_us) / 1_000_000)
            case Move.CANCEL:
                return Cancel([job.id], actor="ops", reason="steered")
            case Move.WAKE:
                return Wake([job.id])
            case Move.REVIVE:
                return Revive([job.id], actor="ops", reason="steered")

    # --- steps

    def _enqueue(self, world: World) -> Step:
        jobs = [self._new_job(world) for _ in range(self._pick((1, 1, 1, 2, 4)))]
        if self._chance(0.1):
            jobs.append(jobs[0])  # an id twice in one batch
        create = {"made": POLICIES["plain"]} if self._chance(0.05) else {}
        if create:
            jobs[0].queue = "made"
        return self._maybe_twice(Enqueue(jobs, create), 0.1)

    def _new_job(self, world: World, *, can_hold_secret: bool = True) -> NewJob:
        queue = self._pick((*QUEUES, *QUEUES, *QUEUES, "nowhere")) if self._chance(0.3) else self._pick(QUEUES)
        job = NewJob(
            self._new_id(), self._pick(KINDS), self._pick(PAYLOADS if can_hold_secret else PAYLOADS[:-1]), queue
        )
        if queue == "guarded" or self._chance(0.25):
            job.key = self._pick(KEYS)
            job.payload = self._pick(PAYLOADS[:3])
        if self._chance(0.3):
            job.priority = self._pick((-2, 0, 1, 5, 2**31 - 1))
        if self._chance(0.2):
            job.delay_seconds = self._pick((0.0, 0.5, 7.0, 40.0, -3.0))
        elif self._chance(0.1):
            job.run_at = from_us(world.now_us) + timedelta(seconds=self._pick((-5, 0, 9.25)))
        if self._chance(0.2):
            job.max_attempts = self._pick((1, 2, 4))
        if self._chance(0.15):
            job.backoff = json.dumps({"shape": "linear", "base_seconds": 1.5, "cap_seconds": 100.0, "jitter": 0.0})
        if self._chance(0.3):
            self._add_extras(job, world)
        return job

    def _add_extras(self, job: NewJob, world: World) -> None:
        for name in ("source_ref", "target_ref", "payload_ref", "actor", "tenant", "trace", "artifacts_path"):
            if self._chance(0.5):
                setattr(job, name, f"{name}-{self._random.randrange(3)}")
        for name in ("created_by_user_id", "requested_by_user_id", "workflow_id", "run_id"):
            if self._chance(0.5):
                setattr(job, name, str(self._uuid(self._random.randrange(3))))
        if world.jobs and self._chance(0.5):
            job.parent_id = self._pick(world.jobs).id
        if self._chance(0.5):
            job.affinity_key = self._pick(("red", "blue"))
        if self._chance(0.5):
            job.concurrency_key = self._pick(("c1", "c2"))

    def _claim(self, world: World) -> Step:
        return self._maybe_twice(self._new_claim(world), 0.1)

    def _new_claim(self, world: World) -> Claim:
        worker = self._pick(WORKERS)
        # A lease too long for one of the queues is refused; behind a closed gate either error may come first.
        leases = (5.0, 12.5, 35.0) if world.closed_gates else (5.0, 12.5, 35.0, 100.0)
        held: list[JobId] | None = None
        if self._chance(0.25):
            held = [job.id for job in world.jobs if job.lease_owner == worker and self._chance(0.6)]
        return Claim(
            worker,
            self._random.sample(QUEUES, self._pick((1, 1, 2, 5))),
            # Below 50: PostgreSQL begins larger claims at its low-water marks, which may pass over a job for a second.
            limit=self._pick((1, 1, 2, 3, 8, 0) if held is None else (0, 1, 3, 8, 40)),
            kinds=self._random.sample(KINDS, 2) if self._chance(0.2) else None,
            affinity=self._pick(AFFINITIES) if self._chance(0.2) else None,
            lease_seconds=self._pick(leases) if self._chance(0.3) else None,
            strict=self._chance(0.3),
            held=held,
        )

    def _start(self, world: World) -> Step | None:
        return self._on_held(world, Start)

    def _heartbeat(self, world: World) -> Step:
        row = None
        if self._chance(0.6):
            number = self._random.randrange(len(WORKERS))
            row = WorkerRow(
                WORKERS[number],
                f"host{number}",  # host, process and kind stay the same: a worker's id names one process start
                100 + number,
                queues=self._random.sample(QUEUES, 2),
                kinds=self._random.sample(KINDS, self._random.randrange(3)),
                concurrency=self._random.randrange(1, 9),
                version="1.0",
                profile_kind=("external_worker", "Agent", "Codex")[number],
                status=self._pick(("ok", "warn", "error")),
                current_job_id=self._pick(world.jobs).id if world.jobs and self._chance(0.5) else None,
                info=self._pick(("{}", '{"load": 0.5}')),
            )
        holds = [self._hold(world, job) for job in self._some_held(world)]
        return Heartbeat(holds, lease_seconds=self._pick((None, None, 4.0, 60.0, 5000.0)), worker=row)

    def _on_held(self, world: World, request: Callable[[list[Hold]], Step]) -> Step | None:
        holds = [self._hold(world, job) for job in self._some_held(world)]
        return request(holds) if holds else None

    def _hold(self, world: World, job: KnownJob) -> Hold:
        progress = self._pick(('{"done": 3}', "0.5", '"half"')) if self._chance(0.4) else None
        return Hold(job.id, self._token(job), progress, started=self._chance(0.7))

    def _settle(self, world: World) -> Step | None:
        outcomes = self._outcomes(world)
        return self._maybe_twice(Settle(outcomes), 0.25) if outcomes else None

    def _exchange(self, world: World) -> Step:
        claim = self._new_claim(world) if self._chance(0.8) else None
        return self._maybe_twice(Exchange(self._outcomes(world), claim), 0.1)

    def _outcomes(self, world: World) -> list[Outcome]:
        return [self._outcome(world, job) for job in self._some_held(world)]

    def _outcome(self, world: World, job: KnownJob) -> Outcome:
        token = self._token(job)
        move = self._pick(
            (Move.COMPLETE, Move.COMPLETE, Move.RETRY, Move.RETRY, Move.REJECT, Move.RELEASE, Move.SUSPEND)
        )
        if (job.is_cancel_requested and self._chance(0.4)) or self._chance(0.05):
            return Stopped(job.id, token, self._pick((None, "stopped by request")))
        if move is Move.RETRY:
            return self._failed(job.id, token)
        if move is Move.COMPLETE and self._chance(0.6):
            return self._completed(world, job, token)
        return self._ending(move, job.id, token)

    def _ending(self, move: Move, job_id: JobId, token: Token) -> Outcome:
        match move:
            case Move.COMPLETE:
                return Completed(job_id, token)
            case Move.REJECT:
                failure_class = self._pick(
                    (FailureClass.PERMANENT, FailureClass.NO_HANDLER, FailureClass.INVALID_PAYLOAD)
                )
                return Rejected(job_id, token, self._pick(ERRORS), failure_class)
            case Move.RELEASE:
                failure_class_or_none = self._pick(
                    (FailureClass.SHUTDOWN, FailureClass.SNOOZED, FailureClass.NO_HANDLER, None)
                )
                error = self._pick((None, "going down"))
                return Released(job_id, token, self._pick((0.0, 0.0, 6.5)), failure_class_or_none, error)
            case _:
                return Suspended(job_id, token, self._pick(("signal", "effect")), self._pick((None, None, 0.0, 11.0)))

    def _failed(self, job_id: JobId, token: Token) -> Failed:
        failure_class = self._pick((*FailureClass, FailureClass.ERROR, FailureClass.CRASH))
        return Failed(job_id, token, self._pick(ERRORS), failure_class, self._pick((None, None, None, 0.0, 2.25)))

    def _completed(self, world: World, job: KnownJob, token: Token) -> Completed:
        jobs = tuple(self._new_job(world, can_hold_secret=False) for _ in range(self._random.randrange(3)))
        for follow_up in jobs:
            follow_up.queue = self._pick(("plain", "told", "aging"))
        return Completed(
            job.id,
            token,
            result=self._pick((None, '{"ok": true}', "7")),
            result_summary=self._pick((None, "went well")),
            artifacts_path=self._pick((None, "out/1")),
            jobs=jobs,
            events=tuple(self._new_event() for _ in range(self._random.randrange(3))),
            effects=tuple(self._new_effect() for _ in range(self._random.randrange(2))),
        )

    def _new_event(self) -> NewEvent:
        return NewEvent(self._pick(("log", "custom", "stdout")), self._pick(("{}", '{"line": "é", "n": 1}')))

    def _new_effect(self) -> EffectRecord:
        return EffectRecord(
            name=self._pick(("mail", "file")),
            state=self._pick(("intended", "intended", "sent", "confirmed", "failed", "unknown")),
            step=self._pick(("", "s1")),
            args=self._pick(("null", '{"to": "a"}')),
            result=self._pick((None, '{"id": 1}')),
            error=self._pick((None, "no answer")),
            key=self._pick((None, "own-key")),
        )

    def _wake(self, world: World) -> Step:
        if self._chance(0.3):
            return Wake(waiting_for=self._pick(("signal", "effect", "nothing")))
        return Wake([job.id for job in self._some(world.jobs, prefer=lambda job: job.state is State.WAITING)])

    def _cancel(self, world: World) -> Step:
        ids = [job.id for job in self._some(world.jobs)]
        if self._chance(0.1):
            ids.append(self._new_id())
        return self._maybe_twice(Cancel(ids, actor="ops", reason=self._pick(("not needed", "wrong one"))), 0.2)

    def _revive(self, world: World) -> Step:
        ids = [job.id for job in self._some(world.jobs, prefer=lambda job: job.state in TERMINAL)]
        if self._chance(0.1):
            ids.append(self._new_id())
        return self._maybe_twice(Revive(ids, actor="ops", reason="repaired"), 0.2)

    def _clone(self, world: World) -> Step | None:
        jobs = self._some(world.jobs, prefer=lambda job: job.state in TERMINAL)
        if any(job.state not in TERMINAL for job in jobs):
            jobs = jobs[:1]  # of two that are refused for different reasons, either may be told
        # By rising id: which of two originals with one key comes first is not promised.
        copies = {job.id: self._new_id() for job in sorted(jobs, key=lambda job: job.id)}
        return self._maybe_twice(Clone(copies, actor="ops", reason="again"), 0.2) if copies else None

    def _edit(self, world: World) -> Step:
        # Not those that embed an agent event: their payloads name it by its number, and the audit has their hashes.
        known = [job for job in world.jobs if job.queue != "embedding"]
        jobs = self._some(known, prefer=lambda job: job.state is State.QUEUED)
        return self._maybe_twice(
            EditJob(
                jobs[0].id if jobs else self._new_id(),
                actor="ops",
                reason="mended",
                payload=self._pick((None, *PAYLOADS)),
                priority=self._pick((None, -7, 0, 4, 2**31 - 1)),
                version=self._pick((None, None, None, "0.0")),
            ),
            0.3,
        )

    def _reap(self, world: World) -> Step:
        return Reap()  # no smaller limit: which of several go first is not promised

    def _advance(self, world: World) -> Step:
        return Advance(self._pick((0.000001, 0.4, 1.0, 3.0, 8.0, 21.0, 61.0)))

    def _pause(self, world: World) -> Step:
        names = self._random.sample(QUEUES, self._pick((1, 2)))
        if world.paused and self._chance(0.7):
            names = list(world.paused)
        return PauseQueues(names, paused=not world.paused, actor="ops", reason=self._pick((None, "deploy")))

    def _gate(self, world: World) -> Step:
        if world.closed_gates and self._chance(0.9):
            return SetGate(self._pick(world.closed_gates), is_open=True, actor="ops")
        name = self._pick(("master", "worker", "notify", "heartbeat", "queue:told", "queue:plain", "default.master"))
        return SetGate(name, is_open=False, actor="ops", reason="closed for now")

    def _triage(self, world: World) -> Step | None:
        deaths = tuple(self._random.sample(list(world.deaths), min(len(world.deaths), self._pick((1, 3)))))
        return (
            TriageLetters(deaths, self._pick(tuple(Triage)), "ops", self._pick((None, "looked at"))) if deaths else None
        )

    def _append_events(self, world: World) -> Step | None:
        jobs = self._some_held(world)[:1]
        return AppendEvents(jobs[0].id, self._token(jobs[0]), [self._new_event(), self._new_event()]) if jobs else None

    def _record_effect(self, world: World) -> Step | None:
        jobs = self._some_held(world)[:1]
        return RecordEffect(jobs[0].id, self._token(jobs[0]), self._new_effect()) if jobs else None

    def _resolve_effect(self, world: World) -> Step | None:
        if not world.effects:
            return None
        job_id, step, name = self._pick(world.effects)
        outcome = self._pick(("confirmed", "retry", "failed"))
        result = '{"found": 1}' if outcome == "confirmed" and self._chance(0.5) else None
        return ResolveEffect(job_id, name, outcome, "ops", self._pick((None, "asked them")), step, result)

    def _prune(self, world: World) -> Step:
        return Prune(
            # No smaller limit: which of several go first is not promised.
            older_than_seconds=self._pick((None, None, 0.0, 25.0)),
            delete_after_seconds=self._pick((None, None, 45.0)),
            worker_seconds=self._pick((60.0, 86_400.0)),
        )

    def _remove_workers(self, world: World) -> Step:
        if self._chance(0.5):
            return RemoveWorkers(unseen_seconds=self._pick((10.0, 50.0)))
        return RemoveWorkers([self._pick(WORKERS)])

    def _named_lease(self, world: World) -> Step:
        owner = self._pick(("w1", "w2"))
        if self._chance(0.3):
            return ReleaseLease("leader", owner, self._random.randrange(4))
        return AcquireLease("leader", owner, self._pick((5.0, 30.0)))

    def _change_policy(self, world: World) -> Step:
        name = self._pick(QUEUES)
        old = POLICIES[name]
        changed = QueuePolicy(
            profile=old.profile,
            priority_order=old.priority_order,
            priority_default=self._pick((0, 4)),
            aging_seconds=old.aging_seconds,
            start_on_claim=self._chance(0.5),
            max_attempts=self._pick((1, 2, 3)),
            backoff=self._pick((old.backoff, Backoff("constant", 1.0, jitter=0.0))),
            lease_seconds=self._pick((10.0, old.lease_seconds)),
            key_scope=old.key_scope,
            key_conflict=self._pick(("error", "tolerate")),
            revive=self._pick(("revive", "clone")),
            concurrency=self._pick((None, 2)),
            events=self._chance(0.5),
            retain_seconds=old.retain_seconds,
        )
        return SetQueues({name: changed}, actor="ops", only_new=self._chance(0.2))

    def _read(self, world: World) -> Step:
        ids = [job.id for job in self._some(world.jobs)]
        reads: list[Step] = [
            GetJobs([*ids, self._new_id()]),
            ListJobs(states=self._random.sample([state.value for state in State], 3), limit=20),
            ListJobs(queues=[self._pick(QUEUES)], kinds=[self._pick(KINDS)]),
            CountJobs(),
            CountJobs(queues=[self._pick(QUEUES)]),
            ListDeadLetters(limit=1000),
            GroupDeadLetters(),
            ListQueues(QUEUES),
            ListGates(),
            ListWorkers(),
            ListAudit(limit=10_000),
            ListEffects(),
            ListEvents(queues=[self._pick(QUEUES)], limit=10_000),
        ]
        reads += [ListAttempts(job_id) for job_id in ids[:1]]
        return self._pick(reads)

    # --- choosing

    def _maybe_twice(self, step: Step, probability: float) -> Step:
        """Repeat the step right after, as a caller does after a lost reply."""
        if self._chance(probability):
            self._next.append(step)
        return step

    def _some_held(self, world: World) -> list[KnownJob]:
        """Mostly held jobs, and sometimes any: outcomes of those are refused, or are repeats."""
        if self._chance(0.9):
            held = [job for job in world.jobs if job.state in HELD]
            return self._random.sample(held, min(len(held), self._pick((1, 1, 2, 4))))
        return self._some(world.jobs)

    def _some(self, jobs: Sequence[KnownJob], prefer: Callable[[KnownJob], bool] = lambda job: True) -> list[KnownJob]:
        preferred = [job for job in jobs if prefer(job)] if self._chance(0.8) else []
        among = preferred or list(jobs)
        return self._random.sample(among, min(len(among), self._pick((1, 1, 1, 2, 3))))

    def _token(self, job: KnownJob) -> Token:
        return Token(max(0, job.token + self._pick((0, 0, 0, 0, 0, 0, 0, 0, 0, -1, -2, 1, 9))))

    def _pick(self, values: Sequence[T]) -> T:
        return self._random.choice(values)

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _new_id(self) -> JobId:
        """Ids rise, as a client's do."""
        self._made += 1
        return self._uuid(self._made)

    def _uuid(self, number: int) -> JobId:
        return JobId(f"019b0000-{number:04x}-7000-8000-{number:012x}")

    # --- counting

    def _count(self, step: Step, world: World) -> None:
        self.requested[type(step).__name__] += 1
        jobs = {job.id: job for job in world.jobs}
        match step:
            case Settle() | Exchange():
                for outcome in step.outcomes:
                    self.requested[type(outcome).__name__] += 1
                    self._count_end(jobs.get(outcome.job_id), outcome, world)
            case Start() | Heartbeat():
                for hold in step.holds:
                    self._count_hold(
                        jobs.get(hold.job_id), hold, world, Move.START if isinstance(step, Start) else Move.HEARTBEAT
                    )
            case Reap():
                expired = [job for job in world.jobs if job.state in HELD and not world.is_held(job)]
                for job in expired[: step.limit]:
                    self.pairs[job.state, Move.EXPIRE] += 1
            case Claim() if not world.closed_gates:
                due = {job.state for job in world.jobs if job.queue in step.queues and job.state is State.QUEUED}
                self.pairs.update((state, Move.CLAIM) for state in due)
            case Cancel() | Wake() | Revive():
                move = Move(type(step).__name__.lower())
                known = [jobs[job_id] for job_id in step.job_ids if job_id in jobs]
                self.pairs.update((job.state, move) for job in known if (job.state, move) in MOVES)
            case _:
                pass

    def _count_hold(self, job: KnownJob | None, hold: Hold, world: World, move: Move) -> None:
        if job is not None and job.token == hold.token and world.is_held(job) and (job.state, move) in MOVES:
            self.pairs[job.state, move] += 1

    def _count_end(self, job: KnownJob | None, outcome: Outcome, world: World) -> None:
        if job is None or job.token != outcome.token or not world.is_held(job):
            return
        move = _ENDS[type(outcome)]
        if move is Move.RETRY and job.attempt >= job.max_attempts:
            move = Move.EXHAUST
        self.pairs[job.state, move] += 1
        if job.is_cancel_requested:
            self.requested[f"{type(outcome).__name__} after a cancel"] += 1


_ENDS: dict[type[Outcome], Move] = {
    Completed: Move.COMPLETE,
    Failed: Move.RETRY,
    Rejected: Move.REJECT,
    Released: Move.RELEASE,
    Suspended: Move.SUSPEND,
    Stopped: Move.CANCEL,
}

_WEIGHTS: dict[Callable[[ScriptWriter, World], Step | None], int] = {
    ScriptWriter._enqueue: 22,
    ScriptWriter._claim: 18,
    ScriptWriter._settle: 16,
    ScriptWriter._exchange: 8,
    ScriptWriter._heartbeat: 7,
    ScriptWriter._advance: 9,
    ScriptWriter._start: 3,
    ScriptWriter._cancel: 5,
    ScriptWriter._revive: 3,
    ScriptWriter._clone: 2,
    ScriptWriter._edit: 4,
    ScriptWriter._wake: 4,
    ScriptWriter._reap: 2,
    ScriptWriter._pause: 2,
    ScriptWriter._gate: 2,
    ScriptWriter._triage: 2,
    ScriptWriter._append_events: 2,
    ScriptWriter._record_effect: 4,
    ScriptWriter._resolve_effect: 2,
    ScriptWriter._prune: 1,
    ScriptWriter._remove_workers: 2,
    ScriptWriter._named_lease: 1,
    ScriptWriter._change_policy: 2,
    ScriptWriter._read: 5,
}
