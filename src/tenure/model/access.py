"""Who may do what at the doors: scopes, and the text of a token.

A token reads `tnr_ID_SECRET_CHECK`: its id, 256 random bits in base 62, and a CRC-32 of what stands before. The check
tells a typing error from a wrong token without asking a store; `TOKEN_PATTERN` is for scanners that look for leaks.
Stores keep the SHA-256 of the secret and nothing else.

A scope is a verb, for `enqueue` and `worker` with the queues and kinds that it covers:

    read:meta                          states, times, names, counts; no payload, result or error text
    read:payload                       these as well; implied by no other scope
    enqueue:queue=mail,kind=welcome    put such jobs in such queues; enqueue:* for all but Tenure's own kinds, tenure.…
    worker:queue=mail                  claim, keep and end jobs of these queues; worker:* for all
    operate                            cancel, revive, triage, pause; implies read:meta
    approve                            answer what waits for a person
    admin                              queues, gates, tokens, audit; implies operate
    mcp                                no permission: the token is for MCP, which takes no other, and no other door
                                       takes it
    group:billing                      no permission: the holder answers approvals that are asked of this group
"""

from __future__ import annotations

import hashlib
import re
import secrets
import zlib
from collections.abc import Iterable
from typing import Final

from tenure.errors import InvalidArgument
from tenure.model.frozen import frozen

TOKEN_PATTERN: Final = r"tnr_[0-9A-Za-z]{12}_[0-9A-Za-z]{43}_[0-9A-Za-z]{6}"  # noqa: S105  a pattern, no secret
VERBS: Final = ("read:meta", "read:payload", "enqueue", "worker", "operate", "approve", "admin", "mcp")
MCP: Final = "mcp"
"""The audience of a token. A token with it is good at MCP alone, one without it everywhere else."""
GROUP: Final = "group:"
"""A group of the holder. Only who hands out tokens says so: no door takes a group from a request."""
BOUND: Final = ("enqueue", "worker")
"""Verbs that say for which queues and kinds they hold."""
IMPLIED: Final = {"admin": ("operate", "read:meta"), "operate": ("read:meta",)}
OWN_KINDS: Final = "tenure."
"""Kinds that Tenure enqueues itself, for acts that need more than the right to enqueue. `enqueue:*` does not cover
them; a scope that names one does."""
EVERYTHING: Final = ("read:meta", "read:payload", "enqueue:*", "worker:*", "operate", "approve", "admin")

_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_TOKEN: Final = re.compile(TOKEN_PATTERN)
_NAME: Final = re.compile(r"[^\s,=*\x00-\x1f]{1,200}")


@frozen
class Scope:
    """One permission. `queue` and `kind` None stand for all."""

    verb: str
    queue: str | None = None
    kind: str | None = None

    def covers(self, other: Scope) -> bool:
        """Whether all that `other` allows is allowed by this one."""
        if other.verb != self.verb and other.verb not in IMPLIED.get(self.verb, ()):
            return False
        if other.verb == "enqueue" and self.kind is None and (other.kind or "").startswith(OWN_KINDS):
            return False
        return self.queue in {None, other.queue} and self.kind in {None, other.kind}

    def __str__(self) -> str:
        if self.verb not in BOUND:
            return self.verb
        bounds = [f"{name}={value}" for name, value in (("queue", self.queue), ("kind", self.kind)) if value]
        return f"{self.verb}:{','.join(bounds) or '*'}"


def parse_scope(text: str) -> Scope:
    """A scope from its text. Raises: InvalidArgument."""
    if text in VERBS and text not in BOUND:
        return Scope(text)
    if text.startswith(GROUP) and _NAME.fullmatch(text.removeprefix(GROUP)):
        return Scope(text)
    verb, _, bounds = text.partition(":")
    if verb not in BOUND:
        raise InvalidArgument(f"{text!r} is no scope. Scopes are: {', '.join((*EVERYTHING, MCP, GROUP + 'NAME'))}.")
    if bounds == "*":
        return Scope(verb)
    found: dict[str, str] = {}
    for part in bounds.split(","):
        name, _, value = part.partition("=")
        if name not in {"queue", "kind"} or name in found or not _NAME.fullmatch(value):
            raise InvalidArgument(
                f"{text!r} is no scope. Write {verb}:queue=NAME, {verb}:queue=NAME,kind=NAME, or {verb}:* for all."
            )
        found[name] = value
    return Scope(verb, found.get("queue"), found.get("kind"))


def parse_scopes(texts: Iterable[str]) -> tuple[Scope, ...]:
    """Scopes from their texts, each once. Raises: InvalidArgument, also if there is none."""
    found = tuple(dict.fromkeys(parse_scope(text) for text in texts))
    if all(scope.verb == MCP or scope.verb.startswith(GROUP) for scope in found):
        raise InvalidArgument(f"No scope was given, and a token without one may do nothing. Name: {', '.join(VERBS)}.")
    return found


def allows(held: Iterable[Scope], wanted: Scope) -> bool:
    """Whether one of the held scopes covers what is wanted. An audience is not held: it allows nothing by itself."""
    return wanted.verb == MCP or any(scope.covers(wanted) for scope in held)


def groups_of(held: Iterable[Scope]) -> tuple[str, ...]:
    """The groups of a holder."""
    return tuple(scope.verb.removeprefix(GROUP) for scope in held if scope.verb.startswith(GROUP))


@frozen
class TokenText:
    """A token as its holder has it."""

    id: str
    secret: str

    @property
    def digest(self) -> str:
        """What a store keeps of the secret."""
        return digest(self.secret)

    def __str__(self) -> str:
        body = f"tnr_{self.id}_{self.secret}"
        return f"{body}_{_base62(zlib.crc32(body.encode()), 6)}"

    def __repr__(self) -> str:
        return f"TokenText({self.id!r}, …)"


def new_token() -> TokenText:
    """A token that did not exist before."""
    return TokenText(_base62(secrets.randbits(71), 12), new_secret())


def new_secret() -> str:
    """256 random bits in base 62: 43 characters."""
    return _base62(secrets.randbits(256), 43)


def digest(secret: str) -> str:
    """The SHA-256 of a secret. A fast hash is right for 256 random bits: there is nothing to guess."""
    return hashlib.sha256(secret.encode()).hexdigest()


def parse_token(text: str) -> TokenText | None:
    """The token in a text, None if it is none or was mistyped."""
    if not _TOKEN.fullmatch(text):
        return None
    _, identity, secret, _ = text.split("_")
    token = TokenText(identity, secret)
    return token if str(token) == text else None


def _base62(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, digit = divmod(number, 62)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))
