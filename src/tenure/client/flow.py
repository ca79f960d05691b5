"""Durable jobs from outside: send them signals, look at their steps and children, list and forget memos."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from tenure.client.operations import AsyncClient, Client, Steps, SyncClient, ask, operation
from tenure.errors import InvalidArgument
from tenure.handler import arguments
from tenure.handler.arguments import Duration
from tenure.handler.building import MISSING
from tenure.handler.payload import encode
from tenure.model.ids import JobId
from tenure.model.memo import JOB_PREFIX, Memo
from tenure.model.step import KEY_CHARS, Step
from tenure.store.flow import SIGNAL_SECONDS, Child, ForgetSteps, ListChildren, ListSteps, Sent, Signal
from tenure.store.memo import ForgetMemos, ListMemos
from tenure.store.queries import Page

STEPS_PAGE = 1000
CHILDREN_MAX = 1000
MEMOS_MAX = 1000


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
            arguments.word("scope", scope, ("once", "queue")),
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

    @operation
    def memos(
        self,
        name: str | None = None,
        *,
        kind: str | None = None,
        key: str | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Steps[Page[Memo]]:
        """Memos by name and key: values that were worked out once, and those that a job is working out.

        Args:
            name: Only those of `ctx.memo(name, …)`.
            kind: Only whole results of this kind, which was declared with `memo=`.
            key: Only this key; `prefix`: only keys that begin so. Both need a name.
            tenant: Only of this tenant; of all if left out.
            after: `next` of the page before.

        Raises: InvalidArgument.
        """
        named = _memo_name(name, kind)
        request = ListMemos(
            named,
            _checked("key", key),
            _checked("prefix", prefix),
            _checked("tenant", tenant),
            _checked("after", after),
            arguments.whole("limit", limit, 1, MEMOS_MAX),
        )
        while True:
            page = yield from ask(request)
            if page.items or page.next is None:
                return page
            request = replace(request, after=page.next)

    @operation
    def forget_memos(
        self,
        name: str | None = None,
        *,
        ids: str | Iterable[str] = (),
        kind: str | None = None,
        payload: Any = MISSING,
        key: str | None = None,
        prefix: str | None = None,
        tenant: str | None = None,
        actor: str | None = None,
        reason: str = "forgotten on request",
    ) -> Steps[int]:
        """Forget memos, so that the next job works them out anew. Answers how many.

        A job that is working one out goes on with its own value; one of those that wait for it works it out again.

        Args:
            name: Those of `ctx.memo(name, …)`: all, or with `key` or `prefix` the ones of these keys.
            kind: Whole results of this kind, which was declared with `memo=`; with `payload` the one of that payload.
            ids: Just these, as `memos` lists them.
            tenant: Only of this tenant; of all if left out.

        Raises: InvalidArgument, if nothing is named.
        """
        chosen = [arguments.text("ids", one) for one in arguments.several("ids", ids)]
        named = _memo_name(name, kind)
        if payload is not MISSING:
            if kind is None or key is not None or prefix is not None:
                raise InvalidArgument("`payload` chooses among the results of a `kind`, without `key` and `prefix`.")
            from tenure.handler.memo import payload_key  # late: it knows durable handlers, and with them asyncio

            key = payload_key(json.loads(encode(payload, self._state.limits)))
        request = ForgetMemos(
            self._by(actor),
            arguments.text("reason", reason),
            chosen,
            named,
            _checked("key", key),
            _checked("prefix", prefix),
            _checked("tenant", tenant),
            limit=MEMOS_MAX,
        )
        forgotten = 0
        while True:
            told = yield from ask(request)
            forgotten += told.memos
            if told.next is None:
                return forgotten
            request = replace(request, after=told.next)


class SyncSteps(JobSteps, SyncClient):
    """`app.steps`."""


class AsyncSteps(JobSteps, AsyncClient):
    """`app.aio.steps`."""


def _memo_name(name: str | None, kind: str | None) -> str | None:
    """The name of memos that are chosen by name, or by the kind of job whose whole results they are."""
    if name is not None and kind is not None:
        raise InvalidArgument("Memos are of a `name` or of a `kind`, not of both. Leave one out.")
    if kind is not None:
        return JOB_PREFIX + arguments.name("kind", kind)
    return None if name is None else arguments.text("name", name)


def _checked(argument: str, value: str | None) -> str | None:
    return None if value is None else arguments.text(argument, value)


def every_step(job_id: JobId) -> Steps[list[Step]]:
    """All steps of a job, page by page."""
    found: list[Step] = []
    while True:
        page = yield from ask(ListSteps(job_id, found[-1].ordinal if found else 0, STEPS_PAGE))
        found += page
        if len(page) < STEPS_PAGE:
            return found
