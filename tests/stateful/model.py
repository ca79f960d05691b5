"""What a store must do, as a dict of small records and plain ifs. Slow, obvious, and checked by its reader only.

Times are whole seconds since the test began. The model answers what the store must answer and holds what it must hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tenure.model.ids import JobId
from tenure.model.state import ALONE_FROM, HELD, ISOLATE_FROM, SUSPICION_MAX, TERMINAL, State

NEVER = 10**9
WINDOW = 40
BACKOFF = 5

_REPEATED = {"retried": "queued", "released": "queued"}


@dataclass(frozen=True)
class Rules:
    """The policy of a queue, as far as the model knows it."""

    scope: str
    high_first: bool
    starts: bool
    lease: int = 10
    concurrency: int | None = None
    clones_only: bool = False


@dataclass
class Life:
    """One job as it should be stored."""

    id: JobId
    queue: str
    payload: int
    slot: str | None
    rank: int
    run_at: int
    created_at: int
    max_attempts: int
    state: State = State.QUEUED
    attempt: int = 0
    crashes: int = 0
    suspicion: int = 0
    is_beside: bool = False
    """Its worker held other jobs too when a lease of that worker ran out: the expiry proves nothing about this one."""
    token: int = 0
    wake_token: int = 0
    """The grant under which it was woken while a worker held it."""
    place: int = 0
    """Of a suspended job: its `run_at` before."""
    owner: str | None = None
    lease_until: int | None = None
    cancel_requested: bool = False
    finished_at: int | None = None
    cleaned: bool = False
    ends: dict[int, str] = field(default_factory=dict)
    """By token: the attempt rows, `expired` for leases that ran out. A suspend, a give-back and a success have none."""
    unrecorded: int = 0
    """The newest token whose grant ended without an attempt row: by a suspend or a give-back."""
    letters: list[str] = field(default_factory=list)
    """The triage of each death."""

    def is_held_by(self, token: int, now: int) -> bool:
        return self.state in HELD and self.token == token and self.lease_until is not None and self.lease_until > now


class Model:
    """All jobs, and a clock."""

    def __init__(self, queues: dict[str, Rules]) -> None:
        self.queues = queues
        self.jobs: dict[JobId, Life] = {}
        self.slots: dict[str, JobId] = {}
        self.seen: dict[str, int] = {}
        """When a worker's row was last written."""
        self.now = 0

    def enqueue(
        self, job_id: JobId, queue: str, key: str | None, payload: int, delay: int, max_attempts: int, priority: int
    ) -> tuple[JobId, bool] | None:
        """The id and whether it is a duplicate; None for a key conflict."""
        if job_id in self.jobs:
            return job_id, False
        rules = self.queues[queue]
        slot = None if key is None or rules.scope == "none" else f"{rules.scope}|{key}"
        holder = self.jobs[self.slots[slot]] if slot in self.slots else None
        if holder is not None and rules.scope == "window" and holder.created_at + WINDOW <= self.now:
            holder.slot = None
            holder = None
        if holder is not None:
            return (holder.id, True) if holder.payload == payload else None
        if slot is not None:
            self.slots[slot] = job_id
        rank = -priority if rules.high_first else priority
        self.jobs[job_id] = Life(job_id, queue, payload, slot, rank, self.now + delay, self.now, max_attempts)
        return job_id, False

    def claim(self, worker: str, queues: Sequence[str], limit: int, lease: int | None) -> list[Life]:
        self.reap()
        self.promote()
        granted: list[Life] = []
        due = [
            job
            for job in self.jobs.values()
            if job.state is State.QUEUED and job.run_at <= self.now and job.queue in queues
        ]
        for job in sorted(due, key=lambda job: (job.suspicion < ALONE_FROM, job.rank, job.run_at, job.id)):
            rules = self.queues[job.queue]
            if len(granted) == limit:
                break
            if job.suspicion >= ALONE_FROM and any(
                held.suspicion >= ALONE_FROM for held in self.jobs.values() if held.owner == worker
            ):
                continue
            if rules.concurrency is not None and self.held_in(job.queue) >= rules.concurrency:
                continue
            job.state = State.RUNNING if rules.starts else State.LEASED
            job.token += 1
            job.attempt += 1
            job.owner = worker
            job.is_beside = False
            job.lease_until = self.now + (lease or rules.lease)
            granted.append(job)
        return granted

    def held_in(self, queue: str) -> int:
        return sum(1 for job in self.jobs.values() if job.queue == queue and job.state in HELD)

    def held_by(self, worker: str) -> list[Life]:
        return [job for job in self.jobs.values() if job.owner == worker and job.is_held_by(job.token, self.now)]

    def promote(self) -> None:
        """Suspended jobs whose time has come are queued."""
        for job in self.jobs.values():
            if job.state is State.WAITING and job.run_at <= self.now:
                job.state, job.run_at = State.QUEUED, job.place

    def heartbeat(self, job_id: JobId, token: int, lease: int | None, started: bool) -> bool:
        """Whether the lease is still held."""
        job = self.jobs.get(job_id)
        if job is None or job.lease_until is None or not job.is_held_by(token, self.now):
            return False
        job.lease_until = max(job.lease_until, self.now + (lease or self.queues[job.queue].lease))
        job.is_beside = False  # its worker is alive after all
        if started:
            job.state = State.RUNNING
        return True

    def settle(self, move: str, job_id: JobId, token: int, delay: int | None) -> str | None:
        """The state that is answered; None if the lease is lost."""
        job = self.jobs[job_id]
        if not job.is_held_by(token, self.now):
            return self._repeated(job, move, token)
        if job.cancel_requested or move == "stop":
            return self._end(job, State.CANCELLED, "cancelled")
        match move:
            case "complete":
                job.suspicion = 0
                return self._end(job, State.SUCCEEDED, None)
            case "reject":
                job.letters.append("pending")
                return self._end(job, State.FAILED, "failed")
            case "fail" | "crash":
                return self._fail(job, move == "crash", delay)
            case "release" | "give_back":
                job.attempt -= 1
                job.run_at = self.now + delay if delay else job.run_at
                return self._back(job, State.QUEUED, "released" if move == "release" else None)
            case _:
                job.attempt -= 1
                job.suspicion = 0
                if job.wake_token == token:
                    return self._back(job, State.QUEUED, None)
                job.place, job.run_at = job.run_at, NEVER if delay is None else self.now + delay
                return self._back(job, State.WAITING, None)

    def _fail(self, job: Life, is_crash: bool, delay: int | None) -> str:
        if is_crash:
            job.crashes += 1
        if job.attempt >= job.max_attempts:
            job.letters.append("pending")
            return self._end(job, State.DEAD, "dead")
        job.suspicion = max(job.suspicion, ISOLATE_FROM) if is_crash else 0
        job.run_at = self.now + (BACKOFF * job.attempt if delay is None else delay)
        return self._back(job, State.QUEUED, "retried")

    def _repeated(self, job: Life, move: str, token: int) -> str | None:
        if move == "complete":
            if job.state is State.SUCCEEDED and job.token == token:
                return "succeeded"
            return "cancelled" if job.ends.get(token) == "cancelled" else None
        if move in ("suspend", "give_back") and job.token == token == job.unrecorded:
            return job.state.value
        outcome = job.ends.get(token)
        return None if outcome in (None, "expired") else _REPEATED.get(outcome or "", outcome)

    def see(self, worker: str) -> None:
        """The worker's row is written."""
        self.seen[worker] = self.now

    def reap(self) -> list[JobId]:
        """Take back what ran out. Whose crash it was is known only if the worker held nothing else."""
        gone = [
            job
            for job in self.jobs.values()
            if job.state in HELD and job.lease_until is not None and job.lease_until <= self.now
        ]
        beside = {job.id for job in gone if job.is_beside or len(self._of_same_worker(job)) > 1}
        vanished = {job.id for job in gone if self._is_vanished(job)}
        for job in gone:
            if job.id in beside & vanished:
                for other in self._of_same_worker(job):
                    other.is_beside = True
        for job in gone:
            self._expire(job, job.id in beside and job.suspicion < SUSPICION_MAX, job.id in vanished)
        return [job.id for job in gone]

    def _of_same_worker(self, job: Life) -> list[Life]:
        return [other for other in self.jobs.values() if other.state in HELD and other.owner == job.owner]

    def _is_vanished(self, job: Life) -> bool:
        """Not seen since the lease ended."""
        assert job.lease_until is not None
        assert job.owner is not None
        return self.seen.get(job.owner, -1) < job.lease_until

    def _expire(self, job: Life, is_beside: bool, is_vanished: bool) -> None:
        if job.cancel_requested:
            self._end(job, State.CANCELLED, "expired")
            return
        if is_beside:
            job.attempt -= 1
            job.suspicion += int(is_vanished)
            self._back(job, State.QUEUED, "expired")
            return
        job.crashes += 1
        if job.attempt >= job.max_attempts:
            job.letters.append("pending")
            self._end(job, State.DEAD, "expired")
        else:
            job.suspicion += 1
            self._back(job, State.QUEUED, "expired")

    def cancel(self, job_id: JobId) -> str:
        job = self.jobs[job_id]
        if job.state in TERMINAL:
            return "refused"
        if job.state in HELD:
            job.cancel_requested = True
            return "requested"
        job.cancel_requested = True
        self._end(job, State.CANCELLED, None)
        return "cancelled"

    def revive(self, job_id: JobId) -> bool:
        job = self.jobs[job_id]
        rules = self.queues[job.queue]
        slot = job.slot
        if job.state not in TERMINAL or job.state is State.SUCCEEDED or job.cleaned or rules.clones_only:
            return False
        if slot is not None and self.slots.get(slot, job_id) != job_id:
            return False
        if slot is not None:
            self.slots[slot] = job_id
        job.state, job.attempt, job.crashes, job.suspicion, job.run_at = State.QUEUED, 0, 0, 0, self.now
        job.finished_at, job.cancel_requested = None, False
        job.letters = ["manual_replay" if triage == "pending" else triage for triage in job.letters]
        return True

    def wake(self, job_ids: Iterable[JobId]) -> list[JobId]:
        woken = []
        for job_id in job_ids:
            job = self.jobs[job_id]
            if job.state is State.WAITING:
                job.state, job.run_at = State.QUEUED, job.place
                woken.append(job_id)
            elif job.state in HELD:
                job.wake_token = job.token
        return woken

    def prune(self, older_than: float) -> int:
        count = 0
        for job in self.jobs.values():
            open_letter = any(triage != "closed" for triage in job.letters)
            if job.finished_at is None or job.cleaned or open_letter or job.finished_at >= self.now - older_than:
                continue
            job.cleaned = True
            count += 1
        return count

    def _back(self, job: Life, state: State, outcome: str | None) -> str:
        if outcome is None:
            job.unrecorded = job.token
        else:
            job.ends[job.token] = outcome
        job.state, job.owner, job.lease_until = state, None, None
        return state.value

    def _end(self, job: Life, state: State, outcome: str | None) -> str:
        if outcome is not None:
            job.ends[job.token] = outcome
        job.state, job.owner, job.lease_until, job.finished_at = state, None, None, self.now
        if job.slot is not None and job.slot.startswith("active") and self.slots.get(job.slot) == job.id:
            del self.slots[job.slot]
        return state.value
