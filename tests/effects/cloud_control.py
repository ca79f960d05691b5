"""AWS Cloud Control as far as `sync_aws` uses it, over real HTTP, held to AWS's own description of it.

Moto has no Cloud Control (a test says so, and fails on the day it has). So this stands in; and since a stand-in may
drift from the real thing, every request and every answer is checked against the service model that botocore ships,
which is AWS's own: names, types, lengths, patterns, enumerations, which errors an operation may answer. A breach is a
500 and stays in `breaches`, which the tests look at.

As in the real one requests are asynchronous (PENDING, IN_PROGRESS, then SUCCESS or FAILED), AWS chooses identifiers,
the same ClientToken is the same request whatever became of it, and with another content it is a conflict.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

IN_PROGRESS_LOOKS = 1
"""How often the status of a request is asked before it ends."""


class CloudControl(ThreadingHTTPServer):
    """Resources by type and identifier, and the requests that made them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.resources: dict[tuple[str, str], dict[str, Any]] = {}
        self.requests: dict[str, dict[str, Any]] = {}
        self.by_token: dict[str, tuple[str, dict[str, Any]]] = {}
        self.failures: list[str] = []
        """Error codes with which the next requests end."""
        self.breaches: list[str] = []
        self.looks: dict[str, int] = {}
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
            try:
                status, told = self._answer(operation, asked)
                faults = faults_of_answer(operation, status, told)
            except Breach as exc:
                faults = [str(exc)]
            if faults:
                self.breaches += faults
                return 500, {"__type": "InternalFailure", "message": "; ".join(faults)}
            return status, told

    def _answer(self, operation: str, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if faults := faults_of_request(operation, asked):
            raise Breach("; ".join(faults))
        if operation == "GetResource":
            return self._get(asked)
        if operation == "GetResourceRequestStatus":
            return self._status(asked["RequestToken"])
        token = asked["ClientToken"]
        known = self.by_token.get(token)
        if known is not None and known[1] != {**asked, "operation": operation}:
            return 400, _error("ClientTokenConflictException", "the token was used for another request")
        if known is None:
            if operation != "CreateResource" and (asked["TypeName"], asked["Identifier"]) not in self.resources:
                return 400, _error("ResourceNotFoundException", "no such resource")
            known = (f"request-{len(self.requests) + 1}", {**asked, "operation": operation})
            self.by_token[token] = known
            self.requests[known[0]] = self._act(operation, asked, known[0])
        return 200, {"ProgressEvent": self._shown(known[0])}

    def _get(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        found = self.resources.get((asked["TypeName"], asked["Identifier"]))
        if found is None:
            return 400, _error("ResourceNotFoundException", "no such resource")
        told = {"Identifier": asked["Identifier"], "Properties": json.dumps(found)}
        return 200, {"TypeName": asked["TypeName"], "ResourceDescription": told}

    def _status(self, request: str) -> tuple[int, dict[str, Any]]:
        if request not in self.requests:
            return 400, _error("RequestTokenNotFoundException", "no such request")
        self.looks[request] = self.looks.get(request, 0) + 1
        return 200, {"ProgressEvent": self._shown(request)}

    def _shown(self, request: str) -> dict[str, Any]:
        """A request that has not ended tells neither its end nor, for a create, the identifier."""
        event, looks = self.requests[request], self.looks.get(request, 0)
        if looks > IN_PROGRESS_LOOKS:
            return {**event, "EventTime": time.time()}
        hidden = {"ErrorCode", "StatusMessage", "Identifier"} if event["Operation"] == "CREATE" else {"ErrorCode"}
        shown = {name: value for name, value in event.items() if name not in hidden}
        return {**shown, "OperationStatus": "IN_PROGRESS" if looks else "PENDING", "EventTime": time.time()}

    def _act(self, operation: str, asked: dict[str, Any], request: str) -> dict[str, Any]:
        kind = asked["TypeName"]
        event = {"TypeName": kind, "RequestToken": request, "Operation": operation.removesuffix("Resource").upper()}
        failed = self.failures.pop(0) if self.failures else None
        wanted = json.loads(asked.get("DesiredState", "{}"))
        if wanted.get("Bad"):
            failed = "InvalidRequest: Bad is not allowed"
        identifier = asked.get("Identifier")
        if failed is None or failed.startswith("NotStabilized"):
            identifier = self._carry_out(operation, asked, wanted)
        told = event | ({"Identifier": identifier} if identifier else {})
        if failed is None:
            return told | {"OperationStatus": "SUCCESS"}
        code, _, said = failed.partition(": ")
        return told | {"OperationStatus": "FAILED", "ErrorCode": code, "StatusMessage": said}

    def _carry_out(self, operation: str, asked: dict[str, Any], wanted: dict[str, Any]) -> str:
        kind = asked["TypeName"]
        if operation == "CreateResource":
            identifier = f"thing-{len(self.resources) + 1}"
            self.resources[kind, identifier] = {**wanted, "Id": identifier}
            return identifier
        where = (kind, asked["Identifier"])
        if operation == "DeleteResource":
            del self.resources[where]
        else:
            for change in json.loads(asked["PatchDocument"]):
                self.resources[where][change["path"][1:]] = change["value"]
        return str(asked["Identifier"])


class Breach(Exception):
    """Somebody does not speak as the service model says."""


@cache
def service_model() -> Any:
    """AWS's description of Cloud Control, as botocore ships it."""
    import botocore.session

    return botocore.session.get_session().get_service_model("cloudcontrol")


def faults_of_request(operation: str, asked: Any) -> list[str]:
    """Where a request is not as the model says."""
    model = service_model()
    if operation not in model.operation_names:
        return [f"there is no operation {operation!r}"]
    return list(_faults(model.operation_model(operation).input_shape, asked, f"{operation} request"))


def faults_of_answer(operation: str, status: int, told: Any) -> list[str]:
    """Where an answer is not as the model says; errors must be among those that the operation has."""
    model = service_model().operation_model(operation)
    if status == 200:
        return list(_faults(model.output_shape, told, f"{operation} answer"))
    known = {shape.name: shape for shape in model.error_shapes}
    if told["__type"] not in known:
        return [f"{operation} has no error {told['__type']!r}"]
    return list(_faults(known[told["__type"]], {"Message": told["message"]}, f"{operation} error"))


def _faults(shape: Any, value: Any, where: str) -> Iterator[str]:
    if shape.type_name == "structure":
        yield from _faults_of_structure(shape, value, where)
    elif shape.type_name == "list":
        for number, item in enumerate(value):
            yield from _faults(shape.member, item, f"{where}[{number}]")
    elif shape.type_name in {"timestamp", "integer"}:
        if isinstance(value, bool) or not isinstance(value, int | float):
            yield f"{where} is {value!r}, which is no {shape.type_name}"
    elif shape.type_name != "string" or not isinstance(value, str):
        yield f"{where} is {value!r}, which is no {shape.type_name}"
    else:
        yield from _faults_of_text(shape, value, where)


def _faults_of_structure(shape: Any, value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where} is {value!r}, which is no structure"
        return
    for name in shape.required_members:
        if name not in value:
            yield f"{where} lacks {name}"
    for name, item in value.items():
        if name not in shape.members:
            yield f"{where} has {name}, which the model does not know"
        else:
            yield from _faults(shape.members[name], item, f"{where}.{name}")


def _faults_of_text(shape: Any, value: str, where: str) -> Iterator[str]:
    rules = shape.metadata
    if not rules.get("min", 0) <= len(value) <= rules.get("max", len(value)):
        yield f"{where} has {len(value)} characters"
    if (pattern := rules.get("pattern")) and not re.fullmatch(pattern, value):
        yield f"{where} is {value!r}, which does not fit {pattern}"
    if shape.enum and value not in shape.enum:
        yield f"{where} is {value!r}, which is none of {shape.enum}"


def _error(name: str, said: str) -> dict[str, Any]:
    return {"__type": name, "message": said}


class _Handler(BaseHTTPRequestHandler):
    server: CloudControl
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Tests need no access log."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prefix, _, operation = self.headers["x-amz-target"].rpartition(".")
        metadata = service_model().metadata
        speech = (prefix, self.path, self.headers["content-type"])
        expected = (metadata["targetPrefix"], "/", f"application/x-amz-json-{metadata['jsonVersion']}")
        if speech != expected:
            self.server.breaches.append(f"the protocol is {speech}, and should be {expected}")
        status, told = self.server.answer(operation, asked)
        body = json.dumps(told).encode()
        self.send_response_only(status)
        self.send_header("Content-Type", f"application/x-amz-json-{metadata['jsonVersion']}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
