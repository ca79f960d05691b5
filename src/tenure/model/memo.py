"""Memos: what a job is told about one, and how its id is made. See store.memo."""

from __future__ import annotations

import hashlib
import json
from typing import Final, Literal

from tenure.model.frozen import frozen

TTL_SECONDS_MAX: Final = 10 * 365 * 86_400.0


@frozen
class MemoTold:
    """What a store says about a memo."""

    state: Literal["done", "mine", "taken"]
    value: str | None = None
    """JSON text, if it is done."""


def memo_id(tenant: str | None, name: str, key: str) -> str:
    """The id of a memo. Tenants share nothing, and no name and key can be read as another name and key."""
    return hashlib.sha256(json.dumps([tenant, name, key], ensure_ascii=True).encode()).hexdigest()
