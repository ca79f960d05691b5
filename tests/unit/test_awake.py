"""Who stays awake for an answer, for how long, and when it gives way: by counts, on a clock of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from tenure.store.postgres.awake import Awake, Permit, Ready
from tenure.store.processors import processors

READY: Ready = [(3, 1)]
LOOK = 2e-6
QUICK = 300e-6
WAKE_UP = 80e-6
"""What it takes to wake up, once the answer is there."""


class Line:
    """A connection whose answers come when the test says, and a clock that only waiting moves."""

    def __init__(self, permit: Permit | None = None) -> None:
        self.permit = permit or Permit()
        self.now = 0.0
        self.looks = self.sleeps = self.offers = 0
        self.slept_for: list[float] = []
        self.away = 0.0
        """How long others keep what they are offered."""
        self.burden = 0.0
        """How much later an answer comes while somebody looks for it."""
        self._answer_at = 0.0
        self._awake = Awake(self._poll, self.permit, clock=lambda: self.now, give_way=self._give_way)

    def call(self, seconds: float = QUICK, *, patience: float = 60.0) -> Ready:
        """Wait for an answer that comes after so many seconds."""
        self._answer_at = self.now + seconds
        return self._awake.poll(1000 * patience)

    def call_many(self, count: int, seconds: float = QUICK) -> int:
        """How many of the calls stayed awake until their answer came."""
        before = self.sleeps
        for _ in range(count):
            assert self.call(seconds) == READY
        return count - (self.sleeps - before)

    def pauses(self, count: int, seconds: float = QUICK) -> list[int]:
        """How many calls in a row did not look, each time that some did not, until there were `count` such times."""
        found, silent = list[int](), 0
        while len(found) < count:
            before = self.looks
            self.call(seconds)
            if self.looks == before:
                silent += 1
            elif silent:
                found.append(silent)
                silent = 0
        return found

    def _poll(self, milliseconds: float) -> Ready:
        if milliseconds == 0:
            self.looks += 1
            self.now += LOOK
            return READY if self.now >= self._answer_at + self.burden else []
        self.sleeps += 1
        self.slept_for.append(milliseconds / 1000)
        if self._answer_at > self.now + milliseconds / 1000:
            self.now += milliseconds / 1000
            return []
        self.now = max(self.now, self._answer_at) + WAKE_UP
        return READY

    def _give_way(self) -> None:
        self.offers += 1
        self.now += self.away


@pytest.fixture
def line() -> Line:
    """A connection that is known to answer quickly."""
    made = Line()
    made.call_many(32)
    return made


def test_a_new_connection_sleeps_until_it_is_known_how_long_its_answers_take() -> None:
    line = Line()

    assert line.call_many(32) == 0
    assert line.looks == 0
    assert line.call_many(1) == 1


def test_a_quick_answer_is_found_without_sleep(line: Line) -> None:
    assert line.call_many(50) == 50
    assert line.looks == pytest.approx(50 * QUICK / LOOK, rel=0.02)


def test_the_processor_is_offered_to_others_between_any_two_looks(line: Line) -> None:
    line.call()

    assert line.looks > 100
    assert line.offers == line.looks - 1


def test_nobody_stays_awake_on_a_connection_whose_answers_take_long() -> None:
    line = Line()

    assert line.call_many(500, 0.002) == 0
    assert line.looks == 0


def test_nobody_stays_awake_for_a_caller_who_seldom_calls() -> None:
    line = Line()

    for _ in range(500):
        line.call()
        line.now += 0.01

    assert line.looks == 0


def test_the_first_calls_awake_may_be_slow(line: Line) -> None:
    """The server's session is still on the caller's processor."""
    line.burden = 200e-6
    assert line.call_many(48) == 48
    line.burden = 0.0

    assert line.call_many(80) == 80


def test_a_caller_who_is_held_up_after_its_answers_goes_to_sleep(line: Line) -> None:
    """It had its share of the processor while it stayed awake, and waits for it now."""
    awake = 0
    for _ in range(10_000):
        was_awake = line.call_many(1)
        awake += was_awake
        line.now += 150e-6 * was_awake

    assert awake < 1500


def test_a_connection_that_was_slow_is_watched_for_a_while_before_it_is_believed_to_be_quick() -> None:
    line = Line()
    line.call_many(100, 0.002)

    [asleep] = line.pauses(1)

    assert 32 < asleep < 48


def test_an_answer_that_does_not_come_is_waited_for_awake_for_a_millisecond_and_then_asleep(line: Line) -> None:
    line.slept_for.clear()

    assert line.call(5.0) == READY

    assert line.looks == pytest.approx(0.001 / LOOK, rel=0.02)
    assert line.slept_for == [pytest.approx(59.999, abs=1e-5)]


@pytest.mark.parametrize("patience", [0.0005, 0.25])
def test_no_more_time_is_spent_than_the_caller_has(line: Line, patience: float) -> None:
    before = line.now

    assert line.call(5.0, patience=patience) == []
    assert line.now - before == pytest.approx(patience, abs=1e-5)


def test_whoever_finds_another_at_work_sleeps_for_longer_each_time(line: Line) -> None:
    line.away = 0.005

    assert line.pauses(7) == [32, 64, 128, 256, 512, 1024, 1024]
    assert line.looks == 2 * (3 * 7 + 1), "three calls each time, which look before they give way and after it"


def test_one_that_was_away_for_long_goes_to_sleep_at_once(line: Line) -> None:
    line.away = 0.005

    line.call(0.006)

    assert line.looks == 2
    assert line.offers == 1


def test_it_is_no_reason_to_sleep_that_others_had_the_processor_for_a_moment(line: Line) -> None:
    line.away = 50e-6

    assert line.call_many(128) == 128
    assert line.call_many(32) == 0
    assert line.call_many(512) == 512


def test_to_stay_awake_in_vain_is_given_up(line: Line) -> None:
    before = line.looks
    for _ in range(8):
        line.call(0.003)
    looks = line.looks

    assert looks - before == pytest.approx(8 * 0.001 / LOOK, rel=0.02)
    for _ in range(32):
        line.call(0.003)
    assert line.looks == looks


def test_answers_that_come_later_to_one_who_stays_awake_send_it_to_sleep(line: Line) -> None:
    """The server has to make room for us: asleep an answer takes 380 µs, awake 500."""
    line.burden = 200e-6

    assert line.call_many(10_000) < 1500


def test_after_a_calm_while_the_next_pause_is_short_again(line: Line) -> None:
    line.away = 0.005
    assert line.pauses(3) == [32, 64, 128]

    line.away = 0.0
    line.call_many(127 + 32 + 512)
    line.away = 0.005

    assert line.pauses(3) == [32, 32, 64], "the first is the one that a calm stay ends with"


def test_calls_without_trouble_stay_awake_for_longer_each_time_and_sleep_in_between(line: Line) -> None:
    for stay in (128, 512, 2048, 4096, 4096):
        assert line.call_many(stay) == stay
        assert line.call_many(32) == 0


def test_one_thread_of_a_process_stays_awake_at_a_time(line: Line) -> None:
    other = Line(line.permit)
    other.call_many(32)

    assert line.permit.take()
    assert other.call_many(10) == 0
    line.permit.give(0)

    assert other.call_many(10) == 10


def test_all_connections_of_a_process_pause_together(line: Line) -> None:
    other = Line(line.permit)
    other.call_many(32)
    line.away = 0.005

    line.call_many(3)

    assert other.call_many(32) == 0
    assert other.call_many(1) == 1


def test_one_who_is_interrupted_while_awake_leaves_it_to_the_next() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    permit = Permit()
    line = Line(permit)
    line.call_many(32)
    line._awake._give_way = interrupt

    with pytest.raises(KeyboardInterrupt):
        line.call()

    assert permit.take()


def test_a_child_may_stay_awake_though_its_parent_did_when_it_forked() -> None:
    script = """
        import os
        from tenure.store.postgres.awake import PERMIT

        assert PERMIT.take()
        child = os.fork()
        if child == 0:
            os._exit(0 if PERMIT.take() else 1)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        assert not PERMIT.take()
    """

    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


def test_processors_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5}, raising=False)
    assert processors() == 1

    monkeypatch.delattr(os, "sched_getaffinity")
    assert processors() == 8
