"""Our errors as problem documents (RFC 9457), for web frameworks of any kind."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from tenure.errors import GateClosed, InternalError, OperatorError, TenureError
from tenure.model.frozen import frozen

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = 2

_log = logging.getLogger("tenure.integrations")


@frozen
class Answer:
    """What an HTTP server says of an error."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]


def problem_of(error: TenureError) -> Answer:
    """The document of an error, with its status.

    What an operator must mend may name files and servers: callers get the class's own sentence, the log the whole one.
    """
    detail = str(error)
    if isinstance(error, OperatorError | InternalError) and not isinstance(error, GateClosed):
        _log.error("%s: %s", error.code, error)
        detail = (type(error).__doc__ or "").partition("\n")[0]
    status = HTTPStatus(error.http_status)
    body = {"type": "about:blank", "title": status.phrase, "status": int(status), "detail": detail, "code": error.code}
    headers = {"Retry-After": str(RETRY_SECONDS)} if status == HTTPStatus.SERVICE_UNAVAILABLE else {}
    return Answer(int(status), body, headers)
