"""Cloud Control as far as it matters here: requests with a ClientToken are the same request, and things take a while.

Moto has no Cloud Control. This speaks its protocol (AWS JSON 1.0) over real HTTP; AWS chooses the identifiers.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class CloudControl(ThreadingHTTPServer):
    """Resources by type and identifier, and the requests that made them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.resources: dict[tuple[str, str], dict[str, Any]] = {}
        self.requests: dict[str, dict[str, Any]] = {}
        self.by_token: dict[str, str] = {}
        self.lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join(10)

    def answer(self, operation: str, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with self.lock:
            if operation == "GetResource":
                return self._get(asked)
            if operation == "GetResourceRequestStatus":
                return 200, {"ProgressEvent": self._progress(asked["RequestToken"])}
            token = asked["ClientToken"]
            if token not in self.by_token:
                self.by_token[token] = f"request-{len(self.requests) + 1}"
                self.requests[self.by_token[token]] = self._act(operation, asked)
            return 202, {"ProgressEvent": {**self.requests[self.by_token[token]], "OperationStatus": "PENDING"}}

    def _get(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        found = self.resources.get((asked["TypeName"], asked["Identifier"]))
        if found is None:
            return 400, {"__type": "ResourceNotFoundException", "message": "no such resource"}
        told = {"Identifier": asked["Identifier"], "Properties": json.dumps(found)}
        return 200, {"TypeName": asked["TypeName"], "ResourceDescription": told}

    def _progress(self, token: str) -> dict[str, Any]:
        event = self.requests[token]
        event["looks"] = event.get("looks", 0) + 1
        status = event.get("end", "SUCCESS") if event["looks"] > 1 else "IN_PROGRESS"
        return {
            **{name: value for name, value in event.items() if name not in {"looks", "end"}},
            "OperationStatus": status,
        }

    def _act(self, operation: str, asked: dict[str, Any]) -> dict[str, Any]:
        kind = asked["TypeName"]
        event: dict[str, Any] = {"TypeName": kind, "RequestToken": f"request-{len(self.requests) + 1}"}
        event["Operation"] = operation.removesuffix("Resource").upper()
        if operation == "CreateResource":
            wanted = json.loads(asked["DesiredState"])
            if wanted.get("Bad"):
                return event | {"end": "FAILED", "ErrorCode": "InvalidRequest", "StatusMessage": "Bad is not allowed"}
            identifier = f"thing-{len(self.resources) + 1}"
            self.resources[kind, identifier] = {**wanted, "Id": identifier}
            return event | {"Identifier": identifier}
        where = (kind, asked["Identifier"])
        if operation == "DeleteResource":
            self.resources.pop(where, None)
        else:
            for change in json.loads(asked["PatchDocument"]):
                self.resources[where][change["path"][1:]] = change["value"]
        return event | {"Identifier": asked["Identifier"]}


class _Handler(BaseHTTPRequestHandler):
    server: CloudControl
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Tests need no access log."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        status, told = self.server.answer(self.headers["x-amz-target"].rpartition(".")[2], asked)
        body = json.dumps(told).encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
