"""Effects: the ledger's rows, the outcomes that a person must settle, and the comparison of records with the world."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from tenure.client.operations import AsyncClient, Client, Steps, SyncClient, ask, operation
from tenure.client.state import ClientState
from tenure.errors import TenureError
from tenure.handler import arguments
from tenure.handler.arguments import Names
from tenure.handler.payload import encode
from tenure.model.log_event import ERROR, INFO, WARNING, Emit, LogEvent
from tenure.store.admin import ResolveEffect
from tenure.store.queries import Effect, ListEffects, Page

if TYPE_CHECKING:
    from tenure.effects.reconcile import Discrepancy, Progress

PAGE_MAX = 1_000


class Effects(Client):
    """The effect ledger: `app.effects`."""

    @operation
    def all(
        self, *, job_id: str | None = None, state: Names | None = None, limit: int = 500, after: str | None = None
    ) -> Steps[Page[Effect]]:
        """Rows of the effect ledger: of one job, or all in the given states."""
        known = ("intended", "sent", "confirmed", "failed", "unknown")
        chosen = None if job_id is None else arguments.job_id("job_id", job_id)
        return (
            yield from ask(
                ListEffects(
                    chosen, arguments.one_of("state", state, known), arguments.whole("limit", limit, 1, PAGE_MAX), after
                )
            )
        )

    @operation
    def resolve(
        self,
        job_id: str,
        name: str,
        outcome: Literal["confirmed", "retry", "failed"],
        *,
        actor: str | None = None,
        note: str | None = None,
        step: str = "",
        result: Any = None,
    ) -> Steps[Effect]:
        """Say what became of an effect of unknown outcome; the job that waits for it goes on.

        `confirmed`: it happened, and `result` stands for its reply. `retry`: it did not, do it again. `failed`: give it
        up, and the job with it. `note` goes into the audit.

        Raises: NotFound; IllegalMove, if it is confirmed already or a worker holds the job.
        """
        request = ResolveEffect(
            arguments.job_id("job_id", job_id),
            name,
            arguments.word("outcome", outcome, ("confirmed", "retry", "failed")),
            self._by(actor),
            None if note is None else arguments.text("note", note),
            step,
            encode(result, self._state.limits, what="The result") if outcome == "confirmed" else None,
        )
        return (yield from ask(request))


class SyncEffects(Effects, SyncClient):
    """`app.effects`."""

    def reconcile(self, *, since: datetime | None = None, progress: Progress | None = None) -> Iterator[Discrepancy]:
        """Compare what succeeded with the world, for every kind and effect that knows how; report what differs.

        Streams: neither the jobs nor the files are held in memory. Changes nothing. `since` leaves out what finished
        before.
        """
        return find_discrepancies(self._state, since, progress)


class AsyncEffects(Effects, AsyncClient):
    """`app.aio.effects`."""


def find_discrepancies(state: ClientState, since: datetime | None, progress: Progress | None) -> Iterator[Discrepancy]:
    """The stream behind `app.effects.reconcile`."""
    from tenure.effects.reconcile import reconcile

    moment = None if since is None else arguments.moment("since", since)
    return reconcile(
        state.open_store(), state.registry.checkers, state.registry.verifiers, since=moment, progress=progress
    )


@contextmanager
def reconciling(state: ClientState, emit: Emit | None) -> Iterator[None]:
    """Reconcile once, in a thread beside the body of the `with`. Emits discrepancies and its end as log events."""
    over = threading.Event()

    def say(name: str, level: int, message: str, **told: Any) -> None:
        if emit is not None and emit.level <= level:
            emit(LogEvent(name, level, message=message, **told))

    def look() -> None:
        found = 0
        try:
            for one in find_discrepancies(state, None, None):
                if over.is_set():
                    return
                found += 1
                message = f"{one.subject}: expected {one.expected}, found {one.found}"
                say("discrepancy_found", WARNING, message, job=one.job_id, kind=one.kind, fields={"sort": one.sort})
        except TenureError as exc:
            say("reconcile_failed", ERROR, str(exc))
        else:
            say("reconciled", INFO, "the records were compared with the world", fields={"discrepancies": found})

    thread = threading.Thread(target=look, name="tenure-reconcile", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(10.0)  # a worker that drained has the time; one that was told to stop must not wait for ever
        over.set()
