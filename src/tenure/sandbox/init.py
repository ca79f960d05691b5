"""The process between a worker and a program it runs: sets the walls, keeps the time, kills the tree.

A worker has threads, so it can't safely do more than start another program; it starts this one, in a fresh
interpreter, with the orders in a file descriptor. Up to three processes follow:

    init's parent   enters the namespaces and waits (only with namespaces)
    init              first process of the PID namespace; kills, reaps, reports
    program           sets limits and walls upon itself, then becomes the program

Who dies, and then: the worker: its pidfd and the control socket tell the init, which kills all. The parent: the
init is killed by PDEATHSIG. The init: as the first process of its PID namespace it takes everybody along, no
matter how often they forked or changed session. So with namespaces nothing survives, even SIGKILL to any of these.
Without them the init is a subreaper: orphans come back to it and are found among its descendants; it can't be
killed by the program where Landlock keeps signals in, but if another process kills it, daemons escape.

The worker sees the end of the control socket only when the last process is gone: that is when it is done.
Nothing is imported that the job needs not: this costs each start-up.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from tenure.sandbox import linux, namespaces
from tenure.sandbox.confine import Refused, layer, start_program
from tenure.sandbox.process_tree import Descendants, Namespace, disk_of, memory_of

_TICK_SECONDS = 0.2
_DISK_SECONDS = 0.5
_DISK_SHARE = 5  # counting files takes at most a fifth of a processor


def main(control: socket.socket, orders_fd: int) -> None:
    """Carry out the orders in the file `orders_fd`, and tell the control socket how it goes."""
    control.set_inheritable(False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for the worker, which then tells us
        signal.signal(number, signal.SIG_IGN)
    try:
        with os.fdopen(orders_fd, "rb") as file:
            orders = json.load(file)
        _serve(control, orders)
    except Refused as exc:
        _tell(control, {"refused": exc.layer, "why": exc.why})
    except Exception as exc:  # noqa: BLE001 - whatever it is, the worker must learn of it, and nothing may run
        _tell(control, {"refused": "start", "why": f"{type(exc).__name__}: {exc}"})


def probe() -> None:
    """Try namespaces and the small tree in a child of ours, and print how it went."""
    heard, tell = os.pipe()
    answer: dict[str, object] = {"proc": False}
    try:
        namespaces.enter(network=False)
        pid = os.fork()
        if pid == 0:
            try:
                proc = namespaces.build_tree(["/usr"], [], {}, scratch_bytes=1 << 20)
                if os.getpid() != 1:
                    raise OSError("the PID namespace was not entered")
                user = os.fork()
                if user == 0:
                    namespaces.become(65534, own_namespace=True)
                    os._exit(0)
                if os.waitpid(user, 0)[1] != 0:
                    raise OSError("an unprivileged user may not have a user namespace")
                os.write(tell, json.dumps({"proc": proc}).encode())
            except BaseException as exc:  # noqa: BLE001 - a copy, as above
                os.write(tell, json.dumps({"error": f"{type(exc).__name__}: {exc}"}).encode())
            os._exit(0)
        os.close(tell)
        os.waitpid(pid, 0)
        answer = json.loads(os.read(heard, 4096))
    except (OSError, ValueError) as exc:
        answer = {"error": f"{type(exc).__name__}: {exc}"}
    print(json.dumps(answer))  # noqa: T201 - a script's answer


def _serve(control: socket.socket, orders: dict[str, Any]) -> None:
    worker = os.pidfd_open(os.getppid())
    if os.getppid() != orders["worker"]:
        return  # it died before we looked; its pidfd would be another process's
    if orders["cgroup"]:
        with layer("cgroup"):
            Path(orders["cgroup"], "cgroup.procs").write_text("0")
    if "namespaces" not in orders["layers"]:
        linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
        ProcessTree(control, worker, orders, Descendants()).run()
        return
    with layer("namespaces"):
        namespaces.enter(network=orders["network"])
    still_there, our_end = os.pipe()
    null = os.open("/dev/null", os.O_RDWR)  # now: the init pivots the root of all of its namespace, ours included
    init = os.fork()
    if init == 0:
        os.close(our_end)
        _be_first(control, worker, orders, still_there)
    _close_streams(null)
    os.close(still_there)
    _wait_for(init, worker)


def _be_first(control: socket.socket, worker: int, orders: dict[str, Any], parent: int) -> NoReturn:
    try:
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        if select.select([parent], [], [], 0)[0]:
            os._exit(1)  # the parent died before the line above
        with layer("namespaces"):
            scratch = orders["scratch_bytes"]
            orders["proc"] = namespaces.build_tree(
                orders["readable"], orders["writable"], orders["links"], scratch_bytes=scratch
            )
        linux.prctl(linux.PR_SET_DUMPABLE, 0)
        ProcessTree(control, worker, orders, Namespace()).run()
    except Refused as exc:
        _tell(control, {"refused": exc.layer, "why": exc.why})
    except Exception as exc:  # noqa: BLE001 - as in main
        _tell(control, {"refused": "start", "why": f"{type(exc).__name__}: {exc}"})
    os._exit(0)


def _wait_for(init: int, worker: int) -> None:
    watched = os.pidfd_open(init)
    ready, _, _ = select.select([watched, worker], [], [])
    if watched not in ready:
        os.kill(init, signal.SIGKILL)
    os.waitpid(init, 0)  # returns when all of its namespace is gone


class ProcessTree:
    """Starts the program, watches worker, clock, memory and control socket, and ends the tree."""

    def __init__(
        self, control: socket.socket, worker: int, orders: dict[str, Any], tree: Namespace | Descendants
    ) -> None:
        self.control = control
        self.worker = worker
        self.orders = orders
        self.tree = tree
        self.reason = "exited"
        self.kill_at: float | None = None
        self.status: int | None = None
        self.usage: resource.struct_rusage | None = None
        self.peak_bytes = 0
        self.count_disk_at = 0.0

    def run(self) -> None:
        """Run the program to its end, and everything it left behind. Nothing outlives it, whatever goes wrong here."""
        try:
            self._watch()
            if self.status is not None and self.reason == "exited" and self._is_over_disk():
                self.reason = "disk_limit"
            self._report()
        finally:
            self.tree.end()

    def _watch(self) -> None:
        """Until the program has ended, or the worker is gone."""
        woken = self._wake_on_child()
        self.started_at = time.monotonic()
        self.stop_at = self.started_at + self.orders["timeout"]
        self.program = start_program(self.orders)
        _close_streams(os.open("/dev/null", os.O_RDWR))
        _tell(self.control, {"started": self.program, "proc": self.orders.get("proc", False)})
        while self.status is None:
            ready, _, _ = select.select([self.control.fileno(), self.worker, woken], [], [], self._patience())
            if woken in ready:
                os.read(woken, 4096)
            if self.worker in ready:
                break
            if self.control.fileno() in ready and not self._obey(self._hear()):
                break
            self._look_at_the_clock()
            self._look_at_memory()
            self._look_at_disk()
            self._reap()

    def _wake_on_child(self) -> int:
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        return woken

    def _patience(self) -> float:
        until = self.stop_at if self.kill_at is None else self.kill_at
        left = max(0.0, until - time.monotonic())
        if self.orders["watch_memory"]:
            return min(left, _TICK_SECONDS)
        return left if self.orders["disk_bytes"] is None else min(left, _DISK_SECONDS)

    def _hear(self) -> bytes:
        """What the worker says; nothing when it is gone. One that is killed leaves its socket before it is seen to be
        dead, and if a word of ours was still unread there, that is a reset and not an end."""
        try:
            return self.control.recv(64)
        except ConnectionResetError:
            return b""

    def _obey(self, words: bytes) -> bool:
        """Do what the worker says. False when it closed the socket, which means that it is gone."""
        if b"o" in words:
            self._kill("output_limit")
        elif b"k" in words:
            self._kill("cancelled")
        elif b"c" in words:
            self._stop("cancelled")
        return bool(words)

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        if self.kill_at is not None:
            if now >= self.kill_at:
                self.tree.signal(signal.SIGKILL)
                self.kill_at = now + 1.0
        elif now >= self.stop_at:
            self._stop("timeout")

    def _look_at_memory(self) -> None:
        if self.orders["watch_memory"] and self.kill_at is None:
            used = memory_of(self.tree.pids(), self.orders["memory_bytes"])
            self.peak_bytes = max(self.peak_bytes, used)
            if used > self.orders["memory_bytes"]:
                self._kill("memory_limit")

    def _look_at_disk(self) -> None:
        began = time.monotonic()
        if self.kill_at is not None or began < self.count_disk_at:
            return
        if self._is_over_disk():
            self._kill("disk_limit")
        now = time.monotonic()
        self.count_disk_at = now + max(_DISK_SECONDS, _DISK_SHARE * (now - began))

    def _is_over_disk(self) -> bool:
        most = self.orders["disk_bytes"]
        return most is not None and disk_of(self.orders["writable"], self.tree.pids(), most) > most

    def _stop(self, reason: str) -> None:
        if self.kill_at is None:
            self.reason = reason
            self.tree.signal(signal.SIGTERM)
            self.tree.signal(signal.SIGCONT)  # a stopped process can't act on TERM
            self.kill_at = time.monotonic() + self.orders["grace"]

    def _kill(self, reason: str) -> None:
        if self.kill_at is None:
            self.reason = reason
        self.tree.signal(signal.SIGKILL)
        self.kill_at = time.monotonic() + 1.0

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.program:
                self.status, self.usage = status, usage

    def _report(self) -> None:
        usage = self.usage
        code = None if self.status is None else os.waitstatus_to_exitcode(self.status)
        _tell(
            self.control,
            {
                "ended": self.reason,
                "exit_code": code if code is not None and code >= 0 else None,
                "signal": -code if code is not None and code < 0 else None,
                "wall": time.monotonic() - self.started_at,
                "user": usage.ru_utime if usage else 0.0,
                "system": usage.ru_stime if usage else 0.0,
                "rss": usage.ru_maxrss * 1024 if usage else 0,
                "left_behind": len(self.tree.pids()) if self.status is not None else 0,
            },
        )


def _close_streams(null: int) -> None:
    """Let go of the program's pipes, so that they end when the program's last process does."""
    for fd in (0, 1, 2):
        os.dup2(null, fd, inheritable=False)
    os.close(null)


def _tell(control: socket.socket, message: dict[str, object]) -> None:
    with suppress(OSError):  # the worker is gone; so will we be
        control.sendall(json.dumps(message).encode() + b"\n")
