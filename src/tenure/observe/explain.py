"""Why a job is not running: every cause that the database knows, each with what would help.

The order is that of the claim: switches first (gates, a paused queue), then the job's own time, then limits, then the
workers that could take it, then the jobs before it, then what earlier crashes mean for it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from datetime import datetime

from tenure.errors import NotFound
from tenure.model.approval import Approval
from tenure.model.budget import Budget, parts_of, raise_command, show_amount, shown_name
from tenure.model.frozen import frozen
from tenure.model.ids import JobId
from tenure.model.job import Attempt, Job
from tenure.model.limiter import Limiter, keys_of
from tenure.model.plural import counted
from tenure.model.policy import QueuePolicy
from tenure.model.state import ALONE_FROM, HELD, ISOLATE_FROM, TERMINAL, State
from tenure.model.step import DEADLINE, Group, Step
from tenure.observe import audited
from tenure.observe.liveness import alive
from tenure.store.approvals import ListApprovals
from tenure.store.budgets import ListBudgets
from tenure.store.contract import Store
from tenure.store.flow import GetGroup, ListSteps
from tenure.store.limits import ListLimiters
from tenure.store.queries import (
    Gate,
    GetJobs,
    ListAttempts,
    ListGates,
    ListQueues,
    ListWorkers,
    QueueRow,
    WorkerSeen,
)
from tenure.store.summary import Standing, Stood

MANY_AHEAD = 10_000
OVERDUE_SECONDS = 60.0
"""A lease that ran out longer ago than this should have been taken back by a claim."""
NAMED = 5
"""How many workers, kinds and jobs are named before the rest is only counted."""


@frozen
class Reason:
    """One cause. `blocks`: the job cannot start before this changes."""

    code: str
    sentence: str
    blocks: bool = True
    fix: str | None = None
    """The command that helps, if one does."""


@frozen
class Explanation:
    """How a job stands and why."""

    job_id: JobId
    kind: str
    queue: str
    state: str
    at: datetime
    is_running: bool
    reasons: list[Reason]


@frozen
class _Scene:
    """What is to be known about a queued job."""

    job: Job
    stood: Stood
    queue: QueueRow
    closed: Mapping[str, tuple[Gate, str | None]]
    """The closed gates that hold it back, by name, and why each was closed, as the audit has it."""
    workers: list[WorkerSeen]
    """Those alive."""
    attempts: list[Attempt]
    why: str | None
    """Why the queue was paused, as the audit has it."""
    limiters: list[Limiter]
    """Those of its limiters that may hold it back."""

    @property
    def policy(self) -> QueuePolicy:
        return self.queue.policy


def explain(store: Store, job_id: str) -> Explanation:
    """Say why a job is not running, or how it runs or ended. Raises: NotFound."""
    (job,) = store.do(GetJobs([JobId(job_id)]))
    stood = None if job is None else store.do(Standing(job.id, cap=MANY_AHEAD))
    if job is None or stood is None:
        raise NotFound(f"There is no job {job_id}. It may have been deleted by retention; see `tenure jobs ls`.")
    workers = store.do(ListWorkers())
    if job.state in TERMINAL:
        reasons = list(_ended(job))
    elif job.state in HELD:
        reasons = list(_held(job, stood.at, workers))
    elif job.state is State.WAITING:
        steps = store.do(ListSteps(job.id)) if job.step_token is not None else []
        awaited = {one.awaits for one in steps if one.state == "open" and one.awaits is not None}
        found: dict[str, Group | Approval | None] = {}
        found |= {one: store.do(GetGroup(one.removeprefix("group:"))) for one in awaited if one.startswith("group:")}
        found |= _approvals(store, awaited)
        reasons = list(_waiting(job, stood.at, steps, found, _budgets(store, awaited)))
    else:
        queues = store.do(ListQueues())
        policies = {one.name: one.policy for one in queues}
        queue = next(one for one in queues if one.name == job.queue)
        over = _gates_over(job, queue.policy)
        shut = [one for one in store.do(ListGates()) if one.name in over and not one.is_open]
        closed = {one.name: (one, audited.reason(store, one.name, "close_gate")) for one in shut}
        attempts = store.do(ListAttempts(job.id))
        live = alive(workers, policies, stood.at)
        limiters = store.do(ListLimiters(keys_of(job.limiter))) if job.limiter is not None else []
        scene = _Scene(job, stood, queue, closed, live, attempts, _why_paused(store, queue), limiters)
        reasons = list(_queued(scene))
    return Explanation(job.id, job.kind, job.queue, job.shown_state, stood.at, job.state is State.RUNNING, reasons)


def _approvals(store: Store, awaited: set[str]) -> dict[str, Approval]:
    ids = [one.removeprefix("approval:") for one in awaited if one.startswith("approval:")]
    return {f"approval:{one.id}": one for one in store.do(ListApprovals(ids=ids))} if ids else {}


def _why_paused(store: Store, queue: QueueRow) -> str | None:
    return None if queue.paused_at is None else audited.reason(store, queue.name, "pause_queue")


def _ended(job: Job) -> Iterator[Reason]:
    when = f" at {job.finished_at:%Y-%m-%d %H:%M:%S} UTC" if job.finished_at else ""
    tries = f"after {job.attempt} of {job.max_attempts} attempts"
    said = first_line(job.last_error)
    if job.state is State.SUCCEEDED:
        yield Reason("succeeded", f"It succeeded{when}, {tries}.", blocks=False)
    elif job.state is State.CANCELLED:
        yield Reason("cancelled", f"It was cancelled{when}.", fix=f"tenure jobs revive {job.id}")
    elif job.state is State.DEAD:
        yield Reason("dead", f"It died{when} {tries}: {said}", fix=f"tenure jobs revive {job.id}")
    else:
        yield Reason(
            "failed", f"It was refused{when} as {job.failure_class}, for good: {said}", fix=f"tenure dlq show {job.id}"
        )
    if job.cleaned_at is not None:
        yield Reason("cleaned", "Retention has removed its payload, so it cannot be revived. Enqueue it anew.")


def _held(job: Job, now: datetime, workers: list[WorkerSeen]) -> Iterator[Reason]:
    until = job.lease_until
    seen = next((one.last_seen_at for one in workers if one.row.id == job.lease_owner), None)
    owner = f"worker {job.lease_owner}" + (
        f", last seen {(now - seen).total_seconds():.0f} s ago," if seen is not None else ", which has no row,"
    )
    if until is not None and until <= now:
        late = (now - until).total_seconds()
        yield Reason(
            "lease_ran_out",
            f"Its {owner} let the lease run out {late:.1f} s ago. The next claim on any queue takes it back: it is "
            "queued again, or dead if its attempts are spent.",
            fix="tenure worker …  (or any claim)",
        )
        if late > OVERDUE_SECONDS:
            yield Reason(
                "not_taken_back",
                "No claim has taken it back for that long. Either no worker claims, or its row cannot be changed: "
                "then every claim skips it, and the workers' logs say why.",
                fix=f"tenure doctor, then: tenure jobs cancel {job.id}",
            )
    else:
        left = f" for {_span((until - now).total_seconds())} more unless extended" if until is not None else ""
        doing = "runs it" if job.state is State.RUNNING else "has taken it and will start it"
        yield Reason(str(job.state), f"{owner[0].upper()}{owner[1:]} {doing}, under a lease{left}.", blocks=False)
    if (suspect := suspicion_says(job.suspicion)) is not None:
        yield Reason("suspect", suspect, blocks=False)
    if job.cancel_requested_at is not None:
        yield Reason("cancel_requested", "It was asked to stop; its worker ends it as cancelled.", blocks=False)


def _budgets(store: Store, awaited: set[str]) -> dict[str, Budget]:
    """The budgets that a job waits for, by their names."""
    scopes = sorted({parts_of(one)[0] for one in awaited if one.startswith("budget:")})
    return {one.name: one for one in store.do(ListBudgets(scopes))} if scopes else {}


def _waiting(
    job: Job,
    now: datetime,
    steps: list[Step],
    found: Mapping[str, Group | Approval | None],
    budgets: Mapping[str, Budget],
) -> Iterator[Reason]:
    awaited = [step for step in steps if step.state == "open" and step.token == job.token and step.key != DEADLINE]
    for step in awaited:
        if step.kind == "budget" and step.awaits is not None:
            yield _short_of(step, step.awaits, budgets.get(step.awaits))
        else:
            yield from _awaited(job, now, step, found.get(step.awaits or ""))
    if not awaited and (effect := _effect_of(job)) is not None:
        yield effect
    elif not awaited:
        wakes = ""
        if job.due_at is not None:
            wakes = f", at the latest in {_span(max(0.0, (job.due_at - now).total_seconds()))}"
        yield Reason("waiting", f"It is suspended and waits for {job.waiting_for!r}{wakes}. It holds no slot.")
    for step in steps:
        if step.key == DEADLINE and step.state == "open":
            by = f"{step.due_at:%Y-%m-%d %H:%M:%S} UTC"
            yield Reason("deadline", f"It ends as failed if it is not done by {by}.", blocks=False)
    done = [step for step in steps if step.state == "done" and step.kind in ("step", "memo") and step.awaits is None]
    if done:
        yield Reason("steps", f"{counted(len(done), 'step')} behind it, the last is {done[-1].key!r}.", blocks=False)


def _effect_of(job: Job) -> Reason | None:
    """Of a job that waits for a person's word on an effect: which, and how it is given."""
    sort, _, rest = (job.waiting_for or "").partition(f":{job.id}:")
    if sort != "effect":
        return None
    step, _, name = rest.rpartition(":")
    at = f", step={step!r}" if step else ""
    return Reason(
        "waits_for_effect",
        f"It is not known whether the effect {name!r} happened: the call was sent, and no reply was recorded. A person "
        "says whether it did (confirmed), is to be done again (retry), or is given up (failed). It holds no slot.",
        fix=f"app.effects.resolve({job.id!r}, {name!r}, 'confirmed'{at})  in Python, or `tenure serve`: Approvals",
    )


def _awaited(job: Job, now: datetime, step: Step, found: Group | Approval | None) -> Iterator[Reason]:
    limit = "" if step.due_at is None else f", for {_span(max(0.0, (step.due_at - now).total_seconds()))} more at most"
    sort, _, name = (step.awaits or "").partition(":")
    if step.kind == "sleep":
        left = "" if step.due_at is None else f" until {step.due_at:%Y-%m-%d %H:%M:%S} UTC"
        yield Reason("sleeping", f"It sleeps in step {step.key!r}{left}. It holds no slot.")
    elif sort == "signal":
        yield Reason(
            "waits_for_signal",
            f"It waits for the signal {name!r}{limit}. It holds no slot.",
            fix=f"tenure signal {shlex.quote(name)} JSON",
        )
    elif isinstance(found, Approval):
        asked = f" of {', '.join(found.asked_of)}" if found.asked_of else ""
        left = ""
        if found.expires_at is not None:
            unless = "granted" if found.on_expiry == "grant" else "denied"
            left = f", and is {unless} in {_span(max(0.0, (found.expires_at - now).total_seconds()))} without an answer"
        yield Reason(
            "waits_for_approval",
            f"It asks{asked} for the approval {found.name!r}: {found.approved} of {found.need} said yes{left}. "
            "It holds no slot.",
            fix=f"tenure inbox show {found.id}",
        )
    elif isinstance(found, Group):
        total = found.made if found.total is None else found.total
        needs = "" if found.need is None else f"{found.need} of {total} must succeed; "
        ended = f"{needs}{found.ended} of {total} have ended, {found.failed} of them badly"
        yield Reason(
            "waits_for_children",
            f"It waits for the children of step {step.key!r}: {ended}{limit}. It holds no slot.",
            fix=f"tenure jobs ls --parent {job.id}",
        )
    elif sort == "job":
        yield Reason(
            "waits_for_job",
            f"It waits for the end of job {name}{limit}. It holds no slot.",
            fix=f"tenure jobs explain {name}",
        )
    else:
        yield Reason("waiting", f"It waits for {step.awaits or step.key!r}{limit}. It holds no slot.")


def _short_of(step: Step, name: str, budget: Budget | None) -> Reason:
    """A job that waits for a budget: which, how it stands, and what raises it."""
    scope, unit, per = parts_of(name)
    asked = json.loads(step.value or "{}").get("asked", {}).get(unit, 0)
    stands = "is not there any more, so the next sweep lets it go on"
    if budget is not None:
        stands = (
            f"has {show_amount(unit, budget.left)} left of {show_amount(unit, budget.limit)} "
            f"({show_amount(unit, budget.used)} used, {show_amount(unit, budget.reserved)} reserved)"
        )
    ends = None if budget is None or budget.on_empty == "escalate" else budget.window_until
    until = "" if ends is None else f" The window ends at {ends:%Y-%m-%d %H:%M:%S} UTC."
    return Reason(
        "waits_for_budget",
        f"It asks for {show_amount(unit, asked)}, and the budget {shown_name(scope, unit, per)} {stands}.{until} It "
        "holds no slot and spends no attempt.",
        fix=raise_command(scope, unit, per),
    )


def _queued(scene: _Scene) -> Iterator[Reason]:
    yield from _switched_off(scene)
    yield from _too_early(scene)
    yield from _at_a_limit(scene)
    yield from _held_back(scene)
    yield from _no_worker(scene)
    yield from _in_line(scene)
    yield from _after_crashes(scene)


def _gates_over(job: Job, policy: QueuePolicy) -> tuple[str, ...]:
    """The gates whose closing keeps the job from workers."""
    profile = policy.profile
    return (
        "master",
        "worker",
        f"{profile}.master",
        f"{profile}.worker",
        f"queue:{job.queue}",
        f"kind:{job.kind}",
    )


def _switched_off(scene: _Scene) -> Iterator[Reason]:
    queue = scene.job.queue
    for name in _gates_over(scene.job, scene.policy):
        if name not in scene.closed:
            continue
        gate, why = scene.closed[name]
        by = f" by {gate.actor}" if gate.actor else ""
        if name.startswith("kind:") and gate.actor == "tenure":
            by, why = " by itself, because jobs of this kind keep crashing their workers (quarantine)", None
        yield Reason(
            "gate_closed",
            f"Gate {name!r} was closed{by}, so no worker is given this job{f': {why}' if why else ''}.",
            fix=f"tenure gates open {shlex.quote(name)}",
        )
    if scene.queue.paused_at is not None:
        since = f"{scene.queue.paused_at:%Y-%m-%d %H:%M:%S} UTC"
        yield Reason(
            "paused",
            f"Queue {queue!r} was paused by {scene.queue.paused_by} at {since}{f': {scene.why}' if scene.why else ''}.",
            fix=f"tenure queues resume {queue}",
        )


def _too_early(scene: _Scene) -> Iterator[Reason]:
    job = scene.job
    left = (job.run_at - scene.stood.at).total_seconds()
    if left <= 0:
        return
    at = f"{job.run_at:%Y-%m-%d %H:%M:%S} UTC, in {_span(left)}"
    if job.shown_state == "retry_waiting":
        said = first_line(job.last_error)
        yield Reason(
            "backing_off",
            f"Attempt {job.attempt} of {job.max_attempts} ended as {job.failure_class} ({said}). The next is due {at}.",
        )
    else:
        yield Reason("delayed", f"It is due at {at}, not before.")


def _at_a_limit(scene: _Scene) -> Iterator[Reason]:
    policy, job, stood = scene.policy, scene.job, scene.stood
    if policy.concurrency is not None and stood.held_in_queue >= policy.concurrency:
        yield Reason(
            "queue_at_limit",
            f"Queue {job.queue!r} holds {stood.held_in_queue} jobs, and its limit is {policy.concurrency} at once.",
            fix=f"tenure queues set {job.queue} concurrency={policy.concurrency * 2}",
        )
    limit = policy.concurrency_per_key
    if limit is not None and job.concurrency_key is not None and stood.held_with_key >= limit:
        yield Reason(
            "key_at_limit",
            f"{stood.held_with_key} jobs with the concurrency key {job.concurrency_key!r} are held, and the limit of "
            f"queue {job.queue!r} is {limit} per key.",
            fix=f"tenure queues set {job.queue} concurrency_per_key={limit * 2}",
        )


def _held_back(scene: _Scene) -> Iterator[Reason]:
    for limiter in scene.limiters:
        fix = f"tenure limits clear {shlex.quote(limiter.key)}"
        said = f": {first_line(limiter.reason)}" if limiter.reason else ""
        if limiter.blocked_until is not None and limiter.blocked_until > scene.stood.at:
            left = _span((limiter.blocked_until - scene.stood.at).total_seconds())
            yield Reason(
                "limiter_blocked",
                f"It is blocked by limiter {limiter.key!r} until {limiter.blocked_until:%Y-%m-%d %H:%M:%S} UTC, in "
                f"{left}{said}.",
                fix=fix,
            )
        elif limiter.strikes:
            yield Reason(
                "limiter_reopening",
                f"Limiter {limiter.key!r} reopens slowly after {counted(limiter.strikes, 'refusal')}: 1 job, then 2, "
                f"then 4 a second, until one succeeds{said}.",
                blocks=limiter.room == 0,
                fix=fix,
            )
        elif limiter.room == 0 and limiter.opens_at is not None:
            left = _span((limiter.opens_at - scene.stood.at).total_seconds())
            rates = ((limiter.per_minute, "jobs"), (limiter.tokens_per_minute, "tokens"))
            told = " and ".join(f"{value:g} {what}" for value, what in rates if value is not None)
            yield Reason(
                "limiter_at_rate",
                f"Limiter {limiter.key!r} lets {told} a minute through; the next job may start in {left}.",
                fix=f"tenure limits set {shlex.quote(limiter.key)} --per-minute N",
            )


def _no_worker(scene: _Scene) -> Iterator[Reason]:
    job = scene.job
    serving = [one for one in scene.workers if job.queue in one.row.queues]
    if not serving:
        others = sorted({name for one in scene.workers for name in one.row.queues})
        there = f"Live workers serve {', '.join(others)}." if others else "No worker is alive at all."
        yield Reason(
            "no_worker",
            f"No live worker serves queue {job.queue!r}. {there}",
            fix=f"tenure worker MODULE:APP --queue {job.queue}",
        )
        return
    if not any(not one.row.kinds or job.kind in one.row.kinds for one in serving):
        yield Reason(
            "no_handler",
            f"No live worker of queue {job.queue!r} has a handler for kind {job.kind!r}{_unknown_kind(scene.policy)}. "
            f"Workers seen: {_named_workers(serving)}.",
            fix=f"tenure worker MODULE:APP --queue {job.queue}  (an app that has {job.kind!r}), "
            f"or: tenure jobs cancel {job.id}",
        )
        return
    if all(one.held >= one.row.concurrency for one in serving):
        slots = sum(one.row.concurrency for one in serving)
        yield Reason(
            "workers_busy",
            f"All {slots} slots of the {len(serving)} live workers of queue {job.queue!r} are taken.",
            blocks=False,
            fix=f"tenure worker MODULE:APP --queue {job.queue}",
        )
    if job.affinity_key is not None:
        yield Reason(
            "affinity",
            f"It carries the affinity key {job.affinity_key!r}: workers that ask for other keys leave it alone.",
            blocks=False,
        )


def _in_line(scene: _Scene) -> Iterator[Reason]:
    ahead = scene.stood.ahead
    if (scene.job.run_at - scene.stood.at).total_seconds() > 0:
        return
    if ahead:
        many = counted(ahead, "due job") if ahead < MANY_AHEAD else f"{MANY_AHEAD:,} or more due jobs"
        comes = "comes" if ahead == 1 else "come"
        yield Reason("in_line", f"{many} of queue {scene.job.queue!r} {comes} before it.", blocks=False)
    else:
        yield Reason("next", f"It is due and the first in line of queue {scene.job.queue!r}.", blocks=False)


def _after_crashes(scene: _Scene) -> Iterator[Reason]:
    job = scene.job
    if (suspect := suspicion_says(job.suspicion)) is not None:
        yield Reason("suspect", suspect, blocks=False)
    last = scene.attempts[-1] if scene.attempts else None
    # A refunded attempt keeps its number for the next claim.
    if last is not None and last.outcome == "expired" and last.token == job.token and last.attempt == job.attempt + 1:
        why = (
            "its worker was seen alive afterwards and lost only the lease"
            if last.failure_class == "lease_lost"
            else "its worker held other jobs too when it vanished, so the crash may not be this job's own"
        )
        yield Reason("refunded", f"Attempt {last.attempt} was not counted: {why}.", blocks=False)


def suspicion_says(suspicion: int) -> str | None:
    """What a job's suspicion means for its next run; None where it has none."""
    if suspicion < ISOLATE_FROM:
        return None
    vanished = "A worker" if suspicion == 1 else f"{suspicion} workers"
    alone = " and alone on its worker" if suspicion >= ALONE_FROM else ""
    return (
        f"{vanished} vanished while holding this job, or its own process died; it runs in a process of its own{alone}."
    )


def _unknown_kind(policy: QueuePolicy) -> str:
    match policy.on_unknown_kind:
        case "reject":
            return ", and the first that claims it fails it for good"
        case "release":
            return ", and each that claims it gives it back"
        case _:
            return ", so it stays queued"


def _named_workers(workers: list[WorkerSeen]) -> str:
    named = [f"{one.row.id} (handles {', '.join(sorted(one.row.kinds)[:NAMED])})" for one in workers[:NAMED]]
    rest = [f"{len(workers) - NAMED} more"] if len(workers) > NAMED else []
    return "; ".join(named + rest)


def _span(seconds: float) -> str:
    """A duration as one says it."""
    for unit, size in (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def first_line(error: str | None) -> str:
    """What a sentence repeats of an error."""
    return (error or "no error was written down").split("\n", 1)[0][:200]
