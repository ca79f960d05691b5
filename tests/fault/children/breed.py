"""Starts a process in a session of its own, says both ids, and waits, as does that one."""

from __future__ import annotations

import os
import signal

grandchild = os.fork()
if grandchild == 0:
    os.setsid()
    signal.pause()
print(os.getpid(), grandchild, flush=True)
signal.pause()
