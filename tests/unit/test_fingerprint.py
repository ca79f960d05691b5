"""Failures that differ only in what varies have one fingerprint."""

from __future__ import annotations

import pytest

from tenure.model.fingerprint import fingerprint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Timeout after 30 s", "Timeout after 45 s"),
        ("no user 0198c7a2-7b1c-7000-8000-0123456789ab", "no user 0198c7a2-ffff-7000-8000-0123456789AB"),
        ("<object at 0x7f00aa>", "<object at 0x7f11bb>"),
        ("HTTP 503", "http 504"),
        ("ValueError: bad\nTraceback line 1", "ValueError: bad\nTraceback line 2, elsewhere"),
    ],
)
def test_what_varies_does_not_count(one: str, other: str) -> None:
    assert fingerprint("error", one) == fingerprint("error", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("error", "disk full"), ("error", "no route to host")),
        (("error", "disk full"), ("timeout", "disk full")),
        (("error", None), ("error", "None")),
    ],
)
def test_what_differs_counts(one: tuple[str, str | None], other: tuple[str, str | None]) -> None:
    assert fingerprint(*one) != fingerprint(*other)


def test_a_fingerprint_is_sixteen_hex_digits_also_without_an_error() -> None:
    assert len(bytes.fromhex(fingerprint("crash", None))) == 8
    assert fingerprint("crash", None) == fingerprint("crash", "")
