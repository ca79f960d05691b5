"""`python -m benchmarks`: measure, print, and write the page.

Examples:
    python -m benchmarks --quick
    python -m benchmarks --only W1,W3a@postgres --peers graphile-worker,pgqueuer --rounds 5
    python -m benchmarks --page docs/benchmarks.md --json results.json
"""

from __future__ import annotations

import argparse
import difflib
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import environment, keeping, machine, plan
from benchmarks.catalogue import CONTENDERS, ROOT, Contender
from benchmarks.errors import BenchError
from benchmarks.figures import Figures
from benchmarks.report import (
    ENGINE_NAMES,
    MARKS,
    Results,
    lines,
    plain,
    show,
    show_spread,
    to_json,
    verdicts,
    write_page,
)
from benchmarks.run import TIMES_UP, Engines, Sample, Task, measure_all, rounds_of
from benchmarks.workloads import ALIASES, WORKLOADS, Size, Workload

if TYPE_CHECKING:
    from rich.console import Console

QUICK_SECONDS = 140.0
QUICK_REDIS = {"W3t", "W4"}
SAVED = ROOT / ".bench" / "last.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Run; gives the exit code: 0 done, 1 nothing was measured, 2 the command makes no sense, 130 cut short."""
    options = _options(argv)
    try:
        results = _run(options)
    except BenchError as exc:
        print(f"benchmarks: {exc}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("benchmarks: stopped before anything was measured.", file=sys.stderr)
        return 130
    _print(results)
    if options.page:
        write_page(results, options.page)
        print(f"Wrote {options.page}.", file=sys.stderr)
    if results.is_cut_short:
        print(f"benchmarks: cut short. Go on with --resume --json {options.json}.", file=sys.stderr)
        return 130
    return 0 if any(sample.metrics for sample in results.samples) else 1


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Tenure beside its peers.")
    parser.add_argument("--only", metavar="W1,W3a@sqlite", help="workloads, all by default; @ names one engine")
    parser.add_argument(
        "--peers", metavar="NAMES", help="peers, all by default; `none` leaves Tenure and the bare engines"
    )
    parser.add_argument("--quick", action="store_true", help="few jobs, the leading peers only, at most three minutes")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds in turns (3; 2 with --quick)")
    parser.add_argument(
        "--minutes", type=float, metavar="N", help="spread the rounds over this time, by what they took before"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", default=SAVED, help="save every sample as it comes (.bench/last.json)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on from what --json has, and measure only what is missing"
    )
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="write the page, plots beside it (docs/benchmarks.md)"
    )
    parser.add_argument("--postgres", metavar="URL", help="use this server instead of a throw-away one")
    parser.add_argument("--scratch", type=Path, metavar="FOLDER", help="where databases live while the run lasts")
    parser.add_argument(
        "--scale", type=float, default=1.0, metavar="X", help="multiply all numbers of jobs: 0.05 tries the workloads"
    )
    parser.add_argument("--reinstall", action="store_true", help="install the peers again")
    parser.add_argument("--list", action="store_true", help="list workloads and contenders, and measure nothing")
    options = parser.parse_args(argv)
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.minutes is not None and options.minutes <= 0:
        parser.error("--minutes must be more than 0")
    if not 0 < options.scale <= 1:
        parser.error("--scale must be more than 0, and at most 1")
    if options.list:
        _list()
        raise SystemExit(0)
    return options


def _run(options: argparse.Namespace) -> Results:
    cells = _cells(options.only)
    chosen = _contenders(options.peers, quick=options.quick)
    earlier = keeping.Earlier()
    if options.resume:
        earlier = keeping.read(options.json, is_quick=options.quick, scale=options.scale)
    packages = environment.ensure(_say, again=options.reinstall)
    reasons = {c.name: environment.missing(c, packages) for c in chosen}
    absent = {name: reason for name, reason in reasons.items() if reason}
    tasks = _tasks(cells, [c for c in chosen if c.name not in absent], quick=options.quick, scale=options.scale)
    if not tasks:
        why = "".join(f"\n  {name}: {reason}" for name, reason in absent.items())
        raise BenchError(f"Nothing is left to measure. Look at --only and --peers with --list.{why}")
    estimates, stop = plan.Estimates(), keeping.Stop()
    todo = _todo(tasks, options, estimates, {sample.key for sample in earlier.samples})
    samples = list(earlier.samples)
    with keeping.only_run(), _scratch(options.scratch) as scratch, Engines(scratch, options.postgres) as engines:

        def found() -> Results:
            return Results(
                made_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
                command=" ; ".join(dict.fromkeys(filter(None, [earlier.command, _command(options)]))),
                rounds=1 + max((sample.round for sample in samples if sample.metrics), default=0),
                is_quick=options.quick,
                machine=machine.describe(),
                servers=earlier.servers | {name: f"{s.version}: {s.settings}" for name, s in engines.running.items()},
                absent=absent,
                packages=packages,
                samples=samples,
                scale=options.scale,
                is_cut_short=stop.is_asked,
            )

        def keep(task: Task, sample: Sample) -> None:
            samples.append(sample)
            estimates.learn(task, sample)
            estimates.save()
            keeping.write(options.json, to_json(found()))

        budget = QUICK_SECONDS if options.quick else options.minutes * 60 if options.minutes else None
        with stop.listening():
            _measure(todo, engines, keep, stop, seconds=budget, broken=[s for s in earlier.samples if s.problem])
        keeping.write(options.json, to_json(found()))
        return found()


def _todo(
    tasks: Sequence[Task], options: argparse.Namespace, estimates: plan.Estimates, done: set[tuple[str, str, str, int]]
) -> list[tuple[int, Task]]:
    """Give what is to be measured, and say how long it will take."""
    rounds: int | Mapping[str, int] = options.rounds or 3
    minutes = QUICK_SECONDS / 60 if options.quick else options.minutes
    if minutes:
        most = options.rounds or (2 if options.quick else plan.MOST_ROUNDS)
        rounds = plan.spread(tasks, minutes, estimates, most, least=int(options.quick))
        left_out = [group for group, number in rounds.items() if not number]
        if left_out:
            _say(f"{minutes:.3g} minutes are too few for {', '.join(left_out)}")
    todo = [
        (number, task)
        for number, task in rounds_of(tasks, rounds)
        if (task.workload.name, task.engine, task.contender.name, number) not in done
    ]
    seconds = plan.total(todo, estimates)
    _say(f"{len(todo)} measurements, about {max(1, round(seconds / 60))} minutes; Ctrl-C keeps what there is")
    return todo


def _say(text: str) -> None:
    print(f"benchmarks: {text}", file=sys.stderr)


def _command(options: argparse.Namespace) -> str:
    """Give the command for the page: what was measured, without anybody's paths or passwords."""
    parts = ["python", "-m", "benchmarks", *(["--quick"] if options.quick else [])]
    for name in ("only", "peers", "rounds", "minutes", "scale"):
        value = getattr(options, name)
        if value is not None and (name, value) != ("scale", 1.0):
            parts += [f"--{name}", f"{value:g}" if isinstance(value, float) else str(value)]
    return shlex.join(parts)


def _cells(only: str | None) -> list[tuple[Workload, str]]:
    """Read --only into workloads with their engines."""
    if not only:
        return [(workload, engine) for workload in WORKLOADS.values() for engine in workload.engines]
    found: list[tuple[Workload, str]] = []
    for part in only.split(","):
        name, _, engine = part.strip().partition("@")
        pairs = ALIASES.get(name) or [(name, e) for e in (WORKLOADS[name].engines if name in WORKLOADS else ())]
        if not pairs:
            raise BenchError(f"There is no workload {name!r}.{_nearest(name, [*WORKLOADS, *ALIASES])}")
        pairs = [pair for pair in pairs if not engine or pair[1] == engine]
        if not pairs:
            raise BenchError(f"{name} does not run on {engine!r}. Engines: {', '.join(ENGINE_NAMES)}.")
        found += [(WORKLOADS[w], e) for w, e in pairs]
    return list(dict.fromkeys(found))


def _contenders(peers: str | None, *, quick: bool) -> list[Contender]:
    """Read --peers; Tenure and the bare engines always take part."""
    if peers is None:
        return [c for c in CONTENDERS.values() if c.leading or not quick]
    names = set() if peers.strip() in {"", "none"} else {name.strip() for name in peers.split(",")}
    for name in names:
        if name not in CONTENDERS:
            raise BenchError(f"There is no peer {name!r}.{_nearest(name, CONTENDERS)}")
    return [c for c in CONTENDERS.values() if c.name in names or c.role != "peer"]


def _tasks(
    cells: Sequence[tuple[Workload, str]], contenders: Sequence[Contender], *, quick: bool, scale: float = 1.0
) -> list[Task]:
    tasks = []
    for workload, engine in cells:
        size = workload.quick if quick else workload.full
        if size is None or (quick and engine == "redis" and workload.name not in QUICK_REDIS):
            continue
        for contender in contenders:
            if engine in contender.engines and workload.name in contender.workloads:
                jobs = min(size.jobs, contender.jobs_for(workload.name, size.jobs, quick=quick))
                tasks.append(Task(workload, engine, contender, _scaled(size, jobs, scale)))
    return tasks


def _scaled(size: Size, jobs: int, scale: float) -> Size:
    """Multiply; a drain needs more than a worker takes at once, and a backlog more than the drain."""
    if scale == 1:
        return Size(jobs, size.backlog, size.clients)
    few = max(min(jobs, 60), int(jobs * scale))
    backlog = max(20 * few, int(size.backlog * scale)) if size.backlog else 0
    return Size(few, backlog, max(2, int(size.clients * scale)) if size.clients else 0)


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
        shutil.rmtree(folder, ignore_errors=True)


def _measure(
    todo: Sequence[tuple[int, Task]],
    engines: Engines,
    keep: Callable[[Task, Sample], None],
    stop: keeping.Stop,
    *,
    seconds: float | None,
    broken: Sequence[Sample],
) -> None:
    """Measure behind a progress bar on stderr; where that is no terminal, a line tells of each measurement."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    by_name = {(t.workload.name, t.engine, t.contender.name): t for _, t in todo}
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        row = bar.add_task("", total=len(todo))

        def done(sample: Sample) -> None:
            task = by_name[sample.key[:3]]
            keep(task, sample)
            bar.advance(row)
            if not console.is_terminal:
                _say(_told(task, sample))

        def begin(label: str) -> None:
            bar.update(row, description=label)

        measure_all(todo, engines, seconds=seconds, broken=broken, progress=begin, keep=done, is_stopped=stop)


def _told(task: Task, sample: Sample) -> str:
    main = task.workload.main
    figure = f"{plain(sample.metrics[main.key], main.unit)} {main.unit}" if sample.metrics else sample.problem
    return f"{task.label} round {sample.round + 1}: {figure} ({sample.seconds:.1f} s)"


def _print(results: Results) -> None:
    """Print a table for each workload, the goals, and what is missing."""
    from rich.console import Console

    console = Console()
    figures = Figures(results.samples)
    for workload in WORKLOADS.values():
        for engine in figures.engines(workload.name):
            _print_table(console, figures, workload, engine)
    for verdict in verdicts(results, figures):
        if verdict.status != "not measured":
            goal = verdict.goal
            mark = f"{MARKS[verdict.status]} {show(verdict.figure)}"
            console.print(f"{goal.workload:>9} {ENGINE_NAMES[goal.engine]:<11} {goal.text:<45} {mark}", soft_wrap=True)
    for text in _missing(results, figures):
        console.print(text, soft_wrap=True)


def _print_table(console: Console, figures: Figures, workload: Workload, engine: str) -> None:
    from rich.table import Table

    table = Table(title=f"{workload.name} {workload.title}, {ENGINE_NAMES[engine]}", title_justify="left")
    table.add_column("", no_wrap=True)
    for head in (*(m.label for m in workload.metrics), "spread", "× best peer", "of bare"):
        table.add_column(head, justify="right")
    for line in lines(figures, workload, engine):
        if line.figures[0] is not None:
            values = [show(f, m.unit) for f, m in zip(line.figures, workload.metrics, strict=True)]
            ratios = (show(line.to_best), show(line.to_ceiling))
            table.add_row(CONTENDERS[line.contender].label, *values, show_spread(line.figures[0]), *ratios)
    if table.row_count:
        console.print(table)


def _missing(results: Results, figures: Figures) -> Iterator[str]:
    for name, reason in results.absent.items():
        yield f"{name} is not measured: {reason}"
    problems = figures.problems()
    for (workload, engine, name), problem in problems.items():
        if problem != TIMES_UP:
            yield f"{workload} {engine} {name} has no figure: {problem}"
    late = sum(problem == TIMES_UP for problem in problems.values())
    if late:
        yield f"{late} of the figures asked for are missing: the time was up before they were begun."
    busy = sum(figures.is_busy(sample) for sample in results.samples)
    if busy:
        yield f"~ The machine was busy beside {busy} of {len(results.samples)} measurements."


def _list() -> None:
    for workload in WORKLOADS.values():
        print(f"{workload.name:<10} {', '.join(workload.engines):<24} {workload.title}")
    print()
    for contender in CONTENDERS.values():
        print(f"{contender.name:<22} {', '.join(contender.engines):<18} {' '.join(contender.workloads)}")


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1, 0.4)
    return f" Did you mean {near[0]!r}?" if near else " See --list."


if __name__ == "__main__":
    sys.exit(main())
