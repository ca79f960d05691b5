"""Logs: one line per event whatever is in it, at the level that was asked for, with nothing secret."""

from __future__ import annotations

import io
import json
import logging

import pytest

from tenure.errors import ConfigError
from tenure.model.log_event import DEBUG, ERROR, INFO, WARNING, LogEvent
from tenure.model.policy import Limits
from tenure.model.redact import clean
from tenure.observe.log import HumanLog, JsonLog, StandardLog, emitter
from tenure.worker.log import WorkerLog
from tenure.worker.outcomes import error_text

ERROR_CHARS = Limits().error_chars
FORGED = 'x\r\n{"event": "completed"}\x1b[2J\u2028\x85\0'


def test_json_is_one_object_a_line_with_the_fields_that_are_set() -> None:
    stream = io.StringIO()
    event = LogEvent("completed", INFO, "w1", "j1", "mail", "default", 2, 0.25, None, {"token": 3})

    JsonLog(stream, INFO)(event)

    told = json.loads(stream.getvalue())
    assert told.pop("time").endswith("Z")
    assert told == {
        "level": "info",
        "event": "completed",
        "worker": "w1",
        "job": "j1",
        "kind": "mail",
        "queue": "default",
        "attempt": 2,
        "duration": 0.25,
        "token": 3,
    }


@pytest.mark.parametrize("make", [JsonLog, HumanLog])
def test_nothing_in_a_field_can_forge_a_line_or_move_the_cursor(make: type[JsonLog | HumanLog]) -> None:
    stream = io.StringIO()

    make(stream, DEBUG)(LogEvent("failed", ERROR, "w", "j", FORGED, FORGED, 1, 0.1, FORGED, {"class": FORGED}))

    text = stream.getvalue()
    assert text.count("\n") == 1
    assert text.splitlines() == [text[:-1]]
    assert "\x1b" not in text
    assert "\0" not in text


def test_people_see_the_time_the_event_and_its_fields() -> None:
    stream = io.StringIO()

    log = HumanLog(stream, INFO)
    log(LogEvent("retried", WARNING, "w", "j1", "mail", attempt=2, duration=1.5, message="boom", fields={"token": 3}))
    log(LogEvent("claimed", INFO, "w", "j1", "mail", "bulk", attempt=1))
    log(LogEvent("worker_started", INFO, "w", fields={"queues": ["default", "bulk"]}))

    assert [line[13:] for line in stream.getvalue().splitlines()] == [
        "retried    mail j1 attempt=2 duration=1.500s  boom",
        "claimed    mail j1 queue=bulk attempt=1",
        "worker_started queues=default,bulk",
    ]


def test_a_line_about_a_job_fits_a_terminal_of_80_columns() -> None:
    stream = io.StringIO()

    job = "01900000-aaaa-7000-8000-000000000000"
    HumanLog(stream, INFO)(LogEvent("claimed", INFO, "w", job, "greet", "default", 1, fields={"token": 1}))

    assert len(stream.getvalue()) <= 80


def test_standard_records_carry_the_fields(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("tenure.test")
    with caplog.at_level(logging.INFO, "tenure.test"):
        StandardLog(logger)(LogEvent("dead", ERROR, "w", "j1", "mail", message=FORGED))

    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.__dict__["tenure"]["job"] == "j1"
    assert "\n" not in record.getMessage()


def test_a_full_disk_does_not_stop_the_worker() -> None:
    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(28, "No space left on device")

    JsonLog(Full(), INFO)(LogEvent("completed", INFO))


def test_nothing_is_made_that_nobody_reads() -> None:
    made: list[LogEvent] = []

    class Picky:
        level = WARNING

        def __call__(self, event: LogEvent) -> None:
            made.append(event)

    report = WorkerLog("w", Picky())
    report.event("quiet", INFO)
    report.event("loud", WARNING)

    assert [event.name for event in made] == ["loud"]


@pytest.mark.parametrize(("log_format", "level"), [("xml", "info"), ("json", "chatty")])
def test_a_format_or_level_that_is_not_there_is_refused(log_format: str, level: str) -> None:
    with pytest.raises(ConfigError, match="Choose one of"):
        emitter(log_format, level)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:s3cret@db:5432/x", "postgresql://me:[redacted]@db:5432/x"),
        ("Authorization: Bearer abcdef123456", "Authorization: Bearer [redacted]"),
        ('{"api_key": "sk-12345"}', '{"api_key": "[redacted]"}'),
        ("AWS_SECRET_ACCESS_KEY=abc/def", "AWS_SECRET_ACCESS_KEY=[redacted]"),
        ("password: hunter2, user: me", "password: [redacted], user: me"),
        ("no secrets here: 42", "no secrets here: 42"),
    ],
)
def test_secrets_are_taken_out_of_errors(text: str, shown: str) -> None:
    assert clean(text) == shown


@pytest.mark.timeout(60)
@pytest.mark.parametrize("word", ["a-", "a.", "password", "://x:", "bearer ", "secret = "])
def test_an_error_made_to_be_slow_to_search_is_searched_at_once(word: str) -> None:
    """With the interpreter's lock held; two thousand `a-` once took seconds, and a worker's leases with them."""
    assert len(clean(word * 1_000_000)) <= ERROR_CHARS


def test_an_error_is_cut_in_the_middle_and_fit_for_both_engines() -> None:
    text = clean("begin " + "x" * 100_000 + "\0\ud800 end")

    assert len(text) <= ERROR_CHARS
    assert text.startswith("begin ")
    assert text.endswith("\ufffd\ufffd end")


def test_an_error_begins_with_its_type_and_message() -> None:
    def deep() -> None:
        raise KeyError("id")

    try:
        deep()
    except KeyError as exc:
        text = error_text(exc)

    assert text.startswith("KeyError: 'id'\nTraceback")
    assert "deep" in text
