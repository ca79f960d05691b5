"""Memos: values that were worked out once and are read by later jobs, within one tenant.

**One works.** The first job that takes a memo is its owner and works the value out; others wait for it (a step of
kind `memo` that awaits `memo:ID`) and read what it kept. **The right passes on**: an owner whose job ends without a
value hands it to the first that waits, by an event of its end; where none waits, the next that asks has it. A retried
attempt of the same job stays the owner. **Failures are not kept**, and a kept value is read until its time is over, or
until it is forgotten. The id is made from tenant, name and key by the client, so tenants share nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence

from tenure.errors import InvalidArgument
from tenure.model.frozen import frozen
from tenure.model.ids import JobId, Token
from tenure.model.memo import TTL_SECONDS_MAX, Memo, MemoTold
from tenure.model.step import VALUE_BYTES
from tenure.store.contract import Request
from tenure.store.queries import Page

NAME_CHARS = 300
"""Of a name, and of a key."""
_IS_ID = re.compile(r"[0-9a-f]{64}").fullmatch


@frozen
class TakeMemo(Request[MemoTold | None]):
    """Read a memo, or become its owner; None if the lease is lost.

    `done` with the value; `mine`: this job is to work it out and keep it; `taken`: another job does.

    Raises: InvalidArgument, also for a memo of another tenant than the job's.
    """

    job_id: JobId
    token: Token
    id: str
    name: str
    key: str
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


@frozen
class ListMemos(Request[Page[Memo]]):
    """Memos by name, key and id; values whose time is over are left out.

    Looks at `limit` memos at most, so a page may have fewer; `next` is None at the end.

    Raises: InvalidArgument (a key or a prefix without a name, or both).
    """

    name: str | None = None
    """Only of this name; all if None."""
    key: str | None = None
    prefix: str | None = None
    """Only keys that begin with it."""
    tenant: str | None = None
    """Only of this tenant; None: of all, and of jobs without one."""
    after: str | None = None
    """`next` of the page before."""
    limit: int = 50


@frozen
class Forgotten:
    """How many memos went."""

    memos: int
    next: str | None = None
    """Send the request again with it as `after`; None at the end."""


@frozen
class ForgetMemos(Request[Forgotten]):
    """Remove memos: by id, or by name with a key, a prefix of keys or neither. Looks at `limit` memos at most.

    Jobs that ask for them later work them out anew. A job that is working one out goes on and keeps its value for
    itself; those that wait for it are woken, and one of them works it out. Leaves an audit row if any went.

    Raises: InvalidArgument (neither ids nor a name, or both; a key and a prefix).
    """

    actor: str
    reason: str
    ids: Sequence[str] = ()
    name: str | None = None
    key: str | None = None
    prefix: str | None = None
    tenant: str | None = None
    after: str | None = None
    limit: int = 1000


def check_choice(request: ListMemos | ForgetMemos) -> None:
    """Refuse a choice of memos that says too little or too much.

    Raises: InvalidArgument.
    """
    ids = list(request.ids) if isinstance(request, ForgetMemos) else []
    is_by_name = request.name is not None
    if isinstance(request, ForgetMemos) and bool(ids) == is_by_name:
        said = "both ids and a name are given" if ids else "neither ids nor a name are given"
        raise InvalidArgument(f"Which memos? It is not clear, because {said}. Nothing was forgotten.")
    for one in ids:
        if not _IS_ID(one):
            raise InvalidArgument(f"The id of a memo is a SHA-256 in hexadecimal digits, not {one[:70]!r}.")
    if request.key is not None and request.prefix is not None:
        raise InvalidArgument("Memos are chosen by a key or by the beginning of keys, not by both. Leave one out.")
    if not is_by_name and (request.key is not None or request.prefix is not None):
        raise InvalidArgument("A key belongs to a name, and none is given. Name the memo as well.")
    if request.after is not None:
        read_cursor(request.after)


def write_cursor(name: str, key: str, memo_id: str) -> str:
    """Where a page of memos ended."""
    return json.dumps([name, key, memo_id], separators=(",", ":"))


def read_cursor(text: str) -> list[str]:
    """Name, key and id of the memo at which a page ended. Raises: InvalidArgument."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not (isinstance(found, list) and len(found) == 3 and all(isinstance(one, str) for one in found)):
        raise InvalidArgument(f"`after` is no `next` of a page of memos: {text[:70]!r}.")
    return found


def check_memo(request: TakeMemo | KeepMemo) -> None:
    """Refuse a memo that no store can hold.

    Raises: InvalidArgument.
    """
    if not _IS_ID(request.id):
        raise InvalidArgument(f"The id of a memo is a SHA-256 in hexadecimal digits, not {request.id[:70]!r}.")
    if isinstance(request, TakeMemo):
        for what, given in (("name", request.name), ("key", request.key)):
            if not given.strip() or len(given) > NAME_CHARS or "\0" in given:
                raise InvalidArgument(f"The {what} of a memo is a text of 1 to {NAME_CHARS} characters.")
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
