"""Handlers in processes of their own, which can be killed with everything they started.

Each gets a guardian (see `isolated`) in a session of its own, started afresh and never forked from the worker, so no
connection is shared. A child that dies without an answer is a crash of this one attempt; its neighbours do not notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tenure.errors import HandlerError, StoreUnavailable, TenureError
from tenure.handler.registry import Handler
from tenure.handler.signals import Interrupted
from tenure.model.event import NewEvent
from tenure.model.outcome import Completed, EffectRecord, Outcome
from tenure.worker import wire
from tenure.worker.end import Crashed, outcome_of
from tenure.worker.ticket import Ticket
from tenure.worker.tree import descendants, kill_tree

KILL_SECONDS = 2.0
"""How long a guardian may take to end its tree before the worker does it."""


class Isolate:
    """Runs tickets in child processes. Lives on the event loop's thread."""

    def __init__(self, jobs_per_process: int, artifacts_dir: Path | None) -> None:
        self._jobs_per_process = jobs_per_process
        self._artifacts_dir = artifacts_dir
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._is_stopping = False

    async def run(self, ticket: Ticket) -> Outcome | None:
        """One attempt in a process. Whatever happens to it becomes an outcome."""
        assert ticket.handler is not None
        process = self._idle.pop() if self._idle else await _Process.start()
        self._busy.add(process)
        ticket.body = process
        try:
            if ticket.interrupt is not None:  # asked to stop while the process was starting
                process.cancel()
            outcome = await self._attempt(process, ticket, ticket.handler)
        finally:
            ticket.body = None
            self._busy.discard(process)
            if process.may_serve_again(self._jobs_per_process) and not self._is_stopping:
                self._idle.append(process)
            else:
                await process.end()
        return outcome

    def tell_stopping(self) -> None:
        """The worker wants to stop: let running handlers know, and idle processes go."""
        self._is_stopping = True
        for process in self._busy:
            process.send({"op": "stop"})
        for process in self._idle:
            process.cancel()

    async def close(self) -> None:
        """End every process."""
        processes = [*self._idle, *self._busy]
        self._idle.clear()
        for process in processes:
            process.cancel()
        for process in processes:
            await process.end()

    async def _attempt(self, process: _Process, ticket: Ticket, handler: Handler) -> Outcome | None:
        process.send(self._job(ticket, handler))
        if self._is_stopping:
            process.send({"op": "stop"})
        try:
            told = await process.answer(ticket)
            process.jobs += 1
            return _with_events(wire.outcome_from_wire(told, ticket.grant), ticket)
        except (EOFError, OSError):
            how = await process.end()
        except (ValueError, TypeError, KeyError) as exc:
            process.cancel()
            await process.end()
            how = f"gave an answer that cannot be read ({type(exc).__name__}: {exc})"
        if ticket.interrupt is not None:
            return outcome_of(ticket.grant, Interrupted(ticket.interrupt), ticket.context, handler)
        return outcome_of(ticket.grant, Crashed(how))

    def _job(self, ticket: Ticket, handler: Handler) -> dict[str, Any]:
        module = handler.function.__module__
        main = None
        if module == "__main__":
            module, main = _main_module()
        return {
            "op": "job",
            "grant": wire.grant_to_wire(ticket.grant),
            "kind": handler.kind,
            "module": module,
            "main": main,
            "sys_path": sys.path,
            "artifacts_dir": str(self._artifacts_dir) if self._artifacts_dir else None,
        }


class _Process:
    """A guardian and the child under it."""

    def __init__(
        self, popen: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._popen = popen
        self._reader = reader
        self._writer = writer
        self._exit: asyncio.Future[int] | None = None
        self._is_dead = False
        self.jobs = 0

    @classmethod
    async def start(cls) -> _Process:
        """Started from the loop's thread: the guardian dies with the thread that started it."""
        ours, theirs = socket.socketpair()
        with theirs:
            popen = subprocess.Popen(  # noqa: ASYNC220 - from a pool's thread it would die with that thread
                [sys.executable, "-m", "tenure.worker.isolated", str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        return cls(popen, reader, writer)

    def send(self, message: dict[str, Any]) -> None:
        self._writer.write(wire.frame(message))

    async def answer(self, ticket: Ticket) -> dict[str, Any] | None:
        """Wait for the end of the job, and pass on what the handler says meanwhile. EOFError if there is no answer."""
        while True:
            message = await self._receive()
            match message:
                case {"op": "end", "outcome": dict() | None as told}:
                    return told
                case {"op": "effect", "effect": dict() as effect}:
                    self.send(await _record(effect, ticket))
                case {"op": op}:
                    _pass_on(op, message, ticket)

    def cancel(self) -> None:
        """End it with all that it started; the guardian does so, and if it does not, we do."""
        if self._is_dead:
            return
        self._is_dead = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._popen.pid, signal.SIGTERM)
            os.kill(self._popen.pid, signal.SIGCONT)
        asyncio.get_running_loop().call_later(KILL_SECONDS, self._kill)

    async def end(self) -> str:
        """Wait until the guardian has ended and say how its child did."""
        self._is_dead = True
        self._writer.close()
        if self._exit is None:
            self._exit = asyncio.ensure_future(_wait(self._popen))
        return _how(await asyncio.shield(self._exit))

    def may_serve_again(self, jobs_per_process: int) -> bool:
        """Whether it is alive, has jobs left, and its last job left no process behind."""
        if self._is_dead or self.jobs >= jobs_per_process:
            return False
        return len(descendants(self._popen.pid)) == 1

    def _kill(self) -> None:
        if self._popen.returncode is None:
            kill_tree(self._popen.pid)

    async def _receive(self) -> Any:
        try:
            head = await self._reader.readexactly(wire.HEAD_BYTES)
            return json.loads(await self._reader.readexactly(wire.body_bytes(head)))
        except asyncio.IncompleteReadError as exc:
            raise EOFError from exc


def check_isolated(handler: Handler) -> None:
    """Raises HandlerError for a handler that a process of its own could never find."""
    if handler.mode == "process" and "<locals>" in handler.function.__qualname__:
        raise HandlerError(
            f"Kind {handler.kind!r} is handled by {handler.function.__qualname__}, which is defined inside a function; "
            "a process of its own cannot import it. Move it to the top level of its module."
        )


def _with_events(outcome: Outcome | None, ticket: Ticket) -> Outcome | None:
    """What the handler said before it ended well, and was not written yet, goes along with the completion."""
    if isinstance(outcome, Completed) and ticket.context is not None:
        return replace(outcome, events=(*ticket.context.take_events(), *outcome.events))
    return outcome


def _pass_on(op: Any, message: dict[str, Any], ticket: Ticket) -> None:
    context = ticket.context
    assert context is not None
    if op == "progress":
        context.progress_text = str(message["text"])
        context.bench.speak(context)
    elif op == "event":
        context.events.append(NewEvent(str(message["kind"]), str(message["data"]), ticket.grant.id))
        context.bench.speak(context)
    elif op == "beat":
        context.bench.beat(context)


async def _record(told: dict[str, Any], ticket: Ticket) -> dict[str, Any]:
    """Write a row of the ledger for the child, whose own job and no other it is, and answer the row."""
    context = ticket.context
    assert context is not None
    assert context.bench.arecord is not None
    try:
        row = await context.bench.arecord(context, EffectRecord(**told))
    except StoreUnavailable as exc:
        return {"op": "effect", "unavailable": str(exc)}
    except TenureError as exc:
        return {"op": "effect", "refused": str(exc)}
    names = ("state", "key", "args", "result", "error")
    return {"op": "effect", "row": None if row is None else {name: getattr(row, name) for name in names}}


async def _wait(popen: subprocess.Popen[bytes]) -> int:
    """The exit code, without a thread where the kernel can tell by a file descriptor."""
    if not hasattr(os, "pidfd_open"):
        return await asyncio.to_thread(popen.wait)
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    fd = os.pidfd_open(popen.pid)
    loop.add_reader(fd, done.set)
    try:
        await done.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)
    return popen.wait()


def _how(code: int) -> str:
    number = -code if code < 0 else code - 128
    if number > 0:
        with contextlib.suppress(ValueError):
            name = signal.Signals(number).name
            return f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    return f"ended with exit code {code} before it gave an answer"


def _main_module() -> tuple[str, str | None]:
    """How another process can import what is `__main__` here."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return spec.name, None
    file = getattr(main, "__file__", None)
    return "__main__", str(Path(file).absolute()) if file else None
