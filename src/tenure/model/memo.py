"""Memos: what a job is told about one, and how its id is made. See store.memo."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import Final, Literal

from tenure.model.frozen import frozen
from tenure.model.ids import JobId

TTL_SECONDS_MAX: Final = 10 * 365 * 86_400.0
JOB_PREFIX: Final = "$job/"
"""The name of a memo that is a job's whole result begins with it; the kind follows."""


@frozen
class MemoTold:
    """What a store says about a memo."""

    state: Literal["done", "mine", "taken"]
    value: str | None = None
    """JSON text, if it is done."""


@frozen
class Memo:
    """A memo as it stands. Its value may be large, so only its beginning is shown."""

    id: str
    name: str
    key: str
    """Of a job's whole result: the SHA-256 of its payload."""
    tenant: str | None
    state: Literal["open", "done"]
    """`open`: the job `job_id` works it out; `done`: it is read until `expires_at`."""
    job_id: JobId
    size: int
    """Bytes of its value as JSON text; 0 while it is open."""
    preview: str
    """The first 200 characters of that text."""
    created_at: datetime
    expires_at: datetime | None

    @property
    def kind(self) -> str | None:
        """Of a job's whole result: the job's kind."""
        return self.name.removeprefix(JOB_PREFIX) if self.name.startswith(JOB_PREFIX) else None


def memo_id(tenant: str | None, name: str, key: str) -> str:
    """The id of a memo. Tenants share nothing, and no name and key can be read as another name and key."""
    return hashlib.sha256(json.dumps([tenant, name, key], ensure_ascii=True).encode()).hexdigest()
