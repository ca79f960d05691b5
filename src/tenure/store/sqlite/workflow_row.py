"""The row of a workflow: its counts, state and phase, how it moves, and what is left to fold of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from tenure.errors import NotFound
from tenure.model.ids import JobId
from tenure.store.sqlite import flow
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Row, Transaction, dump

COUNTS: Final = ("succeeded", "failed", "tolerated", "skipped", "cancelled")
"""How tasks end."""
_SQL: Final = load("workflow_row")
_CONNECTION: Final = load("connection")


class Run(NamedTuple):
    """A workflow that was started, as far as its policy is judged by it."""

    id: str
    kind: str
    state: str
    phase: str
    total: int
    succeeded: int
    failed: int
    tolerated: int
    skipped: int
    cancelled: int
    policy: str
    is_judged: int
    round: int

    @property
    def ended(self) -> int:
        """Tasks that have ended, however."""
        return self.succeeded + self.failed + self.tolerated + self.skipped + self.cancelled


def find_run(transaction: Transaction, workflow_id: str) -> Run | None:
    """How a workflow stands; None if there is none."""
    row = transaction.one(_SQL["run"], (workflow_id,))
    return None if row is None else Run(*row)


def get_run(transaction: Transaction, workflow_id: str) -> Run:
    """How a workflow stands. Raises: NotFound."""
    found = find_run(transaction, workflow_id)
    if found is None:
        raise NotFound(f"There is no workflow {workflow_id}. `tenure workflows ls` lists them.")
    return found


def move(
    transaction: Transaction,
    run: Run,
    state: str,
    *,
    phase: str,
    error: str | None = "",
    is_judged: bool | None = None,
    is_next_round: bool = False,
    policy: str | None = None,
) -> None:
    """Change a workflow's state. `error` "" keeps the one it has."""
    values = {
        "id": run.id,
        "state": state,
        "phase": phase,
        "error": error,
        "keeps_error": error == "",
        "is_judged": run.is_judged if is_judged is None else is_judged,
        "round": run.round + is_next_round,
        "policy": run.policy if policy is None else policy,
        "now": transaction.now,
    }
    transaction.run(_SQL["move"], values)


def add_tasks(transaction: Transaction, workflow_id: str, tasks: Sequence[Row]) -> int:
    """Jobs become tasks: (job, name, needs, depth, is_optional, fan_out, parent, is_released) each. Answers how many
    are new."""
    return transaction.run(_SQL["insert_tasks"], {"workflow_id": workflow_id, "tasks": dump(list(tasks))}).rowcount


def grow(transaction: Transaction, workflow_id: str, tasks: int) -> None:
    """A workflow has more tasks than it began with."""
    transaction.run(_SQL["grow"], {"id": workflow_id, "tasks": tasks, "now": transaction.now})


def put_events(transaction: Transaction, events: Sequence[tuple[str | None, ...]]) -> None:
    """Leave work for a fold: kind, workflow, job, was, became, after; what is left out is empty."""
    if not events:
        return
    rows = [(*event, *(None, None, None, "")[len(event) - 2 :]) for event in events]
    transaction.run(_SQL["put_events"], {"events": dump(rows)})


def cancel_jobs(transaction: Transaction, ids: Sequence[JobId], failure_class: str, error: str) -> list[str]:
    """Cancel those of these jobs that no worker holds. Answers which."""
    values = {"ids": dump(list(ids)), "class": failure_class, "error": error, "now": transaction.now}
    rows = transaction.all(_SQL["cancel_jobs"], values)
    end_durable(transaction, rows)
    done = sorted(row[0] for row in rows)
    transaction.record("cancelled", done)
    return done


def end_durable(transaction: Transaction, ended: Sequence[Row]) -> None:
    """Jobs have ended, given as (id, whether it is durable)."""
    durable = [job_id for job_id, is_durable in ended if is_durable]
    if durable:
        flow.end_durable(transaction, durable)


def refusal_of(transaction: Transaction, act: Callable[[], Any]) -> Exception | None:
    """Carry out an act. If it raises, it is undone and the error answered: what one workflow's data make impossible
    must stop no other. Errors of the database itself are raised."""
    transaction.run(_CONNECTION["row_savepoint"])
    try:
        act()
    except sqlite3.Error as exc:
        if not isinstance(exc, sqlite3.IntegrityError):
            raise
        refusal: Exception | None = exc
    except Exception as exc:  # noqa: BLE001 - whatever it is, it is that workflow's own
        refusal = exc
    else:
        refusal = None
    if refusal is not None:
        transaction.run(_CONNECTION["row_undo"])
    transaction.run(_CONNECTION["row_release"])
    return refusal
