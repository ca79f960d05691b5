"""What handlers give out to streams, on its way to the store.

Text gathers for 50 ms or until 4 KiB are there, and one request takes along what all handlers of this worker have
written; while it is in flight the next one gathers. A handler that writes faster than the store takes is made to wait,
so a worker holds little of a stream in memory. Chunks are numbered here, so a request is repeated safely until its
answer is known.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Final

from tenure.errors import LeaseLost, StoreUnavailable
from tenure.handler.context import Context, Flag, storable
from tenure.handler.signals import Interrupt, Interrupted
from tenure.model.ids import JobId, Token
from tenure.model.log_event import WARNING
from tenure.model.redact import process_redactor
from tenure.model.stream import NewChunk
from tenure.store.contract import Store
from tenure.store.streams import AppendStreams
from tenure.worker.log import WorkerLog

GATHER_SECONDS: Final = 0.05
GATHER_CHARS: Final = 4096
CHUNK_CHARS: Final = 16_384
"""A character takes at most four bytes, so this fits into a chunk."""
HELD_CHARS: Final = 65_536
"""A handler with more than this on its way waits until some of it is written."""
REQUEST_CHARS: Final = 1_048_576
"""A request is sent once it carries so much. A longer text is taken piece by piece."""
AWAY_SECONDS: Final = 1.0
END_SECONDS: Final = 30.0
"""How long the end of an attempt waits for its last chunks, where the store is away."""


class Outgoing:
    """What one grant has written and the store has not taken yet. Guarded by the lock of Streams."""

    __slots__ = ("chars", "chunks", "is_full", "is_lost", "job_id", "parts", "sent", "texts", "token")

    def __init__(self, job_id: JobId, token: Token) -> None:
        self.job_id = job_id
        self.token = token
        self.texts: dict[str, list[str]] = {}
        """By stream, what is not cut into chunks yet."""
        self.chunks: list[NewChunk] = []
        """In a request whose answer is not known."""
        self.parts: dict[str, int] = {}
        self.chars = 0
        self.is_lost = False
        self.is_full = False
        self.sent = Flag()
        """Set, and replaced, when a request is answered."""


class Streams:
    """Made on the event loop; `write` may be called from any thread, `awrite` on any loop."""

    def __init__(self, store: Store, log: WorkerLog) -> None:
        self._store = store
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting: dict[Outgoing, None] = {}
        """Those with something to write."""
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def write(self, context: Context, name: str, text: str) -> None:
        """Take text for a stream; blocks while too much of this job is on its way. Raises: LeaseLost, Interrupted."""
        for piece in _pieces(text):
            outgoing = self._add(context, name, piece)
            while (sent := self._full_until(context, outgoing)) is not None:
                sent.wait(0.5)
            if outgoing.is_full:
                return

    async def awrite(self, context: Context, name: str, text: str) -> None:
        """`write` on an event loop."""
        for piece in _pieces(text):
            outgoing = self._add(context, name, piece)
            while (sent := self._full_until(context, outgoing)) is not None:
                await sent.wait_async()
            if outgoing.is_full:
                return

    def close(self) -> None:
        """Send nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    async def finish(self, context: Context) -> None:
        """Write what is left of an attempt, before its end is settled."""
        outgoing = context.outgoing
        if outgoing is None:
            return
        try:
            async with asyncio.timeout(END_SECONDS):
                while outgoing.chars and not outgoing.is_lost:
                    sent = outgoing.sent
                    self._start()
                    await sent.wait_async()
        except TimeoutError:
            self._log.event(
                "stream_cut",
                WARNING,
                f"{outgoing.chars} characters of its streams were not written, because the store did not answer",
                job=outgoing.job_id,
            )
        with self._lock:
            self._forget(outgoing)

    def _add(self, context: Context, name: str, text: str) -> Outgoing:
        with self._lock:
            if context.outgoing is None:
                context.outgoing = Outgoing(context.id, context.token)
            outgoing: Outgoing = context.outgoing
            if outgoing.is_full or outgoing.is_lost:
                return outgoing
        text = storable(text)
        if not text:
            return outgoing
        with self._lock:
            outgoing.texts.setdefault(name, []).append(text)
            outgoing.chars += len(text)
            is_first = outgoing not in self._waiting
            self._waiting[outgoing] = None
        if outgoing.chars >= GATHER_CHARS:
            self._loop.call_soon_threadsafe(self._start)
        elif is_first:
            self._loop.call_soon_threadsafe(self._start_soon)
        return outgoing

    def _full_until(self, context: Context, outgoing: Outgoing) -> Flag | None:
        """What to wait for before the handler may go on; None if it may."""
        sent = outgoing.sent
        if outgoing.is_lost:
            raise LeaseLost(
                f"Job {context.id}: attempt {context.attempt} gives nothing out any more, because its lease has ended "
                "or the job was handed on. The newer attempt begins its streams anew."
            )
        if outgoing.chars <= HELD_CHARS:
            return None
        if context.cancelled.is_set():
            raise Interrupted(context.interrupt or Interrupt.CANCEL)
        return sent

    # --- on the event loop's thread -----------------------------------------------------------------------------------

    def _start_soon(self) -> None:
        if self._timer is None and self._task is None:
            self._timer = self._loop.call_later(GATHER_SECONDS, self._start)

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is None:
            self._task = self._loop.create_task(self._send(), name="tenure-streams")

    async def _send(self) -> None:
        """Send until little is left, which then gathers again."""
        try:
            while taken := self._take():
                await self._send_once(taken)
                with self._lock:
                    most = max((one.chars for one in self._waiting), default=0)
                if most < GATHER_CHARS:
                    break
        finally:
            self._task = None
            if self._waiting and not self._loop.is_closed():
                self._start_soon()

    async def _send_once(self, taken: list[Outgoing]) -> None:
        request = AppendStreams([chunk for one in taken for chunk in one.chunks])
        lost: frozenset[str] = frozenset()
        full: frozenset[str] = frozenset()
        try:
            answer = await self._store.ado(request)
            lost, full = frozenset(answer.lost), frozenset(answer.full)
        except StoreUnavailable:
            await asyncio.sleep(AWAY_SECONDS)
            return  # the same chunks go out again
        except Exception as exc:  # noqa: BLE001 - what the store cannot take must not hold up other streams
            self._log.event("stream_refused", WARNING, f"{len(request.chunks)} chunks were dropped: {exc}")
        with self._lock:
            for one in taken:
                self._taken_in(one, one.job_id in lost, one.job_id in full)

    def _taken_in(self, outgoing: Outgoing, is_lost: bool, is_full: bool) -> None:
        outgoing.chars -= sum(len(chunk.text) for chunk in outgoing.chunks)
        outgoing.chunks = []
        outgoing.is_lost = outgoing.is_lost or is_lost
        if is_full and not outgoing.is_full:
            outgoing.is_full = True
            self._log.event(
                "stream_full",
                WARNING,
                "its streams have given out as much as is kept, so the rest of this attempt is dropped",
                job=outgoing.job_id,
            )
        if is_lost or is_full or not outgoing.texts:
            self._forget(outgoing)
        sent, outgoing.sent = outgoing.sent, Flag()
        sent.set()

    def _forget(self, outgoing: Outgoing) -> None:
        self._waiting.pop(outgoing, None)
        outgoing.texts.clear()
        outgoing.chunks = []
        outgoing.chars = 0

    def _take(self) -> list[Outgoing]:
        """Those whose chunks go out next."""
        taken = []
        chars = 0
        with self._lock:
            for outgoing in self._waiting:
                if not outgoing.chunks:
                    outgoing.chunks = list(_cut(outgoing))
                taken.append(outgoing)
                chars += sum(len(chunk.text) for chunk in outgoing.chunks)
                if chars >= REQUEST_CHARS:
                    break
        return taken


def _pieces(text: str) -> Iterator[str]:
    """A text in pieces that one request takes, each cut behind a line where there is one: secrets are looked for in
    each piece."""
    start = 0
    while len(text) - start > REQUEST_CHARS:
        end = text.rfind("\n", start, start + REQUEST_CHARS) + 1 or start + REQUEST_CHARS
        yield text[start:end]
        start = end
    yield text[start:] if start else text


def _cut(outgoing: Outgoing) -> Iterator[NewChunk]:
    """What was gathered as chunks, without secrets."""
    texts, outgoing.texts = outgoing.texts, {}
    outgoing.chars = 0
    for name, parts in texts.items():
        text = process_redactor().text("".join(parts))
        outgoing.chars += len(text)
        for start in range(0, len(text), CHUNK_CHARS):
            part = outgoing.parts[name] = outgoing.parts.get(name, 0) + 1
            yield NewChunk(outgoing.job_id, outgoing.token, name, part, text[start : start + CHUNK_CHARS])
