"""The command's refusals, medians and ratios, floors, and the files that a run writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import environment, servers
from benchmarks.__main__ import main
from benchmarks.contenders import CONTENDERS, EMPTY
from benchmarks.errors import BenchError
from benchmarks.figures import Figures
from benchmarks.floors import FLOORS, Floor, judge
from benchmarks.report import write_page
from benchmarks.results import Cell, Results, Round, load
from benchmarks.run import Task, order
from benchmarks.workloads import WORKLOADS

CALM, BUSY = 30.0, 60.0


def results(
    workload: str = "W1", engine: str = "postgres", busy: frozenset[int] = frozenset(), **rates: list[float]
) -> Results:
    """Rates per round and contender; `busy` rounds had other work beside them."""
    found = Results()
    for name, values in rates.items():
        rounds = {n: Round({"rate": v}, BUSY if n in busy else CALM, 150.0) for n, v in enumerate(values)}
        key = (workload, engine, name.replace("_", "-"))
        found.cells[key] = Cell("2026-01-01 00:00", 100, "1.0", "defaults", rounds=rounds)
    return found


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--only", "W33"], "There is no workload 'W33'. Did you mean 'W3"),
        (["--only", "W7@sqlite"], "W7 does not run on 'sqlite'"),
        (["--peers", "grafile-worker"], "There is no peer 'grafile-worker'. Did you mean 'graphile-worker'?"),
    ],
)
def test_a_command_that_makes_no_sense_is_refused(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert message in capsys.readouterr().err


def test_a_url_that_leads_nowhere_is_named_without_its_password(tmp_path: Path) -> None:
    url = "postgresql://me:secret@127.0.0.1:1/postgres"

    with pytest.raises(BenchError, match=r"No PostgreSQL answers at .*127\.0\.0\.1:1") as found:
        servers.postgres(tmp_path, url).__enter__()

    assert "secret" not in str(found.value)


def test_a_peer_that_could_not_be_installed_is_absent_with_the_reason() -> None:
    packages = {"huey": environment.Package("huey", "3.5.4", "no matching distribution")}

    assert "no matching distribution" in environment.missing(CONTENDERS["huey"], packages)
    assert "not among the pinned versions" in environment.missing(CONTENDERS["honker"], packages)


def test_a_figure_is_the_median_of_its_rounds_and_trusted_if_they_agree() -> None:
    found = Figures(results(pgqueuer=[100.0, 110.0, 90.0], pg_boss=[100.0, 140.0, 100.0], huey=[100.0]).cells)

    calm, apart, single = (found.figure(("W1", "postgres", n), "rate") for n in ("pgqueuer", "pg-boss", "huey"))

    assert calm
    assert apart
    assert single
    assert (calm.value, calm.rounds) == (100.0, 3)
    assert calm.spread == pytest.approx(0.2)
    assert [one.is_trusted for one in (calm, apart, single)] == [True, False, False]


def test_a_busy_round_is_left_out_while_two_calm_ones_remain() -> None:
    found = Figures(results(busy=frozenset({2}), pgqueuer=[100.0, 102.0, 20.0]).cells)

    figure = found.figure(("W1", "postgres", "pgqueuer"), "rate")

    assert figure
    assert (figure.value, figure.is_trusted) == (101.0, True)


def test_a_ratio_is_taken_within_each_round() -> None:
    """Both halve in a slow minute: a ratio across rounds would lie."""
    found = Figures(results(tenure=[200.0, 100.0, 200.0], pgqueuer=[100.0, 50.0, 100.0]).cells)

    ratio = found.ratio(("W1", "postgres", "tenure"), ("W1", "postgres", "pgqueuer"), "rate")

    assert ratio
    assert (ratio.value, ratio.spread) == (2.0, 0.0)


@pytest.mark.parametrize(("own", "status"), [(121.0, "held"), (119.0, "missed")])
def test_a_floor_is_judged_against_the_best_peer(own: float, status: str) -> None:
    found = Figures(results("W2", tenure=[own, own], pgqueuer=[100.0, 100.0], pg_boss=[60.0, 60.0]).cells)

    verdict = judge(Floor("W2", "postgres", 1.2, "best peer"), found)

    assert (verdict.status, verdict.against) == (status, "pgqueuer")


def test_a_peer_that_does_not_sync_its_commits_is_not_the_best_one() -> None:
    found = results("W2", "sqlite", tenure=[90.0, 90.0], litequeue=[200.0, 200.0], huey=[10.0, 10.0])

    verdict = judge(Floor("W2", "sqlite", 1.5, "best peer"), Figures(found.cells))

    assert (verdict.status, verdict.against) == ("held", "huey")


def test_a_floor_against_an_empty_store_uses_the_drain_beside_it() -> None:
    found = Figures(results("W5", tenure=[96.0, 96.0], tenure_empty=[100.0, 100.0]).cells)

    verdict = judge(Floor("W5", "postgres", 0.9, EMPTY), found)

    assert (verdict.status, verdict.floor.text) == ("held", "jobs/s ≥ 0.9 × own W3a beside it")


def test_every_floor_can_be_measured() -> None:
    for floor in FLOORS:
        assert floor.engine in WORKLOADS[floor.workload].engines
        if floor.against in CONTENDERS:
            assert floor.workload in CONTENDERS[floor.against].workloads


def test_each_round_begins_with_another_contender() -> None:
    names = ("tenure", "pgqueuer", "pg-boss")
    tasks = [Task(WORKLOADS["W1"], "postgres", CONTENDERS[name], WORKLOADS["W1"].full) for name in names]

    rounds = [[task.contender.name for n, task in order(tasks, 2) if n == number] for number in range(2)]

    assert rounds == [["tenure", "pgqueuer", "pg-boss"], ["pgqueuer", "pg-boss", "tenure"]]


def test_the_page_keeps_its_text_and_shows_floors_figures_and_reasons(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text("# By hand\n<!-- measured -->\nold\n<!-- end of measured -->\n", encoding="utf-8")
    found = results(tenure=[300.0, 300.0], pgqueuer=[200.0, 200.0])
    found.cells["W1", "postgres", "pg-boss"] = Cell("2026-01-01 00:00", 100, problem="no answer within 9 s")
    found.absent["huey"] = "no wheel"

    write_page(found, page)

    text = page.read_text(encoding="utf-8")
    assert text.startswith("# By hand\n")
    assert "old" not in text
    assert "| W1 | PostgreSQL | jobs/s ≥ 1 × best peer | 1.50 | pgqueuer | ✓ |" in text
    assert "| **tenure** | 300 | 0% |  | 100 |" in text
    assert "| pgqueuer | 200 | 0% | 1.50 | 100 |" in text
    assert "no answer within 9 s" in text
    assert "| huey | not measured | no wheel |" in text


def test_what_was_saved_is_read_again_unless_its_jobs_were_of_another_number(tmp_path: Path) -> None:
    found = results(tenure=[300.0, 310.5])
    found.save(tmp_path / "figures.json")

    assert load(tmp_path / "figures.json", 1.0) == found
    assert load(tmp_path / "figures.json", 0.1).cells == {}
