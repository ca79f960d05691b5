"""The outermost layer: what is refused before anything is parsed, and the headers of every answer.

It is plain ASGI, so that refusals cost next to nothing and no framework's default answer leaves without our headers.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenure.web.problems import Problem, answer
from tenure.web.site import Site

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types default"
)
HEADERS: Final = (
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
# A string without an end is taken up to the end of the body, and nothing is tried twice: else each quote of a body that
# holds half a million escaped ones would walk through all the rest.
_STRINGS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_SLASH: Final = re.compile(rb"%2f", re.IGNORECASE)
_BRACKETS: Final = re.compile(rb"[\[\]{}]")


class Guard:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, site: Site) -> None:
        self._app = app
        self._site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # websockets are not served
            await send({"type": "websocket.close", "code": 1008})
            return
        request_id = secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        scope["state"]["site"] = self._site
        sending = _Sending(send, request_id, is_secure=self._site.secure)
        problem = self._refusal(scope)
        if problem is not None:
            await answer(problem, request_id)(scope, receive, sending)
            return
        scope = _with_slashes_in_names(scope)
        body = _Body(receive, self._site.limits.body_bytes, self._site.limits.body_seconds)
        try:
            await self._app(scope, body, sending)
        except Problem as exc:  # raised while the body was read
            if not sending.has_begun:
                await answer(exc, request_id)(scope, receive, sending)

    def _refusal(self, scope: Scope) -> Problem | None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1 or not self._site.answers_to(hosts[0].decode("latin-1")):
            return Problem(421, "misdirected", "This server does not answer to that host name.")
        size = sum(len(name) + len(value) + 4 for name, value in headers) + len(scope.get("query_string", b""))
        if size > self._site.limits.head_bytes or len(scope["path"]) > 2048:
            return Problem(431, "head_too_large", f"Headers may take {self._site.limits.head_bytes} bytes in all.")
        lengths = [value for name, value in headers if name == b"content-length"]
        if lengths and (not lengths[0].isdigit() or int(lengths[0]) > self._site.limits.body_bytes):
            return too_large(self._site.limits.body_bytes)
        return None


def _with_slashes_in_names(scope: Scope) -> Scope:
    """Leave a slash that was sent as %2F encoded, so that it is part of a name and parts no path; see `NamePart`."""
    raw: bytes = scope.get("raw_path") or b""
    if not _SLASH.search(raw) or unquote(raw) != scope["path"]:
        return scope
    return {**scope, "path": unquote(_SLASH.sub(b"%252F", raw))}


class _Sending:
    """Adds our headers to the beginning of every answer."""

    def __init__(self, send: Send, request_id: str, *, is_secure: bool) -> None:
        self._send = send
        self._request_id = request_id
        self._is_secure = is_secure
        self.has_begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            message = {**message, "headers": [*message.get("headers", ()), *self._missing(message)]}
        await self._send(message)

    def _missing(self, message: Message) -> Iterator[tuple[bytes, bytes]]:
        there = {name.lower() for name, _ in message.get("headers", ())}
        yield from ((name, value) for name, value in HEADERS if name not in there)
        if b"cache-control" not in there:
            yield b"cache-control", b"no-store"
        if self._is_secure:
            yield b"strict-transport-security", b"max-age=31536000"
        yield b"x-request-id", self._request_id.encode()
        yield b"tenure-version", _version()


class _Body:
    """Counts what arrives, and does not wait for ever: one time for the whole body, however it is cut into pieces."""

    def __init__(self, receive: Receive, most: int, seconds: float) -> None:
        self._receive = receive
        self._most = most
        self._seconds = seconds
        self._got = 0
        self._is_whole = False
        self._until: float | None = None

    async def __call__(self) -> Message:
        if self._is_whole:  # what comes now is the end of the connection, and may take as long as it likes
            return await self._receive()
        if self._until is None:
            self._until = asyncio.get_running_loop().time() + self._seconds
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise Problem(408, "timeout", f"The body did not arrive within {self._seconds:g} s.") from None
        if message["type"] == "http.request":
            self._got += len(message.get("body", b""))
            self._is_whole = not message.get("more_body", False)
            if self._got > self._most:
                raise too_large(self._most)
        return message


def too_large(most: int) -> Problem:
    """The refusal of a body."""
    return Problem(413, "too_large", f"A request may take {most:,} bytes. Send less at a time.")


def check_json(body: bytes, depth: int, digits: int) -> None:
    """Refuse JSON that would cost more to read than it is worth, before it is parsed. Raises: Problem 422."""
    if b"\0" in body:  # UTF-16 and UTF-32, which the parser would take, and in which quotes stand for something else
        raise Problem(422, "invalid_payload", "The JSON is not in UTF-8.")
    bare = _STRINGS.sub(b'""', body)
    level = 0
    for bracket in _BRACKETS.finditer(bare):
        level += 1 if bracket[0] in b"[{" else -1
        if level > depth:
            raise Problem(422, "invalid_payload", f"The JSON is nested more than {depth} levels deep.")
    if re.search(rb"\d{%d,}" % (digits + 1), bare):
        raise Problem(422, "invalid_payload", f"A number in the JSON has more than {digits} digits in a row.")


def _version() -> bytes:
    import tenure

    return tenure.__version__.encode()
