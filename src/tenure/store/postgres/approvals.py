"""Approvals, as calls of PostgreSQL functions. See store.approvals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tenure.model.approval import Approval, Vote
from tenure.model.clock import from_us
from tenure.store.approvals import CountApprovals, DecideApproval, ListApprovals, check_decision, check_list
from tenure.store.contract import Request
from tenure.store.postgres.codec import Call, encode, maybe_moment
from tenure.store.queries import Page


def _decide(request: DecideApproval) -> str:
    check_decision(request)
    return encode(request)


def _list(request: ListApprovals) -> str:
    check_list(request)
    return encode(request)


def _page(answer: list[Any], request: ListApprovals) -> Page[Approval]:
    found = [_approval(row) for row in answer]
    return Page(found, found[-1].id if found and len(found) == request.limit else None)


def _approval(row: Sequence[Any]) -> Approval:
    values = list(row)
    values[8] = tuple(row[8])
    values[13:17] = map(maybe_moment, row[13:17])
    values[25] = tuple(
        Vote(who, choice, note, door, from_us(at), vouched_by) for who, choice, note, door, at, vouched_by in row[25]
    )
    return Approval(*values)


CALLS: Final[Mapping[type[Request[Any]], Call]] = {
    DecideApproval: Call("decide_approval", _decide, lambda answer, _: _approval(answer)),
    ListApprovals: Call("list_approvals", _list, _page),
    CountApprovals: Call("count_approvals", encode, lambda answer, _: int(answer)),
}
