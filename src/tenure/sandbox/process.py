"""Run a program to its end, with bounds on time, output and resources, and leave no process of it behind.

    worker's thread ── orders, control socket ──► init (child.py) ──► program and its descendants
           └──────────── stdin, stdout, stderr ─────────────────────────────────────┘

The thread only moves bytes: it feeds stdin and drains both outputs at once, so neither side can block the other, and
what goes past the cap is dropped or ends the program. Time and death are the init's business, which works on when
this process is busy, stopped or gone. A run is over when the control socket ends, which is when the last process of
the tree is dead; only then does `wait` return.
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import field
from datetime import timedelta
from pathlib import Path
from typing import IO, Literal, cast

from tenure.errors import ConfigError
from tenure.model.frozen import frozen
from tenure.sandbox import cgroups
from tenure.sandbox.policy import (
    CHILD,
    Layer,
    Plan,
    SandboxPolicy,
    SandboxUnavailable,
    hand_over,
    offers,
    plan,
)
from tenure.sandbox.rlimits import MIB, Limits

Stream = Literal["stdout", "stderr"]
Reason = Literal["exited", "timeout", "cancelled", "output_limit", "memory_limit", "disk_limit", "lost"]
OnOutput = Callable[[Stream, bytes], None]

_KEPT_VARIABLES = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")
_PATH = "/usr/local/bin:/usr/bin:/bin"
_CHUNK = 64 * 1024
_LINE_BYTES = 64 * 1024
_PATIENCE_SECONDS = 20.0  # past timeout and grace, before a init that does not answer is itself killed
_UNCONFINED = Plan(frozenset(), {}, {"layers": [], "network": True, "run_as": None})


class ProgramNotStarted(ConfigError):
    """The program itself could not be executed: missing, not executable, or not readable inside the sandbox."""

    code = "program_not_started"


@frozen
class Command:
    """A program with its arguments and bounds. There is no shell: each argument arrives as it is.

    Attributes:
        argv: The first is an absolute path; it comes from configuration, never from a payload.
        env: All that the program gets; see `clean_environment`.
        grace: Between asking it to stop (SIGTERM to the whole tree) and killing it.
        output_bytes: Cap on stdout and stderr together.
        on_excess: What happens at the cap: kill the tree, or drop what goes beyond.
        sandbox: None runs it as the worker's own user with the worker's rights, but still bounded and killed whole.
    """

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(repr=False)
    stdin: bytes = field(default=b"", repr=False)
    timeout: timedelta = timedelta(minutes=10)
    grace: timedelta = timedelta(seconds=5)
    output_bytes: int = 8 * MIB
    on_excess: Literal["kill", "truncate"] = "kill"
    limits: Limits = field(default_factory=Limits)
    sandbox: SandboxPolicy | None = None

    def __post_init__(self) -> None:
        words = [*self.argv, *self.env, *self.env.values()]
        if not self.argv or not Path(self.argv[0]).is_absolute() or any("\0" in word for word in words):
            raise ConfigError(
                f"Command {self.argv[:1]}: argv must start with an absolute path, and neither arguments nor "
                "environment may contain NUL. Set the program's full path in the configuration."
            )


@frozen
class Ended:
    """How a run ended. When this exists, no process of the run does."""

    reason: Reason
    exit_code: int | None
    signal: int | None
    stdout: bytes = field(repr=False)
    stderr: bytes = field(repr=False)
    dropped_bytes: int
    wall: timedelta
    user: timedelta
    system: timedelta
    peak_rss_bytes: int
    left_behind: int  # processes that outlived the program and were killed
    layers: frozenset[Layer]
    missing: Mapping[Layer, str]

    @property
    def is_success(self) -> bool:
        return self.reason == "exited" and self.exit_code == 0


def clean_environment(keep: Iterable[str] = (), **variables: str) -> dict[str, str]:
    """An environment from an allow-list: locale and time zone, a plain PATH, what `keep` names, and `variables`."""
    kept = {name: os.environ[name] for name in (*_KEPT_VARIABLES, *keep) if name in os.environ}
    return {"PATH": _PATH, "LANG": "C.UTF-8", **kept, **variables}


def run(command: Command, *, on_output: OnOutput | None = None, on_line: OnOutput | None = None) -> Ended:
    """Run a program and wait for its end. See `start`."""
    return start(command, on_output=on_output, on_line=on_line).wait()


async def run_async(command: Command, *, on_output: OnOutput | None = None, on_line: OnOutput | None = None) -> Ended:
    """Run a program without blocking the loop. Cancelling the task stops the tree and waits until it is gone."""
    starting = asyncio.ensure_future(asyncio.to_thread(start, command, on_output=on_output, on_line=on_line))
    try:
        running = await asyncio.shield(starting)
        return await asyncio.shield(asyncio.wrap_future(running.ended))
    except asyncio.CancelledError:
        running = await starting
        running.cancel()
        with suppress(Exception):
            await asyncio.wrap_future(running.ended)
        raise


def start(command: Command, *, on_output: OnOutput | None = None, on_line: OnOutput | None = None) -> Running:
    """Start a program from any thread.

    Args:
        on_output: Called with each chunk as it comes, in a thread of the run; a slow one slows the program down.
        on_line: The same by line, without its end; lines over 64 KiB come in pieces.

    Raises:
        SandboxUnavailable: A layer that the policy requires is missing. Also raised by `wait`, when it only shows
            while the layer is being set up; the program has not started then either.
    """
    policy = command.sandbox
    walls = plan(policy, offers(policy.cgroup_parent)) if policy else _UNCONFINED
    if policy:
        hand_over(policy)
    return Running(command, walls, [call for call in (on_output, on_line and _Lines(on_line)) if call])


class Running:
    """A program at work. `wait`, `cancel` and `ended` may be used from any thread."""

    def __init__(self, command: Command, walls: Plan, listeners: list[OnOutput]) -> None:
        self.command = command
        self.ended: Future[Ended] = Future()
        self.ended.set_running_or_notify_cancel()
        self._walls = walls
        self._listeners = listeners
        self._lock = threading.Lock()
        self._trouble: Exception | None = None
        self._heard: dict[str, object] = {}
        self._kept: dict[Stream, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._dropped = 0
        self._group = cgroups.create(command.sandbox.cgroup_parent) if command.sandbox else None
        self._control, theirs = socket.socketpair()
        try:
            self._init = self._launch(theirs)
        except BaseException:
            self._control.close()
            self._drop_group()
            raise
        finally:
            theirs.close()
        threading.Thread(target=self._attend, name=f"run-{self._init.pid}", daemon=True).start()

    def wait(self, timeout: float | None = None) -> Ended:
        """Wait for the end of the whole tree. TimeoutError says it is still at work, and changes nothing."""
        return self.ended.result(timeout)

    def cancel(self, *, at_once: bool = False) -> None:
        """Ask the tree to stop and kill it after the grace, or kill it at once. Returns without waiting. Idempotent."""
        self._say(b"k" if at_once else b"c")

    def _launch(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        orders = os.memfd_create("orders")
        try:
            with os.fdopen(os.dup(orders), "wb") as file:
                file.write(json.dumps(self._orders()).encode())
            os.lseek(orders, 0, os.SEEK_SET)
            return subprocess.Popen(
                [sys.executable, "-I", "-S", str(CHILD), str(theirs.fileno()), str(orders)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(), orders),
                env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
                cwd="/",
                start_new_session=True,  # a Ctrl-C in the terminal is for the worker, which then decides
            )
        finally:
            os.close(orders)

    def _orders(self) -> dict[str, object]:
        command, group, limits = self.command, self._group, self.command.limits
        if group:
            group.limit(limits)
        alone = "namespaces" in self._walls.layers
        return {
            **self._walls.spec,
            "worker": os.getpid(),
            "argv": command.argv,
            "env": dict(command.env),
            "cwd": str(command.cwd),
            "timeout": command.timeout.total_seconds(),
            "grace": command.grace.total_seconds(),
            "rlimits": limits.rlimits(0 if alone else _tasks_of(cast(int | None, self._walls.spec["run_as"]))),
            "scratch_bytes": limits.scratch_bytes,
            "memory_bytes": limits.memory_bytes,
            "disk_bytes": limits.disk_bytes if command.sandbox else None,
            "watch_memory": not (group and cgroups.MEMORY in group.powers),
            "cgroup": str(group.path) if group else None,
        }

    def _attend(self) -> None:
        """The thread of this run: move bytes until the init is done, then say how it was."""
        try:
            with self._init:
                try:
                    self._move_bytes()
                except BaseException:
                    self._init.kill()
                    raise
            outcome: Ended | Exception = self._judge()
        except Exception as exc:  # noqa: BLE001 - raised where the caller waits
            outcome = exc
        finally:
            with self._lock:
                self._control.close()
            self._drop_group()
        if isinstance(outcome, Exception):
            self.ended.set_exception(outcome)
        else:
            self.ended.set_result(outcome)

    def _move_bytes(self) -> None:
        stdin, stdout, stderr = (
            cast(IO[bytes], pipe) for pipe in (self._init.stdin, self._init.stdout, self._init.stderr)
        )
        os.set_blocking(stdin.fileno(), False)
        left = memoryview(self.command.stdin)
        said = b""
        deadline = time.monotonic() + (self.command.timeout + self.command.grace).total_seconds() + _PATIENCE_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(stdin, selectors.EVENT_WRITE, "stdin")
            for file, name in ((stdout, "stdout"), (stderr, "stderr"), (self._control, "control")):
                selector.register(file, selectors.EVENT_READ, name)
            open_ends = {"stdout", "stderr", "control"}
            while open_ends:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    self._init.kill()  # by PDEATHSIG its tree goes along; then there is nothing to wait for
                    break
                for key, _ in ready:
                    if key.data == "stdin":
                        left = self._feed(selector, stdin, left)
                        continue
                    chunk = _read(key.fd)
                    if not chunk:
                        selector.unregister(key.fileobj)
                        open_ends.discard(key.data)
                        if key.data == "control":  # the tree is gone, so its pipes end now
                            deadline = time.monotonic() + 5.0
                    elif key.data == "control":
                        said += chunk
                    else:
                        self._take(key.data, chunk)
        self._heard = {name: value for line in said.splitlines() for name, value in json.loads(line).items()}
        for listener in self._listeners:
            if isinstance(listener, _Lines):
                self._call(listener.flush)

    def _feed(self, selector: selectors.BaseSelector, stdin: IO[bytes], left: memoryview) -> memoryview:
        try:
            left = left[os.write(stdin.fileno(), left[:_CHUNK]) :] if left else left
        except BlockingIOError:
            return left
        except BrokenPipeError:  # it does not want to read; that is its right
            left = left[:0]
        if not left:
            selector.unregister(stdin)
            stdin.close()
        return left

    def _take(self, stream: Stream, chunk: bytes) -> None:
        room = self.command.output_bytes - sum(map(len, self._kept.values()))
        kept = chunk[: max(0, room)]
        self._kept[stream] += kept
        self._dropped += len(chunk) - len(kept)
        if len(kept) < len(chunk) == self._dropped + len(kept) and self.command.on_excess == "kill":
            self._say(b"o")
        if kept:
            for listener in self._listeners:
                self._call(listener, stream, kept)

    def _call(self, listener: Callable[..., None], *args: object) -> None:
        """A listener that fails ends the run and is what `wait` raises: there is no listener any more."""
        if self._trouble is None:
            try:
                listener(*args)
            except Exception as exc:  # noqa: BLE001 - raised by `wait`
                self._trouble = exc
                self._say(b"k")

    def _say(self, word: bytes) -> None:
        with self._lock, suppress(OSError):
            self._control.send(word, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def _judge(self) -> Ended:
        heard = self._heard
        if self._trouble:
            raise self._trouble
        if (layer := heard.get("refused")) == "program":
            raise ProgramNotStarted(
                f"Program {self.command.argv[0]!r} could not be started ({heard['why']}). Check that it exists, is "
                "executable, and lies in a folder that the sandbox may read."
            )
        if layer:
            raise SandboxUnavailable(str(layer), str(heard["why"]))
        numbers = {name: cast(float, heard.get(name, 0.0)) for name in ("wall", "user", "system", "rss", "left_behind")}
        reason = cast(Reason, heard.get("ended", "lost"))
        if reason in {"exited", "lost"} and self._group and self._group.ran_out_of_memory():
            reason = "memory_limit"
        return Ended(
            reason=reason,
            exit_code=cast(int | None, heard.get("exit_code")),
            signal=cast(int | None, heard.get("signal")),
            stdout=bytes(self._kept["stdout"]),
            stderr=bytes(self._kept["stderr"]),
            dropped_bytes=self._dropped,
            wall=timedelta(seconds=numbers["wall"]),
            user=timedelta(seconds=numbers["user"]),
            system=timedelta(seconds=numbers["system"]),
            peak_rss_bytes=int(numbers["rss"]),
            left_behind=int(numbers["left_behind"]),
            layers=self._walls.layers,
            missing=self._walls.missing,
        )

    def _drop_group(self) -> None:
        if self._group:
            self._group.remove()


class _Lines:
    """Cuts each stream into lines for a listener."""

    def __init__(self, listener: OnOutput) -> None:
        self._listener = listener
        self._partial: dict[Stream, bytes] = {"stdout": b"", "stderr": b""}

    def __call__(self, stream: Stream, chunk: bytes) -> None:
        *lines, rest = (self._partial[stream] + chunk).split(b"\n")
        while len(rest) > _LINE_BYTES:
            lines.append(rest[:_LINE_BYTES])
            rest = rest[_LINE_BYTES:]
        self._partial[stream] = rest
        for line in lines:
            self._listener(stream, line)

    def flush(self) -> None:
        for stream, rest in self._partial.items():
            if rest:
                self._listener(stream, rest)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, _CHUNK)
    except ConnectionResetError:  # the init ended with a word of ours unread
        return b""


def _tasks_of(user: int | None) -> int:
    """How many tasks the child's user has already: without a namespace of its own RLIMIT_NPROC counts them all."""
    wanted = str(os.geteuid() if user is None or os.geteuid() != 0 else user)
    count = 0
    for path in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            fields = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
            if fields["Uid"].split()[0] == wanted:
                count += int(fields["Threads"])
    return count
