"""Secrets do not show: by value in any form, by key at any depth, by shape; and nothing else is hidden."""

from __future__ import annotations

import base64
import json
import time
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.sandbox.redact import ERROR_CHARACTERS, REDACTED, RedactedStream, Redactor

SECRET = 's3cr3t/päss+wörd="x"&y z'
REDACTOR = Redactor([SECRET, "hunter2-canary"])
CANARY = "hunter2-canary"


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        quote(SECRET),
        quote(SECRET, safe=""),
        quote_plus(SECRET),
        SECRET.encode().hex(),
        SECRET.encode().hex().upper(),
        json.dumps(SECRET),
        json.dumps(SECRET, ensure_ascii=False),
        repr(SECRET),
    ],
)
def test_a_known_value_is_found_in_every_form(form: str) -> None:
    shown = REDACTOR.text(f"before {form} after")

    assert form not in shown
    assert shown.startswith("before ")
    assert shown.endswith(" after")
    assert REDACTED in shown


@given(before=st.binary(max_size=9), after=st.binary(max_size=9), urlsafe=st.booleans())
def test_a_known_value_inside_base64_is_found_at_every_offset(before: bytes, after: bytes, urlsafe: bool) -> None:
    encode = base64.urlsafe_b64encode if urlsafe else base64.b64encode

    encoded = encode(before + CANARY.encode() + after).decode()

    shown = REDACTOR.text(encoded)

    assert REDACTED in shown
    hidden = len(encoded) - len(shown.replace(REDACTED, ""))
    assert hidden >= len(CANARY) * 8 // 6 - 2, "at most a few bits at either edge may stay"


@given(st.text(max_size=200), st.text(max_size=200))
def test_a_known_value_never_stays(before: str, after: str) -> None:
    assert CANARY not in REDACTOR.text(before + CANARY + after)


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300))
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = REDACTOR.text(text)

    assert REDACTOR.text(once) == once


def test_a_secret_of_several_lines_is_hidden_line_by_line() -> None:
    redactor = Redactor(["first line of a key\nsecond line of a key"], shapes=False)

    assert redactor.text("log: second line of a key!") == f"log: {REDACTED}!"


def test_very_short_values_are_ignored_for_they_would_hide_everything() -> None:
    assert Redactor(["a", "12", ""]).text("a 12 banana") == "a 12 banana"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("password=abc&x=1", "password=[redacted]&x=1"),
        ("PGPASSWORD=abc psql", "PGPASSWORD=[redacted] psql"),
        ('{"api_key": "xyz", "n": 1}', '{"api_key": "[redacted]", "n": 1}'),
        ('{"password": "a \\" b", "n": 1}', '{"password": "[redacted]", "n": 1}'),
        ('{\\"apiKey\\": \\"xyz\\", \\"n\\": \\"y\\"}', '{\\"apiKey\\": \\"[redacted]\\", \\"n\\": \\"y\\"}'),
        ("Authorization: Bearer abc.def", "Authorization: Bearer [redacted]"),
        ("x-api-key: kkk", "x-api-key: [redacted]"),
        ("AWS_SECRET_ACCESS_KEY=foo bar", "AWS_SECRET_ACCESS_KEY=[redacted] bar"),
        ("awsSecretKey='zz zz'", "awsSecretKey='[redacted]'"),
        ("password: 123456", "password: [redacted]"),
        ("postgresql://user:pa:ss@host/db", "postgresql://user:[redacted]@host/db"),
        ("key sk-" + "ab12" * 7 + "!", "key [redacted]!"),
        ("AKIAIOSFODNN7EXAMPLE and more", "[redacted] and more"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.abc-def", "[redacted]"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----\nx", "[redacted]\nx"),
        ("-----BEGIN PRIVATE KEY-----\nMII cut", "[redacted]"),
    ],
)
def test_secrets_that_nobody_told_us_about_are_known_by_key_or_shape(text: str, shown: str) -> None:
    assert Redactor().text(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "tokens: 5 token=7 max_tokens=9 token_count: 12",
        "author: somebody, authority = none",
        "password: null, secret=false",
        "task-aaaaaaaaaaaaaaaaaaaaaaaaaaaa is done",
        "https://example.com:8080/a@b",
        "the secret of success",
        "File 'x.py', line 3, in handler",
    ],
)
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert Redactor().text(text) == text


def test_data_is_redacted_by_key_at_any_depth_and_by_value_anywhere() -> None:
    data = {
        "token": 5,
        "accessToken": "abc",
        "password": 123456,
        "API-KEY": ["a", "b"],
        "deep": [{"nested": {"x_client_secret": {"a": 1}, "note": f"it is {CANARY}"}}],
        f"key with {CANARY}": 1,
        "usage": {"input_tokens": 7, "max_tokens": 9},
        "author": "me",
        "secret": None,
        "auth": True,
        "pair": ("a", CANARY),
        "raw": CANARY.encode(),
    }

    assert REDACTOR.data(data) == {
        "token": 5,
        "accessToken": REDACTED,
        "password": REDACTED,
        "API-KEY": REDACTED,
        "deep": [{"nested": {"x_client_secret": REDACTED, "note": f"it is {REDACTED}"}}],
        f"key with {REDACTED}": 1,
        "usage": {"input_tokens": 7, "max_tokens": 9},
        "author": "me",
        "secret": None,
        "auth": True,
        "pair": ["a", REDACTED],
        "raw": REDACTED,
    }
    assert data["password"] == 123456, "the original is left alone"


def test_bottomless_data_is_cut_and_not_followed() -> None:
    data: list[object] = []
    data.append(data)

    assert REDACTED in repr(REDACTOR.data(data))


def test_own_keys_replace_the_known_ones() -> None:
    redactor = Redactor(keys=["patient_name"])

    assert redactor.data({"patientName": "x", "password": "y"}) == {"patientName": REDACTED, "password": "y"}
    assert redactor.text("Patient-Name: x") == f"Patient-Name: {REDACTED}"


def test_without_keys_and_shapes_only_values_count() -> None:
    redactor = Redactor([CANARY], keys=[], shapes=False)

    assert redactor.text(f"password=x {CANARY}") == f"password=x {REDACTED}"


def test_a_long_error_keeps_its_start_and_its_end() -> None:
    shown = REDACTOR.bounded("START" + "x" * 1_000_000 + "ValueError: END")

    assert len(shown) == ERROR_CHARACTERS
    assert shown.startswith("START")
    assert shown.endswith("ValueError: END")
    assert "characters left out" in shown
    assert REDACTOR.bounded("short") == "short"


@given(st.integers(min_value=0, max_value=3000), st.integers(min_value=40, max_value=400))
def test_no_half_of_a_secret_stays_at_the_cut(position: int, limit: int) -> None:
    text = "." * position + CANARY * 3 + "." * (3000 - position)

    shown = REDACTOR.bounded(text, limit)

    assert len(shown) <= limit
    assert not any(CANARY[start : start + 6] in shown for start in range(len(CANARY) - 5))


def test_a_hundred_megabytes_cost_no_more_than_a_few_kilobytes() -> None:
    text = "x" * 100_000_000 + CANARY
    began = time.process_time()

    shown = REDACTOR.bounded(text)

    assert time.process_time() - began < 1.0
    assert shown.endswith(REDACTED)


@pytest.mark.parametrize("unit", ["a", "a_", "token", "a://", "eyJaaaaaaaaaaaa", "password=", "-----BEGIN PRIVATE KEY"])
def test_hostile_text_takes_no_more_than_linear_time(unit: str) -> None:
    small, large = (unit * (size // len(unit)) for size in (50_000, 400_000))

    assert _seconds(large) < 40 * max(_seconds(small), 0.005)


def _seconds(text: str) -> float:
    began = time.process_time()
    REDACTOR.text(text)
    return time.process_time() - began


@given(st.lists(st.integers(min_value=1, max_value=9), min_size=1, max_size=30), st.booleans())
def test_a_secret_cut_by_the_pieces_of_a_stream_is_found(sizes: list[int], ends_in_line: bool) -> None:
    text = f"line one\nhere {CANARY} is\n{CANARY}" + ("\n" if ends_in_line else "")
    stream, shown, at = RedactedStream(REDACTOR), "", 0
    for size in sizes * 20:
        shown += stream.feed(text[at : at + size])
        at += size
    shown += stream.feed(text[at:]) + stream.flush()

    assert shown == text.replace(CANARY, REDACTED)


def test_a_stream_without_lines_is_shown_in_time_and_whole() -> None:
    stream = RedactedStream(REDACTOR)
    shown = "".join(stream.feed("x" * 999) for _ in range(100))
    shown += stream.feed(CANARY[:5]) + stream.feed(CANARY[5:])

    assert len(shown) > 60_000
    assert shown + stream.flush() == "x" * 99_900 + REDACTED
