"""Errors as `application/problem+json` (RFC 9457): one sentence, one code, one status, and nothing else.

The status of each of our errors stands at its class, `http_status`. Sentences of errors that an operator must mend may
name files and servers, so callers get the class's own sentence and the log gets the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tenure.errors import GateClosed, InternalError, OperatorError, TenureError

MEDIA_TYPE: Final = "application/problem+json"
_log: Final = logging.getLogger("tenure.web")

TITLES: Final = {
    400: "Bad request",
    401: "Not signed in",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    406: "Not acceptable",
    408: "The request took too long to arrive",
    409: "Conflict",
    412: "Precondition failed",
    413: "Too large",
    415: "Unsupported media type",
    421: "Misdirected request",
    422: "Invalid content",
    428: "Precondition required",
    429: "Too many requests",
    431: "Headers too large",
    500: "Internal error",
    501: "Not installed here",
    503: "Not available now",
    507: "Disk full",
}


class Problem(Exception):
    """A refusal that HTTP itself knows, as opposed to the errors of an App."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        errors: Sequence[Mapping[str, str]] = (),
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})
        self.errors = errors


def not_found() -> Problem:
    """The one answer for what is not there, what is malformed, and what is another tenant's."""
    return Problem(404, "not_found", "There is nothing here under this name.")


def to_problem(error: Exception) -> Problem:
    """What is said of an error."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):
        if error.status_code == 404:
            return not_found()
        headers = dict(error.headers or {})
        code = {405: "method_not_allowed"}.get(error.status_code, "bad_request")
        return Problem(error.status_code, code, f"{error.detail}.", headers=headers)
    if isinstance(error, TenureError):
        headers = {"Retry-After": "2"} if error.http_status == 503 else {}
        if isinstance(error, OperatorError | InternalError) and not isinstance(error, GateClosed):
            _log.error("%s: %s", error.code, error)
            said = (type(error).__doc__ or "").partition("\n")[0]
            return Problem(error.http_status, error.code, said, headers=headers)
        return Problem(error.http_status, error.code, str(error), headers=headers)
    _log.error("A request failed by a fault of Tenure's.", exc_info=error)
    return Problem(500, InternalError.code, "This is a fault of Tenure's. The log tells more, under the request's id.")


def answer(problem: Problem, request_id: str | None = None) -> Response:
    """The document."""
    said: dict[str, Any] = {
        "type": f"/docs/reference/errors.md#{problem.code}",
        "title": TITLES.get(problem.status, "Error"),
        "status": problem.status,
        "detail": problem.detail,
        "code": problem.code,
    }
    if request_id is not None:
        said["request_id"] = request_id
    if problem.errors:
        said["errors"] = list(problem.errors)
    return JSONResponse(said, problem.status, problem.headers, media_type=MEDIA_TYPE)


async def handle(request: Request, error: Exception) -> Response:
    """For the framework: every error ends here."""
    return answer(to_problem(error), getattr(request.state, "request_id", None))
