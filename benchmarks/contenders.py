"""Who is measured, and what each contender needs to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OWN = "tenure"
EMPTY = "tenure-empty"


@dataclass(frozen=True, slots=True)
class Contender:
    """One line of the report: a module that speaks the protocol."""

    name: str
    engines: tuple[str, ...]
    module: str
    workloads: tuple[str, ...]
    packages: tuple[str, ...] = ()
    """What has to be installed for it in `.bench/`; `npm:` marks a Node package."""
    args: tuple[str, ...] = ()
    most_jobs: Mapping[str, int] = field(default_factory=dict)
    """Slow contenders get fewer jobs; the tables say how many."""
    caveat: str = ""
    """Where it promises less than the others; shown beside its name."""
    is_durable: bool = True
    """It has a worker and syncs every commit. A floor against the best peer looks at these only."""

    @property
    def is_own(self) -> bool:
        """Whether this is Tenure: then it runs in the project's own environment."""
        return self.name in {OWN, EMPTY}

    @property
    def label(self) -> str:
        """The name as the tables show it."""
        return f"{self.name} ({self.caveat})" if self.caveat else self.name


BOTH = ("postgres", "sqlite")
_SIDE = "benchmarks.peers.{}_side"
_NODE = _SIDE.format("node")
_BASIC = ("W1", "W2", "W3a", "W4")

CONTENDERS: Mapping[str, Contender] = {
    contender.name: contender
    for contender in (
        Contender(
            OWN,
            BOTH,
            "benchmarks.tenure_side",
            ("W1", "W2", "W3a", "W3b", "W4", "W5", "W5d", "W6", "W7", "W8", "W10"),
        ),
        Contender(EMPTY, BOTH, "benchmarks.tenure_side", ("W5", "W5d", "W6"), args=("empty",), caveat="empty store"),
        Contender(
            "graphile-worker",
            ("postgres",),
            _NODE,
            (*_BASIC, "W3b"),
            ("npm:graphile-worker",),
            args=("graphile-worker",),
        ),
        Contender("pg-boss", ("postgres",), _NODE, _BASIC, ("npm:pg-boss",), args=("pg-boss",)),
        Contender("pgqueuer", ("postgres",), _SIDE.format("pgqueuer"), _BASIC, ("pgqueuer", "asyncpg", "uvloop")),
        Contender(
            "procrastinate",
            ("postgres",),
            _SIDE.format("procrastinate"),
            _BASIC,
            ("procrastinate",),
            most_jobs={"W1": 1_000, "W2": 20_000, "W3a": 1_000, "W4": 100},
        ),
        Contender(
            "honker",
            ("sqlite",),
            _SIDE.format("honker"),
            (*_BASIC, "W3b"),
            ("honker",),
            caveat="sync=NORMAL",
            is_durable=False,
        ),
        Contender(
            "huey",
            ("sqlite",),
            _SIDE.format("huey"),
            _BASIC,
            ("huey",),
            most_jobs={"W2": 5_000, "W3a": 5_000},
            caveat="at most once",
        ),
        Contender(
            "litequeue",
            ("sqlite",),
            _SIDE.format("litequeue"),
            _BASIC,
            ("litequeue",),
            most_jobs={"W3a": 2_000, "W4": 100},
            caveat="sync=NORMAL",
            is_durable=False,
        ),
    )
}
