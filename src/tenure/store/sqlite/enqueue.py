"""Enqueue: rows in state `queued`, on the terms of their queue."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final

from tenure.errors import ForbiddenKey, GateClosed, InvalidArgument, KeyConflict, KeyRequired
from tenure.model.clock import to_us
from tenure.model.ids import JobId
from tenure.model.job import NEW_JOB_EXTRAS, Enqueued, NewJob
from tenure.model.policy import QueuePolicy
from tenure.store.contract import Enqueue
from tenure.store.sqlite import policies
from tenure.store.sqlite.connect import forbidden_key, payload_hash
from tenure.store.sqlite.known import Known
from tenure.store.sqlite.queries import load
from tenure.store.sqlite.transaction import Row, Transaction

_PLAIN: Final = load("enqueue_plain")
_ALIKE: Final = load("enqueue_alike")
_FULL: Final = load("enqueue")
_TERMS: Final = load("enqueue_terms")

_extras = attrgetter(*NEW_JOB_EXTRAS)
_UUIDS: Final = frozenset({"created_by_user_id", "requested_by_user_id", "workflow_id", "parent_id", "run_id"})
_is_uuid = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").fullmatch
_NO_EXTRAS: Final = (None,) * len(NEW_JOB_EXTRAS)
_wishes = attrgetter("key", "run_at", "delay_seconds", *NEW_JOB_EXTRAS)
_NO_WISHES: Final = (None, None, None, *_NO_EXTRAS)

ARRAY_FROM: Final = 4
"""From so many jobs alike on, an array is faster than a statement each."""
ARRAY_JOBS: Final = 1000
"""Jobs in one array."""

_SHARED: Final = ("kind", "queue", "profile", "priority", "rank", "max_attempts", "run_at", "is_due")
_dump = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode

# Columns of enqueue_terms.
(
    _PROFILE,
    _PRIORITY,
    _RANK,
    _MAX_ATTEMPTS,
    _SLOT,
    _KEY_REQUIRED,
    _KEY_CONFLICT,
    _WINDOW,
    _FORBIDDEN,
    _GATE,
    _AGES,
    _IS_PLAIN,
) = range(12)
# Places in the rows handed to enqueue.sql.
_ROW_SLOT, _ROW_HASH = 13, 14


def enqueue(transaction: Transaction, request: Enqueue) -> list[Enqueued]:
    """See store.base.Enqueue."""
    return insert(transaction, request.jobs, request.create_queues)


def values_at_once(known: Known, request: Enqueue, now: int) -> Row | None:
    """What enqueue_at_once.sql is given, for the most frequent enqueue: a single job, due now, on terms that are known,
    where nobody asks for more. The statement looks whether they still hold. None if it is no such enqueue."""
    jobs = request.jobs
    if len(jobs) != 1 or request.create_queues or known.wants_events is not False or known.has_quiet_gates is not False:
        return None
    job = jobs[0]
    term = known.terms.get((job.queue, job.kind, job.priority, job.max_attempts))
    if term is None or not term[_IS_PLAIN] or term[_GATE] is not None or _wishes(job) != _NO_WISHES:
        return None
    _check(job)
    rank = term[_RANK] + now if term[_AGES] else term[_RANK]
    return (
        job.id, job.payload, job.kind, job.queue, term[_PROFILE], term[_PRIORITY], rank, term[_MAX_ATTEMPTS], now,
        known.stamp,
    )  # fmt: skip


def insert(
    transaction: Transaction,
    jobs: Sequence[NewJob],
    create_queues: Mapping[str, QueuePolicy] | None = None,
    *,
    is_gated: bool = True,
    tolerates: bool = False,
) -> list[Enqueued]:
    """Insert jobs. The follow-ups of a completed job pass every gate (not `is_gated`): settling is never refused.
    `tolerates`: a key that is taken for another payload is no error, whatever the queue's policy says."""
    if create_queues:
        _create_missing(transaction, create_queues)
    now = transaction.now
    known = transaction.known.terms
    woken = transaction.woken
    alike: dict[Row, list[tuple[str, str]]] = {}
    full: list[Row] = []
    keyed: dict[JobId, tuple[NewJob, Row, Row]] = {}
    for job in jobs:
        ask = (job.queue, job.kind, job.priority, job.max_attempts)
        term = known.get(ask) or _terms(transaction, job)
        if is_gated and term[_GATE] is not None:
            raise GateClosed(term[_GATE], f"enqueueing in {job.queue!r}")
        _check(job)
        run_at = now if job.run_at is None and job.delay_seconds is None else _run_at(job, now)
        is_due = 1 if run_at <= now else 0  # sqlite3 takes an int faster than a bool
        rank = term[_RANK] + now if term[_AGES] else term[_RANK]
        shared = (job.kind, job.queue, term[_PROFILE], term[_PRIORITY], rank, term[_MAX_ATTEMPTS], run_at, is_due)
        if job.key is None and term[_IS_PLAIN] and _extras(job) == _NO_EXTRAS:
            if shared in alike:
                alike[shared].append((job.id, job.payload))
            else:
                alike[shared] = [(job.id, job.payload)]
        else:
            _check_extras(job)
            row = (job.id, job.payload, *shared, now, now, *_key_columns(job, term), term[_FORBIDDEN], *_extras(job))
            full.append(row)
            if job.key is not None:
                keyed[job.id] = (job, term, row)
        if is_due:
            woken.add(job.queue)
    made = sum(_write_alike(transaction, shared, rows) for shared, rows in alike.items())
    if full:
        made += transaction.many(_FULL, full)
    if made == len(jobs):
        answers = [Enqueued(job.id) for job in jobs]
    else:
        answers = _sort_out(transaction, jobs, keyed, tolerates)
    if transaction.known.wants_events is not False:
        transaction.record("queued", (answer.id for answer in answers if not answer.duplicate))
    return answers


def _write_alike(transaction: Transaction, shared: Row, rows: list[tuple[str, str]]) -> int:
    """Insert jobs that differ only in id and payload; how many were inserted."""
    now = transaction.now
    if len(rows) < ARRAY_FROM:
        return sum(transaction.run(_PLAIN, (*row, *shared, now, now)).rowcount for row in rows)
    values = dict(zip(_SHARED, shared, strict=True))
    values["now"] = now
    made = 0
    for first in range(0, len(rows), ARRAY_JOBS):
        values["jobs"] = _dump(rows[first : first + ARRAY_JOBS])
        made += transaction.run(_ALIKE, values).rowcount
    return made


def _create_missing(transaction: Transaction, declared: Mapping[str, QueuePolicy]) -> None:
    for name, policy in declared.items():
        if name in transaction.known.queues:
            continue
        if transaction.one(load("queue_found"), (name,)) is None:
            policies.create(transaction, name, policy)
        transaction.known.queues.add(name)


def _terms(transaction: Transaction, job: NewJob) -> Row:
    """The terms for a job, read from its queue and kept."""
    values = {
        "queue": job.queue,
        "kind": job.kind,
        "priority": job.priority,
        "max_attempts": job.max_attempts,
    }
    term = transaction.one(_TERMS, values)
    if term is None:
        raise policies.unknown(transaction, job.queue)
    if not -(2**31) <= term[_PRIORITY] < 2**31:
        raise InvalidArgument(f"priority: {term[_PRIORITY]} does not fit into 32 bits. Nothing was enqueued.")
    if term[_MAX_ATTEMPTS] < 1:
        raise InvalidArgument(f"max_attempts: expected at least 1, got {term[_MAX_ATTEMPTS]}. Nothing was enqueued.")
    transaction.known.terms[job.queue, job.kind, job.priority, job.max_attempts] = term
    return term


def _run_at(job: NewJob, now: int) -> int:
    if job.delay_seconds is not None:
        if not math.isfinite(job.delay_seconds):
            raise InvalidArgument(f"delay_seconds: {job.delay_seconds} is no duration. Nothing was enqueued.")
        return now + round(job.delay_seconds * 1_000_000)
    assert job.run_at is not None
    if job.run_at.tzinfo is None:
        raise InvalidArgument(f"run_at: {job.run_at} has no time zone. Nothing was enqueued.")
    return to_us(job.run_at)


def _check(job: NewJob) -> None:
    """What PostgreSQL's types refuse."""
    if not _is_uuid(job.id):
        raise InvalidArgument(f"id: {job.id!r} is not a UUID in its canonical form. Nothing was enqueued.")
    if "\0" in job.payload or "\0" in job.kind:
        raise InvalidArgument(f"Job {job.id}: kind and payload must not hold a NUL character. Nothing was enqueued.")


def _check_extras(job: NewJob) -> None:
    for name in ("key", *NEW_JOB_EXTRAS):
        value = getattr(job, name)
        if value is None:
            continue
        if name in _UUIDS and not _is_uuid(value):
            raise InvalidArgument(f"{name}: {value!r} is not a UUID in its canonical form. Nothing was enqueued.")
        if "\0" in value:
            raise InvalidArgument(f"{name}: it must not hold a NUL character. Nothing was enqueued.")


def _key_columns(job: NewJob, term: Row) -> tuple[str | None, str | None, str | None]:
    """idempotency_key, dedup_slot, payload_hash; refuses what the queue's policy refuses."""
    if term[_FORBIDDEN] is not None and (found := forbidden_key(job.payload, term[_FORBIDDEN])) is not None:
        raise ForbiddenKey(
            f"Job {job.id}: queue {job.queue!r} takes no payload with the key {found!r}, at any depth. "
            f"Keep such data where it belongs and put a reference (payload_ref) into the job."
        )
    if job.key is None:
        if term[_KEY_REQUIRED]:
            raise KeyRequired(
                f"Job {job.id}: queue {job.queue!r} takes no job without an idempotency key. Give it `key=`."
            )
        return None, None, None
    slot = None if term[_SLOT] is None else term[_SLOT] + job.key
    return job.key, slot, payload_hash(job.payload)


def _sort_out(
    transaction: Transaction,
    jobs: Sequence[NewJob],
    keyed: Mapping[JobId, tuple[NewJob, Row, Row]],
    tolerates: bool,
) -> list[Enqueued]:
    """Some rows were not inserted: each of those had its id taken (an earlier try of ours) or its key."""
    answers = []
    for job in jobs:
        is_there = transaction.one(load("enqueue_found"), (job.id,)) is not None
        answers.append(Enqueued(job.id) if is_there else _duplicate(transaction, *keyed[job.id], tolerates))
    return answers


def _duplicate(transaction: Transaction, job: NewJob, term: Row, row: Row, tolerates: bool) -> Enqueued:
    holder = transaction.one(load("enqueue_holder"), (row[_ROW_SLOT],))
    assert holder is not None
    window = term[_WINDOW]
    if window is not None and holder[1] <= transaction.now - window:
        transaction.run(load("enqueue_free_slot"), (holder[0],))
        transaction.run(_FULL, row)
        return Enqueued(job.id)
    if not tolerates and term[_KEY_CONFLICT] == "error" and holder[2] != row[_ROW_HASH]:
        raise KeyConflict(
            f"Key {job.key!r} of kind {job.kind!r} belongs to job {holder[0]}, which has another payload. Nothing "
            "was enqueued. "
            f"Use another key, or enqueue the same payload."
        )
    return Enqueued(JobId(holder[0]), duplicate=True)
