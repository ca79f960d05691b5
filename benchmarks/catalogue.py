"""Who is measured: Tenure, the peers and the bare engines, and what each needs to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Contender:
    """One line of the report: a module that speaks the protocol."""

    name: str
    engines: tuple[str, ...]
    module: str
    args: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    role: str = "peer"
    """`tenure`, `own` (Tenure again, as what it is compared with), `peer` or `bare`."""
    packages: tuple[str, ...] = ()
    """What has to be installed for it in `.bench/`; `npm:` marks a Node package."""
    leading: bool = False
    """Among the fastest of its engine: measured in `--quick` as well."""
    most_jobs: Mapping[str, int] = field(default_factory=dict)
    """Slow ones are given fewer jobs; the report says so."""

    caveat: str = ""
    """What it promises less than the others of its table; shown beside its name."""
    quick_drain: int | None = None
    """Jobs of a drain in `--quick`, where the usual number would take too long."""

    def jobs_for(self, workload: str, jobs: int, *, quick: bool) -> int:
        """Say how many jobs this contender is given where others get `jobs`."""
        if quick and self.quick_drain is not None and workload.startswith("W3"):
            return self.quick_drain
        return min(jobs, self.most_jobs.get(workload, jobs))

    @property
    def label(self) -> str:
        """The name as the tables show it."""
        return f"{self.name} ({self.caveat})" if self.caveat else self.name

    @property
    def source(self) -> Path:
        """The file behind the module."""
        return ROOT.joinpath(*self.module.split(".")).with_suffix(".py")


def _peer(name: str, engine: str, module: str, workloads: str, *packages: str, **more: object) -> Contender:
    return Contender(name, (engine,), module, workloads=tuple(workloads.split()), packages=packages, **more)  # type: ignore[arg-type]


def _few(jobs: int, *, enqueues: int = 3_000) -> dict[str, int]:
    return {"W1": enqueues, "W2": 20_000, "W3a": jobs, "W3b": jobs, "W3t": jobs, "W4": 100}


NODE = "benchmarks.peers.node_side"
REDIS = "benchmarks.peers.redis_sides"
BARE = "benchmarks.bare"
_TENURE = "W1 W1c W2 W3a W3b W3t W4 W5 W5d W6 W7 W8 W9 W10 footprint"

CONTENDERS: Mapping[str, Contender] = {
    contender.name: contender
    for contender in (
        Contender(
            "tenure",
            ("postgres", "sqlite"),
            "benchmarks.tenure_side",
            (),
            tuple(_TENURE.split()),
            "tenure",
            leading=True,
        ),
        Contender(
            "tenure-empty",
            ("postgres", "sqlite"),
            "benchmarks.tenure_side",
            ("empty",),
            ("W5", "W5d", "W6"),
            "own",
            caveat="empty store",
        ),
        _peer(
            "graphile-worker",
            "postgres",
            NODE,
            "W1 W2 W3a W3b W4 W5 W7",
            "npm:graphile-worker",
            args=("graphile-worker",),
            leading=True,
        ),
        _peer("pg-boss", "postgres", NODE, "W1 W2 W3a W3b W4 W5 W6 W7", "npm:pg-boss", args=("pg-boss",), leading=True),
        _peer(
            "pgqueuer",
            "postgres",
            "benchmarks.peers.pgqueuer_side",
            "W1 W2 W3a W3b W4 W5 W7",
            "pgqueuer",
            "asyncpg",
            "uvloop",
            leading=True,
        ),
        _peer(
            "procrastinate",
            "postgres",
            "benchmarks.peers.procrastinate_side",
            "W1 W2 W3a W3b W4",
            "procrastinate",
            most_jobs=_few(3_000, enqueues=1_000),
        ),
        _peer(
            "chancy",
            "postgres",
            "benchmarks.peers.chancy_side",
            "W1 W2 W3a W3b W4",
            "chancy",
            most_jobs=_few(10_000, enqueues=1_000),
        ),
        _peer(
            "absurd",
            "postgres",
            "benchmarks.peers.absurd_side",
            "W1 W3a W3b W4",
            "absurd-sdk",
            "absurdctl",
            most_jobs=_few(3_000, enqueues=1_000),
        ),
        _peer(
            "saq",
            "postgres",
            "benchmarks.peers.saq_side",
            "W1 W3a W3b W4",
            "saq",
            most_jobs=_few(3_000, enqueues=1_000),
        ),
        _peer(
            "dbos",
            "postgres",
            "benchmarks.peers.dbos_side",
            "W1 W3a W3b W4",
            "dbos",
            most_jobs=_few(1_000, enqueues=500),
        ),
        _peer(
            "honker",
            "sqlite",
            "benchmarks.peers.honker_side",
            "W1 W2 W3a W3b W4 W5",
            "honker",
            leading=True,
            caveat="sync=NORMAL",
        ),
        _peer(
            "huey",
            "sqlite",
            "benchmarks.peers.huey_side",
            "W1 W3a W3b W4",
            "huey",
            leading=True,
            quick_drain=2_000,
            caveat="at most once",
        ),
        _peer(
            "litequeue",
            "sqlite",
            "benchmarks.peers.litequeue_side",
            "W1 W3a W3b W4",
            "litequeue",
            most_jobs=_few(5_000),
            caveat="sync=NORMAL",
        ),
        _peer(
            "dramatiq",
            "redis",
            REDIS,
            "W1 W3a W3b W3t W4",
            "dramatiq",
            "redis",
            args=("dramatiq",),
            leading=True,
            quick_drain=2_000,
        ),
        _peer("celery", "redis", REDIS, "W1 W3a W3b W4", "celery", "redis", args=("celery",), most_jobs=_few(3_000)),
        _peer("rq", "redis", REDIS, "W1 W2 W3a W3b W4", "rq", "redis", args=("rq",), most_jobs=_few(1_000)),
        _peer(
            "bare-asyncpg",
            "postgres",
            BARE,
            "W1 W2 W3a W3b W4 W5 W6",
            "asyncpg",
            "uvloop",
            args=("asyncpg",),
            role="bare",
            leading=True,
        ),
        _peer(
            "bare-asyncpg-moved",
            "postgres",
            BARE,
            "W3a W3b W5 W6",
            "asyncpg",
            "uvloop",
            args=("asyncpg-moved",),
            role="bare",
        ),
        _peer(
            "bare-asyncpg-copy-10k",
            "postgres",
            BARE,
            "W2",
            "asyncpg",
            "uvloop",
            args=("asyncpg-copy-10k",),
            role="bare",
            leading=True,
        ),
        _peer("bare-psycopg", "postgres", BARE, "W1 W2", "psycopg", args=("psycopg",), role="bare"),
        _peer("bare-sqlite", "sqlite", BARE, "W1 W2 W3a W3b W4 W5 W6", args=("sqlite",), role="bare", leading=True),
    )
}
