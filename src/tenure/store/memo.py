"""Memos: values that were worked out once and are read by later jobs, within one tenant.

**One works.** The first job that takes a memo is its owner and works the value out; others wait for it (a step of
kind `memo` that awaits `memo:ID`) and read what it kept. **The right passes on**: an owner whose job ends without a
value hands it to the first that waits, in the transaction of its end; one that is gone loses it to the next that asks,
or by SweepFlow. A retried attempt of the same job stays the owner. **Failures are not kept**, and a kept value is read
until its time is over. The id is made from tenant, name and key by the client, so tenants share nothing.
"""

from __future__ import annotations

import json
import math
import re

from tenure.errors import InvalidArgument
from tenure.model.frozen import frozen
from tenure.model.ids import JobId, Token
from tenure.model.memo import TTL_SECONDS_MAX, MemoTold
from tenure.model.step import VALUE_BYTES
from tenure.store.contract import Request

NAME_CHARS = 300
_IS_ID = re.compile(r"[0-9a-f]{64}").fullmatch


@frozen
class TakeMemo(Request[MemoTold | None]):
    """Read a memo, or become its owner; None if the lease is lost.

    `done` with the value; `mine`: this job is to work it out and keep it; `taken`: another job does.
    """

    job_id: JobId
    token: Token
    id: str
    name: str
    tenant: str | None = None


@frozen
class KeepMemo(Request[MemoTold | None]):
    """Keep the value of a memo that this job owns, for `ttl_seconds`, and wake those who wait; None if the lease is
    lost. One that another job has kept meanwhile stays, and is answered.

    Raises: InvalidArgument (a value that is no JSON or too large, a time that is no duration).
    """

    job_id: JobId
    token: Token
    id: str
    value: str
    """JSON text."""
    ttl_seconds: float


def check_memo(request: TakeMemo | KeepMemo) -> None:
    """Refuse a memo that no store can hold.

    Raises: InvalidArgument.
    """
    if not _IS_ID(request.id):
        raise InvalidArgument(f"The id of a memo is a SHA-256 in hexadecimal digits, not {request.id[:70]!r}.")
    if isinstance(request, TakeMemo):
        if not request.name.strip() or len(request.name) > NAME_CHARS or "\0" in request.name:
            raise InvalidArgument(f"The name of a memo is a text of 1 to {NAME_CHARS} characters.")
        return
    if not (math.isfinite(request.ttl_seconds) and 0 < request.ttl_seconds <= TTL_SECONDS_MAX):
        raise InvalidArgument(
            f"A memo is kept for more than 0 and up to {TTL_SECONDS_MAX:,.0f} s (ten years), not "
            f"{request.ttl_seconds} s. Nothing was kept."
        )
    size = len(request.value.encode("utf-8", "replace"))
    if size > VALUE_BYTES:
        raise InvalidArgument(
            f"The value of a memo has {size:,} bytes, and {VALUE_BYTES:,} are the limit. Keep it in a file or a table "
            "of your own and keep where it is. Nothing was kept."
        )
    try:
        json.loads(request.value, parse_constant=_refuse_constant)
    except ValueError as exc:
        raise InvalidArgument(f"The value of a memo is no JSON ({exc}). Nothing was kept.") from exc


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
