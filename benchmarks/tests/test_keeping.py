"""Runs that are cut short, gone on with, kept apart, and kept within their minutes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import keeping
from benchmarks.catalogue import CONTENDERS, ROOT
from benchmarks.errors import BenchError
from benchmarks.plan import Estimates, spread, total
from benchmarks.run import TIMES_UP, Engines, Sample, Task, measure, measure_all, rounds_of
from benchmarks.workloads import WORKLOADS, Size


def task(workload: str, contender: str = "bare-sqlite", engine: str = "sqlite", jobs: int = 50) -> Task:
    return Task(WORKLOADS[workload], engine, CONTENDERS[contender], Size(jobs))


def sample(number: int = 0, *, seconds: float = 7.0, problem: str = "") -> Sample:
    metrics = {} if problem else {"rate": 9.0}
    return Sample("W1", "sqlite", "bare-sqlite", number, 50, metrics, 1, 1, 1, problem, seconds=seconds)


def test_two_runs_at_once_are_refused_and_the_first_is_named(tmp_path: Path) -> None:
    lock = tmp_path / "lock"

    with keeping.only_run(lock), pytest.raises(BenchError, match=f"process {os.getpid()}"), keeping.only_run(lock):
        pass
    with keeping.only_run(lock):  # and free again
        pass


def saved(path: Path, *samples: Sample, quick: bool = False) -> Path:
    content = {
        "command": "python -m benchmarks --only W1",
        "quick": quick,
        "scale": 1.0,
        "servers": {"postgres": "18"},
        "samples": [
            {"busy": False} | {name: getattr(one, name) for name in Sample.__dataclass_fields__} for one in samples
        ],
    }
    keeping.write(path, json.dumps(content))
    return path


def test_what_was_measured_is_read_again_and_what_was_not_begun_is_left_to_do(tmp_path: Path) -> None:
    path = saved(tmp_path / "run.json", sample(0), sample(1), sample(2, problem=TIMES_UP))

    earlier = keeping.read(path, is_quick=False, scale=1.0)

    assert [one.key for one in earlier.samples] == [("W1", "sqlite", "bare-sqlite", n) for n in range(2)]
    assert earlier.servers == {"postgres": "18"}


def test_a_run_of_other_sizes_or_none_at_all_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "run.json", sample(), quick=True)

    with pytest.raises(BenchError, match="other numbers of jobs"):
        keeping.read(path, is_quick=False, scale=1.0)
    with pytest.raises(BenchError, match="no earlier run"):
        keeping.read(tmp_path / "none.json", is_quick=False, scale=1.0)


def test_an_earlier_run_is_the_estimate(tmp_path: Path) -> None:
    estimates = Estimates(tmp_path / "seconds.json")
    estimates.learn(task("W1"), sample(seconds=12.3))
    estimates.learn(task("W2"), sample(seconds=99.0, problem="no answer"))
    estimates.save()

    again = Estimates(tmp_path / "seconds.json")

    assert again.first(task("W1")) == 12.3
    assert again.first(task("W2")) < 99
    assert total([(0, task("W1")), (1, task("W1"))], again) == 24.6


def test_a_filled_store_costs_less_the_second_time(tmp_path: Path) -> None:
    estimates = Estimates(tmp_path / "seconds.json")
    big = Task(WORKLOADS["W5"], "sqlite", CONTENDERS["tenure"], WORKLOADS["W5"].full)

    assert estimates.later(big) < estimates.first(big)


def test_a_budget_gives_each_group_one_round_before_any_gets_two(tmp_path: Path) -> None:
    estimates = Estimates(tmp_path / "seconds.json")
    tasks = [task("W1"), task("W2"), task("W3a", "tenure")]
    for one, seconds in zip(tasks, (10.0, 20.0, 60.0), strict=True):
        estimates.learn(one, sample(seconds=seconds))

    assert spread(tasks, 90 / 60, estimates) == {"W1 sqlite": 1, "W2 sqlite": 1, "W3a sqlite": 1}
    assert spread(tasks, 131 / 60, estimates) == {"W1 sqlite": 3, "W2 sqlite": 2, "W3a sqlite": 1}
    assert spread(tasks, 35 / 60, estimates) == {"W1 sqlite": 1, "W2 sqlite": 1, "W3a sqlite": 0}
    assert set(spread(tasks, 35 / 60, estimates, least=1).values()) == {1}
    assert [one.workload.name for _, one in rounds_of(tasks, {"W1 sqlite": 2, "W2 sqlite": 1})] == ["W1", "W2", "W1"]


def test_a_stopped_run_begins_nothing_more_and_keeps_what_it_has(tmp_path: Path) -> None:
    kept: list[Sample] = []

    with Engines(tmp_path) as engines:
        measure_all([(0, task("W1"))], engines, keep=kept.append, is_stopped=lambda: True)
        measure_all([(0, task("W1"))], engines, keep=kept.append, broken=[sample(problem="it broke")])

    assert [one.problem for one in kept] == ["it broke"]


def test_what_the_budget_cuts_off_is_no_fault_of_the_contender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.run.LAST_SECONDS", 0.0)
    waiting = Task(WORKLOADS["W1"], "sqlite", CONTENDERS["tenure"], Size(1_000_000))

    with Engines(tmp_path) as engines:
        assert measure(waiting, 0, engines, left=0.3).problem == TIMES_UP


@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_with_a_page_of_what_there_is(tmp_path: Path, number: signal.Signals) -> None:
    """The run itself, on the side that needs nothing but Python; it goes on afterwards from where it was."""
    if not (ROOT / ".bench" / "installed.json").exists():
        pytest.skip("the peers are not installed; `make bench` does it")
    found, page = tmp_path / "run.json", tmp_path / "out" / "page.md"
    page.parent.mkdir()
    command = [sys.executable, "-c", RUN, str(tmp_path / "lock")]
    arguments = ["--only", "W1@sqlite", "--peers", "none", "--scale", "0.02", "--json", str(found), "--page", str(page)]
    with subprocess.Popen(
        [*command, *arguments, "--rounds", "500"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            deadline = time.monotonic() + 180
            while not found.exists():
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
            process.send_signal(number)
            _, said = process.communicate(timeout=180)
        finally:
            process.kill()

    samples = samples_in(found)
    assert process.returncode == 130, said
    assert "--resume" in said
    assert 0 < len(samples) < 1000
    assert all(one["metrics"] for one in samples)
    assert "**Cut short**" in page.read_text()

    rounds = str(1 + max(one["round"] for one in samples))
    done = subprocess.run(
        [*command, *arguments, "--rounds", rounds, "--resume"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    again = samples_in(found)
    assert again[: len(samples)] == samples
    assert len(again) == 2 * int(rounds)


def samples_in(path: Path) -> list[dict[str, Any]]:
    """What was measured; how busy that seems depends on what comes later."""
    found = json.loads(path.read_text(encoding="utf-8"))["samples"]
    return [{name: value for name, value in one.items() if name != "busy"} for one in found]


RUN = """\
import sys
from pathlib import Path
from benchmarks import keeping
lock = Path(sys.argv.pop(1))
own = keeping.only_run
keeping.only_run = lambda: own(lock)
from benchmarks.__main__ import main
sys.exit(main())
"""
