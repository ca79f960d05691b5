"""Durable jobs from outside: send them signals, and look at their steps and children."""

from __future__ import annotations

from typing import Any

from tenure.client.operations import AsyncClient, Client, Steps, SyncClient, ask, operation
from tenure.handler import arguments
from tenure.handler.arguments import Duration
from tenure.handler.payload import encode
from tenure.model.ids import JobId
from tenure.model.step import KEY_CHARS, Step
from tenure.store.flow import SIGNAL_SECONDS, Child, ForgetSteps, ListChildren, ListSteps, Sent, Signal

STEPS_PAGE = 1000
CHILDREN_MAX = 1000


class Signals(Client):
    """What is told to jobs that wait."""

    @operation
    def signal(
        self,
        key: str,
        value: Any = None,
        *,
        to: str | None = None,
        scope: str = "once",
        keep: Duration = SIGNAL_SECONDS,
        actor: str | None = None,
    ) -> Steps[Sent]:
        """Tell the jobs that wait for `key` by `ctx.wait_for`, now or later. It may come before the wait.

        Scope `once`: the first value of a key stays, and everyone who waits for it, also later, reads that one; the
        answer's `is_taken` is False if another value was first. Scope `queue`: all values are kept in order, and each
        wait takes the oldest.

        Args:
            to: Only this job may take it.
            keep: How long it is kept for jobs that do not wait yet.

        Raises: InvalidArgument, InvalidPayload; NotFound and IllegalMove if there is no job `to` or it has ended.
        """
        request = Signal(
            arguments.text("key", key, KEY_CHARS),
            encode(value, self._state.limits, what=f"Signal {key!r}: its value"),
            self._by(actor),
            arguments.one_of("scope", scope, ("once", "queue"))[0],
            None if to is None else arguments.job_id("to", to),
            arguments.seconds("keep", keep, positive=True),
        )
        return (yield from ask(request))


class JobSteps(Client):
    """The steps of durable jobs: `app.steps`."""

    @operation
    def all(self, job_id: str) -> Steps[list[Step]]:
        """Every step of a job in the order of first records: what it has behind it, and what it waits for."""
        identity = arguments.job_id("job_id", job_id)
        return (yield from every_step(identity))

    @operation
    def children(self, group_id: str, *, after: int = -1, limit: int = 500, state: Any = None) -> Steps[list[Child]]:
        """A page of the children that a step of kind `group` waits for, by position behind `after`."""
        return (
            yield from ask(
                ListChildren(
                    arguments.uuid_text("group_id", group_id),
                    arguments.whole("after", after, -1),
                    arguments.whole("limit", limit, 1, CHILDREN_MAX),
                    arguments.names("state", state),
                )
            )
        )

    @operation
    def forget(
        self, job_id: str, key: str, *, reason: str, and_later: bool = False, actor: str | None = None
    ) -> Steps[list[str]]:
        """Forget a step so that it runs again, with `and_later` also all that were first recorded after it.

        The job must not be held by a worker. `reason` goes into the audit. Answers the keys that were forgotten.
        Raises: NotFound, IllegalMove.
        """
        request = ForgetSteps(
            arguments.job_id("job_id", job_id),
            arguments.text("key", key, KEY_CHARS),
            self._by(actor),
            arguments.text("reason", reason),
            and_later,
        )
        return (yield from ask(request))


class SyncSteps(JobSteps, SyncClient):
    """`app.steps`."""


class AsyncSteps(JobSteps, AsyncClient):
    """`app.aio.steps`."""


def every_step(job_id: JobId) -> Steps[list[Step]]:
    """All steps of a job, page by page."""
    found: list[Step] = []
    while True:
        page = yield from ask(ListSteps(job_id, found[-1].ordinal if found else 0, STEPS_PAGE))
        found += page
        if len(page) < STEPS_PAGE:
            return found
