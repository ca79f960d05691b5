"""Reads for pages, as calls of PostgreSQL functions. See store.browsing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from tenure.model.clock import from_us, to_us
from tenure.model.ids import JobId
from tenure.store.browsing import Browsed, BrowseJobs, Death, ListDeaths
from tenure.store.contract import Request
from tenure.store.postgres.codec import Call, encode, maybe_moment, text
from tenure.store.postgres.queries import to_job


def _encode_browse(request: BrowseJobs) -> str:
    told = {field.name: getattr(request, field.name) for field in fields(request)}
    return text(told | {"since": None if request.since is None else to_us(request.since)})


def _browsed(answer: dict[str, Any], request: BrowseJobs) -> Browsed:
    rows = answer["items"][: request.limit]
    is_whole = answer["scanned"] < request.scan
    if len(answer["items"]) > request.limit:
        following: JobId | None = JobId(rows[-1]["id"])
    else:
        following = None if is_whole else JobId(answer["last"])
    return Browsed(
        at=from_us(answer["at"]),
        items=[to_job(row) for row in rows],
        counts=answer["counts"],
        scanned=answer["scanned"],
        next=following,
        last=None if answer["last"] is None else JobId(answer["last"]),
        is_whole=is_whole,
    )


def _death(row: dict[str, Any]) -> Death:
    return Death(**(row | {"moved_at": from_us(row["moved_at"]), "triaged_at": maybe_moment(row["triaged_at"])}))


CALLS: Final[Mapping[type[Request[Any]], Call]] = {
    BrowseJobs: Call("browse_jobs", _encode_browse, _browsed),
    ListDeaths: Call("list_deaths", encode, lambda answer, _: [_death(row) for row in answer]),
}
