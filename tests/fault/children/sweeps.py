"""Sweep flow events in a process of its own: `python -m tests.fault.children.sweeps URL`. On SQLite it is killed with
the work of its transaction done and not committed."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from tenure.store.flow import SweepFlow
from tenure.store.sqlite import admin
from tests.conformance.engines import open_store


def dying_cancel(*args: Any) -> None:
    carry_out(*args)
    os.kill(os.getpid(), signal.SIGKILL)


carry_out = admin.cancel

if __name__ == "__main__":
    vars(admin)["cancel"] = dying_cancel
    while open_store(sys.argv[1]).do(SweepFlow()).more:
        pass
