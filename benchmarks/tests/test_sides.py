"""The harness on a real store: the bare SQLite side needs nothing but Python, so it stands for all sides."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.bare import uuid7
from benchmarks.catalogue import CONTENDERS, ROOT
from benchmarks.goals import EMPTY
from benchmarks.peers.drain import percentile
from benchmarks.peers.tally import Tally, fails_once, turn
from benchmarks.protocol import Answer, Request
from benchmarks.run import ask
from benchmarks.workloads import WORKLOADS

# The role chooses the interpreter: the project's own has all that this side needs.
BARE_SQLITE = dataclasses.replace(CONTENDERS["bare-sqlite"], role="tenure")


def request(do: str, folder: Path, *, jobs: int = 1_200, backlog: int = 0) -> Request:
    return Request(do, "sqlite", f"sqlite:///{folder / 'jobs.db'}", str(folder), jobs, backlog)


@pytest.mark.parametrize("do", ["W1", "W2", "W3a", "W3b"])
def test_a_workload_gives_a_checked_rate(do: str, tmp_path: Path) -> None:
    hello, answer = ask(BARE_SQLITE, request(do, tmp_path), 60, tmp_path / "log")

    assert (hello.peer, hello.engines) == ("bare-sqlite", ("sqlite",))
    assert answer.error == ""
    assert answer.checked
    assert answer.jobs == 1_200
    assert answer.rate > 0


def test_latency_is_measured_between_processes(tmp_path: Path) -> None:
    _, answer = ask(BARE_SQLITE, request("W4", tmp_path, jobs=10), 60, tmp_path / "log")

    assert answer.checked
    assert 0 < answer.values["p50_ms"] <= answer.values["p99_ms"]
    assert answer.values["call_p50_ms"] >= answer.values["p50_ms"]


@pytest.mark.parametrize("do", ["W5", "W6"])
def test_a_drain_beside_many_rows_is_checked(do: str, tmp_path: Path) -> None:
    _, answer = ask(BARE_SQLITE, request(do, tmp_path, jobs=600, backlog=3_000), 60, tmp_path / "log")

    assert answer.error == ""
    assert (answer.checked, answer.jobs) == (True, 600)


@pytest.mark.parametrize("do", ["W5", "W5d", "W6"])
def test_the_drain_that_others_are_held_against_is_done_on_an_empty_store(do: str, tmp_path: Path) -> None:
    hello, answer = ask(CONTENDERS[EMPTY], request(do, tmp_path, jobs=600, backlog=3_000), 60, tmp_path / "log")

    assert (hello.peer, answer.error) == (EMPTY, "")
    assert (answer.checked, answer.jobs) == (True, 600)
    is_timed_by_starts = answer.seconds == answer.values["started_seconds"]
    assert is_timed_by_starts == (do != "W5d")
    with sqlite3.connect(tmp_path / "jobs.db") as store:
        assert store.execute("SELECT count(*) FROM tenure_job").fetchone() == (600,)
    store.close()


def test_what_a_side_cannot_do_is_said_and_is_no_failure(tmp_path: Path) -> None:
    _, answer = ask(BARE_SQLITE, request("W7", tmp_path), 60, tmp_path / "log")

    assert (answer.ok, answer.unsupported) == (False, True)


def test_a_drain_that_loses_a_job_gives_no_figure(tmp_path: Path) -> None:
    """A worker that deletes one waiting job must fail the check, however fast it was."""
    side = tmp_path / "thief.py"
    side.write_text(
        "import sqlite3, sys\n"
        "from benchmarks.bare import BareSqlite\n"
        "from benchmarks.peers.harness import main, sqlite_path\n"
        "class Thief(BareSqlite):\n"
        "    def fill(self, url, jobs, *, spread=False):\n"
        "        super().fill(url, jobs, spread=spread)\n"
        "        with sqlite3.connect(sqlite_path(url)) as c:\n"
        "            c.execute('DELETE FROM bare_job WHERE rowid = 7')\n"
        "import benchmarks.peers.drain as drain\n"
        "drain.STALL_SECONDS = 5.0\n"
        "if sys.argv[1:]:\n"
        "    sys.argv.pop(1)\n"
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
    assert not answer.ok
    assert not answer.checked
    assert "99 handler starts" in answer.error


def test_prints_of_a_library_do_not_reach_the_protocol() -> None:
    code = (
        "from benchmarks.protocol import Answer, serve\n"
        "def noisy(request):\n"
        "    print('a library says hello')\n"
        "    return Answer(ok=True, jobs=request.jobs)\n"
        "serve(noisy)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=Request("W1", jobs=7).to_line(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert json.loads(done.stdout)["jobs"] == 7
    assert "a library says hello" in done.stderr


def test_a_side_that_crashes_is_reported_with_what_it_said(tmp_path: Path) -> None:
    broken = dataclasses.replace(BARE_SQLITE, module="benchmarks.no_such_side", args=())

    _, answer = ask(broken, request("W1", tmp_path), 60, tmp_path / "log")

    assert "no_such_side" in answer.error


def test_the_tally_counts_starts_of_two_workers(tmp_path: Path) -> None:
    observer = Tally.create(tmp_path / "tally", 4)
    workers = [Tally(tmp_path / "tally", 4, slot=slot) for slot in range(2)]

    workers[0].started(0)
    workers[1].started(3)
    workers[1].started(3)

    assert observer.count() == 3
    assert [i for i, _ in observer.starts()] == [0, 3]
    assert observer.first() == observer.start_of(0)


def test_turns_are_a_permutation_and_two_percent_of_the_first_three_quarters_fail() -> None:
    jobs = 3_000

    assert sorted(turn(i, jobs) for i in range(jobs)) == list(range(jobs))
    failing = [turn(i, jobs) for i in range(jobs) if fails_once(i, jobs)]
    assert len(failing) == jobs * 3 // 4 // 50
    assert max(failing) < jobs * 3 // 4


@pytest.mark.parametrize(("share", "expected"), [(50, 50.0), (99, 99.0), (100, 100.0)])
def test_percentiles_are_by_nearest_rank(share: int, expected: float) -> None:
    assert percentile([float(n) for n in range(1, 101)], share) == expected


def test_ids_are_version_7_and_rise_with_time() -> None:
    made = [uuid7() for _ in range(3)]

    assert {(i.version, i.variant) for i in made} == {(7, "specified in RFC 4122")}


def test_every_contender_names_known_workloads_and_engines() -> None:
    for contender in CONTENDERS.values():
        assert set(contender.workloads) <= set(WORKLOADS)
        assert contender.source.exists() or contender.role == "tenure"
