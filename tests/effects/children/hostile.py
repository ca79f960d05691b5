"""Programs that misbehave: they flood, hog, fork, hide and refuse to die. First argument: which."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path


def ready(word: str = "ready") -> None:
    os.write(1, word.encode() + b"\n")  # not print, which a signal handler must not enter twice


def forever() -> None:
    while True:
        time.sleep(3600)


def deaf() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ready()
    forever()


def flood() -> None:
    while True:
        os.write(1, b"x" * 65536)


def both_streams() -> None:
    while True:
        os.write(1, b"o" * 40_000)
        os.write(2, b"e" * 40_000)


def fork_bomb() -> None:
    ready()
    while True:
        try:
            os.fork()
        except OSError:
            time.sleep(0.01)


def memory_hog() -> None:
    kept = []
    while True:
        kept.append(bytearray(b"x" * (16 << 20)))


def many_hogs() -> None:
    """Each one below the limit of a process, all together far above the tree's."""
    for _ in range(20):
        if os.fork() == 0:
            kept = bytearray(b"x" * (48 << 20))
            ready(str(len(kept)))
            forever()
    forever()


def big_file() -> None:
    with Path("big").open("wb") as file:
        file.writelines(b"x" * (1 << 20) for _ in range(10 * 1024))


def daemon() -> None:
    """The classic: fork, setsid, fork; then deaf, with its streams closed, while the program itself ends well."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for fd in (0, 1, 2):
                os.close(fd)
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            Path("daemon-is-up").touch()
            forever()
        os._exit(0)
    while not Path("daemon-is-up").exists():
        time.sleep(0.01)


def deaf_family() -> None:
    """A deaf program with a deaf daemon and a child in another session that holds on to stdout."""
    daemon()
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        forever()
    deaf()


def stopped() -> None:
    """Goes to sleep by SIGSTOP; a TERM only reaches it after a CONT."""
    ready()
    os.kill(os.getpid(), signal.SIGSTOP)
    forever()


def polite() -> None:
    """Says goodbye on TERM and leaves with a code of its own."""

    def leave(*_: object) -> None:
        ready("goodbye")
        sys.exit(3)

    signal.signal(signal.SIGTERM, leave)
    ready()
    forever()


def spin() -> None:
    while True:
        pass


if __name__ == "__main__":
    globals()[sys.argv[1]]()
