"""The command: what it refuses, and what it writes."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from benchmarks import environment, servers
from benchmarks.__main__ import main
from benchmarks.catalogue import CONTENDERS, ROOT
from benchmarks.errors import BenchError
from benchmarks.goals import GOALS, PROFILES
from benchmarks.plot import Bar, bars
from benchmarks.report import Results, to_json, write_page
from benchmarks.run import Sample


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

    with pytest.raises(BenchError, match="No PostgreSQL answers at") as found, servers.postgres(tmp_path, url):
        pass

    assert "127.0.0.1:1" in str(found.value)
    assert "secret" not in str(found.value)


def test_a_peer_that_could_not_be_installed_is_absent_with_the_reason() -> None:
    packages = {"huey": environment.Package("huey", "3.5.4", "no matching distribution")}

    assert "no matching distribution" in environment.missing(CONTENDERS["huey"], packages)
    assert "not among the pinned versions" in environment.missing(CONTENDERS["saq"], packages)


def results(*samples: Sample) -> Results:
    return Results("2026-01-01", "python -m benchmarks", 2, False, {"cores": "2"}, {}, {"rq": "no wheel"}, {}, samples)


def two_rounds(contender: str, rate: float, problem: str = "") -> list[Sample]:
    metrics = {} if problem else {"rate": rate}
    return [Sample("W1", "postgres", contender, n, 10, metrics, 30, 30, 9, problem, False, "1.0") for n in range(2)]


def test_the_page_has_goals_figures_plots_and_reasons(tmp_path: Path) -> None:
    found = results(
        *two_rounds("tenure", 300.0), *two_rounds("pgqueuer", 200.0), *two_rounds("saq", 0, "no answer within 9 s")
    )

    write_page(found, tmp_path / "benchmarks.md")

    page = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert "| W1 | PostgreSQL | jobs/s ≥ 1.3 × best peer | 1.50 × | pgqueuer | ✓ reached |" in page
    assert "| **tenure** | 300 | 0% | 1.50 | – | 10 |" in page
    assert "no answer within 9 s" in page
    assert "| rq | not measured | no wheel |" in page
    links = re.findall(r"\]\((\S+)\)", page)
    assert {Path(link).suffix for link in links} == {".svg", ".json"}
    assert all((tmp_path / link).exists() for link in links)


def test_the_page_says_what_the_run_left_out_and_leads_to_the_guide_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "operate").mkdir()
    (tmp_path / "operate" / "measure.md").write_text("# Measure\n", encoding="utf-8")
    found = dataclasses.replace(results(*two_rounds("tenure", 300.0)), is_cut_short=True, scale=0.5)

    write_page(found, tmp_path / "benchmarks.md")

    page = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert "(operate/measure.md)" in page
    assert "**Cut short**" in page
    assert "multiplied by 0.5" in page
    assert re.search(r"\*\*Not in this run:\*\* graphile-worker, pg-boss, pgqueuer", page)
    assert re.search(r"\*\*Workloads not in this run:\*\* W1c, W2, W3a", page)
    assert "no figure for best peer" in page


def test_a_goal_that_was_not_reached_leads_to_its_profile(tmp_path: Path) -> None:
    profile = tmp_path / PROFILES["W1", "postgres"]
    profile.parent.mkdir()
    profile.write_text("# Why\n", encoding="utf-8")

    write_page(results(*two_rounds("tenure", 129.0), *two_rounds("pgqueuer", 100.0)), tmp_path / "benchmarks.md")

    page = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert f"| 1.29 × | pgqueuer | ✗ not reached ([why]({PROFILES['W1', 'postgres']})) |" in page


def test_every_profile_is_there_and_belongs_to_a_goal() -> None:
    assert [path for path in PROFILES.values() if not (ROOT / "docs" / path).exists()] == []
    assert set(PROFILES) <= {(goal.workload, goal.engine) for goal in GOALS}


def test_a_figure_that_is_not_trusted_is_never_shown_bare(tmp_path: Path) -> None:
    shaky = [Sample("W1", "postgres", "pgqueuer", n, 10, {"rate": r}, 30, 30, 9) for n, r in enumerate((100.0, 300.0))]

    write_page(results(*shaky), tmp_path / "benchmarks.md")

    page = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    plot = next((tmp_path / "benchmarks").glob("*.svg")).read_text(encoding="utf-8")
    assert "| pgqueuer | ~200 | 100%" in page
    assert ">~200<" in plot


def test_the_json_holds_samples_figures_and_goals() -> None:
    content = json.loads(to_json(results(*two_rounds("tenure", 300.0), *two_rounds("pgqueuer", 200.0))))

    assert len(content["samples"]) == 4
    assert {goal["status"] for goal in content["goals"]} == {"reached", "not measured"}
    own = next(figure for figure in content["figures"] if figure["contender"] == "tenure")
    assert own["to_best_peer"]["value"] == 1.5


def test_a_plot_escapes_what_it_is_given() -> None:
    drawn = bars("a < b", "jobs/s", [Bar("x & y", 3.0, "3", "peer"), Bar("tenure", 9.0, "9", "tenure", mark=12.0)])

    assert "a &lt; b" in drawn
    assert "x &amp; y" in drawn
    assert drawn.count("<rect") == 2
