"""Texts that a caller brings back, and cannot make or change: grants, plans and confirmations.

They are signed with a key that all processes on one database share, so another server process takes them too.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any, Final
from weakref import WeakKeyDictionary

from tenure.app import App
from tenure.mcp.caller import Caller
from tenure.model.job import Grant
from tenure.model.signed import sign, unsign

SECRET: Final = "mcp"  # noqa: S105  the name of a secret
_keys: WeakKeyDictionary[App, bytes] = WeakKeyDictionary()


async def signed(app: App, purpose: str, value: Any) -> str:
    """An opaque text from a JSON value."""
    return sign(await _key(app), purpose, value)


async def read_signed(app: App, purpose: str, text: str) -> Any:
    """The value of a text of ours. Raises: ValueError."""
    return unsign(await _key(app), purpose, text)


async def state_key(app: App) -> bytes:
    """The key for what a client carries from a question to its answer: any process on the database takes it back."""
    return _state_key(await _key(app))


def state_key_now(app: App) -> bytes:
    """The same, where no loop runs yet."""
    return _state_key(app.access.shared_secret(SECRET).encode())


async def grant_text(who: Caller, grant: Grant) -> str:
    """What proves that this caller holds this job: the store's token, bound to the caller."""
    return await signed(who.app, "grant", [grant.id, grant.token, who.id])


async def read_grant(who: Caller, job_id: str, text: str) -> int | None:
    """The store's token, if this text was given to this caller for this job."""
    try:
        known_id, token, holder = await read_signed(who.app, "grant", text)
    except ValueError:
        return None
    return int(token) if known_id == job_id and holder == who.id else None


def _state_key(key: bytes) -> bytes:
    return hmac.new(key, b"request state", hashlib.sha256).digest()


async def _key(app: App) -> bytes:
    found = _keys.get(app)
    if found is None:
        found = _keys[app] = (await app.aio.access.shared_secret(SECRET)).encode()
    return found
