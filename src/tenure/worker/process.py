"""Handlers in processes of their own, which can be killed with everything they started: the worker's side.

Isolated handlers run here, and suspects: jobs that were held when a worker vanished. Each gets a guardian (see
`process_child`) in a session of its own, started afresh and never forked from the worker, so no connection is shared.
A child that dies without an answer is a crash of this one attempt, provably the job's own; other jobs go on. Children
die with their worker.

Both sides exchange frames of JSON over a socket pair. Outcomes travel as data and are built anew here. The worker puts
in the job and token of the grant, so a child can only ever end its own attempt.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from tenure.errors import HandlerError, LeaseLost, StoreUnavailable, TenureError
from tenure.handler.registry import Handler
from tenure.handler.signals import Interrupted
from tenure.model.event import NewEvent
from tenure.model.ids import JobId
from tenure.model.job import Grant
from tenure.model.outcome import (
    Completed,
    EffectRecord,
    Failed,
    FailureClass,
    Outcome,
    Rejected,
    Released,
    Stopped,
    Suspended,
)
from tenure.model.policy import Limits
from tenure.model.redact import clean
from tenure.model.step import NewStep, Step
from tenure.worker.execution import Execution
from tenure.worker.flow import (
    answer_to_wire,
    group_from_wire,
    job_from_wire,
    question_from_wire,
    step_from_wire,
    to_wire,
)
from tenure.worker.outcomes import Crashed, outcome_of
from tenure.worker.process_tree import descendants, kill_tree

KILL_SECONDS = 2.0
"""How long a guardian may take to end its tree before the worker does it."""
FRAME_BYTES = 16 * 1024 * 1024
HEAD_BYTES = 4

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Completed, Failed, Rejected, Released, Suspended, Stopped)
}
_PARTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "jobs": job_from_wire,
    "events": lambda told: NewEvent(**told),
    "effects": lambda told: EffectRecord(**told),
    "steps": lambda told: NewStep(**told),
    "groups": group_from_wire,
}
STEPS_BYTES = 1024 * 1024
"""Values of steps that go into one frame, at least one step."""


class HandlerNotFound(Exception):
    """A process of its own cannot import the handler of a kind."""


class Processes:
    """Runs executions in child processes. Lives on the event loop's thread."""

    def __init__(self, jobs_per_process: int, artifacts_dir: Path | None, limits: Limits) -> None:
        self._jobs_per_process = jobs_per_process
        self._artifacts_dir = artifacts_dir
        self._limits = limits
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._is_stopping = False

    async def run(self, execution: Execution) -> Outcome | None:
        """One attempt in a process. Whatever happens to it becomes an outcome.

        Raises: OSError if no process can be started; HandlerNotFound for a suspect whose handler the child cannot find.
        """
        assert execution.handler is not None
        process = self._idle.pop() if self._idle else await _Process.start()
        self._busy.add(process)
        execution.body = process
        try:
            if execution.interrupt is not None:  # asked to stop while the process was starting
                process.cancel()
            outcome = await self._attempt(process, execution, execution.handler)
        finally:
            execution.body = None
            self._busy.discard(process)
            if process.may_serve_again(self._jobs_per_process) and not self._is_stopping:
                self._idle.append(process)
            else:
                await process.end()
        return outcome

    def tell_stopping(self) -> None:
        """The worker is stopping: tell running handlers, and end idle processes."""
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

    async def _attempt(self, process: _Process, execution: Execution, handler: Handler) -> Outcome | None:
        try:
            for steps in _pages(execution.grant.steps):
                process.send({"op": "steps", "steps": [to_wire(asdict(step)) for step in steps]})
            process.send(self._job(execution, handler))
            if self._is_stopping:
                process.send({"op": "stop"})
            told = await process.answer(execution)
            process.jobs += 1
            return _with_events(outcome_from_wire(told, execution.grant), execution)
        except (EOFError, OSError):
            how = await process.end()
        except (ValueError, TypeError, KeyError) as exc:
            process.cancel()
            await process.end()
            how = f"gave an answer that cannot be read ({type(exc).__name__}: {exc})"
        if execution.interrupt is not None:
            return outcome_of(execution.grant, Interrupted(execution.interrupt), execution.context, handler)
        return outcome_of(execution.grant, Crashed(how))

    def _job(self, execution: Execution, handler: Handler) -> dict[str, Any]:
        module = handler.function.__module__
        main = None
        if module == "__main__":
            module, main = _main_module()
        return {
            "op": "job",
            "grant": grant_to_wire(execution.grant),
            "kind": handler.kind,
            "is_suspect": handler.mode != "process",
            "module": module,
            "main": main,
            "sys_path": sys.path,
            "artifacts_dir": str(self._artifacts_dir) if self._artifacts_dir else None,
            "limits": asdict(self._limits),
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
                [sys.executable, "-P", "-m", "tenure.worker.process_child", str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        return cls(popen, reader, writer)

    def send(self, message: dict[str, Any]) -> None:
        self._writer.write(frame(message))

    async def answer(self, execution: Execution) -> dict[str, Any] | None:
        """Wait for the end of the job, and pass on what the handler says meanwhile. EOFError if there is no answer."""
        while True:
            message = await self._receive()
            match message:
                case {"op": "end", "outcome": dict() | None as told}:
                    return told
                case {"op": "effect", "effect": dict() as effect}:
                    self.send(await _record(effect, execution))
                case {"op": "flow"}:
                    self.send(await _answer_flow(message, execution))
                case {"op": "stream", "name": str(name), "text": str(text)}:
                    self.send(await _write_stream(name, text, execution))
                case {"op": "not_found", "why": str(why)}:
                    raise HandlerNotFound(why)
                case {"op": op}:
                    _pass_on(op, message, execution)

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
            asyncio.get_running_loop().call_later(KILL_SECONDS, self._kill)  # a thread of the handler may keep it alive
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
            head = await self._reader.readexactly(HEAD_BYTES)
            return json.loads(await self._reader.readexactly(body_bytes(head)))
        except asyncio.IncompleteReadError as exc:
            raise EOFError from exc


def check_isolated(handler: Handler) -> None:
    """Raises HandlerError for a handler that a process of its own could never find."""
    if handler.mode == "process" and "<locals>" in handler.function.__qualname__:
        raise HandlerError(
            f"Kind {handler.kind!r} is handled by {handler.function.__qualname__}, which is defined inside a function; "
            "a process of its own cannot import it. Move it to the top level of its module."
        )


def is_importable(handler: Handler) -> bool:
    """Whether a process of its own may find the handler by importing its module."""
    if handler.needs_store:
        return False
    name = getattr(handler.function, "__qualname__", "<locals>")
    module = getattr(handler.function, "__module__", None)
    if "<locals>" in name or "<lambda>" in name or module is None:
        return False
    return module != "__main__" or _main_module() != ("__main__", None)


def _with_events(outcome: Outcome | None, execution: Execution) -> Outcome | None:
    """What the handler said before it ended well, and was not written yet, goes along with the completion."""
    if isinstance(outcome, Completed) and execution.context is not None:
        return replace(outcome, events=(*execution.context.take_events(), *outcome.events))
    return outcome


def _pass_on(op: Any, message: dict[str, Any], execution: Execution) -> None:
    context = execution.context
    assert context is not None
    if op == "progress":
        context.progress_text = str(message["text"])
        context.services.write_soon(context)
    elif op == "event":
        context.keep_event(NewEvent(str(message["kind"]), str(message["data"]), execution.grant.id))
        context.services.write_soon(context)
    elif op == "heartbeat":
        context.services.heartbeat(context)


async def _record(told: dict[str, Any], execution: Execution) -> dict[str, Any]:
    """Write a row of the ledger for the child, whose own job and no other it is, and answer the row."""
    context = execution.context
    assert context is not None
    assert context.services.arecord is not None
    try:
        row = await context.services.arecord(context, EffectRecord(**told))
    except StoreUnavailable as exc:
        return {"op": "effect", "unavailable": str(exc)}
    except TenureError as exc:
        return {"op": "effect", "refused": str(exc)}
    names = ("state", "key", "args", "result", "error")
    return {"op": "effect", "row": None if row is None else {name: getattr(row, name) for name in names}}


async def _write_stream(name: str, text: str, execution: Execution) -> dict[str, Any]:
    """Add to a stream for the child, whose own job and no other it is."""
    context = execution.context
    assert context is not None
    assert context.services.astream is not None
    try:
        await context.services.astream(context, name, text)
    except LeaseLost as exc:
        return {"op": "stream", "lost": str(exc)}
    except Interrupted:  # the process is being ended
        return {"op": "stream", "refused": "The work is not wanted any more."}
    return {"op": "stream"}


async def _answer_flow(told: dict[str, Any], execution: Execution) -> dict[str, Any]:
    """Write steps or look up children for the child, whose own job and no other it is."""
    context = execution.context
    assert context is not None
    assert context.services.aflow is not None
    try:
        question = question_from_wire(told)
        return {"op": "flow", "answer": answer_to_wire(await context.services.aflow(context, question))}
    except StoreUnavailable as exc:
        return {"op": "flow", "unavailable": str(exc)}
    except LeaseLost as exc:
        return {"op": "flow", "lost": str(exc)}
    except TenureError as exc:
        return {"op": "flow", "refused": str(exc)}


def _pages(steps: tuple[Step, ...]) -> Iterator[list[Step]]:
    page: list[Step] = []
    size = 0
    for step in steps:
        page.append(step)
        size += len(step.value or "") + 500
        if size > STEPS_BYTES:
            yield page
            page, size = [], 0
    if page:
        yield page


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


# --- the frames between worker and child ------------------------------------------------------------------------------


def frame(message: dict[str, Any]) -> bytes:
    """A message with its length in front. Raises ValueError if it is larger than any reader would take."""
    body = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")
    if len(body) > FRAME_BYTES:
        raise ValueError(f"a message of {len(body):,} bytes is larger than the {FRAME_BYTES:,} that may be sent")
    return len(body).to_bytes(HEAD_BYTES, "big") + body


def body_bytes(head: bytes) -> int:
    """The length that a frame's head announces. Raises ValueError beyond the limit."""
    length = int.from_bytes(head, "big")
    if length > FRAME_BYTES:
        raise ValueError(f"a message of {length:,} bytes was announced, more than the {FRAME_BYTES:,} that are taken")
    return length


def grant_to_wire(grant: Grant) -> dict[str, Any]:
    """A grant as plain data, without its steps, which have frames of their own."""
    told = {f.name: getattr(grant, f.name) for f in fields(grant) if f.name != "steps"}
    text = grant.payload_text
    told["payload_text"] = text.decode() if isinstance(text, bytes) else text
    told["extras"] = to_wire(grant.extras)
    return told


def grant_from_wire(told: dict[str, Any], steps: Sequence[dict[str, Any]] = ()) -> Grant:
    """The grant again."""
    return Grant(**{**told, "steps": tuple(step_from_wire(step) for step in steps)})


def outcome_to_wire(outcome: Outcome | None) -> dict[str, Any] | None:
    """An outcome as plain data."""
    return None if outcome is None else {"outcome": type(outcome).__name__, **to_wire(asdict(outcome))}


def outcome_from_wire(told: dict[str, Any] | None, grant: Grant) -> Outcome | None:
    """The outcome again, for this grant and no other. Raises ValueError, TypeError or KeyError for what is none."""
    if told is None:
        return None
    told = {**told, "job_id": grant.id, "token": grant.token}
    kind = _KINDS[told.pop("outcome")]
    if told.get("error"):
        told["error"] = clean(told["error"])  # the child does not know the password of the database
    if "failure_class" in told:
        told["failure_class"] = FailureClass(told["failure_class"])
    for name, part in _PARTS.items():
        if name in told:
            told[name] = tuple(part(item) for item in told[name])
    if "events" in told:
        told["events"] = tuple(NewEvent(event.kind, event.data, JobId(grant.id)) for event in told["events"])
    outcome: Outcome = kind(**told)
    return outcome
