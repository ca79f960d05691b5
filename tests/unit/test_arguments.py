"""Bad arguments are refused with a sentence that names them."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import InvalidArgument
from tenure.handler import arguments
from tenure.handler.building import build_job
from tenure.model.fingerprint import fingerprint
from tenure.model.job import NewJob
from tenure.model.policy import Backoff, Limits

LIMITS = Limits()


def make(**options: Any) -> NewJob:
    return build_job("kind", {}, options, None, LIMITS, "default")


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("queue", "", "`queue` is empty"),
        ("queue", " mail", "no blanks at its ends"),
        ("queue", "a\x1fb", "no control characters"),
        ("queue", "q" * 201, "takes 201 bytes, and the limit is 200"),
        ("key", 7, "`key` must be text (str), got int"),
        ("key", "a\0b", "contains NUL"),
        ("key", "\ud800", "lone surrogate"),
        ("key", "é" * 513, "takes 1,026 bytes, and the limit is 1,024"),
        ("priority", 2**31, "must lie between -2147483648 and 2147483647"),
        ("priority", True, "`priority` must be an integer, got bool"),
        ("priority", 1.5, "`priority` must be an integer, got float"),
        ("delay", -1, "must be 0 or more seconds"),
        ("delay", math.nan, "must be 0 or more seconds"),
        ("delay", math.inf, "must be 0 or more seconds"),
        ("delay", timedelta(days=-1), "must be 0 or more seconds"),
        ("delay", 1e12, "at most a hundred years"),
        ("delay", "soon", "must be seconds (a number) or a timedelta, got str"),
        ("delay", True, "must be seconds (a number) or a timedelta, got bool"),
        ("run_at", datetime(2026, 1, 1), "has no time zone, so it names no moment"),  # noqa: DTZ001 - that is the point
        ("run_at", 1_767_225_600, "must be a datetime, got int"),
        ("max_attempts", 0, "must lie between 1 and"),
        ("backoff", {"shape": "none"}, "must be a tenure.Backoff, got dict"),
        ("backoff", Backoff(cast(Any, "exponentail")), "there is no 'exponentail'. Did you mean 'exponential'?"),
        ("backoff", Backoff(jitter=-1), "`backoff.jitter` is -1"),
        ("parent_id", "seven", "`parent_id` must be a UUID, got str 'seven'"),
        ("workflow_id", 7, "`workflow_id` must be a UUID"),
        ("id", "x", "`id` must be a UUID"),
        ("colour", "red", "There is no option 'colour'"),
        ("prioritty", 1, "Did you mean 'priority'?"),
    ],
)
def test_an_option_out_of_its_range_is_named(option: str, value: Any, sentence: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make(**{option: value})

    assert sentence in str(caught.value)


def test_delay_and_run_at_together_make_no_sense() -> None:
    with pytest.raises(InvalidArgument, match="`delay` and `run_at` were both given"):
        make(delay=1, run_at=datetime(2026, 1, 1, tzinfo=UTC))


def test_options_end_up_in_the_job() -> None:
    parent = UUID("0198c7a2-7b1c-7000-8000-0123456789ab")
    at = datetime(2026, 1, 1, tzinfo=UTC)

    job = make(queue="mail", key="k", priority=5, run_at=at, max_attempts=9, backoff=Backoff("none"), parent_id=parent)

    assert (job.queue, job.key, job.priority, job.run_at, job.max_attempts) == ("mail", "k", 5, at, 9)
    assert job.parent_id == str(parent)
    assert job.backoff is not None
    assert '"shape":"none"' in job.backoff
    assert job.payload == "{}"


@pytest.mark.parametrize(("delay", "seconds"), [(5, 5.0), (0.25, 0.25), (timedelta(minutes=1), 60.0), (0, 0.0)])
def test_delays_are_seconds_or_timedeltas(delay: Any, seconds: float) -> None:
    assert make(delay=delay).delay_seconds == seconds


def test_none_means_as_the_queue_says() -> None:
    given = make(priority=None, key=None, delay=None, max_attempts=None, backoff=None, queue=None)

    assert given == NewJob(id=given.id, kind="kind")


def test_an_id_of_the_callers_own_is_kept_in_canonical_form() -> None:
    assert make(id="0198C7A27B1C700080000123456789AB").id == "0198c7a2-7b1c-7000-8000-0123456789ab"


@pytest.mark.parametrize("kind", ["", " ", "a\nb", "k" * 201, 7, None])
def test_a_kind_is_a_name(kind: Any) -> None:
    with pytest.raises(InvalidArgument, match="kind"):
        build_job(kind, {}, {}, None, LIMITS, "default")


@given(st.text())
def test_a_text_is_either_taken_as_it_is_or_refused(value: str) -> None:
    try:
        assert arguments.text("key", value) == value
    except InvalidArgument:
        return
    assert value
    assert "\0" not in value
    assert len(value.encode()) <= arguments.TEXT_BYTES


@given(st.text() | st.text().map(ValueError), st.integers(100, 2000))
def test_whatever_an_error_says_can_be_stored(error: str | BaseException, limit: int) -> None:
    text = arguments.error_text(error, limit)

    assert 0 < len(text) <= limit
    assert text.strip()
    assert "\0" not in text
    text.encode()


def test_an_exception_tells_its_class_and_message_before_its_trace() -> None:
    try:
        raise ValueError("bad figure")
    except ValueError as exc:
        text = arguments.error_text(exc, 16_384)

    assert text.splitlines()[0] == "ValueError: bad figure"
    assert "Traceback" in text
    assert fingerprint("error", text) == fingerprint("error", "ValueError: bad figure")


def test_a_long_error_keeps_its_head_and_its_tail() -> None:
    text = arguments.error_text("head" + "x" * 10_000 + "tail", 200)

    assert text.startswith("head")
    assert text.endswith("tail")
    assert "characters …" in text
