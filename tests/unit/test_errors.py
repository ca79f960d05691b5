"""Sentences that errors share."""

from __future__ import annotations

from tenure.errors import nearest


def test_a_list_of_known_names_says_what_it_leaves_out() -> None:
    """It was cut off after twelve, so that options such as `queue` seemed not to exist."""
    assert nearest("zzz", ["b", "a"]) == " Known: a, b."
    assert nearest("zzz", (f"n{number:02}" for number in range(32))).endswith("n28, n29 and 2 more.")
