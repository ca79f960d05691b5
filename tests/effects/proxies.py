"""A proxy in front of an HTTP server that cuts replies, or answers instead of it, as a test says."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that came by."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    raw_names: tuple[str, ...] = ()
    """Names of headers in lower case, as often as they came."""

    @property
    def target(self) -> str:
        """Which operation of a JSON protocol it names."""
        return self.headers.get("x-amz-target", "").rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of the proxy's own."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Rule:
    """What happens to requests that match. Without a reply: they arrive, and what they are answered is lost."""

    matches: Callable[[Seen], bool]
    reply: Reply | None = None
    times: int = 1


class CuttingProxy(ThreadingHTTPServer):
    """Stands before `127.0.0.1:target_port`; without one there is nobody behind it, and rules are all there is."""

    daemon_threads = True

    def __init__(self, target_port: int | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target_port = target_port
        self.rules: list[Rule] = []
        self.seen: list[Seen] = []
        self.lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join(10)

    def rule_for(self, seen: Seen) -> Rule | None:
        with self.lock:
            self.seen.append(seen)
            for rule in self.rules:
                if rule.times > 0 and rule.matches(seen):
                    rule.times -= 1
                    return rule
        return None


class _Handler(BaseHTTPRequestHandler):
    server: CuttingProxy
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Tests need no access log."""

    def _serve(self) -> None:
        if self.headers.get("expect", "").lower() == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        given = [(name.lower(), value) for name, value in self.headers.items()]
        seen = Seen(self.command, self.path, dict(given), body, tuple(name for name, _ in given))
        rule = self.server.rule_for(seen)
        if rule is not None and rule.reply is None and self.server.target_port is None:
            self.close_connection = True
            return
        answer = rule.reply if rule is not None and rule.reply is not None else self._forward(seen)
        if rule is not None and rule.reply is None:
            self.close_connection = True
            self.connection.close()
            return
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in {"content-length", "transfer-encoding", "connection"}:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815

    def _forward(self, seen: Seen) -> Reply:
        assert self.server.target_port is not None, "no rule answers this request"
        connection = http.client.HTTPConnection("127.0.0.1", self.server.target_port, timeout=30)
        try:
            dropped = {"expect", "connection"}
            headers = {name: value for name, value in seen.headers.items() if name not in dropped}
            connection.request(seen.method, seen.path, seen.body, headers)
            answer = connection.getresponse()
            return Reply(answer.status, answer.read(), dict(answer.getheaders()))
        finally:
            connection.close()

    def finish(self) -> None:
        try:
            super().finish()
        except (OSError, ValueError):  # the line was cut on purpose
            return
