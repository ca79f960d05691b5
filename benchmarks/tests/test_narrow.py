"""The study of two layouts: both end every job, and the narrow one writes fewer pages."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from benchmarks.narrow import BATCH, LAYOUTS, drain


def test_both_layouts_end_every_job_and_the_narrow_one_writes_fewer_pages(tmp_path: Path) -> None:
    pages = {}
    for number, (name, layout) in enumerate(LAYOUTS.items()):
        path = tmp_path / f"{number}.db"
        _, pages[name] = drain(path, 5 * BATCH, *layout)
        connection = sqlite3.connect(path)
        states = connection.execute("SELECT state, token, count(*) FROM bare_job GROUP BY state, token").fetchall()
        connection.close()
        assert states == [("succeeded", 1, 5 * BATCH)]

    wide, narrow = pages.values()
    assert narrow < 0.8 * wide
