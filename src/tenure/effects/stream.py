"""A child's output as it comes: lines become job events, and all of it a transcript. Bounded, and without secrets.

Events keep the first lines, and at the end the last ones; a flood costs no more rows than that. The transcript is a
file of the worker's, out of the child's reach; when it is full it is put aside and begun anew, so that its end is
always there.
"""

from __future__ import annotations

import codecs
import os
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from tenure.handler.context import Context
from tenure.model.event import EventKind
from tenure.sandbox.process import Stream
from tenure.sandbox.redact import RedactedStream, Redactor

FIRST_LINES = 400
LAST_LINES = 100
LINE_CHARS = 4000
TRANSCRIPT_BYTES = 4 << 20
PROGRESS_SECONDS = 1.0

_KINDS = {"stdout": EventKind.STDOUT, "stderr": EventKind.STDERR}


class StreamLog:
    """Takes a run's output; use it as `on_output`, in a `with` block that ends after the run."""

    def __init__(
        self, ctx: Context, redactor: Redactor, transcript: Path | None, *, transcript_bytes: int = TRANSCRIPT_BYTES
    ) -> None:
        self._ctx = ctx
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in _KINDS}
        self._streams = {name: RedactedStream(redactor) for name in _KINDS}
        self._last: deque[tuple[str, str]] = deque(maxlen=LAST_LINES)
        self._transcript = None if transcript is None else _Transcript(transcript, transcript_bytes)
        self._told_at = 0.0
        self.lines = 0

    def __call__(self, stream: Stream, chunk: bytes) -> None:
        self._take(stream, self._streams[stream].feed(self._decoders[stream].decode(chunk)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in _KINDS:
            self._take(name, self._streams[name].flush())
        left_out = self.lines - FIRST_LINES - len(self._last)
        if left_out > 0:
            self._ctx.log(f"{left_out} lines were left out here; the transcript has more of them.", "warning")
        for name, line in self._last:
            self._ctx.event(_KINDS[name], {"text": line})
        if self._transcript is not None:
            self._transcript.close()

    def _take(self, stream: str, text: str) -> None:
        if not text:
            return
        if self._transcript is not None:
            self._transcript.write(stream, text)
        for line in text.splitlines():
            self.lines += 1
            line = line.replace("\0", "\N{REPLACEMENT CHARACTER}")  # noqa: PLW2901 - no event may hold it
            shown = line if len(line) <= LINE_CHARS else f"{line[:LINE_CHARS]}… [{len(line) - LINE_CHARS} more]"
            if self.lines <= FIRST_LINES:
                self._ctx.event(_KINDS[stream], {"text": shown})
            else:
                self._last.append((stream, shown))
        if time.monotonic() - self._told_at >= PROGRESS_SECONDS:
            self._told_at = time.monotonic()
            self._ctx.progress({"lines": self.lines})


class _Transcript:
    """Lines with the stream they came from, in at most two files of so many bytes."""

    def __init__(self, path: Path, most: int) -> None:
        self._path = path
        self._most = most
        self._size = 0
        self._file = self._open()

    def write(self, stream: str, text: str) -> None:
        marked = "".join(f"{stream}: {line}\n" for line in text.splitlines()).encode()
        if self._size + len(marked) > self._most and self._size:
            self._file.close()
            self._path.replace(self._path.with_suffix(".1.log"))
            self._size, self._file = 0, self._open()
        self._file.write(marked[: self._most])
        self._file.flush()
        self._size += len(marked)

    def close(self) -> None:
        self._file.close()

    def _open(self) -> BinaryIO:
        # Never through a link, and for the owner alone.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.fdopen(os.open(self._path, flags, 0o600), "wb")
