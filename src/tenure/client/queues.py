"""Queues: their policies, what waits in them, and whether claims may take from them."""

from __future__ import annotations

from typing import Unpack

from tenure.client.operations import AsyncClient, Client, Steps, SyncClient, ask, operation
from tenure.client.settings import QueueSettings, rules_of, with_settings
from tenure.errors import UnknownQueue, nearest
from tenure.handler import arguments
from tenure.handler.arguments import Names
from tenure.model.policy import QueuePolicy
from tenure.model.state import State
from tenure.store.admin import PauseQueues, RemoveQueues, SetQueues
from tenure.store.gauges import CAP, CountBacklog
from tenure.store.queries import Count, CountJobs, ListQueues, QueueRow


class Queues(Client):
    """Queues and their policies: `app.queues`."""

    @operation
    def all(self, name: Names | None = None) -> Steps[list[QueueRow]]:
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
    def set(
        self,
        name: str,
        policy: QueuePolicy | None = None,
        *,
        actor: str | None = None,
        reason: str | None = None,
        **settings: Unpack[QueueSettings],
    ) -> Steps[QueueRow]:
        """Create a queue, or change its policy: to `policy`, or by single settings on what it has now. `reason` goes
        into the audit.

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
        (row,) = yield from ask(SetQueues({name: wanted}, self._by(actor), reason=reason))
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
    def remove(self, names: Names, *, actor: str | None = None, reason: str | None = None) -> Steps[list[str]]:
        """Remove queues that have no jobs, neither live nor ended. Answers the names that were there.

        Raises: UnknownQueue; IllegalMove, if one has jobs: nothing is removed then.
        """
        wanted = arguments.names("names", names)
        known = {row.name for row in (yield from ask(ListQueues()))}
        for name in wanted:
            if name not in known:
                raise UnknownQueue(f"There is no queue {name!r}.{nearest(name, known)}")
        return (yield from ask(RemoveQueues(wanted, self._by(actor), reason)))

    @operation
    def counts(self, *, queue: Names | None = None, state: Names | None = None) -> Steps[list[Count]]:
        """How many jobs there are by queue, kind and state, and the oldest of each. Exact at the moment of asking.

        With `state` among queued, leased, running and waiting it costs as much as there is to do; without, or for jobs
        that have ended, every job that is kept is read. `app.metrics` answers from counters instead.
        """
        queues, states = arguments.names("queue", queue), arguments.one_of("state", state, State)
        return (yield from ask(CountJobs(queues, states)))


class SyncQueues(Queues, SyncClient):
    """`app.queues`."""


class AsyncQueues(Queues, AsyncClient):
    """`app.aio.queues`."""
