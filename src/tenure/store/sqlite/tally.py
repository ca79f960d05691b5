"""The tally: how many jobs ended well, so that nobody counts history. Kept by prune, read by views of profiles."""

from __future__ import annotations

from typing import Final

from tenure.store.sqlite.queries import load
from tenure.store.sqlite.transaction import Transaction

_LAG_US: Final = 60_000_000
"""A request reads the clock before it gets to write. What is older than this has been written or never will be."""


def tally_up(transaction: Transaction) -> None:
    """Count what ended since the last time, where a profile is installed that shows it."""
    if transaction.one(load("profile_any")) is None:
        return
    after, until = _mark(transaction), transaction.now - _LAG_US
    if until > after:
        transaction.run(load("tally_up"), {"after": after, "until": until})
        transaction.run(load("tally_move_mark"), (until,))


def tally_cleaned(transaction: Transaction, ids: str) -> None:
    """Jobs (a JSON array of ids) have just been cleaned."""
    values = {"ids": ids, "until": _mark(transaction)}
    if values["until"] != -1:
        transaction.run(load("tally_take"), {**values, "is_cleaned": 0})
        transaction.run(load("tally_add_cleaned"), values)
        transaction.run(load("tally_drop_empty"))


def tally_gone(transaction: Transaction, ids: str) -> None:
    """Cleaned jobs are about to be deleted."""
    until = _mark(transaction)
    if until != -1:
        transaction.run(load("tally_take"), {"ids": ids, "until": until, "is_cleaned": 1})
        transaction.run(load("tally_drop_empty"))


def _mark(transaction: Transaction) -> int:
    row = transaction.one(load("tally_mark"))
    assert row is not None
    return int(row[0])
