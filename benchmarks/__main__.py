"""`python -m benchmarks`: measure, print, and write docs/benchmarks.md with its JSON.

A run replaces the cells that it measures and keeps the others. Every measurement is saved as it comes; `--resume` goes
on after an interruption.

Examples:
    python -m benchmarks                                   about 25 minutes on two cores
    python -m benchmarks --quick                           two minutes, and the page stays as it is
    python -m benchmarks --engine sqlite --rounds 5
    python -m benchmarks --only W3a,W4@postgres --peers graphile-worker
"""

from __future__ import annotations

import argparse
import difflib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import environment, machine, report
from benchmarks.contenders import BOTH, CONTENDERS, ROOT, Contender
from benchmarks.errors import BenchError
from benchmarks.results import Cell, Results, load
from benchmarks.run import Engines, Measured, Task, measure, order
from benchmarks.workloads import WORKLOADS, Workload

PAGE = ROOT / "docs" / "benchmarks.md"
FIGURES = ROOT / "docs" / "benchmarks" / "figures.json"
TRIAL = ROOT / ".bench" / "trial.json"
QUICK_SCALE = 0.1


def main(argv: Sequence[str] | None = None) -> int:
    """Run; gives the exit code: 0 done, 1 nothing was measured, 2 the command makes no sense, 130 interrupted."""
    options = _options(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        tasks = _tasks(options)
        results = load(options.json, options.scale)
        _run(tasks, results, options)
    except BenchError as exc:
        print(f"benchmarks: {exc}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("benchmarks: interrupted. Go on with --resume.", file=sys.stderr)
        return 130
    print(report.tables(results))
    if options.page:
        report.write_page(results, options.page)
        print(f"Wrote {options.page}.", file=sys.stderr)
    return 0 if any(cell.rounds for cell in results.cells.values()) else 1


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--engine", choices=BOTH, help="one engine; both by default")
    parser.add_argument("--only", metavar="W1,W3a@sqlite", help="workloads, all by default; @ names one engine")
    parser.add_argument("--peers", metavar="NAMES", help="peers, all by default; `none` measures Tenure only")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds (3)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the jobs, one round, no million rows")
    parser.add_argument(
        "--scale", type=float, default=1.0, metavar="X", help="multiply all numbers of jobs, for trials"
    )
    parser.add_argument("--resume", action="store_true", help="keep what --json has and measure only what is missing")
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"({FIGURES.relative_to(ROOT)})")
    parser.add_argument("--page", type=Path, metavar="FILE", help=f"({PAGE.relative_to(ROOT)})")
    parser.add_argument("--postgres", metavar="URL", help="use this server instead of a throw-away one")
    parser.add_argument("--scratch", type=Path, metavar="FOLDER", help="where databases live while the run lasts")
    parser.add_argument("--reinstall", action="store_true", help="install the peers again")
    parser.add_argument("--list", action="store_true", help="list workloads and contenders, and measure nothing")
    options = parser.parse_args(argv)
    if options.rounds < 1 or not 0 < options.scale <= 1:
        parser.error("--rounds must be at least 1, and --scale more than 0 and at most 1")
    if options.list:
        _list()
        raise SystemExit(0)
    if options.quick:
        options.scale, options.rounds = min(options.scale, QUICK_SCALE), 1
    is_trial = options.scale != 1
    options.json = options.json or (TRIAL if is_trial else FIGURES)
    options.page = options.page or (None if is_trial else PAGE)
    return options


def _tasks(options: argparse.Namespace) -> list[Task]:
    """Read --only, --engine and --peers."""
    chosen = _contenders(options.peers)
    tasks = []
    for workload, engine in _cells(options.only, options.engine):
        if options.quick and not workload.is_quick:
            continue
        for contender in chosen:
            if engine in contender.engines and workload.name in contender.workloads:
                size = workload.full.scaled(options.scale)
                most = contender.most_jobs.get(workload.name, size.jobs)
                tasks.append(Task(workload, engine, contender, size.with_jobs(min(size.jobs, most))))
    return tasks


def _cells(only: str | None, engine: str | None) -> list[tuple[Workload, str]]:
    found: list[tuple[Workload, str]] = []
    for part in only.split(",") if only else WORKLOADS:
        name, _, at = part.strip().partition("@")
        if name not in WORKLOADS:
            raise BenchError(f"There is no workload {name!r}.{_nearest(name, WORKLOADS)}")
        engines = [e for e in WORKLOADS[name].engines if e in {at or e} & {engine or e}]
        if only and not engines:
            raise BenchError(f"{name} does not run on {at or engine!r}, but on {', '.join(WORKLOADS[name].engines)}.")
        found += [(WORKLOADS[name], e) for e in engines]
    return list(dict.fromkeys(found))


def _contenders(peers: str | None) -> list[Contender]:
    """Read --peers; Tenure always takes part."""
    if peers is None:
        return list(CONTENDERS.values())
    names = set() if peers.strip() == "none" else {name.strip() for name in peers.split(",")}
    for name in names:
        if name not in CONTENDERS:
            raise BenchError(f"There is no peer {name!r}.{_nearest(name, CONTENDERS)}")
    return [c for c in CONTENDERS.values() if c.name in names or c.is_own]


def _run(tasks: Sequence[Task], results: Results, options: argparse.Namespace) -> None:
    packages = environment.ensure(_say, again=options.reinstall)
    wanted = {task.contender.name: task.contender for task in tasks}
    reasons = {name: environment.missing(contender, packages) for name, contender in wanted.items()}
    results.absent = {n: r for n, r in results.absent.items() if n not in wanted} | {
        n: r for n, r in reasons.items() if r
    }
    tasks = [task for task in tasks if not reasons[task.contender.name]]
    if not tasks:
        raise BenchError(f"Nothing is left to measure. Look at --only and --peers with --list. {results.absent}")
    results.machine = machine.describe()
    if not options.resume:
        for task in tasks:
            results.cells.pop(task.key, None)
    todo = [(n, task) for n, task in order(tasks, options.rounds) if not _has(results, task, n)]
    with _scratch(options.scratch) as scratch, Engines(scratch, options.postgres) as engines:
        for done, (number, task) in enumerate(todo, 1):
            found = measure(task, engines)
            _keep(results, task, number, found)
            results.servers |= {name: f"{s.version}: {s.settings}" for name, s in engines.running.items()}
            results.save(options.json)
            _say(f"{done}/{len(todo)} {' '.join(task.key)} round {number + 1}: {_told(task, found)}")


def _has(results: Results, task: Task, number: int) -> bool:
    return task.key in results.cells and number in results.cells[task.key].rounds


def _keep(results: Results, task: Task, number: int, found: Measured) -> None:
    cell = results.cells.setdefault(task.key, Cell("", task.size.jobs))
    cell.at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    cell.jobs = found.jobs or cell.jobs
    cell.version, cell.settings = found.version or cell.version, found.settings or cell.settings
    cell.problem = found.problem
    if found.round is not None:
        cell.rounds[number] = found.round


def _told(task: Task, found: Measured) -> str:
    main = task.workload.main
    figure = f"{found.round.metrics[main.key]:,.4g} {main.label}" if found.round else found.problem
    return f"{figure} ({found.seconds:.1f} s)"


@contextmanager
def _scratch(given: Path | None) -> Iterator[Path]:
    """Give a folder on a real disk that a server running as another user can enter."""
    base = given or ROOT / ".bench" / "scratch"
    if given is None and os.getuid() == 0 and any(not p.stat().st_mode & 0o001 for p in ROOT.parents):
        base = Path("/var/tmp")
    base.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="tenure-bench-", dir=base.resolve()))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        with suppress(OSError):
            shutil.rmtree(folder)


def _say(text: str) -> None:
    print(f"benchmarks: {text}", file=sys.stderr, flush=True)


def _list() -> None:
    for workload in WORKLOADS.values():
        print(f"{workload.name:<5} {', '.join(workload.engines):<17} {workload.title}")
    for contender in CONTENDERS.values():
        print(f"{contender.name:<16} {', '.join(contender.engines):<17} {' '.join(contender.workloads)}")


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1, 0.4)
    return f" Did you mean {near[0]!r}?" if near else " See --list."


if __name__ == "__main__":
    sys.exit(main())
