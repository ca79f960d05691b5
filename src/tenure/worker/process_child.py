"""The other side of `isolate=True`: `python -m tenure.worker.process_child`, started by a worker for its handlers.

Two processes. The *guardian* is what the worker started: it has a session of its own, adopts orphans, and holds
neither handler nor socket. The *child* is forked from it, before anything of the user's is imported, and runs the
handler. Whatever the handler starts stays below the guardian, however it daemonises. When the child ends (well, by a
segfault, or killed), the guardian ends all that is left below it; when the worker asks (SIGTERM) or dies, likewise.
Its exit code tells how the child ended: 128 + signal, or the child's own code.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import runpy
import signal
import socket
import sys
import threading
from collections.abc import Coroutine
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

from tenure.errors import HandlerError, InvalidPayload, LeaseLost, StoreUnavailable
from tenure.handler.context import Context, Flag, WorkerServices
from tenure.handler.ledger import LedgerRow
from tenure.handler.registry import Handler, Registry
from tenure.model.job import Grant
from tenure.model.outcome import EffectRecord, Outcome
from tenure.model.policy import Limits
from tenure.model.redact import clean
from tenure.worker.flow import answer_from_wire, question_to_wire
from tenure.worker.outcomes import BadPayload, Returned, outcome_of
from tenure.worker.process import HEAD_BYTES, body_bytes, frame, grant_from_wire, outcome_to_wire
from tenure.worker.process_tree import adopt_orphans, die_with_parent, kill_descendants, reap_until_none

MAIN_NAME = "__tenure_main__"
"""The name under which a worker's main script is imported here, so that its `if __name__ == "__main__"` stays quiet."""
_REAP_SECONDS = 5.0
STREAM_CHARS = 65_536
"""Text of a stream that goes into one frame."""


def main() -> int:
    """Be the guardian."""
    fd, worker = int(sys.argv[1]), int(sys.argv[2])
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD, signal.SIGINT})
    adopt_orphans()
    die_with_parent(signal.SIGTERM, worker)
    guardian = os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent(signal.SIGKILL, guardian)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        _Child(socket.socket(fileno=fd)).serve()
        return 0
    os.close(fd)
    code = _guard(child)
    kill_descendants(guardian)
    reap_until_none(_REAP_SECONDS)
    return code


def _guard(child: int) -> int:
    """Wait until the child has ended, by itself or because the worker asked. Answers the exit code to leave with."""
    while True:
        if signal.sigwait({signal.SIGTERM, signal.SIGCHLD}) == signal.SIGTERM:
            kill_descendants(os.getpid())
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 1
            if pid == 0:
                break
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code


class _Child:
    """Runs one job after another, as the worker sends them."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sending = threading.Lock()
        self._jobs: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._rows: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._recording = threading.Lock()
        self._stopping = Flag()
        self._is_busy = False
        self._steps: list[dict[str, Any]] = []
        """Of the job that is sent next."""
        self._handlers: dict[str, Handler] = {}

    def serve(self) -> None:
        _remember_handlers(self._handlers)
        threading.Thread(target=self._listen, name="tenure-worker", daemon=True).start()
        while (message := self._jobs.get()) is not None:
            self._is_busy = True
            answer = self._answer(message)
            self._is_busy = False
            self._send(answer)

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Run a job. For a suspect, whose handler is not marked as isolated, it may not be found here."""
        if message["is_suspect"]:
            try:
                self._find(message)
            except Exception as exc:  # noqa: BLE001 - the module of the handler may raise anything when imported
                return {"op": "not_found", "why": f"{type(exc).__name__}: {exc}"}
        grant = grant_from_wire(message["grant"], message["steps"])
        answer = {"op": "end", "outcome": outcome_to_wire(self._run(message, grant))}
        try:
            frame(answer)
        except ValueError as exc:  # larger than a frame may be
            return {"op": "end", "outcome": outcome_to_wire(outcome_of(grant, exc))}
        return answer

    def _run(self, message: dict[str, Any], grant: Grant) -> Outcome | None:
        handler: Handler | None = None
        context: Context | None = None
        try:
            handler = self._find(message)
            context = Context(grant, self._services(message))
            payload = handler.decode(grant.payload_text) if handler.wants_payload else None
        except InvalidPayload as exc:
            return outcome_of(grant, BadPayload(exc))
        except BaseException as exc:  # noqa: BLE001 - the module of the handler may raise anything when imported
            return outcome_of(grant, exc)
        return _call(grant, handler, payload, context)

    def _find(self, message: dict[str, Any]) -> Handler:
        kind = message["kind"]
        if kind not in self._handlers:
            sys.path[:] = message["sys_path"]
            if message["main"]:
                main_names = runpy.run_path(message["main"], run_name=MAIN_NAME)
                sys.modules.setdefault(MAIN_NAME, type(sys)(MAIN_NAME)).__dict__.update(main_names)
            else:
                importlib.import_module(message["module"])
        handler = self._handlers.get(kind)
        if handler is None:
            raise HandlerError(
                f"Kind {kind!r} is not registered when {message['main'] or message['module']} is imported, so it "
                "cannot run in a process of its own. Register isolated handlers at the top level of a module."
            )
        return handler

    def _services(self, message: dict[str, Any]) -> WorkerServices:
        directory = message["artifacts_dir"]
        return WorkerServices(
            stopping=self._stopping,
            find=self._handlers.get,
            write_soon=self._write,
            heartbeat=lambda _: self._send({"op": "heartbeat"}),
            artifacts_dir=Path(directory) if directory else None,
            record=self._record,
            arecord=lambda context, effect: asyncio.to_thread(self._record, context, effect),
            flow=self._flow,
            aflow=lambda context, question: asyncio.to_thread(self._flow, context, question),
            stream=self._stream,
            astream=lambda context, name, text: asyncio.to_thread(self._stream, context, name, text),
            clean=clean,
            limits=Limits(**message["limits"]),
        )

    def _flow(self, _: Context, question: Any) -> Any:
        """Ask the worker to write steps or to look up children."""
        answer = self._ask({"op": "flow", **question_to_wire(question)})
        if "lost" in answer:
            raise LeaseLost(answer["lost"])
        return answer_from_wire(question, answer["answer"])

    def _stream(self, _: Context, name: str, text: str) -> None:
        """Hand text of a stream to the worker, which may let this wait."""
        for start in range(0, len(text), STREAM_CHARS):
            answer = self._ask({"op": "stream", "name": name, "text": text[start : start + STREAM_CHARS]})
            if "lost" in answer:
                raise LeaseLost(answer["lost"])

    def _record(self, _: Context, effect: EffectRecord) -> LedgerRow | None:
        """Ask the worker to write a row of the ledger; it holds the store, and the token."""
        row = self._ask({"op": "effect", "effect": asdict(effect)})["row"]
        return None if row is None else SimpleNamespace(**row)

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        with self._recording:
            self._send(question)
            answer = self._rows.get()
        if "unavailable" in answer:
            raise StoreUnavailable(answer["unavailable"])
        if "refused" in answer:
            raise HandlerError(answer["refused"])
        return answer

    def _write(self, context: Context) -> None:
        for event in context.take_events():
            self._send({"op": "event", "kind": event.kind, "data": event.data})
        if context.progress_text is not None:
            self._send({"op": "progress", "text": context.progress_text})
            context.progress_text = None

    def _send(self, message: dict[str, Any]) -> None:
        with self._sending:
            self._sock.sendall(frame(message))

    def _listen(self) -> None:
        """Take what the worker sends, also while a handler runs."""
        while (message := self._receive()) is not None:
            if message["op"] == "stop":
                self._stopping.set()
            elif message["op"] in {"effect", "flow", "stream"}:
                self._rows.put(message)
            elif message["op"] == "steps":
                self._steps += message["steps"]
            else:
                self._jobs.put({**message, "steps": self._steps})
                self._steps = []
        if self._is_busy:
            os._exit(1)  # the worker is gone, so the answer would be lost
        self._jobs.put(None)

    def _receive(self) -> dict[str, Any] | None:
        head = self._read(HEAD_BYTES)
        body = None if head is None else self._read(body_bytes(head))
        if body is None:
            return None
        message: dict[str, Any] = json.loads(body)
        return message

    def _read(self, size: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = self._sock.recv(size - len(parts))
            except OSError:
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)


def _call(grant: Grant, handler: Handler, payload: Any, context: Context) -> Outcome | None:
    try:
        if handler.is_durable:
            context.journal.settle_in()
        value: Any = handler.call(payload, context)
        if inspect.iscoroutine(value):
            value = asyncio.run(_awaited(value, handler, context))
    except BaseException as exc:  # noqa: BLE001 - whatever ends the handler is an outcome
        return _compensated(outcome_of(grant, exc, context, handler), grant, context)
    return _compensated(outcome_of(grant, Returned(value), context, handler), grant, context)


def _compensated(outcome: Outcome | None, grant: Grant, context: Context) -> Outcome | None:
    if outcome is None:
        return None
    try:
        return context.compensated(outcome)
    except (StoreUnavailable, LeaseLost) as exc:
        return outcome_of(grant, exc)


async def _awaited(value: Coroutine[Any, Any, Any], handler: Handler, context: Context) -> Any:
    if handler.is_durable:
        context.journal.settle_in()
    return await value


def _remember_handlers(found: dict[str, Handler]) -> None:
    """Note every handler that is registered in this process, in whichever app: imports are how they get here."""
    add = Registry.add

    def remember(registry: Registry, handler: Handler) -> None:
        add(registry, handler)
        found[handler.kind] = registry[handler.kind]

    Registry.add = remember  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    sys.exit(main())
