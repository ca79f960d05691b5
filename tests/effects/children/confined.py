"""A worker of its own for the sandbox tests: becomes somebody else or loses system calls first, then runs a command.

Reads one JSON object from stdin, prints one. It is also the worker that the tests kill.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from ctypes import addressof, create_string_buffer
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "src"))

from tenure.sandbox import linux, seccomp
from tenure.sandbox.policy import HTTPS_ONLY, SandboxPolicy, SandboxUnavailable, offers
from tenure.sandbox.process import Command, start
from tenure.sandbox.rlimits import Limits


def deny(numbers: list[int]) -> None:
    """Refuse these system calls to this process and its children, as a container's own filter does."""
    steps = [step for number in numbers for step in seccomp._refuse(number, 1)]
    words = b"".join([seccomp._step(0x20, 0), *steps, seccomp._step(0x06, 0x7FFF0000)])
    code = create_string_buffer(words, len(words))
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    linux.syscall("seccomp", 1, 0, struct.pack("HP", len(words) // 8, addressof(code)))


def main(order: dict[str, Any]) -> None:
    if user := order.get("user"):
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        linux.prctl(linux.PR_SET_DUMPABLE, 1)  # as open to others of the user as if it had been started by them
    if order.get("offers_first"):
        offers()
    deny(order.get("deny", []))
    policy = SandboxPolicy(
        workspace=Path(order["workspace"]),
        readable=tuple(Path(path) for path in order["readable"]),
        allow_degraded=order.get("allow_degraded", False),
        network=order.get("network", "none"),
        connect_ports=None if order.get("all_ports") else frozenset(order.get("connect_ports", HTTPS_ONLY)),
        unix_sockets=order.get("unix_sockets", False),
    )
    command = Command(
        argv=(*order["argv"], *([str(os.getpid())] if order.get("tell_pid") else [])),
        cwd=Path(order["workspace"]),
        env={"PATH": "/usr/bin:/bin", **order.get("env", {})},
        timeout=timedelta(seconds=order.get("timeout", 30)),
        grace=timedelta(seconds=order.get("grace", 1)),
        limits=Limits(**order.get("limits", {})),
        sandbox=None if order.get("bare") else policy,
    )
    try:
        running = start(command, on_output=lambda _, chunk: print(chunk.decode(), end="", file=sys.stderr, flush=True))
        ended = running.wait()
    except SandboxUnavailable as exc:
        print(json.dumps({"unavailable": exc.layer, "message": str(exc)}))
        return
    print(
        json.dumps(
            {
                "reason": ended.reason,
                "exit_code": ended.exit_code,
                "signal": ended.signal,
                "stdout": ended.stdout.decode(),
                "stderr": ended.stderr.decode(),
                "layers": sorted(ended.layers),
                "missing": sorted(ended.missing),
            }
        )
    )


if __name__ == "__main__":
    main(json.load(sys.stdin))
