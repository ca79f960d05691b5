"""Kill an operation at its n-th point, for every n, and print what each death left behind, one JSON line each.

A script of its own, so that it is single-threaded and may fork: each death is a real SIGKILL of a real process.
Arguments: folder, operation, walk|kernel.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))  # the project's root, for tests.effects.points

from tenure.effects.atomic_file import Tag, clear_tickets, delete_file, write_file
from tenure.sandbox.safe_path import Root
from tests.effects.points import watch

OLD = b"old " * 1000
NEW = b"new!" * 600_000  # over two chunks, so that the write itself has points inside
TARGET = "deep/er/target.bin"


def act(folder: Path, operation: str, token: int, *, kernel: bool) -> None:
    with Root(folder, kernel=kernel) as root:
        if operation == "delete":
            ledger = folder.parent / "ledger"
            if ledger.exists():  # as the effect ledger does: what is confirmed is not done again
                clear_tickets(root, TARGET, Tag("j", token))
            else:
                delete_file(
                    root,
                    TARGET,
                    require_exists=True,
                    check=lambda: None,
                    tag=Tag("j", token),
                    confirm=ledger.touch,
                )
        else:
            write_file(root, TARGET, NEW, overwrite=operation == "replace", check=lambda: None, tag=Tag("j", token))


def prepare(folder: Path, operation: str) -> None:
    target = folder / TARGET
    for path in (target, folder.parent / "ledger"):
        path.unlink(missing_ok=True)
    if operation == "create":
        for made in (target.parent, target.parent.parent):
            if made.exists():
                made.rmdir()
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(OLD)


def state(folder: Path) -> str:
    target = folder / TARGET
    if not target.exists():
        return "absent"
    return {OLD: "old", NEW: "new"}.get(target.read_bytes(), "torn")


def tickets(folder: Path) -> int:
    return len(list(folder.rglob(".tenure-*")))


def die_at(folder: Path, operation: str, point: int, *, kernel: bool) -> bool:
    """Run in a child that dies at the given point; False once it got through alive."""
    pid = os.fork()
    if pid == 0:
        left = point

        def hook(_: str) -> None:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

        with watch(hook):
            act(folder, operation, 1, kernel=kernel)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if not os.WIFSIGNALED(status) and status != 0:
        sys.exit(f"the operation failed by itself: status {status}")
    return os.WIFSIGNALED(status)


def main(folder: Path, operation: str, *, kernel: bool) -> None:
    point, died = 0, True
    while died:
        prepare(folder, operation)
        died = die_at(folder, operation, point, kernel=kernel)
        seen, left = state(folder), tickets(folder)
        act(folder, operation, 2, kernel=kernel)
        after = {"point": point, "died": died, "seen": seen, "left": left}
        print(json.dumps({**after, "then": state(folder), "left_then": tickets(folder)}))
        point += 1


if __name__ == "__main__":
    if sys.argv[2] == "once":  # for strace: one operation, whatever happens to it
        os.access("/the-operation-starts-here", os.F_OK)
        act(Path(sys.argv[1]), sys.argv[4], int(sys.argv[5]), kernel=sys.argv[3] == "kernel")
    else:
        main(Path(sys.argv[1]), sys.argv[2], kernel=sys.argv[3] == "kernel")
