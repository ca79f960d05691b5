"""Approvals. See store.approvals."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tenure.errors import Forbidden, IllegalMove, NotFound
from tenure.model.approval import (
    VOIDS_MAX,
    Approval,
    Vote,
    hash_of,
    is_among,
    parse_question,
    same_arguments,
    same_name,
)
from tenure.model.clock import from_us
from tenure.model.ids import JobId, Token
from tenure.model.step import NewStep
from tenure.store.approvals import CountApprovals, DecideApproval, ListApprovals, check_decision, check_list
from tenure.store.queries import Page
from tenure.store.sqlite import admin, flow
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Row, Transaction, check_limit, dump

_SQL: Final = load("approvals")


def ask(transaction: Transaction, job_id: JobId, token: Token, step: NewStep) -> bool:
    """Write the approval that an open step asks for, and the step. Whether a new question was asked."""
    asked = parse_question(f"Step {step.key!r}", step.value)
    place: dict[str, Any] = {"job_id": job_id, "key": step.key, "token": token, "now": transaction.now}
    args_hash = hash_of(asked.args)
    current = transaction.one(_SQL["current"], place)
    if current is not None:
        approval_id, state, asked_hash = current
        if asked_hash == args_hash or state == "used":
            transaction.run(_SQL["step_again"], place)
            return False
        transaction.run(_SQL["void_one"], {**place, "id": approval_id, "why": "changed"})
        changed = transaction.one(_SQL["count_changed"], place)
        if changed is not None and changed[0] >= VOIDS_MAX:
            transaction.run(_SQL["step_void"], place)
            return False
    told = {
        "id": asked.id,
        "name": asked.name,
        "args": asked.args,
        "args_hash": args_hash,
        "text": asked.text,
        "need": asked.need,
        "asked_of": dump(list(asked.ask)),
        "on_expiry": asked.on_expiry,
        "expires_at": None if asked.expires is None else transaction.now + round(asked.expires * 1_000_000),
    }
    transaction.run(_SQL["insert"], place | told)
    value = dump({"approval": asked.id, "args_hash": args_hash})
    transaction.run(_SQL["step_open"], {**place, "value": value, "awaits": f"approval:{asked.id}"})
    return True


def expire(transaction: Transaction, limit: int) -> int:
    """Close what has expired. Answers how many jobs were woken by it."""
    return sum(
        flow.wake_on(transaction, f"approval:{row[0]}")
        for row in transaction.all(_SQL["expire"], {"now": transaction.now, "limit": limit})
    )


def use(transaction: Transaction, job_id: JobId, approval_id: str, step: str, name: str, args: str) -> None:
    """An effect uses an approval. Raises: IllegalMove."""
    values = {"id": approval_id, "job_id": job_id, "place": f"{step}:{name}", "now": transaction.now}
    row = transaction.one(_SQL["use"], values)
    if row is None:
        raise IllegalMove(
            f"Effect {name!r} of job {job_id} may not use approval {approval_id}: it is not granted, or another effect "
            "has used it. Ask for an approval of its own. Nothing was done."
        )
    if row[0] is not None and not same_arguments(row[0], args):
        raise IllegalMove(
            f"Effect {name!r} of job {job_id} has other arguments than approval {approval_id} was given for. Do it "
            "with the arguments of the decision. Nothing was done."
        )


def clean(transaction: Transaction, ids: str) -> None:
    """Jobs (a JSON array of ids) have just been cleaned."""
    transaction.run(_SQL["clean"], {"ids": ids})
    transaction.run(_SQL["clean_votes"], {"ids": ids})


def drop(transaction: Transaction, ids: str) -> None:
    """Jobs (a JSON array of ids) are being deleted."""
    transaction.run(_SQL["drop_votes"], {"ids": ids})
    transaction.run(_SQL["drop"], {"ids": ids})


# --- answers ----------------------------------------------------------------------------------------------------------


class _Asked(NamedTuple):
    """A row of `look`."""

    state: str
    args_hash: str
    need: int
    asked_of: str
    asked_by: str
    expires_at: int | None
    job_id: str
    why: str | None
    job_state: str | None
    queue: str | None
    actor: str | None
    created_by: str | None
    requested_by: str | None
    name: str


def decide(transaction: Transaction, request: DecideApproval) -> Approval:
    """See store.approvals.DecideApproval."""
    check_decision(request)
    row = transaction.one(_SQL["look"], (request.id,))
    if row is None:
        raise NotFound(f"There is no approval {request.id}. `tenure inbox ls` lists what waits for an answer.")
    asked = _Asked(*row)
    values: dict[str, Any] = {
        "id": request.id,
        "person": request.voter.strip().lower(),
        "voter": request.voter.strip(),
        "choice": request.choice,
        "note": request.note,
        "args_hash": request.args_hash,
        "door": request.door,
        "vouched_by": None if request.vouched_by is None else request.vouched_by.strip(),
        "now": transaction.now,
    }
    before = transaction.one(_SQL["vote_of"], values)
    if before == (request.choice, request.args_hash):
        return _read(transaction, request.id)
    editors = [row[0] for row in transaction.all(_SQL["editors"], {"job_id": asked.job_id})]
    _refuse(request, asked, editors, transaction.now, before)
    _refuse_second(request, asked, [(row[0], row[1]) for row in transaction.all(_SQL["votes_of"], values)])
    transaction.run(_SQL["vote"], values)
    approved = transaction.one(_SQL["count_votes"], values)
    state = "pending"
    if request.choice == "deny":
        state = "denied"
    elif approved is not None and approved[0] >= asked.need:
        state = "granted"
    if state != "pending":
        transaction.run(_SQL["decide"], {**values, "state": state})
    detail = {
        "job_id": asked.job_id,
        "name": asked.name,
        "args_hash": request.args_hash,
        "door": request.door,
        "vouched_by": request.vouched_by,
        "state": state,
    }
    admin.audit(transaction, request.voter.strip(), request.choice, request.id, request.note, detail)
    if state != "pending":
        flow.wake_on(transaction, f"approval:{request.id}")
    return _read(transaction, request.id)


def _refuse(request: DecideApproval, asked: _Asked, editors: Sequence[str], now: int, before: Row | None) -> None:
    """Refuse a vote that must not count. Raises: Forbidden, IllegalMove."""
    where = f"Approval {request.id}"
    involved = (asked.actor, asked.created_by, asked.requested_by, asked.queue, asked.asked_by or None, *editors)
    for name in (request.voter, request.vouched_by):
        if name is not None and any(same_name(name, one) for one in involved):
            raise Forbidden(
                f"{where}: {name!r} had this job done or does it, so another person has to answer. Nothing was changed."
            )
    names = (request.voter, *request.groups)
    asked_of = json.loads(asked.asked_of)
    if asked_of and not is_among(names, asked_of):
        raise Forbidden(
            f"{where} was asked of {', '.join(asked_of)}, and {request.voter!r} is none of them. Nothing was changed."
        )
    if asked.state == "void" and asked.why == "ended":
        raise IllegalMove(
            f"{where}: its job {asked.job_id} has ended as {asked.job_state}, so no answer is needed. "
            "Nothing was changed."
        )
    if asked.state == "void":
        raise IllegalMove(f"{where} is void: its job asks about other arguments now. Look at `tenure inbox ls`.")
    if asked.state != "pending":
        raise IllegalMove(f"{where} was decided before: it is {asked.state}. Nothing was changed.")
    if asked.expires_at is not None and asked.expires_at <= now:
        raise IllegalMove(
            f"{where} expired at {from_us(asked.expires_at):%Y-%m-%d %H:%M:%S} UTC, so it takes no answer. "
            "Nothing was changed."
        )
    if request.args_hash != asked.args_hash:
        raise IllegalMove(
            f"{where}: the answer is about arguments with another hash than those that are asked about. Look at it "
            "again and answer what it shows now. Nothing was changed."
        )
    if before is not None:
        raise IllegalMove(f"{where}: {request.voter!r} has answered already ({before[0]}). Nothing was changed.")


def _refuse_second(request: DecideApproval, asked: _Asked, votes: list[tuple[str, str | None]]) -> None:
    """Refuse a second answer of one person under another name. Raises: Forbidden."""
    named = json.loads(asked.asked_of)

    def is_named(person: str) -> bool:
        return any(same_name(person, one) for one in named)

    maker = request.vouched_by
    who = request.voter if maker is None else maker
    for person, vouched_by in votes:
        has_answered = maker is not None and same_name(maker, person)
        has_lent = same_name(who, vouched_by)
        if has_answered or (has_lent and not (maker is not None and is_named(person) and is_named(request.voter))):
            raise Forbidden(
                f"Approval {request.id}: {who!r} has answered already, by themselves or by a link that they made, and "
                "one person counts once. Another person has to answer. Nothing was changed."
            )


# --- reading ----------------------------------------------------------------------------------------------------------


def list_approvals(transaction: Transaction, request: ListApprovals) -> Page[Approval]:
    """See store.approvals.ListApprovals."""
    check_list(request)
    check_limit(request.limit)
    found = list(itertools.islice(_found(transaction, request), request.limit))
    return Page(found, found[-1].id if found and len(found) == request.limit else None)


def _found(transaction: Transaction, request: ListApprovals) -> Iterator[Approval]:
    """Approvals that match, page by page. Names are compared here: SQLite's lower() changes ASCII letters only."""
    values: dict[str, Any] = {
        "ids": None if request.ids is None else dump(list(request.ids)),
        "states": dump(list(request.states)),
        "job_id": request.job_id,
        "after": request.after,
        "limit": request.limit,
    }
    is_inbox = list(request.states) == ["pending"] and request.ids is None and request.job_id is None
    people = None if request.person is None else (request.person, *request.groups)
    while True:
        rows = transaction.all(_SQL["list_pending" if is_inbox else "list"], values)
        for one in map(_approval, rows):
            if people is None or not one.asked_of or is_among(people, one.asked_of):
                yield one
        if len(rows) < request.limit:
            return
        values["after"] = rows[-1][0]


def count_approvals(transaction: Transaction, _: CountApprovals) -> int:
    """See store.approvals.CountApprovals."""
    row = transaction.one(_SQL["count_pending"])
    return 0 if row is None else int(row[0])


def _read(transaction: Transaction, approval_id: str) -> Approval:
    return list_approvals(transaction, ListApprovals(ids=[approval_id], limit=1)).items[0]


def _approval(row: Row) -> Approval:
    values: list[Any] = list(row)
    values[8] = tuple(json.loads(row[8]))
    values[13:17] = [None if at is None else from_us(at) for at in row[13:17]]
    values[25] = tuple(
        Vote(who, choice, note, door, from_us(at), vouched_by)
        for who, choice, note, door, at, vouched_by in json.loads(row[25])
    )
    return Approval(*values)


WRITES: Final[Mapping[type, Callable[[Transaction, Any], Any]]] = {DecideApproval: decide}
READS: Final[Mapping[type, Callable[[Transaction, Any], Any]]] = {
    ListApprovals: list_approvals,
    CountApprovals: count_approvals,
}
