"""An execution: one held job inside this worker, from its grant until the store has taken in how it ended."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from tenure.handler.context import Context
from tenure.handler.registry import Handler
from tenure.handler.signals import Interrupt
from tenure.model.ids import JobId
from tenure.model.job import Grant


class Body(Protocol):
    """Where a handler runs: the runner's task, a thread, or a process of its own."""

    def cancel(self) -> object: ...


@dataclass(slots=True, eq=False, repr=False)
class Execution:
    """One held job. Changed on the event loop's thread only; the lease's thread reads it.

    An execution stays among the held ones, and its lease is extended, until its end is written: an outcome that waits
    for the database to come back must still find its lease alive.
    """

    grant: Grant
    handler: Handler | None
    taken_at: float
    fence_at: float
    """When the handler is stopped unless a heartbeat comes through: before its lease can have run out, by a clock of
    this machine that never jumps and counts sleep."""
    started: bool = False
    stays_here: bool = False
    """A suspect that no process of its own can import: it runs in this process, alone."""
    is_left_behind: bool = False
    """Its async handler ignored its cancellation, so another runner has taken the slot."""
    ended: bool = False
    interrupt: Interrupt | None = None
    context: Context | None = None
    body: Body | None = None
    timer: asyncio.TimerHandle | None = None
    """Ends the handler's time limit."""
    duration: float = 0.0

    def stop(self, why: Interrupt) -> bool:
        """Ask the handler to stop, once. True if it was this call that asked; one that has ended is left alone."""
        if self.ended or self.interrupt is not None:
            return False
        self.interrupt = why
        if self.context is not None:
            self.context.stop(why)
        if self.body is not None:
            self.body.cancel()
        return True


Held = dict[JobId, Execution]


def snapshot(held: Held) -> list[Execution]:
    """The held executions, from any thread."""
    while True:
        try:
            return list(held.values())
        except RuntimeError:  # the dict changed meanwhile
            continue


def is_held(grant: Grant, held: Held) -> bool:
    """Whether this very grant is."""
    execution = held.get(grant.id)
    return execution is not None and execution.grant.token == grant.token
