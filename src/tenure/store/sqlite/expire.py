"""Leases that ran out: the jobs are taken back by whoever comes first, inside a claim or by a reap."""

from __future__ import annotations

from tenure.model.outcome import Settled
from tenure.store.contract import Reap
from tenure.store.sqlite.ends import End, end
from tenure.store.sqlite.queries import load
from tenure.store.sqlite.transaction import Row, Transaction, check_limit


def reap(transaction: Transaction, request: Reap) -> list[Settled]:
    """See store.base.Reap."""
    check_limit(request.limit)
    return take_back(transaction, request.limit)


def take_back(transaction: Transaction, limit: int) -> list[Settled]:
    """Take back up to `limit` jobs whose lease ran out."""
    return _all(transaction, transaction.all(load("expired"), {"now": transaction.now, "limit": limit}))


def take_back_from(transaction: Transaction, worker: str) -> list[Settled]:
    """Take back all that a worker holds, because it is gone."""
    return _all(transaction, transaction.all(load("held_by"), {"worker": worker}), is_gone=True)


def _all(transaction: Transaction, rows: list[Row], *, is_gone: bool = False) -> list[Settled]:
    ended = (end(transaction, End(job_id, token, "expire", is_gone=is_gone)) for job_id, token in rows)
    return [settled for settled in ended if settled is not None]
