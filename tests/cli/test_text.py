"""What is shown is harmless, whatever strangers put into their jobs (S20)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.cli import text
from tenure.cli.options import duration
from tenure.errors import UsageError

NASTY = "\x1b]0;owned\x07\x1b[2J\r\nforged\tline\x9b31m\u202egnp.exe\u2028\x00\x7f"


@given(st.text())
def test_a_safe_line_has_no_character_that_a_terminal_obeys(given_text: str) -> None:
    shown = text.safe(given_text)

    assert not [char for char in shown if ord(char) < 32 or 127 <= ord(char) < 160]
    assert "\u202e" not in shown
    shown.encode()


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)))
def test_json_means_the_same_after_it_was_made_harmless(value: object) -> None:
    for indent in (None, 2):
        told = text.to_json(value, indent=indent)

        assert json.loads(told) == value
        assert not [char for char in told.replace("\n", "") if ord(char) < 32 or 127 <= ord(char) < 160]


def test_an_escape_sequence_is_shown_by_its_number() -> None:
    assert text.safe("\x1b[31mred\x9b") == "\\x1b[31mred\\x9b"
    assert text.safe("\u202e") == "\\u202e"
    assert text.safe_lines("one\n\x1btwo") == "one\n\\x1btwo"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0, "0ms"), (0.32, "320ms"), (4.21, "4.2s"), (59.6, "1m"), (192, "3m 12s"), (18_120, "5h 2m"), (-3, "-3.0s")],
)
def test_durations_are_told_in_two_parts_at_most(seconds: float, shown: str) -> None:
    assert text.seconds(seconds) == shown


def test_ages_look_both_ways() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)

    assert text.ago(now - timedelta(seconds=75), now) == "1m 15s ago"
    assert text.ago(now + timedelta(hours=2), now) == "in 2h"


@pytest.mark.parametrize(
    ("words", "seconds"), [("90", 90), ("1.5", 1.5), ("250ms", 0.25), ("5m", 300), ("1h30m", 5400), ("2d", 172_800)]
)
def test_durations_are_read_as_people_write_them(words: str, seconds: float) -> None:
    assert duration(words) == pytest.approx(seconds)


@pytest.mark.parametrize("words", ["", "soon", "5x", "m5", "1h 30", "-5", "1h30"])
def test_what_is_no_duration_is_refused(words: str) -> None:
    with pytest.raises(Exception, match="is no duration") as caught:
        duration(words)
    assert not isinstance(caught.value, UsageError)  # Typer adds the option's name and ends with 2


def test_pieces_of_a_stream_join_to_its_lines() -> None:
    pieces = ["one ", "two\n", "\n", "three \x1b[31m\n"]

    assert "".join(map(text.safe_piece, pieces)) == "one two\n\nthree \\x1b[31m\n"
