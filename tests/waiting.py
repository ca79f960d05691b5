"""The one way in which a test waits for what another thread or process does: for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def wait_until(holds: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Ask until the answer is true, and give it; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, f"the condition did not come true within {seconds:g} s"
        time.sleep(0.01)
    return found
