"""What operators and leaders do: queues, gates, leases, dead letters, workers, retention.

Every change is recorded with its actor and reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from tenure.client.operations import AsyncClient, Client, Steps, SyncClient, ask, operation
from tenure.client.settings import QueueSettings, rules_of, with_settings
from tenure.errors import NotFound
from tenure.handler import arguments
from tenure.handler.arguments import Duration, Names
from tenure.model.ids import WorkerId
from tenure.model.job import DeadLetter
from tenure.model.outcome import Settled, Triage
from tenure.model.policy import QueuePolicy
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
from tenure.store.contract import Prune, Pruned, Reap
from tenure.store.gauges import CAP, CountBacklog
from tenure.store.queries import (
    Audit,
    DeadLetterGroup,
    Gate,
    GroupDeadLetters,
    ListAudit,
    ListDeadLetters,
    ListGates,
    ListQueues,
    ListWorkers,
    Page,
    QueueRow,
    WorkerSeen,
)

PAGE_MAX = 1_000


class Admin(Client):
    """Queues, dead letters, workers, audit and retention."""

    @operation
    def queues(self, name: Names | None = None) -> Steps[list[QueueRow]]:
        """Queues with their policies, by name."""
        return (yield from ask(ListQueues(arguments.names("name", name))))

    @operation
    def backlog(self, queue: str = "default", *, cap: int = CAP) -> Steps[int]:
        """How much work a queue has for workers: jobs that are ready or held, at most `cap`. For an autoscaler.

        A paused queue counts only what is held. Costs at most `cap` index entries, whatever the database holds.

        Raises: UnknownQueue, InvalidArgument.
        """
        load = yield from ask(CountBacklog(arguments.name("queue", queue), cap))
        return min(cap, load.backlog)

    @operation
    def set_queue(
        self,
        name: str,
        policy: QueuePolicy | None = None,
        *,
        actor: str | None = None,
        **settings: Unpack[QueueSettings],
    ) -> Steps[QueueRow]:
        """Create a queue, or change its policy: to `policy`, or by single settings on what it has now.

        A `profile` that is new to the queue brings its rules along, and the other settings change those. Jobs already
        there keep the rank and max_attempts they were given.

        Raises: InvalidArgument, UnknownProfile (it is not installed here), IllegalMove (a queue with live jobs stays
        with its profile).
        """
        arguments.name("name", name)
        if policy is None:
            rows = yield from ask(ListQueues([name]))
            policy = rows[0].policy if rows else QueuePolicy()
            profile = settings.get("profile", policy.profile)
            if profile != policy.profile:
                policy = yield from rules_of(profile)
        wanted = with_settings(policy, settings)
        (row,) = yield from ask(SetQueues({name: wanted}, self._by(actor)))
        return row

    @operation
    def pause(self, names: Names, *, actor: str | None = None, reason: str | None = None) -> Steps[list[str]]:
        """Let claims take nothing from these queues; enqueue goes on. Answers which were not paused before."""
        return (yield from ask(PauseQueues(arguments.names("names", names), True, self._by(actor), reason)))

    @operation
    def resume(self, names: Names, *, actor: str | None = None, reason: str | None = None) -> Steps[list[str]]:
        """Let claims take from these queues again."""
        return (yield from ask(PauseQueues(arguments.names("names", names), False, self._by(actor), reason)))

    @operation
    def dead_letters(
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
    ) -> Steps[Page[DeadLetter]]:
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

    @operation
    def dead_letter_groups(
        self, *, triage: Names | None = Triage.PENDING, limit: int = 50
    ) -> Steps[list[DeadLetterGroup]]:
        """Deaths that look alike, the largest group first. `triage=None` counts the settled ones too."""
        return (yield from ask(GroupDeadLetters(arguments.one_of("triage", triage, Triage), _limit(limit))))

    @operation
    def triage(
        self, ids: str | Iterable[str], triage: Triage | str, *, actor: str | None = None, note: str | None = None
    ) -> Steps[list[str]]:
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

    @operation
    def workers(self) -> Steps[list[WorkerSeen]]:
        """Workers that have a row, most recently seen first."""
        return (yield from ask(ListWorkers()))

    @operation
    def remove_workers(self, ids: Names = (), *, unseen: Duration | None = None) -> Steps[list[WorkerId]]:
        """Remove the rows of workers, by id or by how long they were not seen. What they hold is taken back first."""
        chosen = [WorkerId(one) for one in arguments.names("ids", ids)]
        silent = None if unseen is None else arguments.seconds("unseen", unseen)
        return (yield from ask(RemoveWorkers(chosen, silent)))

    @operation
    def audit(self, *, subject: str | None = None, limit: int = 100, before: int | None = None) -> Steps[list[Audit]]:
        """What people and programs with power did, newest first; `before` is the `seq` of the last one of the page
        before."""
        return (yield from ask(ListAudit(subject, _limit(limit), before)))

    @operation
    def reap(self, limit: int = 1000) -> Steps[list[Settled]]:
        """Take back jobs whose lease ran out. Claims do so by themselves; any process may."""
        return (yield from ask(Reap(arguments.whole("limit", limit, 1, 10_000))))

    @operation
    def prune(
        self,
        *,
        limit: int = 1000,
        older_than: Duration | None = None,
        delete_after: Duration | None = None,
        worker_after: Duration = 86_400.0,
        metric_after: Duration = 2_592_000.0,
    ) -> Steps[Pruned]:
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


class Gates(Client):
    """Switches that stop work: `app.gates`."""

    @operation
    def all(self) -> Steps[list[Gate]]:
        """Every switch and how it stands."""
        return (yield from ask(ListGates()))

    @operation
    def open(self, name: str, *, actor: str | None = None, reason: str | None = None) -> Steps[Gate]:
        """Allow what the gate guards."""
        return (yield from ask(SetGate(arguments.name("name", name), True, self._by(actor), reason)))

    @operation
    def close(self, name: str, *, actor: str | None = None, reason: str | None = None) -> Steps[Gate]:
        """Refuse what the gate guards, at once and for all: master, worker, notify, heartbeat, `queue:NAME`, or
        `kind:NAME`, which lets jobs of the kind wait."""
        return (yield from ask(SetGate(arguments.name("name", name), False, self._by(actor), reason)))


class SyncGates(Gates, SyncClient):
    """`app.gates`."""


class AsyncGates(Gates, AsyncClient):
    """`app.aio.gates`."""


class Leases(Client):
    """Named leases, by which one of many processes leads: `app.leases`."""

    @operation
    def acquire(self, name: str, owner: str, *, seconds: Duration = 30.0) -> Steps[NamedLease]:
        """Take a named lease, or extend one's own. `acquired`: the asker leads; `term` fences what it does."""
        duration = arguments.seconds("seconds", seconds, positive=True)
        return (yield from ask(AcquireLease(arguments.name("name", name), arguments.name("owner", owner), duration)))

    @operation
    def release(self, name: str, owner: str, term: int) -> Steps[bool]:
        """Give a named lease back, if it is still the asker's in that term."""
        return (yield from ask(ReleaseLease(arguments.name("name", name), arguments.name("owner", owner), term)))


class SyncLeases(Leases, SyncClient):
    """`app.leases`."""


class AsyncLeases(Leases, AsyncClient):
    """`app.aio.leases`."""


def _limit(value: int) -> int:
    return arguments.whole("limit", value, 1, PAGE_MAX)
