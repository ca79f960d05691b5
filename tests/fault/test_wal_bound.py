"""The -wal file stays under 64 MiB while several processes enqueue, claim, settle and read (B19).

Every round enqueues half a mebibyte of payloads and writes them about six times, so that a log which no checkpoint
shortens soon exceeds the bound. `TENURE_LONG=1` enqueues a gibibyte; otherwise just enough to exceed it several times.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.conformance.engines import open_sqlite, sqlite_url
from tests.fault.conftest import make_queues
from tests.fault.crew import crew
from tests.fault.scale import LONG, TIMEOUT, scaled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT)]

MIB = 1024 * 1024
BOUND = 64 * MIB
WRITTEN = scaled(48, 1024) * MIB
WRITERS = scaled(2, 4)
ROUND_BYTES = MIB // 2
SECONDS = TIMEOUT - 30 if LONG else 120.0


def test_the_log_stays_under_its_bound_under_mixed_load(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    log = Path(f"{path}-wal")
    store = open_sqlite(path)
    make_queues(store)
    url = sqlite_url(path)
    largest = rounds = 0
    deadline = time.monotonic() + SECONDS

    with (
        crew(WRITERS, "flood", url=url, size=ROUND_BYTES) as writers,
        crew(1, "browse", url=url) as [reader],
    ):
        while rounds * ROUND_BYTES < WRITTEN:
            assert time.monotonic() < deadline, f"only {rounds} rounds in {SECONDS:.0f} s"
            for writer in writers:
                writer.listen()
                rounds += 1
                largest = max(largest, log.stat().st_size)
        for writer in writers:
            writer.finish()
        reader.listen()
        reader.finish()
    largest = max(largest, log.stat().st_size)
    store.close()

    print(f"{rounds} rounds, at most {largest / MIB:.1f} MiB")
    assert path.stat().st_size > BOUND, "too little was written to show anything"
    assert largest < BOUND
