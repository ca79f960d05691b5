"""How large the staged races are: small enough for every test run, or as large as the promise (`TENURE_LONG=1`)."""

from __future__ import annotations

import os

QUEUE = "faulty"
"""The queue of the app in children/faulty.py."""
LONG = os.environ.get("TENURE_LONG") == "1"
TIMEOUT = 3600 if LONG else 300
PATIENCE = 60.0
"""Seconds that a test waits for something that must happen before it says that it did not."""


def scaled(short: int, long: int) -> int:
    return long if LONG else short
