"""Structured logs: log events as lines of JSON, as lines for people, or as records of the standard library's logging.

One log event is one line, whatever its fields hold: control characters are escaped, so that no text can forge a line or
move a reader's cursor. Nothing of a payload is in a log event to begin with.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from tenure.errors import ConfigError
from tenure.model.log_event import DEBUG, ERROR, INFO, WARNING, Emit, LogEvent

LogFormat = Literal["json", "human", "logging"]
LEVELS: Mapping[str, int] = {"debug": DEBUG, "info": INFO, "warning": WARNING, "error": ERROR}

_NAMES = {number: name for name, number in LEVELS.items()}
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_COLOURS = {DEBUG: "\x1b[2m", WARNING: "\x1b[33m", ERROR: "\x1b[31m"}
_PLAIN = "\x1b[0m"


def emitter(log_format: str = "logging", level: str = "info", stream: TextIO | None = None) -> Emit:
    """Where a worker's log events go. `logging` leaves format, level and place to the program's own set-up.

    Raises: ConfigError for a format or level that there is not.
    """
    if level not in LEVELS:
        raise ConfigError(f"There is no log level {level!r}. Choose one of {', '.join(LEVELS)}.")
    match log_format:
        case "json":
            return JsonLog(stream or sys.stderr, LEVELS[level])
        case "human":
            return HumanLog(stream or sys.stderr, LEVELS[level])
        case "logging":
            return StandardLog()
    raise ConfigError(f"There is no log format {log_format!r}. Choose one of json, human, logging.")


def as_fields(event: LogEvent) -> dict[str, Any]:
    """What a log event says, without what it leaves open."""
    told = {
        "event": event.name,
        "worker": event.worker or None,
        "job": event.job,
        "kind": event.kind,
        "queue": event.queue,
        "attempt": event.attempt,
        "duration": event.duration,
        "message": event.message,
        **event.fields,
        "traceback": event.traceback,
    }
    return {name: value for name, value in told.items() if value is not None}


def one_line(text: str) -> str:
    """Text with every control character written out, so that it stays on its line."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class _Lines:
    """Writes whole lines, from any thread, and never raises: a full disk must not stop a worker."""

    def __init__(self, stream: TextIO, level: int) -> None:
        self.level = level
        self._stream = stream
        self._lock = threading.Lock()

    def write(self, line: str) -> None:
        with self._lock:
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                return


class JsonLog(_Lines):
    """One JSON object a line."""

    def __call__(self, event: LogEvent) -> None:
        told = {"time": _now(), "level": _NAMES.get(event.level, "info"), **as_fields(event)}
        self.write(json.dumps(told, default=str, ensure_ascii=True))


class HumanLog(_Lines):
    """One line for people, in colour on a terminal."""

    def __init__(self, stream: TextIO, level: int, *, colour: bool | None = None) -> None:
        super().__init__(stream, level)
        self._colour = stream.isatty() if colour is None else colour

    def __call__(self, event: LogEvent) -> None:
        told = as_fields(event)
        name, message, trace = told.pop("event"), told.pop("message", None), told.pop("traceback", None)
        for noise in ("worker", "token"):  # the same on every line; no more than the attempt
            told.pop(noise, None)
        named = [_short(told.pop(key)) for key in ("kind", "job") if key in told]
        if told.get("queue") == "default":
            told.pop("queue")
        rest = " ".join([*named, *(_pair(key, value) for key, value in told.items())])
        line = f"{_now()[11:23]} {name:<10} {rest}" + (f"  {one_line(str(message))}" if message else "")
        lines = [line.rstrip(), *indented(trace or "")]
        colour = _COLOURS.get(event.level) if self._colour else None
        self.write("\n".join(f"{colour}{one}{_PLAIN}" if colour else one for one in lines))


class StandardLog:
    """Records of the logger `tenure.worker`. The fields are attributes of the record, for handlers that show them."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("tenure.worker")

    @property
    def level(self) -> int:
        return self._logger.getEffectiveLevel()

    def __call__(self, event: LogEvent) -> None:
        told = as_fields(event)
        trace = told.pop("traceback", None)
        text = one_line(" ".join(f"{key}={value}" for key, value in told.items()))
        if not self._logger.isEnabledFor(event.level):
            return
        logger = self._logger
        record = logger.makeRecord(logger.name, event.level, __file__, 0, "%s", (text,), None, extra={"tenure": told})
        record.exc_text = "\n".join(indented(trace)) if trace else None
        logger.handle(record)


class RecordLog(logging.Handler):
    """The other way round: records of the standard library's logging, such as `ctx.logger` makes, as log events."""

    def __init__(self, emit: Emit) -> None:
        super().__init__(emit.level)
        self._emit = emit

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on. Never raises, as for any handler of logging."""
        try:
            message = record.getMessage()
            trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else record.exc_text
            about: dict[str, Any] = {name: getattr(record, name, None) for name in ("job", "kind", "queue", "attempt")}
            fields = {} if about["job"] else {"logger": record.name}
            self._emit(LogEvent("log", record.levelno, message=message, fields=fields, traceback=trace, **about))
        except Exception:  # noqa: BLE001 - as logging.Handler has it
            self.handleError(record)


def indented(text: str) -> list[str]:
    """Lines that stand below the one they belong to and cannot be taken for one of their own."""
    return [f"    {one_line(line)}".rstrip() for line in text.splitlines()]


def _pair(key: str, value: Any) -> str:
    if key.endswith("_us") and isinstance(value, int):  # a moment in microseconds: people want the time
        return f"{key.removesuffix('_us')}={datetime.fromtimestamp(value / 1e6, UTC):%H:%M:%S}Z"
    return f"{key}={_short(value)}"


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_short, value)) or "none"
    return one_line(f"{value:.3f}s" if isinstance(value, float) else str(value))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
