"""One machine of rules for every store: what the store answers and holds must be what the model answers and holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import ClassVar, Protocol

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tenure.errors import KeyConflict
from tenure.model.ids import JobId, Token, WorkerId, new_job_id
from tenure.model.job import Job, NewJob
from tenure.model.outcome import (
    Completed,
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
from tenure.model.state import HELD, State
from tenure.store.admin import SetQueues, TriageDeadLetters
from tenure.store.contract import (
    Cancel,
    Claim,
    Enqueue,
    Heartbeat,
    Hold,
    Prune,
    Reap,
    Revive,
    Settle,
    Store,
    Wake,
    WorkerRow,
)
from tenure.store.queries import CountJobs, GetJobs, ListAttempts, ListDeadLetters
from tests.conformance.engines import START
from tests.stateful.model import BACKOFF, NEVER, WINDOW, Life, Model, Rules

QUEUES = {
    "a": Rules(scope="active", high_first=True, starts=True),
    "b": Rules(scope="window", high_first=False, starts=False, concurrency=2),
    "c": Rules(scope="forever", high_first=True, starts=True, clones_only=True),
}
POLICIES = {
    name: QueuePolicy(
        priority_order="high" if rules.high_first else "low",
        start_on_claim=rules.starts,
        backoff=Backoff("linear", BACKOFF, jitter=0),
        lease_seconds=rules.lease,
        key_scope="active" if rules.scope == "active" else "window" if rules.scope == "window" else "forever",
        key_window_seconds=WINDOW,
        concurrency=rules.concurrency,
        revive="clone" if rules.clones_only else "revive",
    )
    for name, rules in QUEUES.items()
}

queue_names = st.sampled_from(sorted(QUEUES))
some_queues = st.lists(queue_names, min_size=1, max_size=3, unique=True)
workers = st.sampled_from(["w1", "w2"])
leases = st.sampled_from([None, 3, 20])
picks = st.integers(0, 10**6)
token_shifts = st.sampled_from([0, 0, 0, 0, 0, -1, 1, 7])
"""Added to a token that was granted: mostly none, sometimes a token that never was."""
moves = st.sampled_from(
    ["complete", "complete", "fail", "fail", "fail", "crash", "release", "give_back", "reject", "suspend", "stop"]
)
late_moves = st.sampled_from(["complete", "complete", "complete", "fail", "release", "stop"])
delays = st.sampled_from([None, None, 0, 4, 15])


class Ground(Protocol):
    """Where a machine runs: a store made as new, a clock, and a way to open the store again."""

    store: Store

    def renew(self) -> None: ...

    def reopen(self) -> None: ...

    def advance(self, seconds: int) -> None: ...

    def close(self) -> None: ...


class StoreMachine(RuleBasedStateMachine):
    """Random lives of jobs, on a store and on the model at once."""

    ground: ClassVar[Ground]
    steps_run: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.ground.renew()
        self.model = Model(QUEUES)
        self.granted: list[tuple[JobId, int]] = []
        self.requests: list[tuple[NewJob, dict[str, int]]] = []

    @initialize(queues=st.lists(queue_names, max_size=6), taken=st.integers(0, 4))
    def begin(self, queues: list[str], taken: int) -> None:
        """Mostly with jobs, some of them held: rules that need such jobs are then not left to chance."""
        self.ground.store.do(SetQueues(POLICIES, actor="machine"))
        for queue in queues:
            self.enqueue(queue, None, payload=1, delay=0, max_attempts=3, priority=0)
        if taken:
            self.claim("w1", sorted(QUEUES), taken, None)

    @property
    def store(self) -> Store:
        return self.ground.store

    # --- clients

    @rule(
        queue=queue_names,
        key=st.sampled_from([None, None, "x", "y"]),
        payload=st.sampled_from([1, 1, 1, 2]),
        delay=st.sampled_from([0, 0, 0, 6]),
        max_attempts=st.integers(1, 3),
        priority=st.integers(-1, 1),
    )
    def enqueue(self, queue: str, key: str | None, payload: int, delay: int, max_attempts: int, priority: int) -> None:
        job = NewJob(
            id=new_job_id(),
            # A kind of its own where keys allow it: three jobs of one kind that crash twice close that kind's gate.
            kind=f"work {len(self.requests)}" if key is None else f"work {key}",
            payload=json.dumps({"n": payload}),
            queue=queue,
            key=key,
            delay_seconds=delay,
            max_attempts=max_attempts,
            priority=priority,
        )
        details = {"payload": payload, "delay": delay, "max_attempts": max_attempts, "priority": priority}
        self.requests.append((job, details))
        self._offer(job, details)

    @precondition(lambda self: self.requests)
    @rule(pick=picks)
    def enqueue_again(self, pick: int) -> None:
        self._offer(*self.requests[pick % len(self.requests)])

    def _offer(self, job: NewJob, details: dict[str, int]) -> None:
        expected = self.model.enqueue(job.id, job.queue, job.key, **details)
        try:
            [answer] = self.store.do(Enqueue([job]))
        except KeyConflict:
            assert expected is None, f"a key conflict where {expected} was due"
            return
        assert expected == (answer.id, answer.duplicate)

    # --- workers

    @rule(worker=workers, queues=some_queues, limit=st.integers(1, 4), lease=leases)
    def claim(self, worker: str, queues: list[str], limit: int, lease: int | None) -> None:
        expected = [(job.id, job.token, job.attempt) for job in self.model.claim(worker, queues, limit, lease)]

        grants = self.store.do(Claim(WorkerId(worker), queues, limit=limit, lease_seconds=lease))

        assert [(grant.id, grant.token, grant.attempt) for grant in grants] == expected
        self.granted += [(grant.id, grant.token) for grant in grants]

    @rule(worker=workers, lease=leases)
    def claim_after_a_lost_reply(self, worker: str, lease: int | None) -> None:
        """The worker knows of nothing that it holds: all of it is granted again, then new work."""
        self.model.reap()
        again = [(job.id, job.token) for job in self.model.held_by(worker)]
        limit = len(again) + 2
        new = [(job.id, job.token) for job in self.model.claim(worker, sorted(QUEUES), 2, lease)]

        grants = self.store.do(Claim(WorkerId(worker), sorted(QUEUES), limit=limit, lease_seconds=lease, held=[]))

        answered = [(grant.id, grant.token) for grant in grants]
        assert sorted(answered) == sorted(again + new)
        self.granted += answered
        self._adopt_leases(again, lease)

    def _adopt_leases(self, again: list[tuple[JobId, int]], lease: int | None) -> None:
        """The lease of a grant that is made again begins anew; a longer one may be kept."""
        for job_id, _ in again:
            job = self.model.jobs[job_id]
            [stored] = self.store.do(GetJobs([job_id]))
            assert stored is not None
            assert stored.lease_until is not None
            until = round((stored.lease_until - START).total_seconds())
            assert job.lease_until is not None
            anew = self.model.now + (lease or QUEUES[job.queue].lease)
            assert until in (anew, max(anew, job.lease_until))
            job.lease_until = until

    @precondition(lambda self: self.granted)
    @rule(chosen=st.lists(st.tuples(picks, token_shifts), min_size=1, max_size=3), lease=leases, started=st.booleans())
    def heartbeat(self, chosen: list[tuple[int, int]], lease: int | None, started: bool) -> None:
        held = dict(self._pick(pick, shift) for pick, shift in chosen)
        kept = {job_id for job_id, token in held.items() if self.model.heartbeat(job_id, token, lease, started)}
        asked = {job_id for job_id in kept if self.model.jobs[job_id].cancel_requested}

        beat = self.store.do(
            Heartbeat(
                [Hold(job_id, Token(token), started=started) for job_id, token in held.items()], lease_seconds=lease
            )
        )

        assert beat.lost == held.keys() - kept
        assert beat.cancel_requested == asked

    @rule(worker=workers)
    def show_up(self, worker: str) -> None:
        """A worker writes its row and extends nothing: what runs out before is not held against its jobs."""
        self.model.see(worker)
        self.store.do(Heartbeat([], worker=WorkerRow(WorkerId(worker), hostname="machine", pid=1)))

    @precondition(lambda self: self.granted)
    @rule(pick=picks, shift=token_shifts, move=moves, delay=delays)
    def settle(self, pick: int, shift: int, move: str, delay: int | None) -> None:
        self._settle(*self._pick(pick, shift), move, delay)

    @precondition(lambda self: self._live())
    @rule(pick=picks, move=moves, delay=delays)
    def settle_what_is_held(self, pick: int, move: str, delay: int | None) -> None:
        live = self._live()
        job = live[pick % len(live)]

        assert self._settle(job.id, job.token, move, delay) is not None

    @precondition(lambda self: self._stale())
    @rule(pick=picks, move=moves, delay=delays)
    def settle_what_is_no_longer_held(self, pick: int, move: str, delay: int | None) -> None:
        """A worker that was away past its lease comes back and writes."""
        stale = self._stale()
        self._settle(*stale[pick % len(stale)], move, delay)

    @precondition(lambda self: self._live())
    @rule(pick=picks, move=late_moves, delay=delays, is_handed_on=st.booleans())
    def settle_what_was_taken_back(self, pick: int, move: str, delay: int | None, is_handed_on: bool) -> None:
        """A worker comes back when its job was taken back: it is queued, or another worker holds it."""
        live = self._live()
        job = live[pick % len(live)]
        token = job.token
        self.stall(pick)
        if is_handed_on:
            self.claim("w2", sorted(QUEUES), 4, None)
        self._settle(job.id, token, move, delay)

    def _settle(self, job_id: JobId, token: int, move: str, delay: int | None) -> str | None:
        expected = self.model.settle(move, job_id, token, delay)

        [answer] = self.store.do(Settle([outcome_of(move, job_id, Token(token), delay)]))

        assert answer.state == expected, f"{move} with token {token}"
        return answer.state

    @precondition(lambda self: self._live())
    @rule(pick=picks)
    def stall(self, pick: int) -> None:
        """A worker is away until a lease of its has run out."""
        live = self._live()
        until = live[pick % len(live)].lease_until
        assert until is not None
        self.time_passes(until - self.model.now + 1)
        self.reap()

    @precondition(lambda self: self.granted)
    @rule()
    def crash(self) -> None:
        """Every worker forgets what it held."""
        self.granted.clear()

    # --- everybody else

    @rule(seconds=st.sampled_from([1, 2, 5, 11, 50]))
    def time_passes(self, seconds: int) -> None:
        self.model.now += seconds
        self.ground.advance(seconds)

    @rule()
    def reap(self) -> None:
        assert sorted(settled.job_id for settled in self.store.do(Reap())) == sorted(self.model.reap())

    @precondition(lambda self: self.model.jobs)
    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        job_id = self._any(pick)
        expected = self.model.cancel(job_id)

        [answer] = self.store.do(Cancel([job_id], actor="machine", reason="try"))

        assert answer.answer == expected

    @precondition(lambda self: self.model.jobs)
    @rule(pick=picks)
    def revive(self, pick: int) -> None:
        job_id = self._any(pick)
        expected = self.model.revive(job_id)

        [answer] = self.store.do(Revive([job_id], actor="machine", reason="try"))

        assert answer.state == ("queued" if expected else None)

    @precondition(lambda self: self.model.jobs)
    @rule(chosen=st.lists(picks, min_size=1, max_size=4))
    def wake(self, chosen: list[int]) -> None:
        ids = list(dict.fromkeys(self._any(pick) for pick in chosen))
        expected = self.model.wake(ids)

        assert sorted(self.store.do(Wake(ids))) == sorted(expected)

    @rule(older_than=st.sampled_from([0.5, 20.5]))
    def prune(self, older_than: float) -> None:
        expected = self.model.prune(older_than)

        assert self.store.do(Prune(older_than_seconds=older_than)).cleaned == expected

    @precondition(lambda self: any(job.letters for job in self.model.jobs.values()))
    @rule(pick=picks)
    def close_dead_letters(self, pick: int) -> None:
        dead = [job for job in self.model.jobs.values() if job.letters]
        job = dead[pick % len(dead)]
        letters = self.store.do(ListDeadLetters(job_id=job.id)).items
        assert sorted(letter.triage for letter in letters) == sorted(job.letters)

        self.store.do(TriageDeadLetters([letter.id for letter in letters], Triage.CLOSED, actor="machine"))

        job.letters = ["closed"] * len(job.letters)

    @rule()
    def reopen(self) -> None:
        self.ground.reopen()

    # --- what always holds

    @invariant()
    def the_store_holds_what_the_model_holds(self) -> None:
        StoreMachine.steps_run += 1
        lives = list(self.model.jobs.values())
        for life, job in zip(lives, self.store.do(GetJobs([life.id for life in lives])), strict=True):
            assert job is not None, f"job {life.id} is gone"
            compare(life, job, self.model.now)

    @invariant()
    def at_most_one_live_job_per_active_key(self) -> None:
        taken = [
            life.slot
            for life in self.model.jobs.values()
            if life.slot and life.slot.startswith("active") and life.finished_at is None
        ]
        assert len(taken) == len(set(taken))

    def teardown(self) -> None:
        """Nothing was lost and nothing appeared; every attempt and every death is told once."""
        with self._closing():
            assert sum(count.jobs for count in self.store.do(CountJobs())) == len(self.model.jobs)
            for life in self.model.jobs.values():
                told = [attempt.token for attempt in self.store.do(ListAttempts(life.id))]
                assert told == sorted(life.ends)
                letters = self.store.do(ListDeadLetters(job_id=life.id)).items
                assert sorted(letter.triage for letter in letters) == sorted(life.letters)

    @contextmanager
    def _closing(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.ground.close()

    def _any(self, pick: int) -> JobId:
        ids = list(self.model.jobs)
        return ids[pick % len(ids)]

    def _pick(self, pick: int, shift: int) -> tuple[JobId, int]:
        job_id, token = self.granted[pick % len(self.granted)]
        return job_id, token + shift

    def _stale(self) -> list[tuple[JobId, int]]:
        """Grants that are no longer in force."""
        live = {(life.id, life.token) for life in self._live()}
        return [grant for grant in self.granted if grant not in live]

    def _live(self) -> list[Life]:
        return [life for life in self.model.jobs.values() if life.is_held_by(life.token, self.model.now)]


def machine_on(where: Ground) -> type[StoreMachine]:
    """The machine, bound to its ground."""

    class Bound(StoreMachine):
        ground = where

    return Bound


def outcome_of(move: str, job_id: JobId, token: Token, delay: int | None) -> Outcome:
    match move:
        case "complete":
            return Completed(job_id, token, result="[1]" if delay else None)
        case "fail":
            return Failed(job_id, token, "boom", retry_after_seconds=delay)
        case "crash":
            return Failed(job_id, token, "died", FailureClass.CRASH, retry_after_seconds=delay)
        case "reject":
            return Rejected(job_id, token, "never")
        case "release":
            return Released(job_id, token, delay or 0)
        case "give_back":
            return Released(job_id, token, delay or 0, failure_class=None)
        case "suspend":
            return Suspended(job_id, token, "event", delay)
        case _:
            return Stopped(job_id, token)


def compare(life: Life, job: Job, now: int) -> None:
    """The stored row against the model. A suspended job whose time has come may have been queued by any claim."""
    state = life.state
    if state is State.WAITING and life.run_at <= now:
        state = job.state if job.state in (State.WAITING, State.QUEUED) else state
    shown = (job.state, job.attempt, job.max_attempts, job.crashes, job.suspicion, job.token, job.lease_owner)
    assert shown == (
        state,
        life.attempt,
        life.max_attempts,
        life.crashes,
        life.suspicion,
        life.token,
        life.owner,
    )
    assert job.lease_until == (None if life.lease_until is None else START + timedelta(seconds=life.lease_until))
    assert (job.lease_owner is not None) == (job.state in HELD)
    assert job.finished_at == (None if life.finished_at is None else START + timedelta(seconds=life.finished_at))
    assert (job.cleaned_at is not None) == life.cleaned
    assert (job.cancel_requested_at is not None) == life.cancel_requested or job.state is State.CANCELLED
    assert job.payload == (None if life.cleaned else {"n": life.payload})
    if life.run_at != NEVER and job.state is life.state:
        assert job.run_at == START + timedelta(seconds=life.run_at)
