"""`/ui/agents`: what each agent did, how often it failed, what it cost. An agent is a queue that keeps agent events.

Figures come from the newest agent events, which the store writes with the end of each job; tokens from the results of
the newest runs that tell them, else, with the cost, from the steps in which an agent framework recorded its model
calls: pydantic-ai and the OpenAI Agents SDK keep a `usage` with each. A column is added by a field of AgentLine and a
cell of the template.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from tenure.errors import TooWide
from tenure.model.frozen import frozen
from tenure.web.pages import same_as
from tenure.web.pages.visit import Answer, Shown, Visit

if TYPE_CHECKING:
    from tenure import AgentEvent

EVENTS: Final = 1_000
"""How many of the newest events the figures are made from."""
RUNS: Final = 100
"""How many results are read to add up tokens."""
STEPPED: Final = 200
"""How many runs that recorded model calls as steps are added up."""
NEWEST: Final = 20
ENDS: Final = ("completed", "failed", "dead")


@frozen
class AgentLine:
    """One agent."""

    name: str
    waiting: int
    held: int
    completed: int
    failed: int
    error_rate: float | None
    """Of the tasks that ended, the share that failed or died; None if none ended."""
    seconds: float | None
    """The median of how long its tasks ran."""
    cost_usd: float | None
    tokens: int | None
    memories: int | None
    last_at: datetime | None


def agents(visit: Visit) -> Answer:
    """The page."""
    events = visit.app.memory.events(limit=EVENTS)
    look = visit.pulse.now()
    queues = look.seen.queues if look else ()
    backlog = {one.queue: one for one in look.seen.summary.backlog} if look else {}
    names = {one.name for one in queues if one.policy.agent_events != "none"} | {one.agent for one in events}
    tokens = dict(tokens_by_agent(visit, events))
    spent = spent_in_steps(visit, events)
    for name, (count, _) in spent.items():
        if count:
            tokens[name] = tokens.get(name, 0) + count
    memories = memories_by_agent(visit)
    lines = [
        _line(
            name,
            [one for one in events if one.agent == name],
            backlog.get(name),
            tokens,
            memories,
            spent.get(name, (0, 0.0))[1],
        )
        for name in sorted(names)
    ]
    return Shown(
        "agents.html",
        {
            "cost": sum(one.cost_usd or 0.0 for one in lines),
            "events": events[:NEWEST],
            "is_cut": len(events) >= EVENTS,
            "keys": (("j k", "move"), ("Enter", "open")),
            "lines": lines,
            "now": visit.app.now(),
            "same": same_as.agents(),
            "since": events[-1].at if events else None,
            "topic": "all",
        },
    )


def tokens_by_agent(visit: Visit, events: Iterable[AgentEvent]) -> Mapping[str, int]:
    """Tokens of the newest runs that tell them, by agent."""
    paid = {one.job_id: one.agent for one in events if one.job_id and "cost_usd" in fields(one)}
    ids = list(paid)[:RUNS]
    added: dict[str, int] = {}
    for job in visit.app.get_many(ids) if ids else ():
        told = job.result.get("tokens") if job is not None and isinstance(job.result, dict) else None
        if job is not None and isinstance(told, dict):
            count = sum(one for one in told.values() if isinstance(one, int) and not isinstance(one, bool))
            added[paid[job.id]] = added.get(paid[job.id], 0) + count
    return added


def spent_in_steps(visit: Visit, events: Iterable[AgentEvent]) -> Mapping[str, tuple[int, float]]:
    """Tokens and cost of the model calls that the newest runs recorded as steps, by agent. Runs whose result told what
    they cost are left out, so that nothing is counted twice."""
    told = {one.job_id for one in events if "cost_usd" in fields(one)}
    ends = [one for one in events if one.job_id and one.kind in ENDS and one.job_id not in told]
    runs = {str(one.job_id): one.agent for one in ends}
    added: dict[str, tuple[int, float]] = {}
    for row in visit.app.budgets.usage(by="job", limit=STEPPED).rows if runs else ():
        if row.name in runs:
            tokens, cost = added.get(runs[row.name], (0, 0.0))
            spent = tokens + row.input_tokens + row.output_tokens, cost + row.usd_micro / 1_000_000
            added[runs[row.name]] = spent
    return added


def memories_by_agent(visit: Visit) -> Mapping[str, int] | None:
    """How many memories each agent has; None if there are too many to count within a page's time."""
    try:
        stats = visit.app.memory.stats()
    except TooWide:
        return None
    added: dict[str, int] = {}
    for one in stats.counts:
        added[one.agent] = added.get(one.agent, 0) + one.memories
    return added


def fields(event: AgentEvent) -> Mapping[str, Any]:
    """What an event carries, if it is an object."""
    return event.data if isinstance(event.data, dict) else {}


def _line(
    name: str,
    events: Sequence[AgentEvent],
    backlog: Any,
    tokens: Mapping[str, int],
    memories: Mapping[str, int] | None,
    stepped_usd: float,
) -> AgentLine:
    ends = [one for one in events if one.kind in ENDS]
    failed = sum(1 for one in ends if one.kind != "completed")
    seconds = [float(told) for one in ends if isinstance(told := fields(one).get("seconds"), int | float)]
    costs = [float(told) for one in ends if isinstance(told := fields(one).get("cost_usd"), int | float)]
    return AgentLine(
        name=name,
        waiting=backlog.due + backlog.delayed + backlog.waiting if backlog else 0,
        held=backlog.held if backlog else 0,
        completed=len(ends) - failed,
        failed=failed,
        error_rate=failed / len(ends) if ends else None,
        seconds=median(seconds) if seconds else None,
        cost_usd=sum(costs) + stepped_usd if costs or stepped_usd else None,
        tokens=tokens.get(name),
        memories=None if memories is None else memories.get(name, 0),
        last_at=events[0].at if events else None,
    )
