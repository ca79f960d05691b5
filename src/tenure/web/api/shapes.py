"""Values as JSON: exact numbers, moments in UTC, and masks over what only the scope read:payload may see."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any, Final

from fastapi import Depends, Path, Query, Request, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from tenure.web.auth import Principal, path_of
from tenure.web.problems import Problem
from tenure.web.site import Site

SECRET: Final = frozenset(
    {"payload", "payload_hash", "result", "result_summary", "progress", "last_error", "final_error", "sample_error"}
    | {"error", "args", "data", "triage_note", "value"}
)
"""Fields that may hold what a job is about. Without the scope read:payload they are null, and `masked` is true."""

Name = Annotated[str, Field(min_length=1, max_length=200)]
WithSlashes = AfterValidator(lambda name: name.replace("%2F", "/"))
"""A slash in a name is sent as %2F; the guard leaves it so, because a plain one parts the path."""
NamePart = Annotated[str, Path(min_length=1, max_length=200), WithSlashes]
Reason = Annotated[str, Field(min_length=1, max_length=2000)]


class Strict(BaseModel):
    """What callers send: unknown fields are refused, so that a misspelt one is not lost."""

    model_config = ConfigDict(extra="forbid")


class Answer(BaseModel):
    """What is answered. Fields may be added; none is renamed, removed or given another meaning."""

    model_config = ConfigDict(extra="allow")


class JsonAnswer(Response):
    """JSON of any value of ours."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(plain(content), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def plain(value: Any) -> Any:
    """The value in terms of JSON."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, BaseModel):
        return plain(value.model_dump())
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(plain(one) for one in value)
    return [plain(one) for one in value]


def shown(value: Any, *, unmasked: bool) -> dict[str, Any]:
    """A row as an object, masked unless the caller may see what it is about."""
    told: dict[str, Any] = plain(value)
    state = getattr(value, "shown_state", None)
    if state is not None:
        told["shown_state"] = state
    if not unmasked:
        for name in SECRET & set(told):
            told[name] = None
    told["masked"] = not unmasked
    return told


def all_shown(values: Iterable[Any], *, unmasked: bool) -> list[dict[str, Any]]:
    """Rows as objects."""
    return [shown(value, unmasked=unmasked) for value in values]


def _principal(request: Request) -> Principal:
    who: Principal = request.state.principal
    return who


def _site(request: Request) -> Site:
    found: Site = request.state.site
    return found


Who = Annotated[Principal, Depends(_principal)]
Here = Annotated[Site, Depends(_site)]


async def _payload_wanted(
    request: Request,
    payload: Annotated[
        bool, Query(description="Also show payloads, results and errors; needs read:payload and is audited.")
    ] = False,
) -> bool:
    """Whether to unmask. Every unmasking leaves an audit row."""
    who: Principal = request.state.principal
    if not payload:
        return False
    if not who.may("read:payload"):
        raise Problem(403, "forbidden", f"This needs the scope 'read:payload', which {who.name!r} does not have.")
    return await may_unmask(request, who)


async def may_unmask(request: Request, who: Principal) -> bool:
    """Whether the caller may see what a job is about; if so, an audit row says that it was shown."""
    if not who.may("read:payload"):
        return False
    detail = {"token": who.token_id, "address": who.address, "query": str(request.url.query)[:500]}
    detail["request"] = request.state.request_id
    await who.app.aio.access.note("http:read_payload", path_of(request)[:200], actor=who.name, detail=detail)
    return True


Unmasked = Annotated[bool, Depends(_payload_wanted)]
Limit = Annotated[int, Query(ge=1, le=200, description="How many at most.")]
Cursor = Annotated[str | None, Query(max_length=4000, description="`next` of the page before; it holds the filter.")]
Names = Annotated[list[Name] | None, Query(max_length=50)]


async def paged(
    site: Site, who: Principal, purpose: str, cursor: str | None, given: Mapping[str, Any]
) -> tuple[dict[str, Any], str | None]:
    """The filter and the place to go on from: those of the cursor, if there is one, so that they cannot drift."""
    if cursor is None:
        return {name: value for name, value in given.items() if value is not None}, None
    known = await site.unsign(who.tenant, purpose, cursor)
    return known["filter"], known["after"]


async def next_cursor(
    site: Site, who: Principal, purpose: str, chosen: Mapping[str, Any], after: str | None
) -> str | None:
    """What continues a page."""
    return None if after is None else await site.sign(who.tenant, purpose, {"filter": chosen, "after": after})
