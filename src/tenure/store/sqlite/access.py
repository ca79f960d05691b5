"""Access: tokens, sessions, remembered requests, and the chain over the audit."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from tenure.errors import InvalidArgument, KeyConflict
from tenure.model.clock import from_us
from tenure.store.access import (
    ApiToken,
    CountUnsealed,
    CreateLink,
    CreateToken,
    EndSessions,
    FindSession,
    FindToken,
    KeepSecret,
    ListSealed,
    ListSessions,
    ListTokens,
    OpenSession,
    Remembered,
    RememberRequest,
    RevokeTokens,
    SealAudit,
    Sealed,
    SealedRow,
    Session,
    TouchSession,
    TouchTokens,
    WriteAudit,
)
from tenure.store.sqlite.admin import audit
from tenure.store.sqlite.codec import moment
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Row, Transaction

_SQL: Final = load("access")
_YEAR: Final = 366 * 86_400.0


def create_token(transaction: Transaction, request: CreateToken) -> ApiToken:
    """See store.access.CreateToken."""
    _check(request)
    values = {
        "id": request.id,
        "name": request.name,
        "scopes": json.dumps(list(request.scopes)),
        "digest": request.digest,
        "actor": request.actor,
        "now": transaction.now,
        "expires_at": transaction.now + round(request.seconds * 1_000_000),
    }
    if transaction.run(_SQL["token_create"], values).rowcount > 0:
        detail = {"name": request.name, "scopes": list(request.scopes)}
        audit(transaction, request.actor, "create_token", request.id, None, detail)
    found = find_token(transaction, FindToken(request.id))
    assert found is not None
    if found.digest != request.digest:
        raise KeyConflict(f"A token {request.id!r} exists already, with another secret. Nothing was changed.")
    return found


def _check(request: CreateToken | CreateLink) -> None:
    if not 0 < request.seconds <= _YEAR:
        raise InvalidArgument(
            f"seconds: expected more than 0 and at most a year, got {request.seconds:g}. Nothing was created."
        )
    if not request.name.strip() or len(request.name) > 200:
        raise InvalidArgument("name: it must say what the token is for, in 1 to 200 characters. Nothing was created.")
    if not request.scopes:
        raise InvalidArgument("scopes: there is none, so it could do nothing. Nothing was created.")


def find_token(transaction: Transaction, request: FindToken) -> ApiToken | None:
    """See store.access.FindToken."""
    row = transaction.one(_SQL["token_find"], {"id": request.id, "now": transaction.now})
    return None if row is None else _token(row)


def list_tokens(transaction: Transaction, request: ListTokens) -> list[ApiToken]:
    """See store.access.ListTokens."""
    return [
        _token(row) for row in transaction.all(_SQL["token_list"], {"now": transaction.now, "limit": request.limit})
    ]


def revoke_tokens(transaction: Transaction, request: RevokeTokens) -> list[str]:
    """See store.access.RevokeTokens."""
    changed = []
    for identity in sorted(set(request.ids)):
        values = {"id": identity, "now": transaction.now, "actor": request.actor}
        row = transaction.one(_SQL["token_revoke"], values)
        if row is not None:
            transaction.run(_SQL["token_sessions_end"], values)
            audit(transaction, request.actor, "revoke_token", identity, None, {"name": row[0]})
            changed.append(identity)
    return changed


def touch_tokens(transaction: Transaction, request: TouchTokens) -> int:
    """See store.access.TouchTokens."""
    values = {"ids": json.dumps(list(request.ids)), "now": transaction.now}
    return max(0, transaction.run(_SQL["token_touch"], values).rowcount)


def create_link(transaction: Transaction, request: CreateLink) -> Session:
    """See store.access.CreateLink."""
    _check(request)
    until = transaction.now + round(request.seconds * 1_000_000)
    _keep_session(
        transaction, request.digest, "link", request.name, json.dumps(list(request.scopes)), None, None, until
    )
    audit(transaction, request.actor, "create_link", request.name, None, {"scopes": list(request.scopes)})
    found = find_session(transaction, FindSession(request.digest))
    assert found is not None
    return found


def open_session(transaction: Transaction, request: OpenSession) -> Session | None:
    """See store.access.OpenSession."""
    if request.link is not None:
        row = transaction.one(_SQL["link_use"], {"link": request.link, "now": transaction.now})
        if row is None:
            return None
        name, scopes = row
    else:
        token = find_token(transaction, FindToken(request.token_id or ""))
        if token is None or not token.is_valid:
            return None
        name, scopes = token.name, json.dumps(list(token.scopes))
    until = transaction.now + round(request.seconds * 1_000_000)
    token_id = None if request.link is not None else request.token_id
    _keep_session(transaction, request.digest, "session", name, scopes, token_id, request.address, until)
    transaction.run(_SQL["sessions_forget"], {"now": transaction.now})
    audit(transaction, name, "sign_in", name, None, {"token": token_id, "address": request.address})
    return find_session(transaction, FindSession(request.digest))


def _keep_session(
    transaction: Transaction,
    digest: str,
    kind: str,
    name: str,
    scopes: str,
    token_id: str | None,
    address: str | None,
    until: int,
) -> None:
    values = {"digest": digest, "kind": kind, "name": name, "scopes": scopes, "token_id": token_id}
    transaction.run(_SQL["session_create"], {**values, "address": address, "now": transaction.now, "expires_at": until})


def find_session(transaction: Transaction, request: FindSession) -> Session | None:
    """See store.access.FindSession."""
    values = {"digest": request.digest, "now": transaction.now, "idle": round(request.idle_seconds * 1_000_000)}
    row = transaction.one(_SQL["session_find"], values)
    return None if row is None else _session(row)


def touch_session(transaction: Transaction, request: TouchSession) -> bool:
    """See store.access.TouchSession."""
    return transaction.run(_SQL["session_touch"], {"digest": request.digest, "now": transaction.now}).rowcount > 0


def list_sessions(transaction: Transaction, request: ListSessions) -> list[Session]:
    """See store.access.ListSessions."""
    values = {"now": transaction.now, "limit": request.limit, "idle": round(request.idle_seconds * 1_000_000)}
    return [_session(row) for row in transaction.all(_SQL["session_list"], values)]


def end_sessions(transaction: Transaction, request: EndSessions) -> list[str]:
    """See store.access.EndSessions."""
    changed = []
    for digest in sorted(set(request.digests)):
        row = transaction.one(_SQL["session_end"], {"digest": digest, "now": transaction.now})
        if row is not None:
            audit(transaction, request.actor, "sign_out", row[0], None, {})
            changed.append(digest)
    return changed


def keep_secret(transaction: Transaction, request: KeepSecret) -> str:
    """See store.access.KeepSecret."""
    transaction.run(_SQL["secret_keep"], {"name": request.name, "candidate": request.candidate})
    row = transaction.one(_SQL["secret_read"], {"name": request.name})
    assert row is not None
    return str(row[0])


def remember_request(transaction: Transaction, request: RememberRequest) -> Remembered:
    """See store.access.RememberRequest."""
    values = {"token_id": request.token_id, "key": request.key, "body": request.body, "now": transaction.now}
    kept = transaction.run(_SQL["request_keep"], {**values, "ids": json.dumps(list(request.ids))}).rowcount > 0
    if kept:
        transaction.run(_SQL["requests_forget"], {"now": transaction.now})
    if request.answers is not None:
        transaction.run(_SQL["request_answered"], {**values, "answers": json.dumps(list(request.answers))})
    row = transaction.one(_SQL["request_read"], values)
    assert row is not None
    return Remembered(kept, row[0], json.loads(row[1]), None if row[2] is None else json.loads(row[2]))


def write_audit(transaction: Transaction, request: WriteAudit) -> bool:
    """See store.access.WriteAudit."""
    for row in request.rows:
        audit(transaction, row.actor, row.act, row.subject, row.reason, dict(row.detail))
    return True


def seal_audit(transaction: Transaction, request: SealAudit) -> Sealed:
    """See store.access.SealAudit."""
    number, previous = transaction.one(_SQL["seal_head"]) or (0, "")
    floor = transaction.one(_SQL["seal_floor"])
    assert floor is not None
    rows = transaction.all(_SQL["seal_missing"], {"floor": floor[0], "limit": request.limit})
    for row in rows:
        number += 1
        after = hashlib.sha256(f"{previous}{row_text(row)}".encode()).hexdigest()
        transaction.run(_SQL["seal_write"], {"number": number, "seq": row[0], "previous": previous, "hash": after})
        previous = after
    return Sealed(number, previous, len(rows), len(rows) >= request.limit)


def list_sealed(transaction: Transaction, request: ListSealed) -> list[SealedRow]:
    """See store.access.ListSealed."""
    rows = transaction.all(_SQL["seal_list"], {"after": request.after, "limit": request.limit})
    return [
        SealedRow(number, seq, previous, found, None if row[0] is None else row_text(tuple(row)))
        for number, seq, previous, found, *row in rows
    ]


def count_unsealed(transaction: Transaction, _request: CountUnsealed) -> int:
    """See store.access.CountUnsealed."""
    row = transaction.one(_SQL["seal_count_missing"])
    assert row is not None
    return int(row[0])


def row_text(row: Row) -> str:
    """The text of an audit row that its link covers: each column after its length in bytes. PostgreSQL:
    tenure.audit_text."""
    seq, at, actor, act, subject, reason, detail = row
    parts = (str(seq), str(at), actor, act, subject, "-" if reason is None else f"+{reason}", detail)
    return "".join(f"{len(part.encode())}:{part}" for part in parts)


def _token(row: Row) -> ApiToken:
    identity, name, scopes, digest, created_at, created_by, expires_at, used_at, revoked_at, revoked_by, is_valid = row
    return ApiToken(
        identity,
        name,
        json.loads(scopes),
        digest,
        from_us(created_at),
        created_by,
        from_us(expires_at),
        moment(used_at),
        moment(revoked_at),
        revoked_by,
        bool(is_valid),
    )


def _session(row: Row) -> Session:
    digest, kind, name, scopes, token_id, address, created_at, seen_at, expires_at, ended_at, is_valid = row
    return Session(
        digest,
        kind,
        name,
        json.loads(scopes),
        token_id,
        address,
        from_us(created_at),
        from_us(seen_at),
        from_us(expires_at),
        moment(ended_at),
        bool(is_valid),
    )


WRITES: Final[dict[type, Any]] = {
    CreateToken: create_token,
    RevokeTokens: revoke_tokens,
    TouchTokens: touch_tokens,
    CreateLink: create_link,
    OpenSession: open_session,
    TouchSession: touch_session,
    EndSessions: end_sessions,
    KeepSecret: keep_secret,
    RememberRequest: remember_request,
    WriteAudit: write_audit,
    SealAudit: seal_audit,
}
READS: Final[dict[type, Any]] = {
    FindToken: find_token,
    ListTokens: list_tokens,
    FindSession: find_session,
    ListSessions: list_sessions,
    ListSealed: list_sealed,
    CountUnsealed: count_unsealed,
}
