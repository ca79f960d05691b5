"""The last steps of a child before it becomes the program: every wall is put up by the one it will hold."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from tenure.sandbox import landlock, linux, namespaces, seccomp


class Refused(Exception):
    """A wall could not be set up; the program must not start."""

    def __init__(self, layer: str, why: str) -> None:
        super().__init__(f"{layer}: {why}")
        self.layer, self.why = layer, why


class layer:  # noqa: N801 - reads as a statement
    """Whatever fails inside is a refusal by this layer."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, exc: BaseException | None, __: object) -> None:
        if isinstance(exc, Exception):
            raise Refused(self.name, f"{type(exc).__name__}: {exc}") from exc


def start_program(orders: dict[str, Any]) -> int:
    heard, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_program(orders, tell)
    os.close(tell)
    with os.fdopen(heard, "rb") as file:
        trouble = file.read()
    if trouble:
        os.waitpid(pid, 0)
        layer, _, why = trouble.decode(errors="replace").partition("\0")
        raise Refused(layer, why)
    return pid


def _be_program(orders: dict[str, Any], tell: int) -> NoReturn:
    """Put up the walls from the outermost in, and become the program. Whatever fails is told and ends here."""
    layers = orders["layers"]
    at = "start"
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.umask(0o077)
        os.chdir(orders["cwd"])
        _volunteer_for_oom()
        at = "landlock"
        rules = _landlock_rules(orders) if at in layers else None
        at = "identity"
        if orders["run_as"] is not None:
            namespaces.become(orders["run_as"], own_namespace="namespaces" in layers)
        linux.drop_capabilities()
        if "namespaces" not in layers:
            linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        at = "rlimits"
        for number, pair in orders["rlimits"].items():
            resource.setrlimit(int(number), tuple(pair))
        at = "landlock"
        if rules is not None:
            landlock.enforce(rules)
        at = "seccomp"
        if at in layers:
            seccomp.install(orders["families"], uncounted_memory=not orders["watch_memory"])
        at = "program"
        os.execve(orders["argv"][0], orders["argv"], orders["env"])  # noqa: S606 - no shell is the point
    except BaseException as exc:  # noqa: BLE001 - this process is a copy: nothing above may catch it and go on
        os.write(tell, f"{at}\0{type(exc).__name__}: {exc}".encode(errors="replace")[:4000])
    os._exit(127)


def _landlock_rules(orders: dict[str, Any]) -> int:
    return landlock.prepare(_grants(orders), network=orders["network"], ports=orders.get("connect_ports"))


def _volunteer_for_oom() -> None:
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # when memory runs out, this tree goes first


def _grants(orders: dict[str, Any]) -> list[tuple[str, landlock.Right]]:
    grants: list[tuple[str, landlock.Right]] = [(path, "read") for path in orders["readable"]]
    grants += [(path, "write") for path in orders["writable"]]
    grants += [(path, "device") for path in namespaces.DEVICES if Path(path).exists()]
    if "namespaces" in orders["layers"]:
        grants += [("/", "list"), *((path, "write") for path in namespaces.SCRATCH)]  # "/" is the small tree
        if orders.get("proc"):  # only one without other processes in it; the machine's own stays shut
            grants.append(("/proc", "read"))
    return grants
