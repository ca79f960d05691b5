"""Limits on what one child process tree may use, in the words of setrlimit and of cgroups."""

from __future__ import annotations

import resource

from tenure.model.frozen import frozen

MIB = 1 << 20
GIB = 1 << 30


@frozen
class Limits:
    """Bounds for a child and all its descendants. Those of setrlimit hold for each process, but `processes` for all.

    Attributes:
        cpu_seconds: Processor time of one process; the wall clock is bounded by the command's timeout.
        memory_bytes: Private memory. Per process by RLIMIT_DATA; for the whole tree by cgroup, or else by watching it.
        address_space_bytes: RLIMIT_AS. Off by default, because runtimes such as Node reserve far more than they use.
        processes: Processes and threads at a time.
        file_bytes: Size of one file.
        disk_bytes: All files of the workspace and the artifacts together, and deleted ones that are still open.
            Counted twice a second, less often with many files; a program over it is killed.
        scratch_bytes: Size of the private /tmp, which lives in memory.
    """

    cpu_seconds: int | None = None
    memory_bytes: int = 2 * GIB
    address_space_bytes: int | None = None
    processes: int = 256
    open_files: int = 1024
    file_bytes: int = GIB
    disk_bytes: int = 2 * GIB
    scratch_bytes: int = 256 * MIB

    def rlimits(self, processes_already: int = 0) -> dict[int, tuple[int, int]]:
        """What to set, soft and hard; core dumps are off, for they hold secrets."""
        wanted = {
            resource.RLIMIT_AS: self.address_space_bytes,
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_DATA: self.memory_bytes,
            resource.RLIMIT_FSIZE: self.file_bytes,
            resource.RLIMIT_NOFILE: self.open_files,
            resource.RLIMIT_NPROC: self.processes + processes_already,
        }
        limits = {number: (value, value) for number, value in wanted.items() if value is not None}
        if self.cpu_seconds is not None:  # the signal comes at the soft limit, death a second later
            limits[resource.RLIMIT_CPU] = (self.cpu_seconds, self.cpu_seconds + 1)
        return {number: _within_hard(number, pair) for number, pair in limits.items()}


def _within_hard(number: int, pair: tuple[int, int]) -> tuple[int, int]:
    hard = resource.getrlimit(number)[1]
    return pair if hard == resource.RLIM_INFINITY else (min(pair[0], hard), min(pair[1], hard))
