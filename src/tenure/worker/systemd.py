"""Messages to a service manager, as systemd defines them. Does nothing where NOTIFY_SOCKET is not set."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(state: str) -> bool:
    """Send `READY=1`, `STOPPING=1`, `WATCHDOG=1` and the like. False if no service manager asked for them."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.connect("\0" + address[1:] if address[0] == "@" else address)
        sock.sendall(state.encode())
        return True
    return False


def watchdog_seconds() -> float | None:
    """How often at least the manager wants to hear from this process, if it does."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    asked_of = os.environ.get("WATCHDOG_PID", "")
    if not microseconds.isdecimal() or (asked_of.isdecimal() and int(asked_of) != os.getpid()):
        return None
    return int(microseconds) / 1_000_000
