"""The checker: reads what clients wrote down and what the database holds, and names every promise that was broken.

1 nothing acknowledged is lost, 2 nothing appears from nowhere, 3 one end per job, 4 a row's columns fit together,
5 no lease is taken away before its time, 6 tokens are granted once, 7 only the newest token writes, 8 attempts are
counted exactly, 11 one live job per key, 19 one leader in a term. Apart from it: what a calm run, a traced process, a
reader and a tree of processes must show (5, 1, 24, 25).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tenure.model.ids import JobId, Token
from tenure.model.job import Attempt, Job
from tenure.model.state import ACTIVE, HELD, TERMINAL
from tenure.store.contract import Store
from tenure.store.queries import ListAttempts, ListJobs
from tests.fault.journal import Record

ENDS = frozenset({"succeeded", "failed", "dead", "cancelled"})


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the database holds."""

    jobs: Mapping[JobId, Job]
    attempts: Mapping[JobId, list[Attempt]]


def snapshot(store: Store) -> Snapshot:
    jobs: dict[JobId, Job] = {}
    after = None
    while True:
        page = store.do(ListJobs(limit=500, after=after))
        jobs |= {job.id: job for job in page.items}
        after = page.next
        if after is None:
            break
    # A job that was granted once and succeeded has no attempt rows; the rest are few.
    troubled = [job.id for job in jobs.values() if job.token > 1 or (job.token and job.state != "succeeded")]
    return Snapshot(jobs, {job_id: store.do(ListAttempts(job_id)) for job_id in troubled})


def check(records: Iterable[Record], found: Snapshot, *, drained: bool = True) -> list[str]:
    """Every broken promise as a sentence; none if all is well. `drained`: every job must have ended."""
    told = list(records)
    return [
        *_nothing_lost(told, found, drained),
        *_nothing_from_nowhere(told, found),
        *_one_end(told, found),
        *_leases_last(told, found),
        *_tokens_granted_once(told),
        *_only_the_newest_token_writes(told, found),
        *_attempts_exact(found),
        *_rows_sound(found),
        *_one_live_job_per_key(found),
        *_one_leader_in_a_term(told),
    ]


def check_calm(found: Snapshot) -> list[str]:
    """Of a run in which no worker was stopped, killed or cut off: every lease was kept for as long as it was needed."""
    return [
        f"5: job {job_id}: the lease of token {attempt.token} ran out although nobody was stopped"
        for job_id, attempts in found.attempts.items()
        for attempt in attempts
        if attempt.outcome == "expired"
    ]


def check_synced(trace: Iterable[str]) -> list[str]:
    """Of a process traced by strace, which writes `ok` to its standard output for each acknowledgement: whatever it had
    written to a file by then was on the disk."""
    broken = []
    unsynced = False
    for line in trace:
        call = line.split(maxsplit=1)[-1]
        if call.startswith("pwrite64("):
            unsynced = True
        elif call.startswith(("fdatasync(", "fsync(")):
            unsynced = False
        elif call.startswith("write(1") and '"ok' in call and unsynced:
            broken.append("1: a commit was acknowledged before it was on the disk")
    return broken


def check_reads(seen: Iterable[bytes | None], whole: Iterable[bytes | None]) -> list[str]:
    """Of what readers saw in a file (None: no file): it was whole each time."""
    known = set(whole)
    return [
        f"24: a reader saw {len(content or b'')} bytes that nobody meant to write"
        for content in seen
        if content not in known
    ]


def check_gone(pids: Iterable[int]) -> list[str]:
    """Of processes of a job that has ended: none lives."""
    return [f"25: process {pid} of a job that has ended is alive" for pid in pids if _is_alive(pid)]


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _nothing_lost(records: list[Record], found: Snapshot, drained: bool) -> Iterator[str]:
    for record in records:
        if record.op == "enqueue" and record.type == "ok":
            job = found.jobs.get(record.job)
            if job is None:
                yield f"1: job {record.job} was acknowledged and is gone"
            elif drained and job.state not in TERMINAL:
                yield f"1: job {record.job} was acknowledged and never ended: {job.state}"


def _nothing_from_nowhere(records: list[Record], found: Snapshot) -> Iterator[str]:
    tried = {record.job for record in records if record.op == "enqueue"}
    for job_id in found.jobs.keys() - tried:
        yield f"2: job {job_id} was never enqueued by anybody"


def _one_end(records: list[Record], found: Snapshot) -> Iterator[str]:
    ends: dict[JobId, set[int]] = {}
    answers: dict[tuple[JobId, int], set[str]] = {}
    for record in records:
        if record.op == "settle" and record.answer is not None:
            answers.setdefault((record.job, record.token), set()).add(record.answer)
        if record.op == "settle" and record.answer in ENDS:
            ends.setdefault(record.job, set()).add(record.token)
            job = found.jobs.get(record.job)
            if job is not None and job.state.value != record.answer:
                yield f"3: job {record.job} was told {record.answer} and stands as {job.state}"
    for job_id, tokens in ends.items():
        if len(tokens) > 1:
            yield f"3: job {job_id} ended {len(tokens)} times, by tokens {sorted(tokens)}"
    for (job_id, token), accepted in answers.items():
        if len(accepted) > 1:
            yield f"3: job {job_id}: token {token} was told {sorted(accepted)}, one after the other"


def _leases_last(records: list[Record], found: Snapshot) -> Iterator[str]:
    taken_back = {
        (job_id, attempt.token): attempt.ended_at
        for job_id, attempts in found.attempts.items()
        for attempt in attempts
        if attempt.outcome == "expired"
    }
    for record in records:
        ended = taken_back.get((record.job, Token(record.token)))
        if record.op == "grant" and ended is not None and ended < datetime.fromisoformat(record.until):
            yield f"5: job {record.job}: token {record.token} was taken back at {ended}, and held until {record.until}"


def _tokens_granted_once(records: list[Record]) -> Iterator[str]:
    granted = Counter((record.job, record.token) for record in records if record.op == "grant")
    for (job_id, token), times in granted.items():
        if times > 1:
            yield f"6: job {job_id} was granted {times} times with token {token}"


def _only_the_newest_token_writes(records: list[Record], found: Snapshot) -> Iterator[str]:
    """An end stands for ever: a token that ended a job is its newest, and a token that was ever refused by the
    store's clock can't have ended it."""
    held = {(record.job, record.token) for record in records if record.op == "grant"}
    for record in records:
        if record.op != "settle" or record.answer is None:
            continue
        if (record.job, record.token) not in held:
            yield f"7: job {record.job}: an end with token {record.token} was accepted, which nobody was granted"
        job = found.jobs.get(record.job)
        if job is not None and record.answer in ENDS and job.token != record.token:
            yield f"7: job {record.job}: token {record.token} ended it, but its newest is {job.token}"
    for job_id, attempts in found.attempts.items():
        expired = {attempt.token for attempt in attempts if attempt.outcome == "expired"}
        for record in records:
            if record.job == job_id and record.op == "settle" and record.answer and record.token in expired:
                yield f"7: job {job_id}: token {record.token} ran out, and its {record.move} was accepted all the same"


def _attempts_exact(found: Snapshot) -> Iterator[str]:
    for job in found.jobs.values():
        attempts = found.attempts.get(job.id, [])
        released = sum(1 for attempt in attempts if attempt.outcome == "released")
        expired = [attempt for attempt in attempts if attempt.outcome == "expired"]
        is_cancelled_by_expiry = any(attempt.failure_class == "cancelled" for attempt in expired)
        # An expiry is a crash of the job's own, or beside others, which refunds the attempt, or it ends in a cancel.
        refunded = released + len(expired) - job.crashes - int(is_cancelled_by_expiry)
        if job.attempt != job.token - refunded:
            yield f"8: job {job.id}: attempt {job.attempt} after {job.token} grants and {refunded} refunds"
        if job.attempt > job.max_attempts:
            yield f"8: job {job.id}: attempt {job.attempt} of {job.max_attempts}"
        if job.crashes > len(expired):
            yield f"8: job {job.id}: {job.crashes} crashes, {len(expired)} told"


def _rows_sound(found: Snapshot) -> Iterator[str]:
    for job in found.jobs.values():
        if (job.lease_owner is not None) != (job.state in HELD) or (job.finished_at is not None) != (
            job.state in TERMINAL
        ):
            yield f"4: job {job.id}: {job.state} with owner {job.lease_owner} and end {job.finished_at}"


def _one_live_job_per_key(found: Snapshot) -> Iterator[str]:
    live = Counter((job.kind, job.key) for job in found.jobs.values() if job.key and job.state in ACTIVE)
    for (kind, key), count in live.items():
        if count > 1:
            yield f"11: {count} live jobs of kind {kind!r} with key {key!r}"


def _one_leader_in_a_term(records: list[Record]) -> Iterator[str]:
    leaders: dict[tuple[str, int], set[str]] = {}
    for record in records:
        if record.op == "lead" and record.answer is not None:
            leaders.setdefault((record.job, record.token), set()).add(record.worker)
    for (name, term), workers in leaders.items():
        if len(workers) > 1:
            yield f"19: {name!r} had {len(workers)} leaders in term {term}: {', '.join(sorted(workers))}"
