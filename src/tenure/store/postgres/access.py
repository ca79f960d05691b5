"""Access as calls of PostgreSQL functions: tokens, sessions, remembered requests, and the chain over the audit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

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
from tenure.store.contract import Request
from tenure.store.postgres.codec import Call, encode, maybe_moment, text


def _token(row: dict[str, Any]) -> ApiToken:
    maybe = {name: maybe_moment(row[name]) for name in ("last_used_at", "revoked_at")}
    return ApiToken(**(row | maybe | {name: from_us(row[name]) for name in ("created_at", "expires_at")}))


def _session(row: dict[str, Any]) -> Session:
    times = {name: from_us(row[name]) for name in ("created_at", "seen_at", "expires_at")}
    return Session(**(row | times | {"ended_at": maybe_moment(row["ended_at"])}))


def _write_audit(request: WriteAudit) -> str:
    rows = [
        {"actor": row.actor, "act": row.act, "subject": row.subject, "reason": row.reason, "detail": dict(row.detail)}
        for row in request.rows
    ]
    return text({"rows": rows})


def _same(answer: Any, _request: Any) -> Any:
    return answer


def _token_answer(answer: Any, _request: Any) -> ApiToken | None:
    return None if answer is None else _token(answer)


def _session_answer(answer: Any, _request: Any) -> Session | None:
    return None if answer is None else _session(answer)


CALLS: Final[Mapping[type[Request[Any]], Call]] = {
    CreateToken: Call("create_token", encode, _token_answer),
    FindToken: Call("find_token", encode, _token_answer),
    ListTokens: Call("list_tokens", encode, lambda answer, _: [_token(row) for row in answer]),
    RevokeTokens: Call("revoke_tokens", encode, _same),
    TouchTokens: Call("touch_tokens", encode, _same),
    CreateLink: Call("create_link", encode, _session_answer),
    OpenSession: Call("open_session", encode, _session_answer),
    FindSession: Call("find_session", encode, _session_answer),
    TouchSession: Call("touch_session", encode, _same),
    ListSessions: Call("list_sessions", encode, lambda answer, _: [_session(row) for row in answer]),
    EndSessions: Call("end_sessions", encode, _same),
    KeepSecret: Call("keep_secret", encode, _same),
    RememberRequest: Call("remember_request", encode, lambda answer, _: Remembered(*answer)),
    WriteAudit: Call("append_audit", _write_audit, _same),
    SealAudit: Call("seal_audit", encode, lambda answer, _: Sealed(*answer)),
    ListSealed: Call("list_sealed", encode, lambda answer, _: [SealedRow(*row) for row in answer]),
    CountUnsealed: Call("count_unsealed", encode, _same),
}
