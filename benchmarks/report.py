"""The report: JSON with every sample, a table for the terminal, and `docs/benchmarks.md` with its plots."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import plot
from benchmarks.catalogue import CONTENDERS
from benchmarks.environment import Package
from benchmarks.figures import Figure, Figures
from benchmarks.goals import GOALS, OWN, PROFILES, Verdict, judge
from benchmarks.run import TIMES_UP, Sample
from benchmarks.workloads import WORKLOADS, Metric, Workload

ENGINE_NAMES = {"postgres": "PostgreSQL", "sqlite": "SQLite", "redis": "Redis"}
NOT_ALIKE = """\
Not everything here promises the same. huey deletes a task before its handler runs, so a crash loses it. honker and
litequeue run SQLite with synchronous=NORMAL, so a power cut may take the last commits, and have no worker around the
handler in these runs: a plain claim/acknowledge loop without time-outs, retries or leases. pg-boss calls its handler
once per batch and completes the batch as one. Redis may lose the last second. graphile-worker, pgqueuer, honker and
huey delete finished jobs. Tenure keeps every job, fences every write by a token and syncs every commit."""
SAMPLES = "figures.json"
GUIDE = "operate/measure.md"
MARKS = {"reached": "✓ reached", "not reached": "✗ not reached", "not measured": "– not measured"}


@dataclass(frozen=True, slots=True)
class Results:
    """All that a run found out."""

    made_at: str
    command: str
    rounds: int
    is_quick: bool
    machine: Mapping[str, str]
    servers: Mapping[str, str]
    absent: Mapping[str, str]
    """Contenders that could not take part, with the reason."""
    packages: Mapping[str, Package]
    samples: Sequence[Sample]
    scale: float = 1.0
    """Other than 1: all numbers of jobs were multiplied by it, to try the workloads out."""
    is_cut_short: bool = False
    """A signal ended the run before all was measured."""


def to_json(results: Results) -> str:
    """Give everything, sample by sample, with the figures and verdicts that were drawn from it."""
    figures = Figures(results.samples)
    content = {
        "made_at": results.made_at,
        "command": results.command,
        "rounds": results.rounds,
        "quick": results.is_quick,
        "scale": results.scale,
        "cut_short": results.is_cut_short,
        "machine": dict(results.machine),
        "calm_ms": figures.calm_ms,
        "servers": dict(results.servers),
        "absent": dict(results.absent),
        "figures": list(_figures_as_data(figures)),
        "goals": [_verdict_as_data(verdict) for verdict in verdicts(results, figures)],
        "samples": [{**asdict(sample), "busy": figures.is_busy(sample)} for sample in results.samples],
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


@dataclass(frozen=True, slots=True)
class Line:
    """One contender in one workload, ready to be shown."""

    contender: str
    role: str
    figures: tuple[Figure | None, ...]
    to_best: Figure | None
    to_ceiling: Figure | None
    jobs: int
    problem: str = ""


def lines(figures: Figures, workload: Workload, engine: str) -> list[Line]:
    """Give a workload's table, best first; those without a figure come last with their reason."""
    metric = workload.main
    best = figures.best(workload.name, engine, metric, "peer")
    ceiling = figures.best(workload.name, engine, metric, "bare")
    found: list[Line] = []
    for name in figures.contenders(workload.name, engine):
        samples = figures.cell(workload.name, engine, name)
        if samples[0].unsupported:
            continue
        own = (workload.name, engine, name, metric.key)
        found.append(
            Line(
                name,
                CONTENDERS[name].role,
                tuple(figures.figure(workload.name, engine, name, m.key) for m in workload.metrics),
                figures.ratio(own, (workload.name, engine, best, metric.key)) if best else None,
                figures.ratio(own, (workload.name, engine, ceiling, metric.key)) if ceiling else None,
                samples[0].jobs,
                samples[0].problem,
            )
        )
    return sorted(found, key=lambda line: _order(line, metric))


def verdicts(results: Results, figures: Figures) -> list[Verdict]:
    """Judge all goals."""
    return [judge(goal, figures, results.absent.get(OWN, "")) for goal in GOALS]


def show(number: Figure | None, unit: str = "") -> str:
    """Write a figure; «~» before it means that it is not trusted."""
    if number is None:
        return "–"
    return ("" if number.is_trusted else "~") + plain(number.value, unit)


def show_spread(figure: Figure) -> str:
    """Write a spread; one round has none."""
    return f"{figure.spread:.0%}" if figure.rounds > 1 else "–"


def plain(value: float, unit: str = "") -> str:
    """Write a number with as many digits as it deserves."""
    if unit == "/s" or abs(value) >= 1_000:
        return f"{value:,.0f}"
    if 0 < abs(value) < 0.1:
        return f"{value:.3f}"
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"


def write_page(results: Results, page: Path) -> None:
    """Write the page, and its plots and samples into the folder of its name: `x.md` and `x/`."""
    figures = Figures(results.samples)
    plots = page.parent / page.stem
    plots.mkdir(parents=True, exist_ok=True)
    for old in plots.glob("*.svg"):
        old.unlink()
    sections = [_head(results, figures, page), _goals(verdicts(results, figures), page)]
    cells = [(workload, engine) for workload in WORKLOADS.values() for engine in figures.engines(workload.name)]
    sections.extend(_section(figures, workload, engine, plots) for workload, engine in cells)
    sections.append(_contenders(results))
    (plots / SAMPLES).write_text(to_json(results), encoding="utf-8")
    sections.append(f"Every sample, with the figures drawn from it: [{plots.name}/{SAMPLES}]({plots.name}/{SAMPLES}).")
    page.write_text("\n\n".join(section for section in sections if section) + "\n", encoding="utf-8")


def _head(results: Results, figures: Figures, page: Path) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    server_lines = "\n".join(f"- {ENGINE_NAMES[name]} {text}" for name, text in results.servers.items())
    calm = f"Calibration at its best: {figures.calm_ms:.0f} ms, one synced write {figures.calm_sync_us:.0f} µs."
    notes = "".join(f"\n> {note}\n" for note in _notes(results, figures))
    guide = f"; on your own database: [`tenure bench`]({GUIDE})" if (page.parent / GUIDE).exists() else ""
    return f"""<!-- Made by `{results.command}`; do not edit. -->
# Benchmarks

Tenure beside other job queues and beside the bare engines, measured in one run. Run it yourself: `make bench`, or
`make bench ARGS=--quick` for three minutes{guide}.
{notes}
{results.made_at}, up to {results.rounds} rounds in turns. Machine: {machine}. {calm}

{server_lines}

Every figure is the median over the rounds; *spread* is (largest − smallest) / median. Ratios are taken within each
round, so that both sides come from the same minute, and then the median of them. What is held against own W3a (W5, W5d,
W6) is measured right beside it, each time again: *tenure-empty*. **~** marks a figure that is not trusted: its spread
is over 30 %, the machine was busy beside it (calibration over 1.3 of the best, or a synced write over twice the best),
or there was only one round. After each measurement the store is asked whether every job is there, in the right state
and number, and each handler ran once; a measurement that fails this gives no figure.

A drain is timed from the first handler start until the store has acknowledged every job. Payloads are about 200 bytes.
*Bare* lines are the engine alone, the same few statements in a tight loop: the ceiling."""


def _notes(results: Results, figures: Figures) -> Iterator[str]:
    """Say what a reader must not take from this page, because the run left it out."""
    if results.is_quick:
        yield "**A quick run** with few jobs: it shows that all works; its figures are coarse."
    if results.scale != 1:
        yield f"**A trial**: all numbers of jobs were multiplied by {results.scale:g}. Its figures mean nothing."
    if results.is_cut_short:
        yield "**Cut short**: the run was ended before all was measured. Some figures rest on fewer rounds."
    if " ; " in results.command:
        yield (
            "**In several sittings** (`--resume`): what was missing after one was measured in the next. A ratio to "
            "another workload may compare different minutes."
        )
    measured = {sample.contender for sample in results.samples if sample.metrics}
    peers = [name for name, c in CONTENDERS.items() if c.role == "peer" and name not in measured]
    if peers:
        yield (
            f"**Not in this run:** {', '.join(peers)}. «Best peer» means the best of those that were measured in the "
            "same table."
        )
    asked = [w.name for w in WORKLOADS.values() if not any(s.metrics for s in results.samples if s.workload == w.name)]
    if asked:
        yield f"**Workloads not in this run:** {', '.join(asked)}."
    problems = {key: text for key, text in figures.problems().items() if text != TIMES_UP}
    if problems:
        cells = ", ".join(f"{w} {ENGINE_NAMES[e]} {name}" for w, e, name in problems)
        yield f"**Without a figure** (the tables say why): {cells}."


def _goals(judged: Sequence[Verdict], page: Path) -> str:
    rows = ["## Goals", "", "| workload | engine | goal | measured | against | |", "|---|---|---|---|---|---|"]
    for verdict in judged:
        goal = verdict.goal
        measured = f"{show(verdict.figure)}{' ×' if goal.against and verdict.figure else ''}"
        note = verdict.reason or verdict.reference
        rows.append(
            f"| {goal.workload} | {ENGINE_NAMES[goal.engine]} | {goal.text} | {measured} | {_cell(note)} "
            f"| {_mark(verdict, page)} |"
        )
    return "\n".join(rows)


def _mark(verdict: Verdict, page: Path) -> str:
    """Say what became of a goal, and lead to the profile that shows why it was not reached, where there is one."""
    profile = PROFILES.get((verdict.goal.workload, verdict.goal.engine))
    if verdict.status != "not reached" or profile is None or not (page.parent / profile).exists():
        return MARKS[verdict.status]
    return f"{MARKS[verdict.status]} ([why]({profile}))"


def _section(figures: Figures, workload: Workload, engine: str, plots: Path) -> str:
    found = lines(figures, workload, engine)
    if not found:
        return ""
    title = f"{workload.name} · {workload.title} · {ENGINE_NAMES[engine]}"
    rows = [f"## {title}", ""]
    drawn = [line for line in found if line.figures[0] is not None]
    if drawn:
        name = f"{workload.name.lower()}-{engine}.svg"
        (plots / name).write_text(_plot(title, workload, drawn), encoding="utf-8")
        rows += [f"![{title}]({plots.name}/{name})", ""]
    heads = [metric.label for metric in workload.metrics]
    rows.append(f"| | {' | '.join(heads)} | spread | × best peer | of the bare engine | jobs |")
    rows.append(f"|---|{'---:|' * (len(heads) + 4)}")
    rows.extend(_table_row(line, workload) for line in found)
    return "\n".join(rows)


def _table_row(line: Line, workload: Workload) -> str:
    name = f"**{line.contender}**" if line.role == "tenure" else CONTENDERS[line.contender].label
    if line.figures[0] is None:
        return f"| {name} | {_cell(line.problem)} |{' |' * (len(workload.metrics) + 3)}"
    values = " | ".join(show(f, m.unit) for f, m in zip(line.figures, workload.metrics, strict=True))
    spread = show_spread(line.figures[0])
    return f"| {name} | {values} | {spread} | {show(line.to_best)} | {show(line.to_ceiling)} | {line.jobs:,} |"


def _plot(title: str, workload: Workload, drawn: Sequence[Line]) -> str:
    metric = workload.main
    has_mark = workload.name == "W4"
    rows = []
    for line in drawn:
        first, second = line.figures[0], line.figures[1] if has_mark else None
        assert first is not None
        text = show(first, metric.unit) + (f" / {show(second, metric.unit)}" if second else "")
        rows.append(
            plot.Bar(CONTENDERS[line.contender].label, first.value, text, line.role, second.value if second else None)
        )
    unit = (
        f"{metric.label}{', p99 marked' if has_mark else ''}, {'more' if metric.higher_is_better else 'less'} is better"
    )
    return plot.bars(title, unit, rows)


def _contenders(results: Results) -> str:
    rows = ["## Who was measured, and how", "", "| | version | settings |", "|---|---|---|"]
    seen = {sample.contender: sample for sample in results.samples if sample.version}
    for name in CONTENDERS:
        if name in seen:
            notes = [p.note for p in results.packages.values() if p.name in CONTENDERS[name].packages and p.note]
            rows.append(f"| {name} | {seen[name].version} | {_cell('; '.join([seen[name].settings, *notes]))} |")
    for name, reason in results.absent.items():
        rows.append(f"| {name} | not measured | {_cell(reason)} |")
    rows += [
        "",
        NOT_ALIKE,
    ]
    return "\n".join(rows)


def _order(line: Line, metric: Metric) -> tuple[bool, float]:
    if line.figures[0] is None:
        return True, 0.0
    return False, -line.figures[0].value if metric.higher_is_better else line.figures[0].value


def _figures_as_data(figures: Figures) -> Iterator[dict[str, object]]:
    for workload in WORKLOADS.values():
        for engine in figures.engines(workload.name):
            for line in lines(figures, workload, engine):
                yield {
                    "workload": workload.name,
                    "engine": engine,
                    "contender": line.contender,
                    "metrics": {
                        metric.key: asdict(figure)
                        for metric, figure in zip(workload.metrics, line.figures, strict=True)
                        if figure
                    },
                    "to_best_peer": asdict(line.to_best) if line.to_best else None,
                    "to_ceiling": asdict(line.to_ceiling) if line.to_ceiling else None,
                    "problem": line.problem,
                }


def _verdict_as_data(verdict: Verdict) -> dict[str, object]:
    return {
        "workload": verdict.goal.workload,
        "engine": verdict.goal.engine,
        "goal": verdict.goal.text,
        "status": verdict.status,
        "measured": asdict(verdict.figure) if verdict.figure else None,
        "reference": verdict.reference,
        "reason": verdict.reason,
    }


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:300]
