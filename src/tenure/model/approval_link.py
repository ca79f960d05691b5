"""Signed links: one person answers one approval, without an account, until a moment.

A link's text is `APPROVAL.UNTIL.NAME.MAKER.SIGNATURE`: the approval's id, seconds since 1970, the names of who is to
answer and of who made the link in base64url, and an HMAC-SHA256 over all that, with a key that the processes on one
database share. A person answers an approval once, so a link works once.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import Final

from tenure.model.frozen import frozen

KEY_NAME: Final = "approval_links"
_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@frozen
class LinkClaim:
    """What a link with a right signature says."""

    approval_id: str
    voter: str
    until: int
    """Seconds since 1970."""
    made_by: str


def sign_link(key: str, claim: LinkClaim) -> str:
    """The text of a link."""
    body = f"{claim.approval_id}.{claim.until}.{_pack(claim.voter)}.{_pack(claim.made_by)}"
    return f"{body}.{_signature(key, body)}"


def read_link(key: str, text: str) -> LinkClaim | None:
    """What a link says, None if its signature is not right. Whether it is over is the caller's to judge."""
    body, _, signature = text.rpartition(".")
    is_right = hmac.compare_digest(_signature(key, body).encode(), signature.encode("utf-8", "replace"))
    parts = body.split(".")
    if not is_right or len(parts) != 4 or not _ID.fullmatch(parts[0]) or not parts[1].isdecimal():
        return None
    try:
        return LinkClaim(parts[0], _unpack(parts[2]), int(parts[1]), _unpack(parts[3]))
    except (binascii.Error, UnicodeDecodeError):
        return None


def _pack(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


def _unpack(text: str) -> str:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()


def _signature(key: str, body: str) -> str:
    made = hmac.new(key.encode(), body.encode("utf-8", "replace"), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(made).decode().rstrip("=")
