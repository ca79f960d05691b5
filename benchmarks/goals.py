"""The goals as data, and whether a run reached them."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.figures import Figure, Figures
from benchmarks.workloads import WORKLOADS

OWN = "tenure"
EMPTY = "tenure-empty"
OPPONENTS = {"best": "best peer", "ceiling": "the bare engine", EMPTY: "own W3a beside it"}


@dataclass(frozen=True, slots=True)
class Goal:
    """One demand on Tenure: a metric, at least or at most `factor` times something, or a plain number."""

    workload: str
    engine: str
    metric: str
    at_least: bool
    factor: float
    against: str = ""
    """`best` (the best peer), `ceiling` (the best bare engine), `own:W3a:rate`, a contender's name, or nothing."""

    @property
    def text(self) -> str:
        """Say the goal as a sentence would."""
        metric = next(m for m in WORKLOADS[self.workload].metrics if m.key == self.metric)
        sign = "≥" if self.at_least else "≤"
        if not self.against:
            return f"{metric.label} {sign} {self.factor:.3g} {metric.unit}".rstrip()
        return f"{metric.label} {sign} {self.factor:g} × {self.opponent}"

    @property
    def opponent(self) -> str:
        """Say whom it is measured against."""
        if self.against.startswith("own:"):
            return f"own {self.against.split(':')[1]}"
        return OPPONENTS.get(self.against, self.against)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a goal."""

    goal: Goal
    status: str
    """`reached`, `not reached` or `not measured`."""
    figure: Figure | None = None
    reference: str = ""
    reason: str = ""


def _up(workload: str, engine: str, factor: float, against: str, metric: str = "rate") -> Goal:
    return Goal(workload, engine, metric, at_least=True, factor=factor, against=against)


def _down(workload: str, engine: str, metric: str, factor: float, against: str = "") -> Goal:
    return Goal(workload, engine, metric, at_least=False, factor=factor, against=against)


GOALS: tuple[Goal, ...] = (
    _up("W1", "postgres", 1.3, "best"),
    _up("W1", "postgres", 0.75, "ceiling"),
    _up("W1", "sqlite", 1.1, "huey"),
    _up("W1", "sqlite", 0.85, "ceiling"),
    _up("W1c", "postgres", 3, "own:W1:rate"),
    _up("W1c", "sqlite", 3, "own:W1:rate"),
    _up("W2", "postgres", 1.2, "best"),
    _up("W2", "postgres", 0.75, "ceiling"),
    _up("W2", "sqlite", 1.2, "best"),
    _up("W2", "sqlite", 0.5, "ceiling"),
    _up("W3a", "postgres", 1.2, "graphile-worker"),
    _up("W3a", "postgres", 1.5, "pg-boss"),
    _up("W3a", "postgres", 2.5, "pgqueuer"),
    _up("W3a", "postgres", 0.8, "ceiling"),
    _up("W3b", "postgres", 1.2, "graphile-worker"),
    _up("W3b", "postgres", 0.6, "ceiling"),
    _up("W3a", "sqlite", 1.2, "honker"),
    _up("W3b", "sqlite", 1.2, "honker"),
    _up("W3t", "postgres", 5, "dramatiq@redis"),
    _up("W3t", "postgres", 0.5, "own:W3a:rate"),
    _down("W4", "postgres", "p50_ms", 1.1, "graphile-worker"),
    _down("W4", "postgres", "p99_ms", 1.0, "graphile-worker"),
    _down("W4", "sqlite", "p50_ms", 0.5, "honker"),
    _down("W4", "sqlite", "p99_ms", 1.0, "honker"),
    _up("W5", "postgres", 0.95, EMPTY),
    _up("W5", "sqlite", 0.95, EMPTY),
    _up("W5d", "postgres", 0.95, EMPTY),
    _up("W5d", "sqlite", 0.95, EMPTY),
    _down("W5d", "postgres", "idle_ratio", 2),
    _down("W5d", "sqlite", "idle_ratio", 2),
    _up("W6", "postgres", 0.9, EMPTY),
    _up("W6", "sqlite", 0.9, EMPTY),
    _up("W7", "postgres", 0.9, "", "kept"),
    _down("W7", "postgres", "overdue_s", 2),
    _down("W8", "postgres", "cpu_share", 0.05),
    _down("W8", "postgres", "p99_ms", 50),
    _down("W9", "postgres", "errors", 0),
    _down("W9", "postgres", "deadlocks", 0),
    _down("W9", "postgres", "claim_tail", 5),
    _up("W10", "postgres", 1 / 1.2, "", "staleness"),
    _down("footprint", "sqlite", "idle_mb", 80),
    _down("footprint", "postgres", "idle_mb", 80),
    _down("footprint", "sqlite", "backlog_mb", 150),
    _down("footprint", "postgres", "backlog_mb", 150),
    _down("footprint", "sqlite", "import_ms", 120),
    _down("footprint", "sqlite", "help_ms", 250),
)

SINGLE_JOBS = "decisions/0009-what-a-single-job-costs-postgresql.md"
LEAN_WRITER = "decisions/0010-arrays-and-a-lean-writer-on-sqlite.md"
FLEET = "decisions/0012-a-fleet-that-takes-turns.md"
WAKE_UP = "decisions/0016-the-claim-that-a-wake-up-sends.md"
WHOLE_RUN = "decisions/0014-what-the-whole-run-does-not-reach.md"
PROFILES = {
    **dict.fromkeys(((name, "postgres") for name in ("W1", "W3b")), SINGLE_JOBS),
    ("W4", "postgres"): WAKE_UP,
    **dict.fromkeys(((name, "sqlite") for name in ("W1", "W3a", "W3b", "W4")), LEAN_WRITER),
    **dict.fromkeys(((name, "postgres") for name in ("W3a", "W5", "W5d", "W6")), WHOLE_RUN),
    **dict.fromkeys(((name, "sqlite") for name in ("W5", "W5d", "W6", "footprint")), WHOLE_RUN),
    ("W8", "postgres"): FLEET,
}
"""Where the profiles of a workload are, beside the page: what stands in the way of a goal that was not reached."""


def judge(goal: Goal, figures: Figures, absent: str = "") -> Verdict:
    """Compare a goal with what was measured, within each round where it is a ratio; `absent` says why Tenure is not."""
    own = (goal.workload, goal.engine, OWN, goal.metric)
    if figures.figure(*own) is None:
        samples = figures.cell(*own[:3])
        reason = samples[0].problem if samples else absent or "not asked for in this run"
        return Verdict(goal, "not measured", reason=reason)
    if not goal.against:
        found, reference = figures.figure(*own), ""
    else:
        other = _reference(goal, figures)
        if other is None:
            return Verdict(goal, "not measured", reason=f"nothing to compare with: no figure for {goal.opponent}")
        found, reference = figures.ratio(own, other), other[2]
    if found is None:
        return Verdict(goal, "not measured", reason="no round in which both were measured")
    enough = found.value >= goal.factor if goal.at_least else found.value <= goal.factor
    return Verdict(goal, "reached" if enough else "not reached", found, reference)


def _reference(goal: Goal, figures: Figures) -> tuple[str, str, str, str] | None:
    """Find the cell that a goal is measured against."""
    metric = next(m for m in WORKLOADS[goal.workload].metrics if m.key == goal.metric)
    if goal.against.startswith("own:"):
        _, workload, key = goal.against.split(":")
        found = (workload, goal.engine, OWN, key)
    elif goal.against in {"best", "ceiling"}:
        role = "peer" if goal.against == "best" else "bare"
        name = figures.best(goal.workload, goal.engine, metric, role)
        if name is None:
            return None
        found = (goal.workload, goal.engine, name, goal.metric)
    else:
        name, _, engine = goal.against.partition("@")
        found = (goal.workload, engine or goal.engine, name, goal.metric)
    return found if figures.figure(*found) is not None else None
