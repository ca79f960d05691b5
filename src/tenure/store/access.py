"""Access: API tokens, browser sessions and one-time links, and the chain over the audit.

Secrets never reach a store: requests carry their SHA-256. The store's clock judges what has expired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from tenure.model.frozen import frozen
from tenure.store.contract import Request


@frozen
class ApiToken:
    """A token as stored. `digest` is the SHA-256 of its secret."""

    id: str
    name: str
    scopes: Sequence[str]
    digest: str
    created_at: datetime
    created_by: str
    expires_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None
    is_valid: bool
    """Neither revoked nor expired, by the store's clock."""


@frozen
class CreateToken(Request[ApiToken]):
    """Store a token. Leaves an audit row. Repeating it answers the row that stands.

    Raises: InvalidArgument (`seconds` not within (0, one year], no scopes, a blank name); KeyConflict (the id is taken
    by another secret).
    """

    id: str
    digest: str
    name: str
    scopes: Sequence[str]
    seconds: float
    actor: str


@frozen
class FindToken(Request[ApiToken | None]):
    """One token by its id, valid or not; None if there is none. Changes nothing."""

    id: str


@frozen
class ListTokens(Request[list[ApiToken]]):
    """Tokens, newest first, revoked and expired ones too."""

    limit: int = 1000


@frozen
class RevokeTokens(Request[list[str]]):
    """Make tokens invalid at once, and end the sessions that were opened with them. Answers the ids that changed.
    Leaves an audit row for each."""

    ids: Sequence[str]
    actor: str


@frozen
class TouchTokens(Request[int]):
    """Note that tokens were used. A token that was used less than a minute ago is left as it is. Answers how many
    rows were written."""

    ids: Sequence[str]


@frozen
class Session:
    """A browser session, or a link that will open one. `digest` is the SHA-256 of its secret and its key."""

    digest: str
    kind: str
    """`link` or `session`."""
    name: str
    scopes: Sequence[str]
    token_id: str | None
    """The token that it was opened with; the session is invalid when the token is."""
    address: str | None
    created_at: datetime
    seen_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    is_valid: bool
    """Not ended, not idle for longer than `idle_seconds`, not expired, its token valid; by the store's clock."""


@frozen
class CreateLink(Request[Session]):
    """Store a link that opens one session, once."""

    digest: str
    name: str
    scopes: Sequence[str]
    seconds: float
    actor: str


@frozen
class OpenSession(Request[Session | None]):
    """Open a session with a link, which is used up by it, or with a token. None if neither is valid; nothing is
    changed then. One link opens one session, however many ask at once. Leaves an audit row.

    `digest` is that of a new secret: an old one is never taken over.
    """

    digest: str
    seconds: float
    link: str | None = None
    """The digest of a link's secret."""
    token_id: str | None = None
    """A token whose secret the caller has checked."""
    address: str | None = None


@frozen
class FindSession(Request[Session | None]):
    """A session by the digest of its secret, valid or not; None if there is none. Changes nothing."""

    digest: str
    idle_seconds: float = 1800.0


@frozen
class TouchSession(Request[bool]):
    """Note that a session is in use. Whether the row was written: once a minute is enough."""

    digest: str


@frozen
class ListSessions(Request[list[Session]]):
    """Sessions and links that have not ended, newest first."""

    limit: int = 1000
    idle_seconds: float = 1800.0


@frozen
class EndSessions(Request[list[str]]):
    """End sessions by their digests. Answers those that changed. Leaves an audit row for each."""

    digests: Sequence[str]
    actor: str


@frozen
class KeepSecret(Request[str]):
    """A random value that all processes on this database share, by name. The first candidate stays."""

    name: str
    candidate: str


@frozen
class Remembered:
    """The answer to RememberRequest."""

    is_new: bool
    body: str
    ids: Sequence[str]
    answers: Sequence[Any] | None
    """What it was answered; None while that was not kept."""


@frozen
class RememberRequest(Request[Remembered]):
    """Keep which ids a request with an Idempotency-Key was given, so that its repeat uses the same; and, sent once more
    with `answers`, what it was answered, which stays true when its jobs are gone.

    The first request with a key stays for a day: later ones are answered its body's digest, its ids and its answers.
    """

    token_id: str
    key: str
    body: str
    """SHA-256 of the request."""
    ids: Sequence[str]
    answers: Sequence[Any] | None = None


@frozen
class NewAudit:
    """One audit row to write."""

    actor: str
    act: str
    subject: str
    reason: str | None
    detail: Mapping[str, Any]


@frozen
class WriteAudit(Request[bool]):
    """Append audit rows, for acts that a door saw and the store did not. Raises: InvalidArgument (a blank actor)."""

    rows: Sequence[NewAudit]


@frozen
class SealedRow:
    """One link of the chain, with the audit row that it covers as it stands now.

    `hash` = SHA-256(`previous` ‖ `text`), where `text` joins the row's columns, each with its length in bytes before
    it. `row_text` is that text made anew from the audit row, None if the row is gone.
    """

    number: int
    seq: int
    previous: str
    hash: str
    row_text: str | None


@frozen
class Sealed:
    """The answer to a SealAudit."""

    number: int
    """The newest link; 0 if the chain is empty."""
    hash: str
    added: int
    more: bool


@frozen
class SealAudit(Request[Sealed]):
    """Append committed audit rows that have no link yet to the chain, up to `limit`, in the order of their numbers.

    One caller at a time. A row that commits late gets a later link: the chain's order is that of sealing. Linking when
    rows are written would make every operator's act wait for every other's.
    """

    limit: int = 1000


@frozen
class ListSealed(Request[list[SealedRow]]):
    """Links above `after`, in order."""

    after: int = 0
    limit: int = 1000


@frozen
class CountUnsealed(Request[int]):
    """How many audit rows have no link yet, up to 10,000."""
