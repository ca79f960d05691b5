"""The harness on a real store: Tenure's own side on SQLite stands for all sides."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import tenure
from benchmarks.contenders import CONTENDERS, EMPTY, OWN, ROOT
from benchmarks.peers.drain import percentile
from benchmarks.peers.tally import Tally
from benchmarks.protocol import Answer, Request
from benchmarks.run import ask
from benchmarks.tenure_tables import statement
from benchmarks.workloads import WORKLOADS

TENURE = CONTENDERS[OWN]


def request(do: str, folder: Path, *, jobs: int = 300, backlog: int = 0) -> Request:
    return Request(do, "sqlite", f"sqlite:///{folder / 'jobs.db'}", str(folder), jobs, backlog)


@pytest.mark.parametrize("do", ["W1", "W2", "W3a", "W3b", "W5", "W5d", "W6"])
def test_a_workload_gives_a_checked_rate(do: str, tmp_path: Path) -> None:
    hello, answer = ask(TENURE, request(do, tmp_path, backlog=2_000), 60, tmp_path / "log")

    assert (hello.peer, answer.error) == ("tenure", "")
    assert (answer.checked, answer.jobs) == (True, 300)
    assert answer.rate > 0


def test_the_drain_that_others_are_held_against_leaves_nothing_but_its_own_jobs(tmp_path: Path) -> None:
    hello, answer = ask(CONTENDERS[EMPTY], request("W6", tmp_path, backlog=2_000), 60, tmp_path / "log")

    assert (hello.peer, answer.error, answer.checked) == (EMPTY, "", True)
    assert answer.seconds == answer.values["started_seconds"]


def test_counting_what_is_left_reads_indexes_and_not_the_table(tmp_path: Path) -> None:
    """It is asked while a drain is timed: a look through a million rows made W5d seem half as fast as it is."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with tenure.App(url) as app:
        app.migrate()

    with sqlite3.connect(tmp_path / "jobs.db") as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {statement('sqlite', 'unfinished')}").fetchall()

    looks = [row[3] for row in plan if "tenure_job" in row[3]]
    assert len(looks) == 4
    assert all(" USING " in look for look in looks), looks


def test_latency_is_measured_between_processes(tmp_path: Path) -> None:
    _, answer = ask(TENURE, request("W4", tmp_path, jobs=10), 60, tmp_path / "log")

    assert answer.checked
    assert 0 < answer.values["p50_ms"] <= answer.values["p99_ms"]


def test_a_drain_that_loses_a_job_gives_no_figure(tmp_path: Path) -> None:
    """A side that deletes one waiting job must fail the check, however fast it was."""
    side = tmp_path / "thief.py"
    side.write_text(
        "import sqlite3\n"
        "from benchmarks.peers import drain\n"
        "from benchmarks.peers.harness import main, sqlite_path\n"
        "from benchmarks.tenure_side import TenureSide\n"
        "class Thief(TenureSide):\n"
        "    def fill(self, url, jobs):\n"
        "        super().fill(url, jobs)\n"
        "        with sqlite3.connect(sqlite_path(url)) as c:\n"
        "            c.execute('DELETE FROM tenure_job WHERE id = (SELECT max(id) FROM tenure_job)')\n"
        "drain.STALL_SECONDS = 5.0\n"
        "main(Thief())\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "thief"],
        input=request("W3a", tmp_path, jobs=100).to_line(),
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    answer = Answer.from_line(done.stdout)
    assert (answer.ok, answer.checked) == (False, False)
    assert "99 handler starts" in answer.error


def test_prints_of_a_library_do_not_reach_the_protocol() -> None:
    code = (
        "from benchmarks.protocol import Answer, serve\n"
        "def noisy(request):\n"
        "    print('a library says hello')\n"
        "    return Answer(ok=True, jobs=request.jobs)\n"
        "serve(noisy)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, input=Request("W1", jobs=7).to_line(), cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert json.loads(done.stdout)["jobs"] == 7
    assert "a library says hello" in done.stderr


def test_a_side_that_crashes_is_reported_with_its_last_words(tmp_path: Path) -> None:
    broken = dataclasses.replace(TENURE, module="benchmarks.no_such_side")

    _, answer = ask(broken, request("W1", tmp_path), 60, tmp_path / "log")

    assert "no_such_side" in answer.error


def test_the_tally_counts_starts_of_two_workers(tmp_path: Path) -> None:
    observer = Tally.create(tmp_path / "tally", 4)
    workers = [Tally(tmp_path / "tally", 4, slot=slot) for slot in range(2)]

    firsts = [workers[0].started(0), workers[1].started(3), workers[1].started(3)]

    assert firsts == [True, True, False]
    assert observer.count() == 3
    assert [i for i, _ in observer.starts()] == [0, 3]
    assert observer.first() == observer.start_of(0)


@pytest.mark.parametrize(("share", "expected"), [(50, 50.0), (99, 99.0), (100, 100.0)])
def test_percentiles_are_by_nearest_rank(share: int, expected: float) -> None:
    assert percentile([float(n) for n in range(1, 101)], share) == expected


def test_every_contender_names_known_workloads() -> None:
    for contender in CONTENDERS.values():
        assert set(contender.workloads) <= set(WORKLOADS)
