"""Ready-made kinds, effects whose outcome a person must settle, and the comparison of records with the world."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Self

from tenure.door.talk import Door, Talk, ask, atwin, twin
from tenure.errors import TenureError
from tenure.handler import arguments
from tenure.handler.payload import encode
from tenure.model.log_event import ERROR, INFO, WARNING, Emit, LogEvent
from tenure.store.admin import ResolveEffect
from tenure.store.queries import Effect

if TYPE_CHECKING:
    from tenure.effects.kinds import Checker, Kit
    from tenure.effects.reconcile import Discrepancy, Progress
    from tenure.handler.ledger import Verify


class Effecting(Door):
    """Takes in kits, resolves effects, reconciles."""

    checkers: list[Checker]
    """Who compares which kinds with the world."""
    verifiers: dict[str, Verify]
    """How effects are verified, by name."""

    def use(self, *kits: Kit) -> Self:
        """Take in ready-made kinds and effects: `app.use(files(root="data"), reports(root="data"))`."""
        for kit in kits:
            kit.install(self)  # type: ignore[arg-type]  # an App has all that a Host needs
        return self

    def _resolve_effect(
        self,
        job_id: str,
        name: str,
        outcome: Literal["confirmed", "retry", "failed"],
        *,
        actor: str | None = None,
        note: str | None = None,
        step: str = "",
        result: Any = None,
    ) -> Talk[Effect]:
        """Say what became of an effect of unknown outcome; the job that waits for it goes on.

        `confirmed`: it happened, and `result` stands for its reply. `retry`: it did not, do it again. `failed`: give it
        up, and the job with it. `note` goes into the audit.

        Raises: NotFound; IllegalMove, if it is confirmed already or a worker holds the job.
        """
        request = ResolveEffect(
            arguments.job_id("job_id", job_id),
            name,
            arguments.one_of("outcome", outcome, ("confirmed", "retry", "failed"))[0],
            self.actor if actor is None else arguments.text("actor", actor),
            None if note is None else arguments.text("note", note),
            step,
            encode(result, self.limits, what="The result") if outcome == "confirmed" else None,
        )
        return (yield from ask(request))

    resolve_effect = twin(_resolve_effect)
    aresolve_effect = atwin(_resolve_effect)

    def reconcile(self, *, since: datetime | None = None, progress: Progress | None = None) -> Iterator[Discrepancy]:
        """Compare what succeeded with the world, for every kind and effect that knows how; report what differs.

        Streams: neither the jobs nor the files are held in memory. Changes nothing. `since` leaves out what finished
        before.
        """
        from tenure.effects.reconcile import reconcile

        moment = None if since is None else arguments.moment("since", since)
        return reconcile(self.open_store(), self.checkers, self.verifiers, since=moment, progress=progress)

    @contextmanager
    def reconciling(self, emit: Emit | None) -> Iterator[None]:
        """Reconcile once, in a thread beside what is done meanwhile. What differs is a notice, and so is the end."""
        over = threading.Event()

        def say(name: str, level: int, message: str, **told: Any) -> None:
            if emit is not None and emit.level <= level:
                emit(LogEvent(name, level, message=message, **told))

        def look() -> None:
            found = 0
            try:
                for one in self.reconcile():
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
            thread.join(10.0)  # a worker that drained has the time; one that was told to stop has not for ever
            over.set()
