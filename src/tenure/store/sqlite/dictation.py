"""The worker's end of the line to its scribe: large exchanges of one event loop go there while a scribe stands ready.

A scribe is a process more, so there is one only while there is much to do: it is started for a worker that finds a
backlog or fetches far ahead, and let go after a minute without an exchange. Whatever it cannot do goes to the writer:
there is nothing that only a scribe can do, and none is waited for.

What holds:

- *Answers come in the order of the questions*, for there is one line and one scribe, which does one thing at a time.
- *No answer is an unknown outcome.* If the scribe dies, or says that something went wrong, or nothing for too long,
  whoever waits gets StoreUnavailable, and the next requests go to the writer, which meets with whatever is wrong.
- *The scribe does not outlive its worker*: the line ends with the process, or with a fork's child letting go of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import socket
import subprocess
import sys
import threading
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tenure.errors import StoreUnavailable
from tenure.store.sqlite.armed import UNDONE
from tenure.store.sqlite.exchange import answer_with, values_at_once
from tenure.store.sqlite.grants import LateExchanged
from tenure.store.sqlite.known import Known
from tenure.store.sqlite.one_statement import Told
from tenure.store.sqlite.scribe import ANSWER, DONE, FAILED, HELLO, REQUEST
from tenure.store.sqlite.settle import Sorted

FAR_AHEAD: Final = 256
"""Who claims so many at once has much to do."""
IDLE_SECONDS: Final = 60.0
"""A scribe that has had nothing to do for so long is let go."""
AGAIN_SECONDS: Final = 60.0
"""After a scribe was started none is for so long, nor after one has failed."""
START_SECONDS: Final = 1.0
WATCH_SECONDS: Final = 5.0
SILENT_SECONDS: Final = 30.0
"""How long an answer may take beyond the time that the scribe may wait for the file's lock."""
END_SECONDS: Final = 5.0

_READ_BYTES: Final = 1 << 18
_Answer = tuple[bool, int, Told] | None


class Dictation:
    """Belongs to one event loop. `start` and `close` may be called from any thread, all else on the loop's own."""

    def __init__(self, path: Path, busy_seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._path = path
        self._busy_seconds = busy_seconds
        self._line: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._leaving: list[subprocess.Popen[bytes]] = []
        """Whose lines have ended, and who were not seen to be gone."""
        self._is_ready = False
        self._has_begun = threading.Event()
        """Whether the scribe stands ready, or none will."""
        self._is_closed = False
        self._not_before = 0.0
        """No scribe is started before this moment of the loop's clock."""
        self._asked: deque[tuple[float, asyncio.Future[_Answer]]] = deque()
        self._last_asked = 0.0
        self._unsent = bytearray()
        self._unread = bytearray()
        self._just_read = memoryview(bytearray(_READ_BYTES))
        """Kept: a buffer of that size is asked of the system anew each time, and given back."""
        self._timer: asyncio.TimerHandle | None = None

    async def exchange(self, known: Known, request: Sorted, now: int) -> LateExchanged | object | None:
        """Have the scribe carry out an exchange. None if it was not asked, UNDONE if the statement did nothing: then
        the writer has to, and need not try that statement again.

        `known` belongs to whoever leads, and is only looked at: the stamp first, so that what is read after it is no
        older, and the statement compares the stamp.
        """
        if not self._is_ready:
            if request.claim is not None and request.claim.limit >= FAR_AHEAD:
                self.start()
            return None
        asked = values_at_once(known, request, now)
        if asked is None:
            return None
        values, terms = asked
        answer = await self._ask(values)
        if answer is None:
            return UNDONE
        is_shared, later, told = answer
        if terms is None:
            return answer_with(None, told, is_shared=None)
        return answer_with(replace(terms, lease_until=terms.lease_until + later), told, is_shared=is_shared)

    def start(self) -> None:
        """Start a scribe, unless there is one or it is too early for another. Nothing waits for it."""
        now = self.loop.time()
        if self._line is not None or self._is_closed or now < self._not_before or not sys.executable:
            return
        self._not_before = now + AGAIN_SECONDS
        ours, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tenure.store.sqlite.scribe"),
                    *(str(theirs.fileno()), str(self._path), str(self._busy_seconds)),
                ],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C at the terminal is for the worker
            )
        except OSError:  # no process is to be had
            ours.close()
            return
        finally:
            theirs.close()
        ours.setblocking(False)
        self._line = ours
        self.loop.call_soon_threadsafe(self._listen, ours)

    def start_and_wait(self) -> None:
        """Start a scribe and give it a second to stand ready. The loop's own thread does not wait: it has to listen."""
        self.start()
        if self._line is not None and _running_loop() is not self.loop:
            self._has_begun.wait(START_SECONDS)

    def close(self) -> None:
        """Let the scribe go, and wait until it is gone."""
        self._is_closed = True
        if _running_loop() is self.loop:
            self._hang_up()
        else:
            gone = threading.Event()
            try:
                self.loop.call_soon_threadsafe(self._hang_up, gone)
                gone.wait(END_SECONDS)
            except RuntimeError:  # the loop is closed
                self._hang_up()
        for process in self._leaving:
            _end(process)
        self._leaving.clear()

    def abandon(self) -> None:
        """In a forked child: let go of the line, which is the parent's."""
        if self._line is not None:
            self._line.close()
        self._line = self._process = None
        self._leaving.clear()
        self._is_ready, self._is_closed = False, True

    # --- the line -----------------------------------------------------------------------------------------------------

    def _listen(self, line: socket.socket) -> None:
        if self._line is line:
            self._last_asked = self.loop.time()
            self.loop.add_reader(line, self._read, line)
            if self._timer is not None:
                self._timer.cancel()
            self._watch()

    def _ask(self, values: dict[str, Any]) -> asyncio.Future[_Answer]:
        answer: asyncio.Future[_Answer] = self.loop.create_future()
        self._last_asked = self.loop.time()
        self._asked.append((self._last_asked, answer))
        plain, rich = (values.pop(name) or "" for name in ("plain", "rich"))
        parts = json.dumps(values).encode(), plain.encode(), rich.encode()
        self._unsent += b"".join((REQUEST.pack(*map(len, parts)), *parts))
        if self._line is not None:
            self._send(self._line)
        return answer

    def _send(self, line: socket.socket) -> None:
        try:
            sent = line.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._lose("its line broke")
            return
        del self._unsent[:sent]
        if self._unsent:
            self.loop.add_writer(line, self._send, line)
        else:
            self.loop.remove_writer(line)

    def _read(self, line: socket.socket) -> None:
        try:
            number = line.recv_into(self._just_read)
        except BlockingIOError:
            return
        except OSError:
            number = 0
        if not number:
            self._lose("it ended")
            return
        self._unread += self._just_read[:number]
        while self._line is line and len(self._unread) >= ANSWER.size:
            what, is_shared, later, granted, *lengths = ANSWER.unpack_from(self._unread)
            begin, end = ANSWER.size, ANSWER.size + sum(lengths)
            if len(self._unread) < end:
                return
            told, rest = (bytes(self._unread[a:b]) for a, b in ((begin, begin + lengths[0]), (begin + lengths[0], end)))
            del self._unread[:end]
            if what == HELLO:
                self._is_ready = True
                self._has_begun.set()
            elif what == FAILED:
                self._lose(told.decode())
            else:
                done = is_shared, later, (granted, told.decode(), json.loads(rest) if rest else [])
                self._answered(done if what == DONE else None)

    def _answered(self, done: _Answer) -> None:
        _, answer = self._asked.popleft()
        if not answer.done():
            answer.set_result(done)

    def _watch(self) -> None:
        """Look after the scribe every few seconds, for as long as there is one."""
        now = self.loop.time()
        if self._asked and now - self._asked[0][0] > self._busy_seconds + SILENT_SECONDS:
            self._lose("it gave no answer")
        elif not self._asked and now - self._last_asked > IDLE_SECONDS:
            self._hang_up()
        self._leaving = [process for process in self._leaving if process.poll() is None]
        if self._line is not None or self._leaving:
            self._timer = self.loop.call_later(WATCH_SECONDS, self._watch)

    def _lose(self, why: str) -> None:
        """Give up a scribe that has failed. Where one never stood ready, none will."""
        self._not_before = self.loop.time() + AGAIN_SECONDS if self._is_ready else math.inf
        if self._process is not None:
            self._process.kill()
        self._hang_up(why=why)

    def _hang_up(self, gone: threading.Event | None = None, why: str = "it was let go") -> None:
        """End the line, and the scribe with it. What was asked and not answered may have been done or not."""
        line, self._line = self._line, None
        if self._process is not None:
            self._leaving.append(self._process)
            self._process = None
        self._is_ready = False
        self._has_begun.set()
        self._unsent.clear()
        self._unread.clear()
        if line is not None:
            if not self.loop.is_closed():
                self.loop.remove_reader(line)
                self.loop.remove_writer(line)
            line.close()
        if self._timer is not None and self._is_closed:
            self._timer.cancel()
        while self._asked:
            _, answer = self._asked.popleft()
            if not answer.done():
                answer.set_exception(_unknown(self._path, why))
        if gone is not None:
            gone.set()


def _unknown(path: Path, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"The process that writes to {path} for this worker failed: {why}. It is not known whether the exchange took "
        "effect. Repeat it: every request is safe to repeat."
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process whose line has ended; one that is at a statement ends after it."""
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    with contextlib.suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None
