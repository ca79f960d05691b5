"""Named points at which a test may make the world break. In production the table is empty: a point costs nanoseconds.

A point marks a place where a crash or a lost reply has its own consequences; its name says where it stands,
such as `after_commit_before_reply`. `tenure.testing.crash_at` is the hand that arms it.
"""

from __future__ import annotations

from collections.abc import Callable

_armed: dict[str, Callable[[], None]] = {}


def point(name: str) -> None:
    """Do what a test asked for at this point; nothing if none did."""
    if _armed:
        act = _armed.get(name)
        if act is not None:
            act()


def arm(name: str, act: Callable[[], None]) -> None:
    """From now on, `point(name)` calls `act`, which may raise or end the process."""
    _armed[name] = act


def disarm(name: str) -> None:
    """Forget what was asked for at this point. Harmless if nothing was."""
    _armed.pop(name, None)
