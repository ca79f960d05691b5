"""The world outside, as a server that loses requests and replies half of the time, and remembers what it accepted."""

from __future__ import annotations

import json
import random
import socketserver
import threading
from collections import defaultdict
from typing import Any, Self


class LossySink(socketserver.ThreadingTCPServer):
    """Takes one JSON line a connection. Of four: one is lost on the way in, one reply is lost, two go well."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 100

    def __init__(self, *, knows_keys: bool, seed: int) -> None:
        super().__init__(("127.0.0.1", 0), _Line)
        self.knows_keys = knows_keys
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.calls: dict[str, int] = defaultdict(int)
        self.accepted: dict[str, int] = defaultdict(int)
        self.tokens: dict[str, list[int]] = defaultdict(list)
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self.thread.join(10)

    def take(self, told: dict[str, Any]) -> bytes | None:
        """What to answer; None: nothing, the line goes dead."""
        with self.lock:
            fate = self.random.randrange(4)
            if fate == 0:
                return None
            key = told["key"]
            self.calls[key] += 1
            self.tokens[key].append(told["token"])
            if not (self.knows_keys and self.accepted[key]):
                self.accepted[key] += 1
            return None if fate == 1 else json.dumps({"id": key, "number": self.accepted[key]}).encode() + b"\n"


class _Line(socketserver.StreamRequestHandler):
    server: LossySink

    def handle(self) -> None:
        line = self.rfile.readline()
        if line and (answer := self.server.take(json.loads(line))) is not None:
            self.wfile.write(answer)
