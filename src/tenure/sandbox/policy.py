"""Which walls stand around a child process, and what to do on a machine that lacks some of them.

Four layers, each enough to stop some attacks and together meant to stop all that SECURITY lists:

    namespaces   its own processes, files and network: what is outside has no name        (namespace.py)
    landlock     reads and writes only what is granted; signals no process outside         (landlock.py)
    seccomp      no mounts, tracing, keys, kernel programs, namespaces, foreign sockets    (seccomp.py)
    cgroup       memory and process count of the whole tree; killed in one stroke          (cgroups.py)

Always on, with or without them: a clean environment, no_new_privs, no capabilities, no root, rlimits, a session of
its own, and death of the whole tree with its parent. A policy names the layers it requires. One that is missing
means SandboxUnavailable before anything runs, unless the policy accepts less in so many words; and a layer that
fails while it is put up ends the child before its program starts.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Literal

from tenure.errors import OperatorError
from tenure.model.frozen import frozen
from tenure.sandbox import cgroups, landlock, seccomp
from tenure.sandbox.safe_path import PathEscape

Layer = Literal["namespaces", "landlock", "seccomp", "cgroup"]
Network = Literal["none", "host"]

NOBODY = 65534
HTTPS_ONLY = frozenset({443})
CHILD = Path(__file__).with_name("child.py")

# Programs, their libraries, certificates and the few tables that libc reads; missing ones are left out. Not /opt: what
# people install there they also configure there, and some of it holds passwords. A tool from there names its folder.
READABLE = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ssl",
    "/etc/pki",
    "/etc/crypto-policies",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/timezone",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/group",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/resolv.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/protocols",
    "/etc/mime.types",
)


class SandboxUnavailable(OperatorError):
    """A layer that the policy requires can't be had here, so nothing was run."""

    code = "sandbox_unavailable"

    def __init__(self, layer: str, why: str) -> None:
        super().__init__(
            f"The sandbox's layer {layer!r} can't be set up ({why}), so the program was not started. Run the worker "
            "where the layer is offered (`tenure doctor` lists them), or let the queue's policy accept a weaker "
            "sandbox with allow_degraded."
        )
        self.layer = layer


@frozen
class SandboxOffer:
    """What this machine offers to a sandbox, and why not where it doesn't."""

    layers: frozenset[Layer]
    landlock_abi: int
    fresh_proc: bool
    cgroup_powers: frozenset[str]
    missing: Mapping[Layer, str]


@frozen
class SandboxPolicy:
    """The walls around one child.

    Attributes:
        workspace: The only place to write, with `artifacts`. Both must exist; when the worker is root they are
            handed to the user the child runs as.
        readable: Further files and folders that may be read and executed, besides the system's programs.
        network: "none", or "host" for the worker's own network.
        connect_ports: With "host", the TCP ports that may be connected to, by Landlock; none can be listened at. So
            databases on this machine and the cloud's metadata service (port 80) stay out of reach. None opens all
            ports and has to be written out. UDP is not bounded.
        unix_sockets: Whether sockets in the file system may be used, among the child's own processes. Those outside
            stay out of sight; without namespaces they could not, so then there are none.
        require: Layers that must hold.
        allow_degraded: Accept a machine without them. What is there is still used.
        run_as: The user of the child when the worker is root.
        cgroup_parent: Where to make control groups; by default where the worker itself is.
    """

    workspace: Path
    artifacts: Path | None = None
    readable: tuple[Path, ...] = ()
    network: Network = "none"
    connect_ports: frozenset[int] | None = HTTPS_ONLY
    unix_sockets: bool = False
    require: frozenset[Layer] = frozenset({"namespaces", "landlock", "seccomp"})
    allow_degraded: bool = False
    run_as: int = NOBODY
    cgroup_parent: Path | None = None

    @property
    def writable(self) -> tuple[Path, ...]:
        return (self.workspace,) if self.artifacts is None else (self.workspace, self.artifacts)


@frozen
class Plan:
    """What the child is told to put up, all of it or nothing."""

    layers: frozenset[Layer]
    missing: Mapping[Layer, str]
    spec: Mapping[str, object] = field(repr=False)


def offers(cgroup_parent: Path | None = None) -> SandboxOffer:
    """What this machine offers. Tried for real in a child, once; a few tens of milliseconds."""
    return _offers(cgroup_parent)


def plan(policy: SandboxPolicy, offer: SandboxOffer) -> Plan:
    """What to put up for this policy on this machine.

    Raises:
        SandboxUnavailable: A required layer is missing and the policy doesn't accept that.
    """
    lacking = {layer: offer.missing[layer] for layer in sorted(policy.require) if layer in offer.missing}
    if lacking and not policy.allow_degraded:
        raise SandboxUnavailable(*next(iter(lacking.items())))
    ports = None if policy.connect_ports is None else sorted(policy.connect_ports)
    if policy.network == "host" and ports is not None and not _bounds_ports(offer):
        if not policy.allow_degraded:
            raise SandboxUnavailable(
                "landlock", f"a list of ports takes seccomp and Landlock ABI {landlock.ABI_NETWORK}"
            )
        ports = None
    readable, links = _resolved(policy.readable)
    spec = {
        "layers": sorted(offer.layers),
        "readable": readable,
        "writable": [str(_folder(path)) for path in policy.writable],
        "links": links,
        "network": policy.network == "host",
        "connect_ports": ports,
        "families": _families(policy, offer),
        "run_as": policy.run_as,
    }
    return Plan(offer.layers, lacking, spec)


def not_bounded(offer: SandboxOffer) -> list[str]:
    """What a sandbox on this machine does not bound, a sentence each; for `tenure doctor`."""
    told = []
    if "memory" not in offer.cgroup_powers:
        told.append(
            "Memory of a sandboxed program's processes is watched five times a second, not bounded by the kernel: a "
            "program that takes it faster can pass the limit for a moment, and pipes, sockets and the page cache are "
            "not counted."
        )
        if "seccomp" not in offer.layers:
            told.append("Memory that belongs to no process (memfd, System V, message queues) is not bounded.")
    if "pids" not in offer.cgroup_powers and "namespaces" not in offer.layers:
        told.append("Processes are counted per user, together with those that run outside of the sandbox.")
    told.append(
        "Disk space is counted twice a second, less often with many files, and a program over its limit is killed: it "
        "can pass the limit for a moment. Deleted files that are mapped but not open are not counted."
    )
    if not _bounds_ports(offer):
        told.append(
            'A program with network="host" can\'t be kept to a list of ports, so it is not run unless its policy '
            "accepts that."
        )
    else:
        told.append('UDP of a program with network="host" is not bounded; TCP is, by a list of ports.')
    return told


def _bounds_ports(offer: SandboxOffer) -> bool:
    return {"landlock", "seccomp"} <= offer.layers and offer.landlock_abi >= landlock.ABI_NETWORK


def hand_over(policy: SandboxPolicy) -> None:
    """As root, give workspace and artifacts to the user the child runs as. Links are not followed.

    Raises:
        PathEscape: A file in there has further names, perhaps outside, and would be given away under those too.
    """
    if os.geteuid() != 0:
        return
    for top in policy.writable:
        for folder, _, files, fd in os.fwalk(top, follow_symlinks=False):
            os.fchown(fd, policy.run_as, policy.run_as)
            for name in files:
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if found.st_nlink > 1 and found.st_uid != policy.run_as:
                    raise PathEscape(f"{folder}/{name}", "it has hard links, so it can't be handed to the sandbox")
                os.chown(name, policy.run_as, policy.run_as, dir_fd=fd, follow_symlinks=False)


@functools.cache
def _offers(cgroup_parent: Path | None) -> SandboxOffer:
    missing: dict[Layer, str] = {}
    trial = _try_namespaces()
    if why := trial.get("error"):
        missing["namespaces"] = str(why)
    abi = landlock.abi()
    if abi < 1:
        missing["landlock"] = "the kernel has no Landlock, or it is switched off"
    elif abi < landlock.ABI_SCOPES and "namespaces" in missing:
        missing["landlock"] = f"without namespaces ABI {landlock.ABI_SCOPES} is needed, this kernel has {abi}"
    if not seccomp.is_available():
        missing["seccomp"] = "the kernel takes no filters, or the machine is neither x86_64 nor aarch64"
    powers = cgroups.powers(cgroup_parent)
    if not {cgroups.MEMORY, cgroups.PIDS} <= powers:
        missing["cgroup"] = cgroups.why_not(powers)
    every: tuple[Layer, ...] = ("namespaces", "landlock", "seccomp", "cgroup")
    layers = frozenset(layer for layer in every if layer not in missing)
    return SandboxOffer(layers, abi, bool(trial.get("proc")), powers, missing)


def _try_namespaces() -> dict[str, object]:
    if sys.platform != "linux":
        return {"error": "namespaces are a feature of Linux"}
    argv = [sys.executable, "-I", "-S", str(CHILD), "--probe"]
    tried = subprocess.run(argv, capture_output=True, check=False, timeout=30, env={}, cwd="/")
    try:
        answer: dict[str, object] = json.loads(tried.stdout)
    except ValueError:
        return {"error": tried.stderr.decode(errors="replace")[-500:].strip() or f"status {tried.returncode}"}
    return answer


def _resolved(extra: tuple[Path, ...]) -> tuple[list[str], dict[str, str]]:
    """Real paths to grant, and the links that led there, to be made anew.

    No link is made below another: where /bin is a link to /usr/bin, /bin/sh is reached by that one.
    """
    real: list[str] = []
    links: dict[str, str] = {}
    for path in [Path(name) for name in READABLE if Path(name).exists()] + list(extra):
        target, spelled = path.resolve(strict=True), path.absolute()
        real.append(str(target))
        if target != spelled and not any(str(above) in links for above in spelled.parents):
            links[str(spelled)] = str(target)
    return sorted(set(real)), links


def _folder(path: Path) -> Path:
    real = path.resolve(strict=True)
    if not real.is_dir() or real == Path("/"):
        raise PathEscape(str(path), "a workspace is a folder of its own")
    return real


def _families(policy: SandboxPolicy, offer: SandboxOffer) -> list[int]:
    """What may be opened. Landlock does not guard sockets in the file system: only a tree of files without them."""
    families = [seccomp.AF_INET, seccomp.AF_INET6] if policy.network == "host" else []
    return [*families, seccomp.AF_UNIX] if policy.unix_sockets and "namespaces" in offer.layers else families
