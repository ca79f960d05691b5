"""Ids rise strictly within a process, whoever asks, and never repeat after a fork."""

from __future__ import annotations

import os
import threading
import time
import uuid

import pytest

from tenure.model import ids
from tenure.model.ids import id_prefix, new_job_id, new_job_ids, new_worker_id


def test_an_id_is_a_version_seven_uuid_of_now() -> None:
    before = time.time_ns() // 1_000_000

    made = uuid.UUID(new_job_id())

    after = time.time_ns() // 1_000_000
    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert before <= made.int >> 80 <= after + 1


def test_a_hundred_thousand_ids_rise_strictly() -> None:
    made = [*new_job_ids(50_000), *(new_job_id() for _ in range(50_000))]

    assert made == sorted(set(made))
    assert len(made) == 100_000


def test_ids_rise_when_the_clock_jumps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    first = new_job_id()
    behind = time.time_ns() - 3_600 * 10**9

    monkeypatch.setattr(time, "time_ns", lambda: behind)
    second = new_job_id()

    assert second > first


def test_ids_rise_when_the_counter_of_a_millisecond_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "_last_ms", (1 << 41))
    monkeypatch.setattr(ids, "_counter", (1 << 26) - 3)

    made = new_job_ids(6)

    assert made == sorted(set(made))
    assert all(uuid.UUID(one).version == 7 for one in made)


def test_each_thread_sees_its_ids_rise_and_no_two_are_equal() -> None:
    per_thread: list[list[str]] = []
    ready = threading.Barrier(8)

    def make() -> None:
        ready.wait()
        per_thread.append([new_job_id() for _ in range(2_000)])

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert all(made == sorted(made) for made in per_thread)
    assert len({one for made in per_thread for one in made}) == 16_000


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_makes_ids_of_its_own() -> None:
    new_job_id()
    reader, writer = os.pipe()

    pid = os.fork()
    if pid == 0:
        os.write(writer, "\n".join(new_job_ids(200)).encode())
        os._exit(0)
    os.close(writer)
    own = set(new_job_ids(200))
    with os.fdopen(reader) as pipe:
        theirs = pipe.read().split()
    _, status = os.waitpid(pid, 0)

    assert status == 0
    assert len(set(theirs)) == 200
    assert theirs == sorted(theirs)
    assert not own & set(theirs)


def test_worker_ids_name_the_process_and_differ() -> None:
    first, second = new_worker_id(), new_worker_id()

    assert first != second
    assert f"-{os.getpid()}-" in first


@pytest.mark.parametrize("last", ["e", "f"])
def test_the_beginning_of_an_id_is_found_below_the_first_id_beyond_it(last: str) -> None:
    """An id that ends with f was not found by all of its characters but the last."""
    job_id = f"01a1f591-f674-7247-81d3-d9f0b622ad2{last}"

    typed = id_prefix(f"{job_id[:-1]}…")

    assert typed is not None
    digits, above = typed
    assert job_id.replace("-", "").startswith(digits)
    assert job_id < above == "01a1f591-f674-7247-81d3-d9f0b622ad30"
