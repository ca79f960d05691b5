"""How calm the machine is, and what machine it is.

A fixed piece of work on every core at once, timed before and after each measurement. The fastest time of the run is
what the machine can do when nobody else asks; a time over 1.3 of it means that a measurement beside it shared its
cores. A few small synced writes tell the same of the disk.
"""

from __future__ import annotations

import hashlib
import os
import platform
import threading
import time
from pathlib import Path

ROUNDS = 24
BLOCK = bytes(1 << 20)
BUSY = 1.3
SYNCS = 15
BUSY_DISK = 2.0
SPREAD = 0.30


def calibrate() -> float:
    """Give the milliseconds of the fixed work, done on every core at once; the middle one of three."""
    return sorted(_once() for _ in range(3))[1]


def sync_us(folder: Path) -> float:
    """Give the microseconds of one small synced write on the disk that the databases live on: the middle of some."""
    path = folder / "sync"
    found: list[int] = []
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        for number in range(SYNCS):
            begun = time.monotonic_ns()
            os.pwrite(handle, BLOCK[:4096], 4096 * number)
            os.fdatasync(handle)
            found.append(time.monotonic_ns() - begun)
    finally:
        os.close(handle)
        path.unlink()
    return sorted(found)[SYNCS // 2] / 1e3


def _once() -> float:
    threads = [threading.Thread(target=_work) for _ in range(os.cpu_count() or 1)]
    begun = time.monotonic_ns()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (time.monotonic_ns() - begun) / 1e6


def _work() -> None:
    """Hash: it lets go of Python's lock, so that the threads really share the cores."""
    for _ in range(ROUNDS):
        hashlib.sha256(BLOCK).digest()


def describe() -> dict[str, str]:
    """Say what the figures were measured on."""
    return {
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _processor() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory() -> str:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal:"):
            return f"{int(line.split()[1]) / 1024**2:.0f} GiB"
    return "unknown"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
