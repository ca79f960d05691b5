"""Starting actors and speaking with them."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tests.fault.scale import PATIENCE

ROOT = Path(__file__).parents[2]


class Actor:
    """A client process of its own."""

    def __init__(self, name: str, **arguments: object) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fault.actors", name, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        self._unread = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, word: str = "go") -> None:
        pipe = self._pipe(self.process.stdin)
        pipe.write(word.encode() + b"\n")
        pipe.flush()

    def listen(self) -> str:
        """The next line the actor says."""
        pipe = self._pipe(self.process.stdout)
        deadline = time.monotonic() + PATIENCE
        while b"\n" not in self._unread:
            ready, _, _ = select.select([pipe], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"actor {self.name} ({self.pid}) said nothing for {PATIENCE:.0f} s"
            heard = pipe.read1(65536) if hasattr(pipe, "read1") else b""
            assert heard, f"actor {self.name} ({self.pid}) ended with {self.process.wait()} before it spoke"
            self._unread += heard
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def expect(self, word: str) -> None:
        said = self.listen()
        assert said == word, f"actor {self.name} said {said!r}, not {word!r}"

    def finish(self) -> None:
        """Close its stdin, take in what it still says, and wait for a clean end."""
        self._pipe(self.process.stdin).close()
        self._pipe(self.process.stdout).read()
        assert self.process.wait(PATIENCE) == 0

    def end(self) -> None:
        """Whatever state it is in: gone."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe


@contextlib.contextmanager
def crew(count: int, name: str, **arguments: object) -> Iterator[list[Actor]]:
    """`count` actors of one kind; none is left behind."""
    actors: list[Actor] = []
    try:
        actors.extend(Actor(name, **arguments) for _ in range(count))
        yield actors
    finally:
        for actor in actors:
            actor.end()
