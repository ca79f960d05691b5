"""What operators and leaders do: cancel, revive, triage, queues, gates, leases. Each leaves a trace of who and why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack, overload

from tenure.door.settings import QueueSettings, with_settings
from tenure.door.talk import Door, Talk, ask, atwin, twin
from tenure.errors import IllegalMove, NotFound
from tenure.handler import arguments
from tenure.handler.arguments import Duration, Names
from tenure.model.ids import JobId, WorkerId, new_job_ids
from tenure.model.job import Enqueued
from tenure.model.outcome import Settled, Triage
from tenure.model.policy import QueuePolicy
from tenure.model.state import MOVES, Move, State
from tenure.store.admin import (
    AcquireLease,
    NamedLease,
    PauseQueues,
    ReleaseLease,
    RemoveWorkers,
    SetGate,
    SetQueues,
    TriageDeadLetters,
)
from tenure.store.contract import Cancel, Cancelled, Clone, Prune, Pruned, Reap, Revive, Wake
from tenure.store.queries import Gate, GetJobs, ListQueues, QueueRow

BATCH_MAX = 1_000


class Operating(Door):
    """Acts with power over jobs, queues, gates and workers."""

    @overload
    def _cancel(  # type: ignore[overload-overlap]
        self, job_ids: str, *, actor: str | None = None, reason: str = ""
    ) -> Talk[Cancelled]: ...
    @overload
    def _cancel(
        self, job_ids: Iterable[str], *, actor: str | None = None, reason: str = ""
    ) -> Talk[list[Cancelled]]: ...
    def _cancel(
        self, job_ids: str | Iterable[str], *, actor: str | None = None, reason: str = ""
    ) -> Talk[Cancelled] | Talk[list[Cancelled]]:
        """Cancel jobs: queued and waiting ones at once, held ones by request, which their worker carries out.

        After `cancelled` a job never starts; after `requested` it never succeeds. Repeating is harmless.
        One id that is not there or has ended raises NotFound or IllegalMove; for a list, the answers say it.
        """
        ids, is_one = _ids(job_ids)
        return self._cancel_one(ids, actor, reason) if is_one else self._cancel_all(ids, actor, reason)

    def _cancel_one(self, ids: list[JobId], actor: str | None, reason: str) -> Talk[Cancelled]:
        (answer,) = yield from self._cancel_all(ids, actor, reason)
        refusal = _not_cancelled(answer)
        if refusal is not None:
            raise refusal
        return answer

    def _cancel_all(self, ids: list[JobId], actor: str | None, reason: str) -> Talk[list[Cancelled]]:
        answers: list[Cancelled] = []
        for first in range(0, len(ids), BATCH_MAX):
            answers += yield from ask(Cancel(ids[first : first + BATCH_MAX], self._by(actor), reason))
        return answers

    @overload
    def _revive(  # type: ignore[overload-overlap]
        self, job_ids: str, *, reason: str, actor: str | None = None
    ) -> Talk[Settled]: ...
    @overload
    def _revive(self, job_ids: Iterable[str], *, reason: str, actor: str | None = None) -> Talk[list[Settled]]: ...
    def _revive(
        self, job_ids: str | Iterable[str], *, reason: str, actor: str | None = None
    ) -> Talk[Settled] | Talk[list[Settled]]:
        """Queue failed, dead or cancelled jobs again, with all their attempts. `reason` goes into the audit.

        One id that cannot be revived raises NotFound or IllegalMove with the cause; for a list, its answer is `lost`.
        """
        ids, is_one = _ids(job_ids)
        why = arguments.text("reason", reason)
        return self._revive_one(ids, actor, why) if is_one else self._revive_all(ids, actor, why)

    def _revive_one(self, ids: list[JobId], actor: str | None, reason: str) -> Talk[Settled]:
        (answer,) = yield from self._revive_all(ids, actor, reason)
        if answer.lost:
            raise (yield from _why_not_revived(ids[0]))
        return answer

    def _revive_all(self, ids: list[JobId], actor: str | None, reason: str) -> Talk[list[Settled]]:
        answers: list[Settled] = []
        for first in range(0, len(ids), BATCH_MAX):
            answers += yield from ask(Revive(ids[first : first + BATCH_MAX], self._by(actor), reason))
        return answers

    def _clone(self, job_ids: str | Iterable[str], *, reason: str, actor: str | None = None) -> Talk[list[Enqueued]]:
        """Enqueue copies of ended jobs, each with `parent_id` set to its original. All or none.

        Raises: NotFound, IllegalMove.
        """
        ids, _ = _ids(job_ids)
        request = Clone(
            dict(zip(ids, new_job_ids(len(ids)), strict=True)), self._by(actor), arguments.text("reason", reason)
        )
        return (yield from ask(request))

    def _wake(self, job_ids: str | Iterable[str] = (), *, waiting_for: str | None = None) -> Talk[list[JobId]]:
        """Queue suspended jobs again: those named, or all that wait for `waiting_for`. Answers which were woken."""
        ids, _ = _ids(job_ids)
        return (yield from ask(Wake(ids, waiting_for)))

    def _reap(self, limit: int = 1000) -> Talk[list[Settled]]:
        """Take back jobs whose lease ran out. Claims do so by themselves; any process may."""
        return (yield from ask(Reap(arguments.whole("limit", limit, 1, 10_000))))

    def _prune(
        self,
        *,
        limit: int = 1000,
        older_than: Duration | None = None,
        delete_after: Duration | None = None,
        worker_after: Duration = 86_400.0,
        metric_after: Duration = 2_592_000.0,
    ) -> Talk[Pruned]:
        """Retention, up to `limit` rows: payloads of ended jobs go, rows and dead letters stay.

        Workers not seen for `worker_after`, and minutes counted longer ago than `metric_after`, go too.

        `more` in the answer says to call again.
        """
        request = Prune(
            limit=arguments.whole("limit", limit, 1, 100_000),
            older_than_seconds=None if older_than is None else arguments.seconds("older_than", older_than),
            delete_after_seconds=None if delete_after is None else arguments.seconds("delete_after", delete_after),
            worker_seconds=arguments.seconds("worker_after", worker_after),
            metric_seconds=arguments.seconds("metric_after", metric_after),
        )
        return (yield from ask(request))

    def _triage(
        self, ids: str | Iterable[str], triage: Triage | str, *, actor: str | None = None, note: str | None = None
    ) -> Talk[list[str]]:
        """Write down what was decided about dead letters. Answers the ids that were changed.

        Raises: NotFound, if a single one was named and is not there.
        """
        given = [ids] if isinstance(ids, str) else list(ids)
        chosen = [arguments.uuid_text("ids", one) for one in given]
        decided = Triage(arguments.one_of("triage", str(triage), Triage)[0])
        changed = yield from ask(TriageDeadLetters(chosen, decided, self._by(actor), note))
        if isinstance(ids, str) and not changed:
            raise NotFound(f"There is no dead letter {ids}. `app.dead_letters()` lists them.")
        return changed

    def _set_queue(
        self,
        name: str,
        policy: QueuePolicy | None = None,
        *,
        actor: str | None = None,
        **settings: Unpack[QueueSettings],
    ) -> Talk[QueueRow]:
        """Create a queue, or change its policy: to `policy`, or by single settings on what it has now.

        Jobs already there keep the rank and max_attempts they were given.
        """
        arguments.name("name", name)
        if policy is None:
            rows = yield from ask(ListQueues([name]))
            policy = rows[0].policy if rows else QueuePolicy()
        wanted = with_settings(policy, settings)
        (row,) = yield from ask(SetQueues({name: wanted}, self._by(actor)))
        return row

    def _pause(self, names: Names, *, actor: str | None = None, reason: str | None = None) -> Talk[list[str]]:
        """Let claims take nothing from these queues; enqueue goes on. Answers which were not paused before."""
        return (yield from ask(PauseQueues(arguments.names("names", names), True, self._by(actor), reason)))

    def _resume(self, names: Names, *, actor: str | None = None, reason: str | None = None) -> Talk[list[str]]:
        """Let claims take from these queues again."""
        return (yield from ask(PauseQueues(arguments.names("names", names), False, self._by(actor), reason)))

    def _open_gate(self, name: str, *, actor: str | None = None, reason: str | None = None) -> Talk[Gate]:
        """Allow what the gate guards."""
        return (yield from ask(SetGate(arguments.name("name", name), True, self._by(actor), reason)))

    def _close_gate(self, name: str, *, actor: str | None = None, reason: str | None = None) -> Talk[Gate]:
        """Refuse what the gate guards, at once and for all: master, worker, notify, heartbeat, or `queue:NAME`."""
        return (yield from ask(SetGate(arguments.name("name", name), False, self._by(actor), reason)))

    def _acquire_lease(self, name: str, owner: str, *, seconds: Duration = 30.0) -> Talk[NamedLease]:
        """Take a named lease, or extend one's own. `acquired`: the asker leads; `term` fences what it does."""
        duration = arguments.seconds("seconds", seconds, positive=True)
        return (yield from ask(AcquireLease(arguments.name("name", name), arguments.name("owner", owner), duration)))

    def _release_lease(self, name: str, owner: str, term: int) -> Talk[bool]:
        """Give a named lease back, if it is still the asker's in that term."""
        return (yield from ask(ReleaseLease(arguments.name("name", name), arguments.name("owner", owner), term)))

    def _remove_workers(self, ids: Names = (), *, unseen: Duration | None = None) -> Talk[list[WorkerId]]:
        """Remove the rows of workers, by id or by how long they were not seen. What they hold is taken back first."""
        chosen = [WorkerId(one) for one in arguments.names("ids", ids)]
        silent = None if unseen is None else arguments.seconds("unseen", unseen)
        return (yield from ask(RemoveWorkers(chosen, silent)))

    def _by(self, actor: str | None) -> str:
        return self.actor if actor is None else arguments.text("actor", actor)

    cancel = twin(_cancel)
    acancel = atwin(_cancel)
    revive = twin(_revive)
    arevive = atwin(_revive)
    clone = twin(_clone)
    aclone = atwin(_clone)
    wake = twin(_wake)
    awake = atwin(_wake)
    reap = twin(_reap)
    areap = atwin(_reap)
    prune = twin(_prune)
    aprune = atwin(_prune)
    triage = twin(_triage)
    atriage = atwin(_triage)
    set_queue = twin(_set_queue)
    aset_queue = atwin(_set_queue)
    pause = twin(_pause)
    apause = atwin(_pause)
    resume = twin(_resume)
    aresume = atwin(_resume)
    open_gate = twin(_open_gate)
    aopen_gate = atwin(_open_gate)
    close_gate = twin(_close_gate)
    aclose_gate = atwin(_close_gate)
    acquire_lease = twin(_acquire_lease)
    aacquire_lease = atwin(_acquire_lease)
    release_lease = twin(_release_lease)
    arelease_lease = atwin(_release_lease)
    remove_workers = twin(_remove_workers)
    aremove_workers = atwin(_remove_workers)


def _ids(job_ids: str | Iterable[str]) -> tuple[list[JobId], bool]:
    if isinstance(job_ids, str):
        return [arguments.job_id("job_id", job_ids)], True
    return [arguments.job_id("job_ids", one) for one in job_ids], False


def _not_cancelled(answer: Cancelled) -> NotFound | IllegalMove | None:
    if answer.answer != "refused" or answer.state == State.CANCELLED:
        return None
    if answer.state is None:
        return NotFound(f"There is no job {answer.job_id}, so it cannot be cancelled.")
    return IllegalMove(f"Job {answer.job_id} has ended as {answer.state}, so it cannot be cancelled any more.")


def _why_not_revived(job_id: JobId) -> Talk[NotFound | IllegalMove]:
    (job,) = yield from ask(GetJobs([job_id]))
    if job is None:
        return NotFound(f"There is no job {job_id}, so it cannot be revived.")
    if (job.state, Move.REVIVE) not in MOVES:
        return IllegalMove(
            f"Job {job_id} is {job.state}, so it cannot be revived: only failed, dead and cancelled jobs can."
        )
    if job.cleaned_at is not None:
        return IllegalMove(f"Job {job_id} cannot be revived: retention removed its payload. Enqueue it anew.")
    rows = yield from ask(ListQueues([job.queue]))
    if rows and rows[0].policy.revive == "clone":
        return IllegalMove(
            f"Job {job_id} cannot be revived: in queue {job.queue!r} an end is final. Make a copy with `app.clone`."
        )
    return IllegalMove(
        f"Job {job_id} cannot be revived: another job holds its key {job.key!r}. "
        f"See `app.audit(subject={job_id!r})`, and cancel the other one first if it should not run."
    )
