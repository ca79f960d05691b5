"""Secrets do not show: by value in any form, by key at any depth, by shape; and nothing else is hidden."""

from __future__ import annotations

import base64
import json
import time
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.model.redact import clean, hide, secrets_in_environment
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


def _run(characters: str, length: int) -> str:
    """`length` characters that look random but are the same in every run."""
    return "".join(characters[(7 * place + place * place) % len(characters)] for place in range(length))


HEX = "0a1b2c3d4e5f6789"
LETTERS = "aZ3bY4cX5dW6eV7fU8gT9hS0"
CAPITALS = "ABCDEFGH23456789"

TOKENS = {
    "aws": "AKIA" + _run(CAPITALS, 16),
    "aws temporary": "ASIA" + _run(CAPITALS, 16),
    "github": "ghp_" + _run(LETTERS, 36),
    "github app": "ghs_" + _run(LETTERS, 36),
    "github fine-grained": "github_pat_" + _run(LETTERS, 60),
    "gitlab": "glpat-" + _run(LETTERS, 20),
    "gitlab runner": "glrt-" + _run(LETTERS, 20),
    "slack bot": "xoxb-123456789012-" + _run(LETTERS, 24),
    "slack app": "xapp-1-A0123-456-" + _run(HEX, 40),
    "stripe": "sk_live_" + _run(LETTERS, 24),
    "stripe restricted": "rk_test_" + _run(LETTERS, 24),
    "stripe webhook": "whsec_" + _run(LETTERS, 32),
    "google": "AIza" + _run(LETTERS, 35),
    "google oauth": "ya29." + _run(LETTERS, 60),
    "google client": "GOCSPX-" + _run(LETTERS, 28),
    "openai": "sk-" + _run(LETTERS, 48),
    "openai project": "sk-proj-" + _run(LETTERS, 60),
    "anthropic": "sk-ant-api03-" + _run(LETTERS, 80),
    "npm": "npm_" + _run(LETTERS, 36),
    "pypi": "pypi-AgEIcHlwaS5vcmc" + _run(LETTERS, 60),
    "twilio": "SK" + _run(HEX, 32),
    "sendgrid": "SG." + _run(LETTERS, 22) + "." + _run(LETTERS, 43),
    "mailgun": "key-" + _run(HEX, 32),
    "mailchimp": _run(HEX, 32) + "-us12",
    "telegram": "123456789:AA" + _run(LETTERS, 33),
    "shopify": "shpat_" + _run(HEX, 32),
    "digitalocean": "dop_v1_" + _run(HEX, 64),
    "databricks": "dapi" + _run(HEX, 32),
    "hugging face": "hf_" + _run(LETTERS, 34),
    "vault": "hvs." + _run(LETTERS, 40),
    "docker": "dckr_pat_" + _run(LETTERS, 27),
    "linear": "lin_api_" + _run(LETTERS, 40),
    "figma": "figd_" + _run(LETTERS, 40),
    "postman": "PMAK-" + _run(HEX, 24) + "-" + _run(HEX, 34),
    "grafana": "glsa_" + _run(LETTERS, 32) + "_" + _run(HEX, 8),
    "sentry": "sntrys_" + _run(LETTERS, 60),
    "atlassian": "ATATT3" + _run(LETTERS, 60),
    "age": "AGE-SECRET-KEY-1" + _run(CAPITALS, 58),
    "azure": "abc8Q~" + _run(LETTERS, 34),
    "groq": "gsk_" + _run(LETTERS, 52),
    "tenure": "tnr_7Gk2_" + _run(LETTERS, 43) + "_1a2b3c",
    "jwt": "eyJ" + _run(LETTERS, 20) + ".eyJ" + _run(LETTERS, 30) + "." + _run(LETTERS, 43),
    "jwt without signature": "eyJ" + _run(LETTERS, 20) + ".eyJ" + _run(LETTERS, 30) + ".",
}


@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS.keys())
def test_v8_well_known_tokens_are_removed_from_stored_errors_and_logs(token: str) -> None:
    """V8: 16 of 20 common token forms stayed in stored errors, 34 of 57 passed the stronger redactor."""
    for text in (f"ValueError: {token} was refused", f"['{token}']", f"url?x={token}&y=1", f"a\n{token}\nb"):
        assert token[4:] not in clean(text), text
        assert token[4:] not in Redactor().text(text), text


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Digest username='x', realm=r, response=CANARY",
        "authorization: token a CANARY",
        "Authorization: AWS4-HMAC-SHA256 Credential=x/us-east-1, SignedHeaders=host, Signature=CANARY",
        "Cookie: theme=dark; sid=CANARY; z=1",
        "Set-Cookie: sid=CANARY; HttpOnly",
        "Proxy-Authorization: Basic CANARYCANARY",
        "X-Api-Key:   CANARY and more CANARY",
        "X-Amz-Security-Token: one CANARY",
        "curl -H 'Authorization: Bearer x CANARY' https://example.com",
        "https://CANARY@github.com/a/b.git",
        "https://CANARY:x-oauth-basic@github.com/a/b.git",
        "https://user:CANARY@example.com/",
        "postgresql://user:p@ss/CANARY@host/db",
        "redis://:CANARY@localhost:6379/0",
        "amqp://guest:CANARY@rabbit//",
        "https://x.blob.core.windows.net/c?sv=2020&sig=CANARY&se=1",
        "AccountName=x;AccountKey=CANARY==;EndpointSuffix=y",
        "DB_PASS=CANARY",
        "password => 'CANARY'",
        "mysqldump --password CANARY-9",
        "curl -u user:CANARY-9 https://example.com",
        "curl --user user:CANARY-9 --proxy-user=p:CANARY-8",
        "Command '['curl', '-u', 'user:CANARY-9']' returned non-zero exit status 22.",
        "https://b.s3.amazonaws.com/k?X-Amz-Date=1&X-Amz-Signature=CANARY00&x=1",
        "https://storage.googleapis.com/b/k?GoogleAccessId=x&Signature=CANARY00",
        "['tool', '--api-key', 'CANARY']",
        "<password>CANARY</password>",
        "got Bearer CANARY.1234567",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\nCANARY\n-----END PGP PRIVATE KEY BLOCK-----",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nCANARY",
    ],
)
def test_v8_headers_urls_and_options_are_removed_to_their_end(text: str) -> None:
    """V8: header values were removed up to the first space only, userinfo only in its simplest form."""
    assert "CANARY" not in clean(text)
    assert "CANARY" not in Redactor().text(text)


@pytest.mark.parametrize(
    "text",
    [
        "https://example.com:8080/a@b",
        "https://example.com/@scope/package",
        "mailto a@b.com, see https://example.com/x?y=1",
        "ssh://git@github.com/a.git",
        "the bearer certificate of the basic understanding",
        "3 passed, pass=3 fail=2",
        "argument --token is required",
        "cookie cutters: none",
        "docker run -u 1000:1000 image",
        "ps -u user: no such user",
        'File "/usr/lib/python3/x.py", line 3, in key_error',
    ],
)
def test_v8_text_that_only_resembles_a_secret_stays(text: str) -> None:
    """V8: a redactor that hides prose would make errors useless."""
    assert Redactor().text(text) == text


def test_v8_values_of_secret_named_variables_and_of_urls_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """V8: an error may quote a value of the environment without its name."""
    monkeypatch.setenv("CRM_API_KEY", "plain-words-0815")
    monkeypatch.setenv("DATABASE_URL", "postgresql://app:s%40fe-words@db/jobs")
    monkeypatch.setenv("EDITOR", "plain-editor")
    hide("postgresql://app:from-the-code@db/jobs")

    shown = clean("KeyError: plain-words-0815 s@fe-words s%40fe-words from-the-code plain-editor app db")

    assert shown == f"KeyError: {' '.join([REDACTED] * 4)} plain-editor app db"


def test_v8_cleaned_text_is_bounded_and_storable() -> None:
    """V8: what replaces the worker's own redactor keeps its other promises."""
    shown = clean("START \0 \ud800 " + "x" * 500_000 + " END", 1000)

    assert len(shown) <= 1000
    assert shown.startswith("START \ufffd \ufffd")
    assert shown.endswith(" END")


@pytest.mark.parametrize("size", [3, 40, 400])
def test_v8_a_private_key_in_pieces_is_removed_from_a_stream(size: int) -> None:
    """V8: each piece of output was redacted for itself, so the lines after the first piece of a key were shown."""
    body = "\n".join(_run(LETTERS, 64) for _ in range(20))
    text = f"before\n-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----\nafter\n"
    stream = RedactedStream(Redactor())
    shown = "".join(stream.feed(text[at : at + size]) for at in range(0, len(text), size)) + stream.flush()

    assert body[:20] not in shown
    assert shown.startswith("before\n")
    assert shown.endswith("after\n")


@pytest.mark.parametrize(
    "unit",
    [
        "Authorization: ",
        "x-",
        "x-a-api-key",
        "https://a:",
        "://a:b",
        "--a-",
        "--password ",
        "<password>",
        "bearer a",
        "eyJ",
        "sk-",
        "AC0a",
        "_pass=",
        "?sig=",
        "?x-amz-signature=",
        "-u a:",
        " -u ",
        "key-0a",
        "a." * 3,
        "M" + "a" * 24 + ".",
        "\\password=\\",
    ],
)
def test_v8_hostile_text_takes_linear_time_for_every_rule(unit: str) -> None:
    """V8: an error may hold what an attacker wrote; a slow pattern would stop every job of the worker."""
    small, large = (unit * (size // len(unit)) for size in (20_000, 160_000))

    assert _seconds(large) < 40 * max(_seconds(small), 0.005)


@pytest.mark.parametrize("key", ["a_" * 400, "aB" * 400, "a" * 100_000, "token_" * 200, "1a" * 50_000])
def test_v12_a_long_key_costs_no_time(key: str) -> None:
    """V12: every run of words of a key was tried: an 800-byte key cost 3 s."""
    began = time.process_time()

    Redactor().data({key: "x"})
    Redactor().is_secret_key(key)

    assert time.process_time() - began < 0.25


def test_a_variables_value_counts_from_4_characters_on() -> None:
    value = "q7Zr9kLx2Vb4"

    assert secrets_in_environment({"API_TOKEN": value[:4]}) == [value[:4]]
    assert secrets_in_environment({"API_TOKEN": value[:3]}) == []
