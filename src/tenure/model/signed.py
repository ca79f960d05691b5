"""Texts that only the holder of a key can make: a JSON value with an HMAC-SHA-256 before it, in URL-safe base 64.

A purpose is part of what is signed, so that a text made for one use is worth nothing in another.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any, Final

MARK_BYTES: Final = 18


def sign(key: bytes, purpose: str, value: Any) -> str:
    """An opaque text from a JSON value."""
    body = json.dumps(value, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(_mark(key, purpose, body) + body).decode().rstrip("=")


def unsign(key: bytes, purpose: str, text: str) -> Any:
    """The value of a signed text. Raises: ValueError, if it was not made with this key for this purpose."""
    try:
        raw = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except ValueError:
        raw = b""
    mark, body = raw[:MARK_BYTES], raw[MARK_BYTES:]
    if not hmac.compare_digest(mark, _mark(key, purpose, body)):
        raise ValueError(f"not a {purpose} of ours")
    return json.loads(body)


def _mark(key: bytes, purpose: str, body: bytes) -> bytes:
    return hmac.new(key, purpose.encode() + b"\0" + body, hashlib.sha256).digest()[:MARK_BYTES]
