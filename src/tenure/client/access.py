"""Access: tokens of programs, sessions of browsers, and the chain over the audit: `app.access`."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tenure.client.operations import AsyncClient, Client, Steps, SyncClient, ask, operation
from tenure.errors import NotFound
from tenure.handler import arguments
from tenure.handler.arguments import Duration, Names
from tenure.model.access import MCP, digest, new_secret, new_token, parse_scopes, parse_token
from tenure.model.frozen import frozen
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
    NewAudit,
    OpenSession,
    Remembered,
    RememberRequest,
    RevokeTokens,
    SealAudit,
    Sealed,
    Session,
    TouchSession,
    TouchTokens,
    WriteAudit,
)
from tenure.store.queries import Audit, ListAudit

DAY = 86_400.0
TOKEN_DAYS = 90
SESSION_SECONDS = 12 * 3600.0
IDLE_SECONDS = 30 * 60.0
LINK_SECONDS = 15 * 60.0
VERIFY_PAGE = 1_000
AUDIT_PAGE_MAX = 1_000
FAULTS_MAX = 100


@frozen
class TokenMade:
    """A new token. `text` is shown this once; the store has only its hash."""

    text: str
    token: ApiToken

    def __repr__(self) -> str:
        return f"TokenMade(…, {self.token!r})"


@frozen
class SessionOpened:
    """A new session. `secret` belongs into the browser's cookie and nowhere else."""

    secret: str
    session: Session

    def __repr__(self) -> str:
        return f"SessionOpened(…, {self.session!r})"


@frozen
class Verified:
    """What a look at the whole chain found. No `faults`: every sealed row is there, unchanged and in order."""

    links: int
    head: str
    """The hash of the newest link; write it down elsewhere, and a chain that was cut short is found by it."""
    unsealed: int
    """Rows that have no link yet, up to 10,000."""
    faults: Sequence[str]
    """At most 100."""


class Access(Client):
    """Tokens, sessions, and the chain over the audit."""

    @operation
    def new_token(
        self, name: str, scopes: Names, *, days: float = TOKEN_DAYS, actor: str | None = None
    ) -> Steps[TokenMade]:
        """Make a token for a program. Its text is shown once. `days` is at most 366.

        Raises: InvalidArgument, with the scopes there are.
        """
        chosen = [str(scope) for scope in parse_scopes([scopes] if isinstance(scopes, str) else scopes)]
        seconds = arguments.seconds("days", days, positive=True) * DAY
        made = new_token()
        told = arguments.name("name", name)
        token = yield from ask(CreateToken(made.id, made.digest, told, chosen, seconds, self._by(actor)))
        return TokenMade(str(made), token)

    @operation
    def tokens(self) -> Steps[list[ApiToken]]:
        """Tokens, newest first, revoked and expired ones too."""
        return (yield from ask(ListTokens()))

    @operation
    def check_token(self, text: str) -> Steps[ApiToken | None]:
        """The token of this text if it is valid now, else None."""
        given = parse_token(text)
        if given is None:
            return None
        found = yield from ask(FindToken(given.id))
        # Compared whatever was found, and in constant time: an answer's time tells nothing about ids or secrets.
        is_right = hmac.compare_digest(found.digest if found is not None else "0" * 64, given.digest)
        return found if found is not None and is_right and found.is_valid else None

    @operation
    def token(self, token_id: str) -> Steps[ApiToken]:
        """A token by its id. Raises: NotFound."""
        found = yield from ask(FindToken(token_id))
        if found is None:
            raise NotFound(f"There is no token {token_id!r}. `tenure token ls` lists them.")
        return found

    @operation
    def revoke(self, token_ids: Names, *, actor: str | None = None) -> Steps[list[str]]:
        """Make tokens invalid at once, with the sessions that were opened with them. Answers the ids that changed.

        Raises: NotFound, if a single one was named and is not there.
        """
        ids = arguments.names("token_ids", token_ids)
        changed = yield from ask(RevokeTokens(ids, self._by(actor)))
        if isinstance(token_ids, str) and not changed and (yield from ask(FindToken(token_ids))) is None:
            raise NotFound(f"There is no token {token_ids!r}. `tenure token ls` lists them.")
        return changed

    @operation
    def touch(self, token_ids: Iterable[str]) -> Steps[int]:
        """Note that tokens were used, at most once a minute each."""
        return (yield from ask(TouchTokens(list(token_ids))))

    @operation
    def new_link(
        self, name: str, scopes: Names, *, seconds: Duration = LINK_SECONDS, actor: str | None = None
    ) -> Steps[str]:
        """The secret of a link that opens one session, once, within `seconds`."""
        chosen = [str(scope) for scope in parse_scopes([scopes] if isinstance(scopes, str) else scopes)]
        secret = new_secret()
        lasts = arguments.seconds("seconds", seconds, positive=True)
        told = arguments.name("name", name)
        yield from ask(CreateLink(digest(secret), told, chosen, lasts, self._by(actor)))
        return secret

    @operation
    def open_session(
        self,
        *,
        link: str | None = None,
        token: str | None = None,
        address: str | None = None,
        seconds: Duration = SESSION_SECONDS,
    ) -> Steps[SessionOpened | None]:
        """Sign a browser in with a link's secret or a token's text. None if it is not valid, or was used before."""
        token_id = None
        if token is not None:
            given = parse_token(token)
            found = None if given is None else (yield from ask(FindToken(given.id)))
            if given is None or found is None or not hmac.compare_digest(found.digest, given.digest):
                return None
            if MCP in found.scopes:
                return None
            token_id = given.id
        secret = new_secret()
        used = None if link is None else digest(link)
        lasts = arguments.seconds("seconds", seconds, positive=True)
        session = yield from ask(OpenSession(digest(secret), lasts, used, token_id, address))
        return None if session is None else SessionOpened(secret, session)

    @operation
    def check_session(self, secret: str, *, idle_seconds: Duration = IDLE_SECONDS) -> Steps[Session | None]:
        """The session of this secret if it is valid now, else None."""
        idle = arguments.seconds("idle_seconds", idle_seconds, positive=True)
        found = yield from ask(FindSession(digest(secret), idle))
        return found if found is not None and found.is_valid and found.kind == "session" else None

    @operation
    def is_valid(self, *, token_id: str | None = None, session: str | None = None) -> Steps[bool]:
        """Whether a session (by its digest), or else a token (by its id), is valid now."""
        if session is not None:
            found = yield from ask(FindSession(session, IDLE_SECONDS))
            return found is not None and found.is_valid
        token = yield from ask(FindToken(token_id or ""))
        return token is not None and token.is_valid

    @operation
    def touch_session(self, session: Session) -> Steps[bool]:
        """Note that a session is in use, at most once a minute."""
        return (yield from ask(TouchSession(session.digest)))

    @operation
    def sessions(self) -> Steps[list[Session]]:
        """Sessions and links that have not ended, newest first."""
        return (yield from ask(ListSessions()))

    @operation
    def end_sessions(self, digests: Names, *, actor: str | None = None) -> Steps[list[str]]:
        """Sign browsers out, by the digests of their sessions. Answers those that changed."""
        return (yield from ask(EndSessions(arguments.names("digests", digests), self._by(actor))))

    @operation
    def shared_secret(self, name: str) -> Steps[str]:
        """A random value that all processes on this database share."""
        return (yield from ask(KeepSecret(arguments.name("name", name), new_secret())))

    @operation
    def remember_request(
        self, token_id: str, key: str, body: str, ids: Sequence[str], *, answers: Sequence[Any] | None = None
    ) -> Steps[Remembered]:
        """Keep which ids a request with an Idempotency-Key was given, and later what it was answered; a repeat is
        answered the first one's."""
        return (yield from ask(RememberRequest(token_id, arguments.text("key", key, 255), body, ids, answers)))

    @operation
    def note(
        self, act: str, subject: str, *, actor: str, reason: str | None = None, detail: Mapping[str, Any] | None = None
    ) -> Steps[bool]:
        """Append one row to the audit."""
        return (yield from ask(WriteAudit([NewAudit(actor, act, subject, reason, detail or {})])))

    @operation
    def seal(self, limit: int = 1000) -> Steps[Sealed]:
        """Append audit rows to the chain that have no link yet. `more` in the answer says to call again."""
        return (yield from ask(SealAudit(arguments.whole("limit", limit, 1, 10_000))))

    @operation
    def audit(self, *, subject: str | None = None, limit: int = 100, before: int | None = None) -> Steps[list[Audit]]:
        """What people and programs with power did, newest first; `before` is the `seq` of the last one of the page
        before."""
        return (yield from ask(ListAudit(subject, arguments.whole("limit", limit, 1, AUDIT_PAGE_MAX), before)))

    @operation
    def verify_audit(self, *, heads: Mapping[int, str] | None = None) -> Steps[Verified]:
        """Walk the chain over the audit and say what does not fit: rows changed, gone or in another order.

        `heads` are links that were written down elsewhere, number → hash: a chain cut short, or made anew, is found
        by them.
        """
        wanted = dict(heads or {})
        faults: list[str] = []
        number, head = 0, ""
        while page := (yield from ask(ListSealed(number, VERIFY_PAGE))):
            for link in page:
                if link.number != number + 1:
                    faults.append(f"Links {number + 1} to {link.number - 1} are gone.")
                elif link.previous != head:
                    faults.append(
                        f"Link {link.number} does not follow link {number}: one of them was changed or moved."
                    )
                if link.row_text is None:
                    faults.append(f"Audit row {link.seq} is gone; link {link.number} covers it.")
                elif link_hash(link.previous, link.row_text) != link.hash:
                    faults.append(f"Audit row {link.seq} was changed after link {link.number} was made over it.")
                if wanted.pop(link.number, link.hash) != link.hash:
                    faults.append(f"Link {link.number} has another hash than the one that was written down for it.")
                number, head = link.number, link.hash
        faults += [f"Link {gone} was written down, and the chain ends at {number}." for gone in sorted(wanted)]
        return Verified(number, head, (yield from ask(CountUnsealed())), tuple(faults[:FAULTS_MAX]))


def link_hash(previous: str, text: str) -> str:
    """What a link of the chain must be."""
    return hashlib.sha256(f"{previous}{text}".encode()).hexdigest()


class SyncAccess(Access, SyncClient):
    """`app.access`."""


class AsyncAccess(Access, AsyncClient):
    """`app.aio.access`."""
