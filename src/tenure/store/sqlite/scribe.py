"""A scribe: a process that carries out the large exchanges of one busy worker, and does nothing else.

A large exchange is one statement, text in and text out. While a thread of the worker carries it out, that thread and
the event loop want Python's lock in turns: after each statement the thread waits until the loop sleeps, and the loop
has to sleep every half millisecond so that it does not wait for long. A process has a lock of its own: one processor
runs handlers, another writes to the file, and neither waits for the other. See `dictation` for the worker's end of the
line.

What was granted is told by a thread beside, the teller, with a connection that only reads: to put it into words takes a
quarter as long as to carry it out.

A scribe decides nothing. The statement looks whether the terms it was told still hold, and what it cannot do as a whole
is not done and left to the worker's own writer. What it has answered is committed; whoever gets no answer does not
know, and asks again as after any answer that was lost. When its worker is gone the line ends, and the scribe with it,
after the statement that it is at: what that granted waits for its lease, as after a worker's death between claim and
start.
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import socket
import sqlite3
import struct
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from tenure.model.clock import SystemClock
from tenure.model.frozen import frozen
from tenure.store.sqlite.checkpoint import Checkpointer
from tenure.store.sqlite.connect import open_reader
from tenure.store.sqlite.errors import translate
from tenure.store.sqlite.handle import Handle
from tenure.store.sqlite.one_statement import carry_out, picked, practise, set_up, tell
from tenure.store.sqlite.place import Watched

REQUEST: Final = struct.Struct("!III")
"""Lengths of what follows: the values that are short, the plain ends and the rich ones."""
ANSWER: Final = struct.Struct("!B?qIII")
"""What became of it, whether other processes write as well, how many microseconds after it was asked for it was done,
how many were granted, and lengths of what follows: what was told of them (or what went wrong), and the rest."""
HELLO, DONE, UNDONE, FAILED = range(4)

_READ_BYTES: Final = 1 << 18


class Scribe:
    """Serves one line. Opens the file when it is made, and raises as the writer does if that cannot be done."""

    def __init__(self, line: socket.socket, path: Path, busy_seconds: float) -> None:
        self._line = line
        self._path = path
        self._clock = SystemClock()
        self._handle = Handle(Watched(path), busy_seconds)
        self._checkpointer = Checkpointer(path)
        self._later = 0
        connection = self._handle.ready()
        set_up(connection, self._handle.known)
        practise(connection)

    def serve(self) -> None:
        """Answer until the line ends. Nobody waits for a checkpoint but the next request."""
        with Teller(self._line, self._path) as teller, self._line.makefile("rb", buffering=_READ_BYTES) as told:
            teller.tell(ANSWER.pack(HELLO, False, 0, 0, 0, 0))
            while len(head := told.read(REQUEST.size)) == REQUEST.size:
                values, plain, rich = (told.read(length).decode() for length in REQUEST.unpack(head))
                teller.tell(self._answer({**json.loads(values), "plain": plain or None, "rich": rich or None}))
                connection = self._handle.connection
                if connection is not None and self._checkpointer.is_time(connection):
                    self._checkpointer.run(connection)

    def _answer(self, values: dict[str, Any]) -> bytes | Untold:
        handle = self._handle
        try:
            connection = handle.ready()
            set_up(connection, handle.known)
            if not handle.when_free(lambda: carry_out(connection, self._at_this_moment(values))):
                return ANSWER.pack(UNDONE, False, 0, 0, 0, 0)
            number, rowids = picked(connection)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the worker must learn of it
            handle.undo(exc)
            return _failed(exc, self._path)
        is_shared = handle.known.is_in_company()
        if not number:
            return ANSWER.pack(DONE, is_shared, self._later, 0, 0, 0)
        return Untold(rowids, values["worker"], values["now"], self._later, is_shared)

    def _at_this_moment(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values with the time of this try: a lease begins when it is given, however long the file was locked."""
        self._later = later = self._clock.now_us() - values["now"]
        moments = {name: values[name] for name in ("now", "started_at", "lease_until") if values[name] is not None}
        return {**values, **{name: moment + later for name, moment in moments.items()}}


@frozen
class Untold:
    """Jobs that an exchange has granted, to be told of."""

    rowids: str
    worker: str
    now: int
    later: int
    is_shared: bool


class Teller:
    """Reads what was granted and answers, on a thread and a connection of its own: the scribe carries out the next
    exchange meanwhile. Answers leave in the order in which they are given."""

    def __init__(self, line: socket.socket, path: Path) -> None:
        self._line = line
        self._path = path
        self._answers: queue.SimpleQueue[bytes | Untold | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tenure-teller", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.put(None)
        self._thread.join()

    def tell(self, answer: bytes | Untold) -> None:
        """Send an answer, or what is to be made into one, after those before it."""
        self._answers.put(answer)

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        with contextlib.suppress(OSError):  # the worker is gone, and the scribe will be
            while (answer := self._answers.get()) is not None:
                if isinstance(answer, Untold):
                    try:
                        connection = connection or open_reader(self._path)
                        answer = _told(connection, answer)
                    except Exception as exc:  # noqa: BLE001 - whatever it is, the worker must learn of it
                        answer = _failed(exc, self._path)
                self._line.sendall(answer)
        if connection is not None:
            connection.close()


def _told(connection: sqlite3.Connection, granted: Untold) -> bytes:
    number, told, rest = tell(connection, granted.rowids, granted.worker, granted.now + granted.later)
    parts = told.encode(), json.dumps(rest).encode() if rest else b""
    return b"".join((ANSWER.pack(DONE, granted.is_shared, granted.later, number, *map(len, parts)), *parts))


def _failed(exc: Exception, path: Path) -> bytes:
    reason = str(translate(exc, path)).encode()
    return ANSWER.pack(FAILED, False, 0, 0, len(reason), 0) + reason


def main(arguments: Sequence[str]) -> None:
    """Serve the inherited socket of this number, for the file at this path."""
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the worker, which settles its jobs before it goes
        signal.signal(number, signal.SIG_IGN)
    descriptor, path, busy_seconds = arguments
    with socket.socket(fileno=int(descriptor)) as line:
        try:
            Scribe(line, Path(path), float(busy_seconds)).serve()
        except (BrokenPipeError, ConnectionResetError):
            return  # the worker is gone


if __name__ == "__main__":
    main(sys.argv[1:])
