"""Children of a durable job: created together with the wait for them, in one transaction or in pages, and read back.

Results stay in the children and are read in pages; nothing is copied into the parent. The parent is woken once, when
the group is over. Up to GROUP_PAGE children are created by the very transaction that suspends the parent. More are
created page by page under the parent's token, and the group's step tells how far that got, so that an attempt after a
crash goes on there.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Any, Literal

from tenure.errors import HandlerError, InvalidArgument
from tenure.handler import arguments
from tenure.handler.signals import Permanent
from tenure.handler.steps import Asks, Journal, StepKey, key_text
from tenure.model.frozen import frozen
from tenure.model.ids import JobId
from tenure.model.job import NewJob
from tenure.model.state import State
from tenure.model.step import GROUP_PAGE, KEY_CHARS, TIMEOUT, Group, NewGroup, NewStep, Step

if TYPE_CHECKING:
    from tenure.handler.context import Context

RESULTS_PAGE = 500
NOT_SUCCEEDED = (State.DEAD.value, State.FAILED.value, State.CANCELLED.value)
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")

Fail = Literal["all", "fast"]
Tolerate = int | str


# --- what a handler sees ----------------------------------------------------------------------------------------------


@frozen
class Child:
    """A child that is still to be created: `ctx.spawn` answers it, `ctx.gather` and `ctx.first` take it."""

    key: str
    job: NewJob

    @property
    def id(self) -> JobId:
        return self.job.id


@frozen
class ChildResult:
    """How one child ended. `result` is parsed JSON."""

    position: int
    job_id: JobId
    kind: str | None
    state: str | None
    """None if the child has been deleted."""
    result: Any = None
    result_summary: str | None = None
    failure_class: str | None = None
    error: str | None = None
    dead_letter_id: str | None = None

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.state == State.SUCCEEDED


class ChildFailed(Permanent):
    """Children did not succeed, more than were tolerated. Uncaught it ends the parent: waiting again would not help."""

    def __init__(self, message: str, child: ChildResult | None) -> None:
        super().__init__(message)
        self.child = child

    @property
    def job_id(self) -> JobId | None:
        """The first child that did not succeed."""
        return None if self.child is None else self.child.job_id

    @property
    def dead_letter_id(self) -> str | None:
        return None if self.child is None else self.child.dead_letter_id


class Children:
    """The children of a `ctx.map` that is over."""

    __slots__ = ("_context", "cancelled", "failed", "group_id", "succeeded", "total")

    def __init__(self, context: Context, group: Group | None) -> None:
        self._context = context
        self.group_id: str | None = None if group is None else group.id
        self.total: int = 0 if group is None else group.made
        self.succeeded: int = 0 if group is None else group.succeeded
        self.failed: int = 0 if group is None else group.failed
        self.cancelled: int = 0 if group is None else group.cancelled

    @property
    def counts(self) -> dict[str, int]:
        """How they ended, as JSON."""
        return {
            "total": self.total,
            "succeeded": self.succeeded,
            "failed": self.failed,
            "cancelled": self.cancelled,
        }

    def results(self) -> Results:
        """Every child in order, read in pages: `for` in a sync handler, `async for` in an async one."""
        return Results(self._context, self.group_id, ())

    def failures(self) -> Results:
        """The children that did not succeed."""
        return Results(self._context, self.group_id, NOT_SUCCEEDED)

    def __len__(self) -> int:
        return self.total

    def __repr__(self) -> str:
        return f"<children: {self.succeeded} succeeded, {self.failed} failed, {self.cancelled} cancelled>"


class Results:
    """Children of one group, page by page."""

    __slots__ = ("_context", "_group_id", "_states")

    def __init__(self, context: Context, group_id: str | None, states: Sequence[str]) -> None:
        self._context = context
        self._group_id = group_id
        self._states = tuple(states)

    def __iter__(self) -> Iterator[ChildResult]:
        pages = self._pages()
        page = next(pages, None)
        while page is not None:
            found = self._context.ask(page)
            yield from found
            page = _next(pages, found)

    async def __aiter__(self) -> AsyncIterator[ChildResult]:
        pages = self._pages()
        page = next(pages, None)
        while page is not None:
            found = await self._context.aask(page)
            for one in found:
                yield one
            page = _next(pages, found)

    def _pages(self) -> Generator[ReadChildren, list[ChildResult], None]:
        after = -1
        while self._group_id is not None:
            found = yield ReadChildren(self._group_id, after, RESULTS_PAGE, self._states)
            if len(found) < RESULTS_PAGE:
                return
            after = found[-1].position


def _next(pages: Generator[ReadChildren, list[ChildResult], None], found: list[ChildResult]) -> ReadChildren | None:
    try:
        return pages.send(found)
    except StopIteration:
        return None


# --- what an operation asks for ---------------------------------------------------------------------------------------


@frozen
class ReadChildren:
    """A page of a group's children, by position. Answered by a list of ChildResult."""

    group_id: str
    after: int = -1
    limit: int = RESULTS_PAGE
    states: tuple[str, ...] = ()


@frozen
class ReadGroup:
    """How a group stands. Answered by a Group."""

    group_id: str


@frozen
class AddChildren:
    """Create a page of a large group, fenced by the attempt's token. Answered by the Group."""

    group: NewGroup
    at: int
    total: int | None = None


# --- gather, first and map --------------------------------------------------------------------------------------------


@frozen
class GroupTerms:
    """When a group is over, and how well."""

    tolerate: int = 0
    need: int | None = None
    fail_fast: bool = False
    cancel_rest: bool = False
    window: int | None = None
    timeout_seconds: float | None = None

    def group(self, key: str, jobs: Sequence[NewJob], group_id: str | None = None) -> NewGroup:
        """The group to create."""
        named = {} if group_id is None else {"id": group_id}
        return NewGroup(
            key,
            tuple(jobs),
            self.need,
            self.tolerate,
            self.fail_fast,
            self.window,
            self.timeout_seconds,
            self.cancel_rest,
            **named,
        )


@frozen
class MapPlan:
    """A `ctx.map` as a handler asks for it."""

    key: str
    items: Iterable[Any]
    build: Callable[[Any], NewJob]
    terms: GroupTerms


def group_key(children: Sequence[Child], what: str, key: StepKey | None) -> str:
    """The step's key of a group: named by its children, so that other children make another group."""
    if key is not None:
        return arguments.text("key", f"{what}/{key_text(key)}", KEY_CHARS)
    named = "+".join(child.key for child in children)
    if len(named.encode()) > KEY_CHARS - 60:
        import hashlib  # late: seldom needed

        named = f"{children[0].key}+{len(children) - 1}:{hashlib.sha256(named.encode()).hexdigest()[:16]}"
    return arguments.text("key", f"{what}/{named}", KEY_CHARS)


def tolerated(tolerate: Tolerate, total: int | None) -> int:
    """How many children may fail: a number, or a share such as "5%" of them, rounded down."""
    if isinstance(tolerate, str):
        from fractions import Fraction  # late: seldom needed

        share = _PERCENT.fullmatch(tolerate.strip())
        if share is None or Fraction(share[1]) > 100:
            raise InvalidArgument(f"`tolerate` is {tolerate!r}; give a number of children, or a share such as '5%'.")
        if total is None:
            raise InvalidArgument("`tolerate` as a share needs items with a length. Give `ctx.map` a list.")
        return int(total * Fraction(share[1]) // 100)
    return arguments.whole("tolerate", tolerate, 0)


def gather_children(journal: Journal, key: str, children: Sequence[Child], terms: GroupTerms) -> Asks[list[Any]]:
    """The results of all children, in order; of a tolerated failure the ChildFailed."""
    journal.enter_wait(key)
    if not children:
        return []
    if len(children) > GROUP_PAGE:
        raise InvalidArgument(f"`gather` takes up to {GROUP_PAGE:,} children. Use `ctx.map` for more.")
    row = yield from _over(journal, key, children, terms)
    found = yield from _all_of(_group_id(row))
    failures = [one for one in found if not one.ok]
    if row.state == "failed":
        raise _failed(key, row, len(children), failures[0] if failures else None)
    return [one.result if one.ok else ChildFailed(_said(one), one) for one in found]


def take_first(journal: Journal, key: str, children: Sequence[Child], terms: GroupTerms) -> Asks[ChildResult]:
    """The first child that succeeds; the others are cancelled."""
    journal.enter_wait(key)
    if not children:
        raise InvalidArgument("`first` needs at least one child.")
    row = yield from _over(journal, key, children, terms)
    group_id = _group_id(row)
    if row.state == "failed":
        failures = yield ReadChildren(group_id, limit=1, states=NOT_SUCCEEDED)
        raise _failed(key, row, len(children), failures[0] if failures else None)
    mark = f"{key}:first"
    chosen = journal.closed(mark)
    if chosen is None:  # a second one may succeed before it is cancelled, and must not change the choice
        (winner,) = yield ReadChildren(group_id, limit=1, states=(State.SUCCEEDED.value,))
        journal.end_of_replay()
        (chosen,) = yield from journal.record(NewStep(mark, "mark", "done", value=json.dumps(winner.position)))
    (found,) = yield ReadChildren(group_id, json.loads(chosen.value or "0") - 1, 1)
    result: ChildResult = found
    return result


def map_children(journal: Journal, plan: MapPlan, context: Context) -> Asks[Children]:
    """Create a child for each item and wait until they are over."""
    journal.enter_wait(plan.key)
    row = journal.closed(plan.key)
    if row is None:
        if isinstance(plan.items, Sized) and not len(plan.items):
            return Children(context, None)
        journal.end_of_replay()
        yield from _create(journal, plan)
        return Children(context, None)  # an iterator that was empty
    group_id = _group_id(row)
    group = yield ReadGroup(group_id)
    if row.state == "failed":
        failures = yield ReadChildren(group_id, limit=1, states=NOT_SUCCEEDED)
        raise _failed(plan.key, row, group.made, failures[0] if failures else None)
    return Children(context, group)


def _create(journal: Journal, plan: MapPlan) -> Asks[None]:
    """Create what is not there yet, and park on the group. Answers only if there are no items at all."""
    row = journal.rows.get(plan.key)
    made, group_id = _progress(row)
    if row is None and isinstance(plan.items, Sequence):  # what no child can have is refused before any is written
        for item in plan.items:
            plan.build(item)
    items = iter(plan.items)
    for _ in itertools.islice(items, made):
        pass
    page = [plan.build(item) for item in itertools.islice(items, GROUP_PAGE)]
    if row is None and len(page) < GROUP_PAGE:
        if page:
            yield from journal.wait(f"group:{plan.key}", groups=[plan.terms.group(plan.key, page)])
        return
    group: NewGroup = plan.terms.group(plan.key, page, group_id)
    while True:
        ahead = [plan.build(item) for item in itertools.islice(items, GROUP_PAGE)]
        total = None if ahead else made + len(page)
        yield AddChildren(plan.terms.group(plan.key, page, group.id), made, total)
        made += len(page)
        if not ahead:
            break
        page = ahead
    yield from journal.wait(f"group:{plan.key}", NewStep(plan.key, "group", "open", awaits=f"group:{group.id}"))


def _over(journal: Journal, key: str, children: Sequence[Child], terms: GroupTerms) -> Asks[Step]:
    """The closed step of a group; parks until it is closed, and creates the children with that."""
    for child in children:
        journal.spawned.pop(child.key, None)
    row = journal.closed(key)
    if row is not None:
        return row
    opened = journal.rows.get(key)
    if opened is not None:
        yield from journal.wait(f"group:{key}", NewStep(key, "group", "open", awaits=opened.awaits))
    return (yield from journal.wait(f"group:{key}", groups=[terms.group(key, [child.job for child in children])]))


def _all_of(group_id: str) -> Asks[list[ChildResult]]:
    found: list[ChildResult] = []
    while True:
        page = yield ReadChildren(group_id, found[-1].position if found else -1)
        found += page
        if len(page) < RESULTS_PAGE:
            return found


def _progress(row: Step | None) -> tuple[int, str | None]:
    """How many children an earlier attempt has created, and the id of their group."""
    if row is None:
        return 0, None
    told = json.loads(row.value or "{}")
    return int(told.get("made", 0)), _group_id(row)


def _group_id(row: Step) -> str:
    sort, _, group_id = (row.awaits or "").partition(":")
    if sort != "group":
        raise HandlerError(
            f"Step {row.key!r} is recorded as {row.kind}, not as a group of children. Give it a new name."
        )
    return group_id


def _failed(key: str, row: Step, total: int, child: ChildResult | None) -> ChildFailed:
    if row.error == TIMEOUT:
        return ChildFailed(f"Children of {key!r}: they were not over within their time limit, and go on.", None)
    first = "" if child is None else f" The first: {_said(child)}"
    return ChildFailed(f"Children of {key!r}: more of the {total:,} did not succeed than are tolerated.{first}", child)


def _said(child: ChildResult) -> str:
    why = (child.error or "").partition("\n")[0][:300]
    letter = f" (dead letter {child.dead_letter_id})" if child.dead_letter_id else ""
    return f"job {child.job_id} of kind {child.kind!r} is {child.state}{letter}" + (f": {why}" if why else "")
