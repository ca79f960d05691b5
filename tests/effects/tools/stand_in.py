"""Behaves like the command lines of Claude Code and Codex, as far as a runner can tell; the prompt says what to do.

    stand_in.py claude -p --output-format json [--resume ID]     one JSON object at the end
    stand_in.py codex exec --json … [resume ID] -                JSON lines as it goes
    stand_in.py plain                                            text

A prompt that is a JSON object says what to do ("act") and what to answer ("say"); any other is answered with itself.
Sessions are kept in HOME, as the real ones do; --resume of one that is not there is an error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path


def main(dialect: str, argv: list[str]) -> int:
    prompt = sys.stdin.read()
    try:
        order = json.loads(prompt)
    except ValueError:
        order = prompt
    if not isinstance(order, dict):
        order = {"act": "answer", "say": prompt}
    tool = TOOLS[dialect](argv)
    if not tool.begin():
        return 1
    turn = tool.turns()
    acts = order.get("acts", [order.get("act", "answer")])
    act = acts[min(turn, len(acts)) - 1]
    return ACTS[act](tool, order)


class Tool:
    """What is common: a session in HOME that counts its turns."""

    def __init__(self, argv: list[str]) -> None:
        self.argv = argv
        self.session = uuid.uuid4().hex
        self.folder = Path(os.environ["HOME"], ".stand-in")

    def begin(self) -> bool:
        resumed = self.resumed()
        if resumed is not None:
            if not (self.folder / resumed).exists():
                print(f"no session {resumed}", file=sys.stderr)
                return False
            self.session = resumed
        self.folder.mkdir(exist_ok=True)
        with (self.folder / self.session).open("a") as file:
            file.write("turn\n")
        return True

    def turns(self) -> int:
        return len((self.folder / self.session).read_text().splitlines())

    def resumed(self) -> str | None:
        return None

    def answer(self, text: str) -> None:
        print(text)

    def fail(self, text: str) -> None:
        print(text, file=sys.stderr)


class Claude(Tool):
    def resumed(self) -> str | None:
        return self.argv[self.argv.index("--resume") + 1] if "--resume" in self.argv else None

    def begin(self) -> bool:
        if self.argv[:2] != ["-p", "--output-format"]:
            print(f"not how Claude Code is called: {self.argv}", file=sys.stderr)
            return False
        if not super().begin():
            return False
        if "stream-json" in self.argv:
            print(json.dumps({"type": "system", "subtype": "init", "session_id": self.session}), flush=True)
        return True

    def answer(self, text: str) -> None:
        self._end("success", text, is_error=False)

    def fail(self, text: str) -> None:
        self._end("error_during_execution", text, is_error=True)

    def _end(self, subtype: str, text: str, *, is_error: bool) -> None:
        told = {
            "type": "result",
            "subtype": subtype,
            "is_error": is_error,
            "result": text,
            "session_id": self.session,
            "num_turns": self.turns(),
            "total_cost_usd": 0.25,
            "usage": {"input_tokens": 100, "output_tokens": 20, "service_tier": "standard"},
        }
        print(json.dumps(told), flush=True)


class Codex(Tool):
    def resumed(self) -> str | None:
        return self.argv[self.argv.index("resume") + 1] if "resume" in self.argv else None

    def begin(self) -> bool:
        if self.argv[:2] != ["exec", "--json"] or self.argv[-1] != "-":
            print(f"not how Codex is called: {self.argv}", file=sys.stderr)
            return False
        if not super().begin():
            return False
        self._tell(type="thread.started", thread_id=self.session)
        self._tell(type="turn.started")
        return True

    def answer(self, text: str) -> None:
        self._tell(type="item.completed", item={"id": "item_0", "type": "reasoning", "text": "hm"})
        self._tell(type="item.completed", item={"id": "item_1", "type": "agent_message", "text": text})
        self._tell(type="turn.completed", usage={"input_tokens": 50, "cached_input_tokens": 5, "output_tokens": 9})

    def fail(self, text: str) -> None:
        self._tell(type="turn.failed", error={"message": text})

    def _tell(self, **event: object) -> None:
        print(json.dumps(event), flush=True)


def say(tool: Tool, order: dict[str, object]) -> int:
    text = order.get("say", "done")
    tool.answer(text if isinstance(text, str) else json.dumps(text))
    return 0


def fail(tool: Tool, order: dict[str, object]) -> int:
    tool.fail(str(order.get("say", "it broke")))
    return 1


def crash(_: Tool, order: dict[str, object]) -> int:
    print(str(order.get("say", "segmentation fault")), file=sys.stderr)
    return 139


def refused(_: Tool, order: dict[str, object]) -> int:
    """What a service's refusal looks like: nothing on stdout, the reason on stderr."""
    print(str(order["say"]), file=sys.stderr)
    return int(str(order.get("code", 1)))


def hang(_: Tool, __: dict[str, object]) -> int:
    print("thinking", file=sys.stderr, flush=True)
    while True:
        time.sleep(60)


def flood(_: Tool, __: dict[str, object]) -> int:
    while True:
        sys.stdout.write("spam " * 2000 + "\n")


def chat(tool: Tool, order: dict[str, object]) -> int:
    """Many lines, then an answer."""
    for number in range(int(str(order.get("lines", 3)))):
        print(f"line {number} {order.get('word', '')}".rstrip(), file=sys.stderr, flush=True)
    return say(tool, order)


def fork(tool: Tool, order: dict[str, object]) -> int:
    """Leave a daemon behind, in a session of its own, that ignores being asked to stop."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        {code}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ).wait()
    return say(tool, order)


def raw(_: Tool, order: dict[str, object]) -> int:
    """Print just what the order says."""
    print(order["print"], flush=True)
    return 0


def look(tool: Tool, _: dict[str, object]) -> int:
    """Tell everything that can be seen from here."""
    environs = ""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            environs += path.read_text(errors="replace")
        except OSError:
            continue
    found = {
        "argv": tool.argv,
        "env": dict(os.environ),
        "cwd": str(Path.cwd()),
        "files": sorted(path.name for path in Path().iterdir()),
        "fds": sorted(int(path.name) for path in Path("/proc/self/fd").iterdir()),
        "environs": environs,
    }
    tool.answer(json.dumps(found))
    return 0


def attack(tool: Tool, order: dict[str, object]) -> int:
    """Try to write where nobody allowed it, to read the database, and to lead the worker astray in later attempts."""
    tried = {}
    for path in order["paths"]:  # type: ignore[attr-defined]
        try:
            Path(path).write_text("owned")
            tried[path] = "written"
        except OSError as exc:
            tried[path] = type(exc).__name__
    for path in order.get("reads", []):  # type: ignore[attr-defined]
        try:
            tried[path] = Path(path).read_bytes()[:20].hex()
        except OSError as exc:
            tried[path] = type(exc).__name__
    for number in range(1, 6):
        link = Path("..", f"attempt-{number}")
        if not link.exists():
            link.symlink_to("/etc")
    tool.answer(json.dumps(tried))
    return 0


TOOLS = {"claude": Claude, "codex": Codex, "plain": Tool}
ACTS = {
    "refused": refused,
    "answer": say,
    "fail": fail,
    "crash": crash,
    "hang": hang,
    "flood": flood,
    "chat": chat,
    "fork": fork,
    "look": look,
    "raw": raw,
    "attack": attack,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
