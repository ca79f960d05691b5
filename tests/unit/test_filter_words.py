"""The filter of the jobs page: what a token says is what is looked for, whatever characters it has."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tenure.web.pages.filter_words import parse, token

NOW = datetime(2026, 11, 18, tzinfo=UTC)


@pytest.mark.parametrize(
    "name",
    ["mail", "two words", "a,b", 'say "hi"', '"', 'a"b', " edge ", "a:b", "kind:x", "ü#?&=%", "x" * 200, "\u202eabc"],
)
def test_a_token_of_any_name_is_read_back_as_that_name(name: str) -> None:
    parsed = parse(f"state:queued {token('kind', name)} {token('queue', name)}")

    assert parsed.wrong == []
    assert (parsed.of("kind"), parsed.of("queue"), parsed.of("state")) == ([name], [name], ["queued"])
    assert parse(parsed.text) == parsed


def test_a_comma_means_or_unless_it_stands_in_quotes() -> None:
    assert parse("kind:a,b").of("kind") == ["a", "b"]
    assert parse('kind:"a,b"').of("kind") == ["a,b"]


@pytest.mark.parametrize("text", ["since:999999w", "since:999999d", "since:abc", "since:-1h", "since:1"])
def test_a_span_that_is_none_or_begins_before_time_is_left_out_and_said(text: str) -> None:
    parsed = parse(text)

    assert parsed.tokens == []
    assert "since" in parsed.wrong[0]
    assert parse("since:520w").wanted(NOW).since is not None
