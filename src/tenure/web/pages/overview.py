"""`/ui/`: the six questions, what needs a person, throughput, and how far each queue lags."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlencode

from tenure.model.event import Event
from tenure.model.frozen import frozen
from tenure.observe import audited
from tenure.observe.browse import Board, Metric, minutes, newest_events
from tenure.observe.liveness import drained, is_alive, silence_limit
from tenure.web.pages import same_as
from tenure.web.pages.charts import RANGES, range_of, throughput
from tenure.web.pages.connect import shown_url
from tenure.web.pages.event_words import told_event
from tenure.web.pages.pulse import Look, finding, handling
from tenure.web.pages.visit import Answer, Shown, Visit
from tenure.web.pages.words import asks, clock, counted, first_line, is_command, number, segment, short_span, span

if TYPE_CHECKING:
    from tenure import Gate
    from tenure.observe.doctor import Check

SHOWN_BANNERS = 8
"""Lines. Where there are more, the last one says how many."""
ALIKE = 3
"""Findings of one sort that are told one by one, so that what else needs a person is seen too."""
HEAD_CHARS = 110
"""A finding that is longer stands behind its name."""
SHOWN_QUEUES = 9
"""Lines beside the chart; the rest is on the page of queues."""
FIVE_MINUTES = timedelta(minutes=5)
RATED = 8
"""Minutes that are looked at for a queue's rate: the newest five that are counted are among them."""
LIMIT_SECONDS = 60.0
"""A queue whose oldest due job is older than this lags: doctor says so too."""


@frozen
class Tile:
    """One of the six questions: a figure, its unit, and the reason below it."""

    question: str
    figure: str
    unit: str
    says: str
    path: str
    tone: str = ""
    stack: Sequence[tuple[str, int, int]] = ()
    """Tone, from, width: the parts of the figure."""
    total: int = 0


@frozen
class Banner:
    """What needs a person, with the way out."""

    tone: str
    icon: str
    head: str
    why: str
    code: str = ""
    path: str = ""
    action: str = ""


class QueueMinute(Protocol):
    """A counted minute of one queue."""

    @property
    def minute(self) -> datetime: ...
    @property
    def queue(self) -> str: ...
    @property
    def completed(self) -> int: ...


@frozen
class QueueLag:
    """How far one queue lags behind."""

    name: str
    ready: int
    oldest_seconds: float | None
    share: float
    """Per cent of the bar; its middle is the limit."""
    tone: str
    tag: str
    rate: float | None


@frozen
class WorkerLine:
    """One worker in short."""

    name: str
    used: int
    slots: int
    queues: str
    freshness: str
    silent_seconds: float
    is_leader: bool


def overview(visit: Visit) -> Answer:
    """The page."""
    look = visit.pulse.now()
    if look is None:
        return Shown("overview_waiting.html", {})
    if _is_empty(visit, look):
        return first_run(visit)
    chosen = range_of(visit.asked("range"), RANGES[0])
    return Shown(
        "overview.html",
        {
            "banners": list(banners(look, partial(_why, visit))),
            "chart": visit.pulse.shared(("chart", chosen.word), lambda: throughput(visit.app, chosen, look.at)),
            "events": [told_event(one) for one in visit.pulse.shared("events", lambda: _newest_events(visit))],
            "shown_banners": SHOWN_BANNERS,
            "keys": (("/", "filter"), ("g j", "jobs"), ("g d", "dead letters"), (".", "pause")),
            "glance": look,
            "queues": queue_lags(look.seen, _rates(counted_minutes(visit, RATED), look.at)),
            "shown_queues": SHOWN_QUEUES,
            "range": chosen,
            "ranges": RANGES,
            "same": same_as.overview(),
            "tiles": list(tiles(look)),
            "topic": "all",
            "workers": worker_lines(look.seen)[:8],
        },
    )


def counted_minutes(visit: Visit, count: int) -> list[Metric]:
    """Of all queues, and some more than are shown: the newest ones are counted late."""
    return visit.pulse.shared(("minutes", count), lambda: minutes(visit.app.store, count + 3))


def _newest_events(visit: Visit) -> list[Event]:
    return newest_events(visit.app.store, 8)


def first_run(visit: Visit) -> Answer:
    """What a database that has seen no work shows: the next steps."""
    return Shown(
        "first_run.html",
        {
            "keys": (("g o", "overview"),),
            "origin": visit.origin,
            "same": same_as.health(),
            "topic": "all",
            "url": shown_url(visit.app.url),
        },
    )


def _is_empty(visit: Visit, look: Look) -> bool:
    seen = look.seen
    if handling(seen) or seen.summary.backlog or seen.summary.ran or seen.groups:
        return False
    return not visit.app.jobs(limit=1).items


def _why(visit: Visit, subject: str, act: str) -> str:
    """The reason that was given for an act, as the end of a sentence."""
    told = visit.pulse.shared(("why", subject, act), lambda: audited.reason(visit.app.store, subject, act))
    return f": {first_line(told, 120).rstrip('.')}" if told else ""


def banners(look: Look, why: Callable[[str, str], str]) -> Iterator[Banner]:
    """What needs a person, most severe first. `why` tells the reason that was given for an act."""
    wrong = [check for check in look.checks if check.status == "wrong"]
    for name in dict.fromkeys(check.name for check in wrong):
        alike = [check for check in wrong if check.name == name]
        shown = alike if len(alike) <= ALIKE + 1 else alike[:ALIKE]
        yield from (_of_check(check, "dead") for check in shown)
        if more := len(alike) - len(shown):
            yield Banner("dead", "more", f"{more:,} more like these: {name}.", "", path="/health", action="Health")
    for gate in look.seen.gates:
        if not gate.is_open and not is_quarantine(gate):
            yield _of_gate(gate, why(gate.name, "close_gate"))
    for queue in look.seen.queues:
        if queue.paused_at is not None:
            said = f"by {queue.paused_by} at {clock(queue.paused_at)} UTC{why(queue.name, 'pause_queue')}."
            says = f"{said} Claims take nothing from it; enqueue goes on."
            path = f"/queues/{segment(queue.name)}"
            yield Banner("retry", "waiting", f"Queue '{queue.name}' is paused", says, path=path, action="Open queue")
    # A used-up budget is among the doctor's findings.
    if told := asks({kind: count for kind, count in look.asked.items() if kind != "budget"}):
        says = "What asks holds no worker, and goes on when it is answered."
        yield Banner("waiting", "approve", f"{told} for a person.", says, path="/approvals", action="Approvals")
    if look.seen.groups:
        groups = counted(len(look.seen.groups), "new group")
        letters = counted(sum(one.letters for one in look.seen.groups), "dead letter")
        verb = "holds" if len(look.seen.groups) == 1 else "hold"
        head = f"{groups} {verb} {letters}{'' if look.seen.groups_are_whole else ' or more'}."
        yield Banner("retry", "letters", head, "Nothing is dropped.", path="/dead-letters", action="Dead letters")
    for check in look.checks:
        if check.status == "warn" and check.name == "sqlite":
            yield _of_check(check, "queued")


def _of_check(check: Check, tone: str) -> Banner:
    says, fix = finding(check), check.fix or ""
    icon = "workers" if check.name in {"unserved", "unknown kind", "workers"} else "warn"
    head, colon, why = (says, "", "") if len(says) < HEAD_CHARS else says.partition(": ")
    head += colon.rstrip()
    if is_command(fix):
        return Banner(tone, icon, head, why, fix)
    return Banner(tone, icon, head, why, path="/health", action="Health")


def _of_gate(gate: Gate, why: str) -> Banner:
    by = (f" by {gate.actor}" if gate.actor else "") + (f" at {clock(gate.updated_at)} UTC" if gate.updated_at else "")
    by += why
    worker = next(iter(drained([gate])), None)
    if worker is not None:
        says = f"{by.strip()}. It takes no more jobs."
        path = f"/workers/one?{urlencode({'id': worker})}"
        return Banner("retry", "gate", f"Worker '{worker}' is drained", says, path=path, action="Open worker")
    says = f"{by.strip()}. What it guards waits."
    return Banner("retry", "gate", f"Gate '{gate.name}' is closed", says, path="/gates", action="Gates")


def is_quarantine(gate: Gate) -> bool:
    """Whether a kind that crashes its workers closed it: the doctor tells of that."""
    return gate.name.startswith("kind:") and gate.actor == "tenure"


def tiles(look: Look) -> Iterator[Tile]:
    """004's six questions."""
    seen, summary = look.seen, look.seen.summary
    due = sum(one.due for one in summary.backlog)
    delayed = sum(one.delayed for one in summary.backlog)
    held = sum(one.held for one in summary.backlog)
    waiting = sum(one.waiting for one in summary.backlog)
    retrying = sum(one.retrying for one in summary.backlog)
    total = due + delayed + held + waiting
    parts = (("queued", due + delayed - retrying), ("retry", retrying), ("running", held), ("waiting", waiting))
    stack, at = [], 0
    for tone, width in parts:
        stack.append((tone, at, width))
        at += width
    yield Tile(
        "What is outstanding?",
        number(total),
        "job" if total == 1 else "jobs",
        f"{due:,} ready, {delayed:,} later, {held:,} held, {retrying:,} retry, {waiting:,} wait",
        "/jobs",
        "",
        stack,
        max(total, 1),
    )
    yield _failed_tile(seen)
    yield _stuck_tile(look)
    yield _duration_tile(seen)
    repeated = [one for one in summary.repeated if one.active > 1]
    yield Tile(
        "Are there duplicates?",
        number(len(summary.repeated)),
        "key came again" if len(summary.repeated) == 1 else "keys came again",
        f"{counted(len(repeated), 'key')} with several jobs to do" if repeated else "By key. None runs twice",
        "/metrics",
        "retry" if repeated else "",
    )
    done = sum(one.succeeded for one in summary.ran)
    last = max((one.last_at for one in summary.ran), default=None)
    rate = done / summary.window_seconds
    yield Tile(
        "What ran in the last hour?",
        number(done) if summary.is_whole else f"{done:,}+",
        "done",
        f"{rate:.1f} /s, last ended {short_span((look.at - last).total_seconds())} ago" if last else "Nothing ended",
        "/jobs?q=state:succeeded",
    )


def _failed_tile(seen: Board) -> Tile:
    letters = sum(one.letters for one in seen.groups)
    figure = number(letters) if seen.groups_are_whole else f"{letters:,}+"
    if not letters:
        return Tile("What failed, and why?", "0", "dead", "Nothing waits for a person", "/dead-letters")
    largest = seen.groups[0]
    groups = counted(len(seen.groups), "new group")
    says = f"{groups}. Most: {largest.title} {largest.letters:,}"
    return Tile("What failed, and why?", figure, "dead", says, "/dead-letters", "dead")


def _stuck_tile(look: Look) -> Tile:
    stuck = look.seen.summary.stuck_count
    unserved = [one for one in look.checks if one.name in {"unserved", "unknown kind"} and one.status == "wrong"]
    if stuck:
        return Tile(
            "Is anything stuck?", number(stuck), "leases ran out", "The next claim takes them back", "/workers", "retry"
        )
    if unserved:
        noun = "queue" if all(one.name == "unserved" for one in unserved) else "finding"
        unit = f"{noun if len(unserved) == 1 else noun + 's'}, no worker"
        return Tile("Is anything stuck?", number(len(unserved)), unit, unserved[0].says, "/workers", "dead")
    return Tile("Is anything stuck?", "0", "stuck", "No lease overdue", "/workers")


def _duration_tile(seen: Board) -> Tile:
    lasted = [one for one in seen.summary.ran if one.run_p95 is not None]
    if not lasted:
        return Tile("How long do jobs take?", "–", "", "None succeeded in the last hour", "/metrics")
    slowest = max(lasted, key=lambda one: one.run_p95 or 0.0)
    figure, _, unit = span(slowest.run_p95).partition("\u00a0")
    says = f"{slowest.kind} is slowest: p50 {span(slowest.run_p50)} run, {span(slowest.wait_p50)} wait"
    return Tile("How long do jobs take?", figure, f"{unit} p95", says, "/metrics")


def queue_lags(seen: Board, rates: Mapping[str, float]) -> list[QueueLag]:
    """Every queue, what needs attention first: the oldest ready job, then how many are ready, then what is stopped."""
    backlog = {one.queue: one for one in seen.summary.backlog}
    policies = {one.name: one.policy for one in seen.queues}
    served = {name for one in seen.workers if is_alive(one, policies, seen.summary.at) for name in one.row.queues}
    gates = {one.name: one.is_open for one in seen.gates}
    lags = []
    for queue in seen.queues:
        told = backlog.get(queue.name)
        ready = told.due if told else 0
        oldest = told.oldest_due_at if told else None
        age = None if oldest is None else max(0.0, (seen.summary.at - oldest).total_seconds())
        tag, tone = _trouble(queue.name, queue.paused_at, gates, ready, queue.name in served, age)
        share = 0.0 if age is None else min(100.0, 50.0 * age / LIMIT_SECONDS)
        lags.append(QueueLag(queue.name, ready, age, round(share, 1), tone, tag, rates.get(queue.name)))
    return sorted(lags, key=_by_need)


def _by_need(lag: QueueLag) -> tuple[float, int, bool, str]:
    return -1.0 if lag.oldest_seconds is None else -1.0 - lag.oldest_seconds, -lag.ready, not lag.tag, lag.name


def _trouble(
    name: str, paused_at: datetime | None, gates: Mapping[str, bool], ready: int, is_served: bool, age: float | None
) -> tuple[str, str]:
    if not gates.get(f"queue:{name}", True):
        return "gate closed", "retry"
    if paused_at is not None:
        return "paused", "retry"
    if ready and not is_served:
        return "no worker", "dead"
    if age is not None and age > LIMIT_SECONDS:
        return "", "retry"
    return "", "succeeded"


def worker_lines(seen: Board) -> list[WorkerLine]:
    """Workers, the leader first, then by name; those that are gone last."""
    policies = {one.name: one.policy for one in seen.queues}
    lines = []
    for one in seen.workers:
        silent = (seen.summary.at - one.last_seen_at).total_seconds()
        limit = silence_limit(one, policies)
        fresh = "fresh" if silent <= limit / 2 else "late" if silent <= limit else "gone"
        lines.append(
            WorkerLine(
                name=one.row.id,
                used=one.slots_used,
                slots=one.row.concurrency,
                queues=", ".join(one.row.queues),
                freshness=fresh,
                silent_seconds=max(0.0, silent),
                is_leader=one.is_leader,
            )
        )
    return sorted(lines, key=lambda one: (one.freshness == "gone", not one.is_leader, one.name))


def _rates(rows: Sequence[QueueMinute], now: datetime) -> dict[str, float]:
    """Ends per second of each queue, over the newest five minutes that are counted."""
    newest = max((row.minute for row in rows), default=now)
    sums: dict[str, int] = {}
    for row in rows:
        if newest - row.minute < FIVE_MINUTES:
            sums[row.queue] = sums.get(row.queue, 0) + row.completed
    return {name: total / FIVE_MINUTES.total_seconds() for name, total in sums.items()}
