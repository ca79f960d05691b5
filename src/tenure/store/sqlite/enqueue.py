"""Enqueue: rows in state `queued`, on the terms of their queue."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from tenure.errors import ConfigError, Forbidden, ForbiddenKey, GateClosed, InvalidArgument, KeyConflict, KeyRequired
from tenure.model.clock import to_us
from tenure.model.ids import JobId
from tenure.model.job import NEW_JOB_EXTRAS, Enqueued, NewJob
from tenure.model.policy import QueuePolicy
from tenure.store.checks import check_backoff, check_text, is_uuid
from tenure.store.contract import SOON_SECONDS, Enqueue
from tenure.store.sqlite import admin
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Parameters, Row, Transaction, dump

ARRAY_JOBS: Final = 1000
"""Jobs in one statement."""

_SQL: Final = load("enqueue")
_CONNECTION: Final = load("connection")

_extras = attrgetter(*NEW_JOB_EXTRAS)
_NO_EXTRAS: Final = (None,) * len(NEW_JOB_EXTRAS)
_UUIDS: Final = frozenset({"created_by_user_id", "requested_by_user_id", "workflow_id", "parent_id", "run_id"})
_RUN_AT, _SLOT, _HASH = 8, 11, 12
"""Places in a row for `insert`."""


class Terms(NamedTuple):
    """On what terms a queue takes jobs: a row of `terms`, without the name."""

    profile: str
    priority_order: str
    priority_default: int
    aging_seconds: float | None
    max_attempts: int
    slot: str | None
    key_space: str
    key_required: int
    key_conflict: str
    window: int | None
    forbidden_keys: str | None
    closed_gate: str | None
    priority_min: int | None
    priority_max: int | None
    keeps_events: int

    def rank(self, priority: int, now: int) -> int:
        """What a claim sorts by, lower first. With aging, one step of priority is worth that many seconds of waiting,
        and the moment of creation is added to it."""
        signed = -priority if self.priority_order == "high" else priority
        return signed if self.aging_seconds is None else int(signed * self.aging_seconds * 1_000_000) + now


def enqueue(
    transaction: Transaction,
    request: Enqueue,
    *,
    is_gated: bool = True,
    tolerates: bool = False,
    group_id: str | None = None,
) -> list[Enqueued]:
    """See store.contract.Enqueue. The follow-ups of a completed job pass every gate (not `is_gated`): settling is never
    refused. `tolerates`: a key that is taken for another payload is no error, whatever the queue's policy says. With
    `group_id` the jobs are children of that group."""
    jobs = request.jobs
    for name, policy in request.create_queues.items():
        admin.create_queue(transaction, name, policy, "enqueue")
    terms = terms_of(transaction, jobs)
    if request.create_queues:
        _refuse_other_profiles(request.create_queues, terms)
    rows: list[Row] = []
    soon = transaction.now + int(SOON_SECONDS * 1_000_000)
    for job in jobs:
        term = terms.get(job.queue)
        if term is None:
            raise admin.unknown_queue(transaction, job.queue)
        if is_gated and term.closed_gate is not None:
            raise GateClosed(term.closed_gate, f"enqueueing in {job.queue!r}")
        row = _row(job, term, transaction.now)
        if group_id is not None:
            row = (*row[:-1], {**(row[-1] or {}), "group_id": group_id})
        rows.append(row)
        if row[_RUN_AT] <= soon:
            transaction.woken.add(job.queue)
    keeps_events = any(term.keeps_events for term in terms.values())
    before = _found(transaction, jobs) if keeps_events else set()
    if _insert(transaction, rows) == len(rows):
        answers = [Enqueued(job.id) for job in jobs]
    else:
        answers = _sort_out(transaction, jobs, rows, terms, tolerates)
    if keeps_events:
        created = dict.fromkeys(answer.id for answer in answers if not answer.duplicate)
        transaction.record("queued", (job_id for job_id in created if job_id not in before))
    return answers


def enqueue_on(connection: sqlite3.Connection, request: Enqueue, path: Path, now: int) -> list[Enqueued]:
    """Enqueue on a caller's connection that is inside a transaction and a savepoint. The commit is the caller's and out
    of our sight, so listeners find these jobs by their poll."""
    text_factory, connection.text_factory = connection.text_factory, str
    try:
        transaction = _CallersTransaction(connection, now)
        _refuse_other_file(transaction, path)
        return enqueue(transaction, request)
    finally:
        connection.text_factory = text_factory


class _CallersTransaction(Transaction):
    """A transaction on a caller's connection, whatever row factory that has."""

    def run(self, sql: str, parameters: Parameters = ()) -> sqlite3.Cursor:
        self.statements += 1
        cursor = self.connection.cursor(sqlite3.Cursor)
        cursor.row_factory = None
        return cursor.execute(sql, parameters)


def _refuse_other_file(transaction: Transaction, path: Path) -> None:
    found = next((row[2] for row in transaction.all(_CONNECTION["database_list"]) if row[1] == "main"), "")
    try:
        is_same = bool(found) and Path(found).samefile(path)
    except OSError:
        is_same = False
    if not is_same:
        raise ConfigError(
            f"The connection that was handed in is open on {found or 'a database in memory'}, and this store's "
            "jobs are in "
            f"{path}. Hand in a connection to the same file, or let the store enqueue by itself."
        )


def terms_of(transaction: Transaction, jobs: Sequence[NewJob]) -> dict[str, Terms]:
    """On what terms the queues of these jobs take them."""
    queues = dump(list({job.queue for job in jobs}))
    return {row[0]: Terms(*row[1:]) for row in transaction.all(_SQL["terms"], {"queues": queues})}


def _refuse_other_profiles(declared: Mapping[str, QueuePolicy], terms: Mapping[str, Terms]) -> None:
    for name, policy in declared.items():
        if policy.profile != "default" and name in terms and terms[name].profile != policy.profile:
            raise Forbidden(
                f"Queue {name!r} belongs to profile {terms[name].profile!r}, not to {policy.profile!r}. Nothing was "
                f"enqueued. Give it over with `tenure queues set {name} profile={policy.profile}` once its jobs have "
                "ended, or use another queue."
            )


def _row(job: NewJob, term: Terms, now: int) -> Row:
    """A job for `insert`; refuses what the queue's policy or PostgreSQL's types refuse."""
    if not is_uuid(job.id):
        raise InvalidArgument(f"id: {job.id!r} is not a UUID in its canonical form. Nothing was enqueued.")
    max_attempts = term.max_attempts if job.max_attempts is None else job.max_attempts
    if not 1 <= max_attempts < 2**31:
        raise InvalidArgument(
            f"max_attempts: expected at least 1 and fewer than 2**31, got {max_attempts}. Nothing was enqueued."
        )
    priority = term.priority_default if job.priority is None else job.priority
    check_priority(job, priority, term)
    run_at = now if job.run_at is None and job.delay_seconds is None else _run_at(job, now)
    extras: dict[str, Any] | None = None
    if _extras(job) != _NO_EXTRAS:
        extras = {name: value for name, value in zip(NEW_JOB_EXTRAS, _extras(job), strict=True) if value is not None}
        _check_extras(extras)
    check_payload(job, term)
    if job.key is None and term.key_required:
        raise KeyRequired(f"Job {job.id}: queue {job.queue!r} takes no job without an idempotency key. Give it `key=`.")
    slot, hashed = (None, None) if job.key is None else _slot_and_hash(job, job.key, term)
    return (
        job.id, job.payload, job.kind, job.queue, term.profile, priority, term.rank(priority, now), max_attempts,
        run_at, int(run_at <= now), job.key, slot, hashed, term.forbidden_keys, extras,
    )  # fmt: skip


def _run_at(job: NewJob, now: int) -> int:
    """When a job that says so is due."""
    if job.delay_seconds is not None:
        if not math.isfinite(job.delay_seconds):
            raise InvalidArgument(f"delay_seconds: {job.delay_seconds} is no duration. Nothing was enqueued.")
        return _in_64_bits(now + round(job.delay_seconds * 1_000_000))
    if job.run_at is None:
        return now
    if job.run_at.tzinfo is None:
        raise InvalidArgument(f"run_at: {job.run_at} has no time zone. Nothing was enqueued.")
    return to_us(job.run_at)


def _in_64_bits(number: int) -> int:
    if not -(2**63) <= number < 2**63:
        raise OverflowError(f"{number} is too large")  # as sqlite3 says it of a value; JSON would make a float of it
    return number


def check_payload(job: NewJob, term: Terms) -> None:
    """What PostgreSQL cannot hold, and what the queue's policy refuses. That it is JSON, the table checks."""
    if "\0" in job.payload or "\0" in job.kind:
        raise InvalidArgument(f"Job {job.id}: kind and payload must not hold a NUL character. Nothing was changed.")
    if term.forbidden_keys is not None and (found := _forbidden_key(job.payload, term.forbidden_keys)) is not None:
        raise ForbiddenKey(
            f"Job {job.id}: queue {job.queue!r} takes no payload with the key {found!r}, at any depth. "
            f"Keep such data where it belongs and put a reference (payload_ref) into the job."
        )


def check_priority(job: NewJob, priority: int, term: Terms) -> None:
    """Refuse a priority that does not fit into 32 bits, or that the profile of the queue does not allow."""
    if not -(2**31) <= priority < 2**31:
        raise InvalidArgument(f"priority: {priority} does not fit into 32 bits. Nothing was changed.")
    least, most = term.priority_min, term.priority_max
    if (least is not None and priority < least) or (most is not None and priority > most):
        raise InvalidArgument(
            f"Job {job.id}: priority is {priority}, and profile {term.profile!r} takes priorities "
            f"{'from' if least is not None else 'up to'} {least if least is not None else most}"
            f"{f' to {most}' if least is not None and most is not None else ''}. Nothing was changed."
        )


def _check_extras(extras: Mapping[str, str]) -> None:
    for name, value in extras.items():
        if name in _UUIDS and not is_uuid(value):
            raise InvalidArgument(f"{name}: {value!r} is not a UUID in its canonical form. Nothing was enqueued.")
        check_text(name, value)
    if "backoff" in extras:
        check_backoff(extras["backoff"])


def _slot_and_hash(job: NewJob, key: str, term: Terms) -> tuple[str | None, str]:
    """dedup_slot and payload_hash of a job with a key. The slot gives the length of the kind, so that no kind and key
    can be read as another kind and key."""
    check_text("key", key)
    space = f"{len(job.kind)}\x1f{job.kind}" if term.key_space == "kind" else ""
    return None if term.slot is None else f"{term.slot}{space}\x1f{key}", payload_hash(job.payload)


def _insert(transaction: Transaction, rows: Sequence[Row]) -> int:
    """How many rows were inserted."""
    made = 0
    for first in range(0, len(rows), ARRAY_JOBS):
        values = {"now": transaction.now, "jobs": dump(rows[first : first + ARRAY_JOBS])}
        made += transaction.run(_SQL["insert"], values).rowcount
    return made


def _found(transaction: Transaction, jobs: Sequence[NewJob]) -> set[str]:
    """Which of the jobs' ids are there."""
    return set(transaction.array(_SQL["found"], {"ids": dump([job.id for job in jobs])}))


def _sort_out(
    transaction: Transaction,
    jobs: Sequence[NewJob],
    rows: Sequence[Row],
    terms: Mapping[str, Terms],
    tolerates: bool,
) -> list[Enqueued]:
    """Some rows were not inserted: each of those had its id taken (an earlier try of the same request) or its key."""
    there = _found(transaction, jobs)
    _refuse_taken_ids(transaction, [job for job in jobs if job.id in there])
    return [
        Enqueued(job.id) if job.id in there else _duplicate(transaction, job, row, terms[job.queue], tolerates)
        for job, row in zip(jobs, rows, strict=True)
    ]


def _refuse_taken_ids(transaction: Transaction, jobs: Sequence[NewJob]) -> None:
    """A job whose id is there was enqueued by an earlier try of the same request, or the id belongs to another job."""
    for job in jobs:
        row = transaction.one(_SQL["by_id"], (job.id,))
        assert row is not None
        queue, kind, payload, is_edited = row
        is_same = is_edited or payload in (None, job.payload) or _canonical(payload) == _canonical(job.payload)
        if (queue, kind) != (job.queue, job.kind) or not is_same:
            raise InvalidArgument(
                f"The id {job.id} belongs to another job. Nothing was enqueued. Make a new id for each job."
            )


def _duplicate(transaction: Transaction, job: NewJob, row: Row, term: Terms, tolerates: bool) -> Enqueued:
    holder = transaction.one(_SQL["holder"], (row[_SLOT],))
    assert holder is not None
    holder_id, created_at, hashed, payload = holder
    if holder_id == job.id:  # an earlier entry of this very request took the slot over
        return Enqueued(job.id)
    if term.window is not None and created_at <= transaction.now - term.window:
        transaction.run(_SQL["free_slot"], (holder_id,))
        _insert(transaction, [row])
        return Enqueued(job.id)
    if not tolerates and term.key_conflict == "error" and not _is_same(job.payload, row[_HASH], payload, hashed):
        raise KeyConflict(
            f"Key {job.key!r} of kind {job.kind!r} belongs to job {holder_id}, which has another payload. Nothing "
            "was enqueued. "
            f"Use another key, or enqueue the same payload."
        )
    return Enqueued(JobId(holder_id), duplicate=True)


def _is_same(payload: str, hashed: str, other: str | None, other_hashed: str | None) -> bool:
    """Whether two payloads say the same: spelling (spaces, the order of keys) does not count."""
    return hashed == other_hashed or (other is not None and _canonical(payload) == _canonical(other))


def _canonical(payload: str) -> str:
    """The payload as PostgreSQL's `jsonb::text` spells it, exotic numbers apart: object keys by length and then by
    their bytes, of equal keys the last one, a space behind each comma and colon."""
    return json.dumps(json.loads(payload, object_pairs_hook=_in_jsonb_order), ensure_ascii=False)


def _in_jsonb_order(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(sorted(dict(pairs).items(), key=lambda pair: (len(pair[0].encode()), pair[0].encode())))


def payload_hash(payload: str) -> str:
    """SHA-256 of the canonical payload; of the text itself where that is no JSON, which the table refuses."""
    with contextlib.suppress(ValueError):
        payload = _canonical(payload)
    return hashlib.sha256(payload.encode()).hexdigest()


def _forbidden_key(payload: str, keys: str) -> str | None:
    """The first key of the payload, at any depth and in any case, that is among `keys` (a JSON array); None if there is
    none, or if the payload is no JSON, which the table refuses."""
    found: list[str] = []
    with contextlib.suppress(ValueError):
        json.loads(payload, object_pairs_hook=lambda pairs: found.extend(key for key, _ in pairs))
    wanted = {key.lower() for key in json.loads(keys)}
    return next((key for key in found if key.lower() in wanted), None)
