"""A job that gives out far more than its streams keep: the rest is dropped and said so, and the worker stays small.

`TENURE_LONG=1` gives out a gibibyte; otherwise several times of what is kept.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tenure import App
from tenure.model.stream import JOB_BYTES
from tests.fault.scale import TIMEOUT, scaled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT)]

CHILD = Path(__file__).with_name("children") / "flood_stream.py"
MIB = 1024 * 1024
TOTAL = scaled(64, 1024) * MIB
WHOLE = scaled(64, 256) * MIB
GROWTH = 32 * MIB
"""What a worker may need beside the text itself, whatever the job gives out."""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'streams.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.mark.parametrize(
    ("total", "piece", "bound"),
    [(TOTAL, 64 * 1024, GROWTH), (TOTAL, 512, GROWTH), (WHOLE, WHOLE, WHOLE + GROWTH)],
    ids=["pieces", "small pieces", "in one piece"],
)
def test_a_stream_of_far_too_much_is_cut_and_the_worker_stays_small(
    url: str, total: int, piece: int, bound: int
) -> None:
    command = [sys.executable, str(CHILD), url, str(total), str(piece)]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT).stdout) * 1024

    print(f"{total / MIB:.0f} MiB given out, the peak of memory grew by {grown / MIB:.1f} MiB")
    with App(url) as app:
        [job] = [one for one in app.jobs().items if one.result == total]
        kept = list(app.streams.follow(job.id))
        assert job.state == "succeeded"
    assert kept[-1].kind == "truncated"
    assert {one.text.strip("x") for one in kept} == {""}
    assert JOB_BYTES * 0.9 < sum(len(one.text) for one in kept) <= JOB_BYTES
    assert grown <= bound
