"""`python mover.py SRC DST POINT SKIP`: a move that dies by SIGKILL at a point which it has passed SKIP times.

Points: `before_batch_commit` in a batch's transaction, `after_batch` behind its commit, `compare` and `open` on the way
to the end. With the point `never` it lives. Prints the rows that were moved and the largest memory in KiB, with 0 rows
where it dies behind a commit; dying within one it prints nothing.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tenure.move import mover
from tenure.testing import crash_at


class Killer:
    """Kills this process when it is told the same thing often enough."""

    def __init__(self, what: str, skip: int) -> None:
        self._what = what
        self._left = skip

    def __call__(self, what: str, _by: int) -> None:
        if what.startswith(self._what):
            self._left -= 1
            if self._left < 0:
                print(0, peak_kib(), flush=True)
                os.kill(os.getpid(), signal.SIGKILL)


def peak_kib() -> int:
    """The largest memory of this program. getrusage would count that of the process which started it, too."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def main() -> None:
    source, destination, point, skip = sys.argv[1:]
    told = {"after_batch": "copying", "compare": "comparing"}.get(point, "nothing")
    with crash_at(point, kill=True, skip=int(skip)):
        done = mover.move(source, destination, leases="carry", actor="child", tell=Killer(told, int(skip)))
    print(done.rows, peak_kib())


if __name__ == "__main__":
    main()
