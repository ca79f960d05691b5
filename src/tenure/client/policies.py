"""Policies in code and in the database: what differs, and how the code's are brought over."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tenure.client.operations import AsyncClient, Client, Steps, SyncClient, ask, operation
from tenure.client.state import ClientState
from tenure.model.frozen import frozen
from tenure.model.log_event import WARNING, Emit, LogEvent
from tenure.model.policy import QueuePolicy
from tenure.store.admin import SetQueues
from tenure.store.queries import ListQueues
from tenure.store.schedules import ListSchedules, SetSchedules


@frozen
class Difference:
    """One setting of a queue that the code states otherwise than the database has it."""

    queue: str
    setting: str
    in_code: Any
    in_database: Any


class Policies(Client):
    """The policies that the code states by `app.queue(…)`, beside those in the database: `app.policies`."""

    @property
    def declared(self) -> frozenset[str]:
        """The queues that the code names, and `default`."""
        return frozenset(self._state.own_queues())

    @operation
    def differences(self) -> Steps[list[Difference]]:
        """The settings in which an existing queue differs from what the code states."""
        return (yield from find_differences(self._state))

    @operation
    def apply(self, *, actor: str | None = None) -> Steps[list[Difference]]:
        """Bring the policies and schedules of this code over to the database. Answers the settings that were changed.

        Jobs already there keep the rank and max_attempts they were given. Schedules that are not in this code stay.
        """
        found = yield from find_differences(self._state)
        stated = {name: self._state.declared[name] for name in sorted(self._state.registry.declared)}
        if stated:
            yield from ask(SetQueues(stated, self._by(actor)))
        specs = {name: schedule.spec() for name, schedule in self._state.declared_schedules.items()}
        if specs:
            yield from ask(SetSchedules(specs, self._by(actor)))
        return found

    @operation
    def strange_schedules(self) -> Steps[list[str]]:
        """Schedules in the database that this code does not declare: another app's, or an earlier version's."""
        rows = yield from ask(ListSchedules(None))
        return sorted(row.name for row in rows if row.name not in self._state.declared_schedules)


class SyncPolicies(Policies, SyncClient):
    """`app.policies`."""


class AsyncPolicies(Policies, AsyncClient):
    """`app.aio.policies`."""


def find_differences(state: ClientState) -> Steps[list[Difference]]:
    """What differs, by queue and setting."""
    names = sorted(state.registry.declared)
    if not names:
        return []
    rows = yield from ask(ListQueues(names))
    return [
        Difference(row.name, one.name, getattr(state.declared[row.name], one.name), getattr(row.policy, one.name))
        for row in rows
        for one in fields(QueuePolicy)
        if getattr(state.declared[row.name], one.name) != getattr(row.policy, one.name)
    ]


def log_differences(state: ClientState, emit: Emit) -> Steps[None]:
    """Name them in a worker's log when it starts: a changed policy in code changes nothing by itself."""
    if emit.level > WARNING:
        return
    for one in (yield from find_differences(state)):
        message = (
            f"queue {one.queue!r} has {one.setting}={one.in_database} in the database, and the code says "
            f"{one.in_code}: the database's counts. `tenure apply` brings the code's over"
        )
        emit(LogEvent("policy_differs", WARNING, queue=one.queue, message=message, fields={"setting": one.setting}))
