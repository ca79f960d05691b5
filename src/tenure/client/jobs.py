"""Jobs: look at them, and cancel, revive, copy, edit and wake them. Changes are recorded with actor and reason."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tenure.client.enqueue import log_moves
from tenure.client.flow import every_step
from tenure.client.handle import wait_for_result
from tenure.client.operations import AsyncClient, Client, Steps, ask, operation
from tenure.errors import IllegalMove, InvalidArgument, NotFound
from tenure.handler import arguments
from tenure.handler.arguments import Duration, Names
from tenure.handler.building import MISSING, build_job
from tenure.model.event import Event
from tenure.model.ids import JobId, WorkerId, new_job_ids
from tenure.model.job import Attempt, Enqueued, Job
from tenure.model.outcome import Settled
from tenure.model.state import MOVES, Move, State
from tenure.store.contract import Cancel, Cancelled, Clone, EditJob, Revive, Wake
from tenure.store.queries import GetJobs, ListAttempts, ListEvents, ListJobs, ListQueues, Page

PAGE_MAX = 1_000
EVENTS_MAX = 10_000
BATCH_MAX = 1_000
SHOWN_STATES = (*State, "retry_waiting", "cleaned")
"""What `Job.shown_state` may say: a filter takes each of them."""


class Jobs(Client):
    """Questions about jobs, and moves of jobs that no worker holds."""

    @operation
    def get(self, job_id: str) -> Steps[Job]:
        """One job. Raises: NotFound."""
        return (yield from self._get(arguments.job_id("job_id", job_id)))

    def _get(self, job_id: JobId) -> Steps[Job]:
        (found,) = yield from ask(GetJobs([job_id]))
        if found is None:
            raise NotFound(f"There is no job {job_id}. Retention may have deleted it; see `tenure jobs ls`.")
        return found

    @operation
    def get_many(self, job_ids: Iterable[str]) -> Steps[list[Job | None]]:
        """Jobs by id, in order; None where there is none."""
        ids = _ids(job_ids)
        found: list[Job | None] = []
        for first in range(0, len(ids), PAGE_MAX):
            found += yield from ask(GetJobs(ids[first : first + PAGE_MAX]))
        return found

    @operation
    def result(self, job_id: str, *, timeout: Duration | None = None) -> Steps[Any]:
        """Wait until a job has ended and answer what its handler returned. As `JobHandle.result`, by id.

        Raises: ResultTimeout, JobFailed, NotFound.
        """
        blocks = not isinstance(self, AsyncClient)
        return (yield from wait_for_result(self._state, arguments.job_id("job_id", job_id), timeout, blocks=blocks))

    @operation
    def jobs(
        self,
        *,
        state: Names | None = None,
        queue: Names | None = None,
        kind: Names | None = None,
        key: str | None = None,
        workflow_id: str | None = None,
        parent_id: str | None = None,
        profile: str | None = None,
        worker: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Steps[Page[Job]]:
        """Jobs that match, newest first, a page at a time: pass `page.next` as `after` to go on."""
        return (
            yield from ask(
                ListJobs(
                    states=arguments.one_of("state", state, SHOWN_STATES),
                    queues=arguments.names("queue", queue),
                    kinds=arguments.names("kind", kind),
                    key=None if key is None else arguments.text("key", key),
                    workflow_id=None if workflow_id is None else arguments.uuid_text("workflow_id", workflow_id),
                    parent_id=None if parent_id is None else arguments.job_id("parent_id", parent_id),
                    profile=profile,
                    worker=None if worker is None else WorkerId(worker),
                    limit=arguments.whole("limit", limit, 1, PAGE_MAX),
                    after=None if after is None else arguments.uuid_text("after", after),
                )
            )
        )

    @operation
    def attempts(self, job_id: str) -> Steps[list[Attempt]]:
        """The attempts of a job that did not end well, oldest first."""
        return (yield from ask(ListAttempts(arguments.job_id("job_id", job_id))))

    @operation
    def events(
        self,
        *,
        after: int = 0,
        job_id: str | None = None,
        queue: Names | None = None,
        kind: Names | None = None,
        limit: int = 500,
    ) -> Steps[list[Event]]:
        """Events above `after`, by number. A low number may be committed after a higher one: to follow without missing
        any, `tenure tail` or the live stream of `tenure serve`."""
        return (
            yield from ask(
                ListEvents(
                    after=arguments.whole("after", after, 0, 2**63 - 1),
                    job_id=None if job_id is None else arguments.job_id("job_id", job_id),
                    queues=arguments.names("queue", queue),
                    kinds=arguments.names("kind", kind),
                    limit=arguments.whole("limit", limit, 1, EVENTS_MAX),
                )
            )
        )

    @operation
    def cancel(
        self, job_id: str, *, version: str | None = None, actor: str | None = None, reason: str = ""
    ) -> Steps[Cancelled]:
        """Cancel a job: a queued or waiting one at once, a held one by request, which its worker carries out.

        After `cancelled` it never starts; after `requested` it never succeeds. Repeating is harmless. With `version`,
        which `job.version` said when it was read, a job that has changed since is left alone.

        Raises: NotFound; IllegalMove, if it has ended; Outdated.
        """
        identity = arguments.job_id("job_id", job_id)
        (answer,) = yield from self._cancel([identity], actor, reason, version)
        if answer.answer != "refused" or answer.state == State.CANCELLED:
            return answer
        if answer.state is None:
            raise NotFound(f"There is no job {job_id}, so it cannot be cancelled.")
        raise IllegalMove(f"Job {job_id} has ended as {answer.state}, so it cannot be cancelled any more.")

    @operation
    def cancel_many(
        self, job_ids: Iterable[str], *, actor: str | None = None, reason: str = ""
    ) -> Steps[list[Cancelled]]:
        """Cancel many jobs; one answer each, in order. A job that is not there or has ended is answered `refused`."""
        return (yield from self._cancel(_ids(job_ids), actor, reason))

    def _cancel(
        self, ids: list[JobId], actor: str | None, reason: str, version: str | None = None
    ) -> Steps[list[Cancelled]]:
        answers: list[Cancelled] = []
        for first in range(0, len(ids), BATCH_MAX):
            page = ids[first : first + BATCH_MAX]
            answers += yield from ask(Cancel(page, self._by(actor), reason, versions=_versions(page, version)))
        log_moves("cancelled", ({"job": one.job_id} for one in answers if one.answer == "cancelled"))
        return answers

    @operation
    def revive(
        self,
        job_id: str,
        *,
        reason: str,
        from_step: str | None = None,
        version: str | None = None,
        actor: str | None = None,
    ) -> Steps[Settled]:
        """Queue a failed, dead or cancelled job again, with all its attempts. `reason` goes into the audit.

        A durable job goes on from the steps that it has recorded; with `from_step` that one and all later ones are
        forgotten and run again. One that was undone begins anew. With `version`, which `job.version` said when it was
        read, a job that has changed since is left alone.

        Raises: NotFound; IllegalMove, with the reason why it cannot be revived; Outdated.
        """
        identity = arguments.job_id("job_id", job_id)
        (answer,) = yield from self._revive([identity], actor, reason, from_step, version)
        if answer.lost:
            raise (yield from _why_not_revived(identity, from_step))
        return answer

    @operation
    def revive_many(self, job_ids: Iterable[str], *, reason: str, actor: str | None = None) -> Steps[list[Settled]]:
        """Revive many jobs; one answer each, in order. A job that cannot be revived is answered `lost`."""
        return (yield from self._revive(_ids(job_ids), actor, reason))

    def _revive(
        self,
        ids: list[JobId],
        actor: str | None,
        reason: str,
        from_step: str | None = None,
        version: str | None = None,
    ) -> Steps[list[Settled]]:
        why = arguments.text("reason", reason)
        answers: list[Settled] = []
        for first in range(0, len(ids), BATCH_MAX):
            page = ids[first : first + BATCH_MAX]
            answers += yield from ask(Revive(page, self._by(actor), why, from_step, _versions(page, version)))
        return answers

    @operation
    def clone(self, job_ids: str | Iterable[str], *, reason: str, actor: str | None = None) -> Steps[list[Enqueued]]:
        """Enqueue copies of ended jobs, each with `parent_id` set to its original. All or none.

        Raises: NotFound, IllegalMove.
        """
        ids = _ids(job_ids)
        request = Clone(
            dict(zip(ids, new_job_ids(len(ids)), strict=True)), self._by(actor), arguments.text("reason", reason)
        )
        return (yield from ask(request))

    @operation
    def edit(
        self,
        job_id: str,
        payload: Any = MISSING,
        *,
        reason: str,
        priority: int | None = None,
        version: str | None = None,
        actor: str | None = None,
    ) -> Steps[Job]:
        """Give a job that waits in its queue another payload, another priority, or both; answers it as it is now.

        The payload is checked as that of an enqueue is: by its kind's handler where this app has one, and by the queue.
        Its key stays. With `version`, which `job.version` said when it was read, a job that has changed since is left
        alone, so two editors never overwrite each other. A repeat is harmless. `reason` goes into the audit.

        Raises: NotFound; IllegalMove, if it is held, has ended or has recorded steps; Outdated; InvalidPayload,
        InvalidArgument.
        """
        identity = arguments.job_id("job_id", job_id)
        if payload is MISSING and priority is None:
            raise InvalidArgument("An edit needs a payload, a priority, or both. Nothing was changed.")
        request = EditJob(
            identity,
            self._by(actor),
            arguments.text("reason", reason),
            None if payload is MISSING else self._encode((yield from self._get(identity)).kind, payload),
            None if priority is None else arguments.whole("priority", priority),
            version,
        )
        edited = yield from ask(request)
        log_moves("edited", [{"job": identity, "kind": edited.kind, "queue": edited.queue}])
        return edited

    def _encode(self, kind: str, payload: Any) -> str:
        return build_job(kind, payload, {}, self._state.registry.get(kind), self._state.limits, "default").payload

    @operation
    def wake(self, job_ids: str | Iterable[str] = (), *, waiting_for: str | None = None) -> Steps[list[JobId]]:
        """Queue suspended jobs again: those named, or all that wait for `waiting_for`. Answers which were woken."""
        ids = _ids(job_ids)
        return (yield from ask(Wake(ids, waiting_for)))


def _ids(job_ids: str | Iterable[str]) -> list[JobId]:
    return [arguments.job_id("job_ids", one) for one in arguments.several("job_ids", job_ids)]


def _versions(ids: list[JobId], version: str | None) -> dict[JobId, str]:
    return {} if version is None else dict.fromkeys(ids, version)


def _why_not_revived(job_id: JobId, from_step: str | None = None) -> Steps[NotFound | IllegalMove]:
    (job,) = yield from ask(GetJobs([job_id]))
    if job is None:
        return NotFound(f"There is no job {job_id}, so it cannot be revived.")
    if (job.state, Move.REVIVE) not in MOVES:
        return IllegalMove(
            f"Job {job_id} is {job.state}, so it cannot be revived: only failed, dead and cancelled jobs can."
        )
    if job.cleaned_at is not None:
        return IllegalMove(f"Job {job_id} cannot be revived: retention removed its payload. Enqueue it anew.")
    if from_step is not None and from_step not in {step.key for step in (yield from every_step(job_id))}:
        return NotFound(f"Job {job_id} has no step {from_step!r}, so it cannot be revived from there.")
    rows = yield from ask(ListQueues([job.queue]))
    if rows and rows[0].policy.revive == "clone":
        return IllegalMove(
            f"Job {job_id} cannot be revived: in queue {job.queue!r} an end is final. Make a copy with `app.clone`."
        )
    return IllegalMove(
        f"Job {job_id} cannot be revived: another job holds its key {job.key!r}. "
        f"See `app.access.audit(subject={job_id!r})`, and cancel the other one first if it should not run."
    )
