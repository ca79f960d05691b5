"""Workloads in turns: what the command refuses, and what it prints of real drains."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.catalogue import CONTENDERS
from benchmarks.in_turns import main, measure_in_turns
from benchmarks.run import Engines, Task
from benchmarks.workloads import WORKLOADS, Size


@pytest.mark.parametrize("cell", ["W33", "W3a:grafile-worker"])
def test_a_cell_that_does_not_exist_is_refused(cell: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--engine", "sqlite", cell])

    assert left.value.code == 2
    assert f"there is no '{cell}'" in capsys.readouterr().err


def test_each_round_has_every_cell_and_the_first_is_what_they_are_divided_by(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = [Task(WORKLOADS[name], "sqlite", CONTENDERS["tenure"], Size(60, 0, 0)) for name in ("W1", "W3a")]
    with Engines(tmp_path) as engines:
        measure_in_turns(tasks, 2, engines)

    *rounds, first, second = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in rounds] == [
        "1 W1 sqlite tenure",
        "1 W3a sqlite tenure",
        "2 W3a sqlite tenure",
        "2 W1 sqlite tenure",
    ]
    assert first == "W1 sqlite tenure: 1.00 (1.00 to 1.00)"
    assert second.startswith("W3a sqlite tenure: ")
