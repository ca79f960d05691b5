"""Questions: what is outstanding, running, stuck, done. Each is answered by the database; reads change nothing."""

from __future__ import annotations

from collections.abc import Iterable

from tenure.door.talk import Door, Talk, ask, atwin, twin
from tenure.errors import NotFound
from tenure.handler import arguments
from tenure.handler.arguments import Names
from tenure.model.event import Event
from tenure.model.ids import WorkerId
from tenure.model.job import Attempt, DeadLetter, Job
from tenure.model.outcome import Triage
from tenure.model.state import State
from tenure.store.queries import (
    Audit,
    Count,
    CountJobs,
    DeadLetterGroup,
    Effect,
    Gate,
    GetJobs,
    GroupDeadLetters,
    ListAttempts,
    ListAudit,
    ListDeadLetters,
    ListEffects,
    ListEvents,
    ListGates,
    ListJobs,
    ListQueues,
    ListWorkers,
    Page,
    QueueRow,
    WorkerSeen,
)

PAGE_MAX = 1_000
EVENTS_MAX = 10_000


class Reading(Door):
    """Answers about jobs, dead letters, queues, gates, workers and what happened."""

    def _get(self, job_id: str) -> Talk[Job]:
        """One job. Raises: NotFound."""
        (found,) = yield from ask(GetJobs([arguments.job_id("job_id", job_id)]))
        if found is None:
            raise NotFound(f"There is no job {job_id}. It may have been deleted by retention; look at `app.jobs()`.")
        return found

    def _get_many(self, job_ids: Iterable[str]) -> Talk[list[Job | None]]:
        """Jobs by id, in order; None where there is none."""
        ids = [arguments.job_id("job_ids", one) for one in job_ids]
        found: list[Job | None] = []
        for first in range(0, len(ids), PAGE_MAX):
            found += yield from ask(GetJobs(ids[first : first + PAGE_MAX]))
        return found

    def _jobs(
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
    ) -> Talk[Page[Job]]:
        """Jobs that match, newest first, a page at a time: pass `page.next` as `after` to go on."""
        return (
            yield from ask(
                ListJobs(
                    states=arguments.one_of("state", state, State),
                    queues=arguments.names("queue", queue),
                    kinds=arguments.names("kind", kind),
                    key=None if key is None else arguments.text("key", key),
                    workflow_id=None if workflow_id is None else arguments.uuid_text("workflow_id", workflow_id),
                    parent_id=None if parent_id is None else arguments.job_id("parent_id", parent_id),
                    profile=profile,
                    worker=None if worker is None else WorkerId(worker),
                    limit=_limit(limit),
                    after=after,
                )
            )
        )

    def _counts(self, *, queue: Names | None = None, state: Names | None = None) -> Talk[list[Count]]:
        """How many jobs there are by queue, kind and state, and the oldest of each. Exact at the moment of asking."""
        queues, states = arguments.names("queue", queue), arguments.one_of("state", state, State)
        return (yield from ask(CountJobs(queues, states)))

    def _attempts(self, job_id: str) -> Talk[list[Attempt]]:
        """The attempts of a job that did not end well, oldest first."""
        return (yield from ask(ListAttempts(arguments.job_id("job_id", job_id))))

    def _dead_letters(
        self,
        *,
        triage: Names | None = None,
        queue: Names | None = None,
        kind: Names | None = None,
        fingerprint: str | None = None,
        job_id: str | None = None,
        ids: Iterable[str] = (),
        limit: int = 50,
        after: str | None = None,
    ) -> Talk[Page[DeadLetter]]:
        """Jobs that need a person, newest death first."""
        return (
            yield from ask(
                ListDeadLetters(
                    triage=arguments.one_of("triage", triage, Triage),
                    queues=arguments.names("queue", queue),
                    kinds=arguments.names("kind", kind),
                    fingerprint=fingerprint,
                    job_id=None if job_id is None else arguments.job_id("job_id", job_id),
                    ids=[arguments.uuid_text("ids", one) for one in ids],
                    limit=_limit(limit),
                    after=after,
                )
            )
        )

    def _dead_letter_groups(
        self, *, triage: Names | None = Triage.PENDING, limit: int = 50
    ) -> Talk[list[DeadLetterGroup]]:
        """Deaths that look alike, the largest group first. `triage=None` counts the settled ones too."""
        return (yield from ask(GroupDeadLetters(arguments.one_of("triage", triage, Triage), _limit(limit))))

    def _queues(self, name: Names | None = None) -> Talk[list[QueueRow]]:
        """Queues with their policies, by name."""
        return (yield from ask(ListQueues(arguments.names("name", name))))

    def _gates(self) -> Talk[list[Gate]]:
        """Every switch and how it stands."""
        return (yield from ask(ListGates()))

    def _workers(self) -> Talk[list[WorkerSeen]]:
        """Workers that have a row, most recently seen first."""
        return (yield from ask(ListWorkers()))

    def _events(
        self,
        *,
        after: int = 0,
        job_id: str | None = None,
        queue: Names | None = None,
        kind: Names | None = None,
        limit: int = 500,
    ) -> Talk[list[Event]]:
        """Events above `after`, in order. To follow, pass the highest `seq` seen, less a second for late ones."""
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

    def _audit(self, *, subject: str | None = None, limit: int = 100) -> Talk[list[Audit]]:
        """What people and programs with power did, newest first."""
        return (yield from ask(ListAudit(subject, _limit(limit))))

    def _effects(
        self, *, job_id: str | None = None, state: Names | None = None, limit: int = 500, after: str | None = None
    ) -> Talk[Page[Effect]]:
        """Rows of the effect ledger: of one job, or all in the given states."""
        known = ("intended", "sent", "confirmed", "failed", "unknown")
        chosen = None if job_id is None else arguments.job_id("job_id", job_id)
        return (yield from ask(ListEffects(chosen, arguments.one_of("state", state, known), _limit(limit), after)))

    get = twin(_get)
    aget = atwin(_get)
    get_many = twin(_get_many)
    aget_many = atwin(_get_many)
    jobs = twin(_jobs)
    ajobs = atwin(_jobs)
    counts = twin(_counts)
    acounts = atwin(_counts)
    attempts = twin(_attempts)
    aattempts = atwin(_attempts)
    dead_letters = twin(_dead_letters)
    adead_letters = atwin(_dead_letters)
    dead_letter_groups = twin(_dead_letter_groups)
    adead_letter_groups = atwin(_dead_letter_groups)
    queues = twin(_queues)
    aqueues = atwin(_queues)
    gates = twin(_gates)
    agates = atwin(_gates)
    workers = twin(_workers)
    aworkers = atwin(_workers)
    events = twin(_events)
    aevents = atwin(_events)
    audit = twin(_audit)
    aaudit = atwin(_audit)
    effects = twin(_effects)
    aeffects = atwin(_effects)


def _limit(value: int) -> int:
    return arguments.whole("limit", value, 1, PAGE_MAX)
