"""The report: tables in Markdown, for the terminal and between the markers of docs/benchmarks.md."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.contenders import CONTENDERS, OWN
from benchmarks.figures import Figure, Figures
from benchmarks.floors import FLOORS, judge
from benchmarks.results import Results
from benchmarks.workloads import WORKLOADS, Workload

ENGINE_NAMES = {"postgres": "PostgreSQL", "sqlite": "SQLite"}
MARKS = {"held": "✓", "missed": "✗ missed", "not measured": "– not measured"}
REGION = re.compile(r"(<!-- measured -->\n).*?(<!-- end of measured -->)", re.DOTALL)


def tables(results: Results) -> str:
    """Everything that was measured, as Markdown."""
    figures = Figures(results.cells)
    parts = [_head(results, figures), _floors(figures)]
    parts += [
        _section(results, figures, workload, engine) for workload in WORKLOADS.values() for engine in workload.engines
    ]
    parts.append(_contenders(results))
    return "\n\n".join(part for part in parts if part)


def write_page(results: Results, page: Path) -> None:
    """Write the tables between the page's markers."""
    before = page.read_text(encoding="utf-8")
    page.write_text(REGION.sub(lambda found: f"{found[1]}\n{tables(results)}\n\n{found[2]}", before), encoding="utf-8")


def show(figure: Figure | None, unit: str = "") -> str:
    """A figure; «~» before it means that it is not trusted."""
    return "–" if figure is None else ("" if figure.is_trusted else "~") + _number(figure.value, unit)


def _number(value: float, unit: str) -> str:
    if unit == "/s" or abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3f}" if 0 < abs(value) < 0.1 else f"{value:.2f}"


def _head(results: Results, figures: Figures) -> str:
    moments = sorted(cell.at for cell in results.cells.values())
    machine = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    when = f"{moments[0]} to {moments[-1]} UTC" if moments else "Nothing was measured yet"
    trial = "" if results.scale == 1 else f"**A trial** at {results.scale:g} of the jobs: its figures mean nothing. "
    calm = f"{figures.calm_ms:.0f} ms, one synced write {figures.calm_sync_us:.0f} µs"
    first = f"{trial}{when}. Machine: {machine}. Calibration at its best: {calm}."
    return "\n".join([first, "", *(f"- {ENGINE_NAMES[name]} {text}" for name, text in results.servers.items())])


def _floors(figures: Figures) -> str:
    rows = ["## Floors", "", "| workload | engine | floor | measured | against | |", "|---|---|---|---:|---|---|"]
    for floor in FLOORS:
        verdict = judge(floor, figures)
        rows.append(
            f"| {floor.workload} | {ENGINE_NAMES[floor.engine]} | {floor.text} | {show(verdict.figure)} "
            f"| {verdict.against} | {MARKS[verdict.status]} |"
        )
    return "\n".join(rows)


def _section(results: Results, figures: Figures, workload: Workload, engine: str) -> str:
    names = [name for name in CONTENDERS if (workload.name, engine, name) in results.cells]
    if not names:
        return ""
    heads = " | ".join(metric.label for metric in workload.metrics)
    rows = [f"## {workload.name}: {workload.title}, {ENGINE_NAMES[engine]}", ""]
    rows += [f"| | {heads} | spread | Tenure ÷ it | jobs |", f"|---|{'---:|' * (len(workload.metrics) + 3)}"]
    own = (workload.name, engine, OWN)
    main = workload.main
    found = {name: figures.figure((workload.name, engine, name), main.key) for name in names}
    sign = -1 if main.higher_is_better else 1
    for name in sorted(names, key=lambda name: (found[name] is None, sign * (f.value if (f := found[name]) else 0))):
        key = (workload.name, engine, name)
        cell, first = results.cells[key], found[name]
        label = f"**{name}**" if name == OWN else CONTENDERS[name].label
        if first is None:
            rows.append(f"| {label} | {_plain(cell.problem)} |{' |' * (len(workload.metrics) + 2)}")
            continue
        values = " | ".join(show(figures.figure(key, metric.key), metric.unit) for metric in workload.metrics)
        spread = f"{first.spread:.0%}" if first.rounds > 1 else "–"
        ratio = "" if name == OWN else show(figures.ratio(own, key, main.key))
        rows.append(f"| {label} | {values} | {spread} | {ratio} | {cell.jobs:,} |")
    return "\n".join(rows)


def _contenders(results: Results) -> str:
    rows = ["## Who was measured, and how", "", "| | version | settings |", "|---|---|---|"]
    seen = {key[2]: cell for key, cell in results.cells.items() if cell.version}
    rows += [f"| {n} | {seen[n].version} | {_plain(seen[n].settings)} |" for n in CONTENDERS if n in seen]
    rows += [f"| {name} | not measured | {_plain(reason)} |" for name, reason in results.absent.items()]
    return "\n".join(rows)


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:300]
