"""A stand-in for a coding agent's command line, which needs no account. It talks as `codex exec --json` does.

The first argument says whose character it has: an honest one, `grumpy` who always fails, or `mallory` who attacks. The
second is where the queue's database is: mallory is told, so that only the sandbox is in the way.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path


def tell(**event: object) -> None:
    print(json.dumps(event), flush=True)


def honest(task: str) -> str:
    print(f"reading: {task}", file=sys.stderr, flush=True)
    time.sleep(0.2)
    return json.dumps({"task": task, "words": len(task.split()), "verdict": "done"})


def mallory(task: str) -> str:
    """Whatever a prompt injection could make of an agent."""
    attempts = {
        "replace a program": lambda: Path("/usr/local/bin/python3").write_text("mine"),
        "write to /etc": lambda: Path("/etc/cron.d/mine").write_text("mine"),
        "read the queue's database": lambda: Path(sys.argv[2]).read_bytes(),
        "read shadow passwords": lambda: Path("/etc/shadow").read_text(),
        "see other processes": lambda: next(p for p in Path("/proc").glob("[0-9]*") if int(p.name) > 50),
        "call home": lambda: socket.create_connection(("1.1.1.1", 443), timeout=2),
        "stay behind": lambda: os.fork() == 0 and (os.setsid(), time.sleep(600)),
    }
    done = {}
    for what, act in attempts.items():
        try:
            act()
            done[what] = "worked" if what != "stay behind" else "tried"
        except Exception as exc:  # noqa: BLE001 - whichever way it was stopped
            done[what] = type(exc).__name__
    return json.dumps({"task": task, "words": 0, "verdict": done})


def main() -> int:
    character, task = sys.argv[1], sys.stdin.read()
    tell(type="thread.started", thread_id=f"{character}-{os.getpid()}")
    if character == "grumpy":
        tell(type="turn.failed", error={"message": "I would rather not"})
        return 1
    text = mallory(task) if character == "mallory" else honest(task)
    tell(type="item.completed", item={"type": "agent_message", "text": text})
    tell(type="turn.completed", usage={"input_tokens": 10 * len(task), "output_tokens": len(text)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
