"""The filter of the jobs page: tokens `name:value`, commas mean or. The same text stands in the URL.

    kind:resize,thumb state:running,retry since:1h queue:media key:order-7 worker:w-1 tenant:acme error:timeout

A value in quotes is one value, with its blanks and commas; a quote in it is written twice. A word without a colon is a
kind, or an id or a key where it looks like one. Nothing in it is a pattern: every value is looked for as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from tenure.model.frozen import frozen
from tenure.model.state import State
from tenure.observe.browse import JobFilter

CHARS_MAX: Final = 500
SHOWN_STATES: Final = (
    "queued",
    "retry_waiting",
    "leased",
    "running",
    "waiting",
    "succeeded",
    "failed",
    "dead",
    "cancelled",
    "cleaned",
)
NAMES: Final[Mapping[str, str]] = {
    "state": "queued, retry, leased, running, waiting, succeeded, failed, dead, cancelled",
    "kind": "what a job does",
    "queue": "where it waits",
    "key": "its idempotency key",
    "worker": "who holds it",
    "tenant": "whose it is",
    "workflow": "the workflow it belongs to",
    "parent": "the job that made it",
    "error": "words of the last error",
    "since": "how long ago it was made, at most: 15m, 1h, 7d",
}
"""Token → what it means."""
LONGEST: Final = timedelta(days=3_653)
_UNITS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION: Final = re.compile(r"(\d{1,6})(s|m|min|h|d|w)")
_VALUE: Final = r'"(?:[^"]|"")*"(?!\S)|\S+'
_TOKEN: Final = re.compile(rf"(\w+):({_VALUE})|({_VALUE})")


@frozen
class Token:
    """One token of a filter."""

    name: str
    value: str
    is_quoted: bool = False
    """Whether it stands in quotes, so that a comma in it means itself."""

    @property
    def values(self) -> list[str]:
        return [self.value] if self.is_quoted else [one for one in self.value.split(",") if one]

    def __str__(self) -> str:
        if not self.is_quoted:
            return f"{self.name}:{self.value}"
        doubled = self.value.replace('"', '""')
        return f'{self.name}:"{doubled}"'


@frozen
class Parsed:
    """A filter: its tokens, and what is wrong with those that were left out."""

    tokens: Sequence[Token]
    wrong: Sequence[str]

    @property
    def text(self) -> str:
        return " ".join(map(str, self.tokens))

    def of(self, name: str) -> list[str]:
        """All values of a token."""
        return [value for token in self.tokens if token.name == name for value in token.values]

    def one(self, name: str) -> str | None:
        """The whole value of a token that has one."""
        return next((token.value for token in self.tokens if token.name == name), None)

    def without(self, token: Token) -> str:
        """The filter's text without one token."""
        return " ".join(str(one) for one in self.tokens if one != token)

    def with_states(self, states: Sequence[str]) -> str:
        """The filter's text with these states instead of its own."""
        kept = [str(one) for one in self.tokens if one.name != "state"]
        return " ".join([*kept, *(["state:" + ",".join(states)] if states else [])])

    @property
    def states(self) -> list[str]:
        return ["retry_waiting" if one == "retry" else one for one in self.of("state")]

    def wanted(self, now: datetime) -> JobFilter:
        """What the store is asked for."""
        since = self.one("since")
        return JobFilter(
            states=self.states,
            queues=self.of("queue"),
            kinds=self.of("kind"),
            key=self.one("key"),
            tenant=self.one("tenant"),
            error=self.one("error"),
            workflow_id=self.one("workflow"),
            parent_id=self.one("parent"),
            worker=self.one("worker"),
            since=None if since is None else now - _duration(since),
        )


def parse(text: str) -> Parsed:
    """Read a filter. What cannot be read is left out, and said."""
    tokens: list[Token] = []
    wrong: list[str] = []
    for name, value, word in _TOKEN.findall(text[:CHARS_MAX]):
        token = _read("kind" if word else name, value or word)
        problem = _problem(token.name, token.value)
        if problem is not None:
            wrong.append(problem)
        elif token not in tokens:
            tokens.append(token)
    return Parsed(tokens, wrong)


def token(name: str, value: str) -> str:
    """A token that means exactly this value, whatever characters it has."""
    is_plain = bool(value) and not re.search(r'[\s,"]', value)
    return str(Token(name, value, is_quoted=not is_plain))


def is_job_id(text: str) -> bool:
    """Whether the text is a whole job id."""
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False


def _read(name: str, value: str) -> Token:
    is_quoted = len(value) > 1 and value.startswith('"') and value.endswith('"')
    return Token(name, value[1:-1].replace('""', '"'), is_quoted=True) if is_quoted else Token(name, value)


def _problem(name: str, value: str) -> str | None:
    if name not in NAMES:
        return f"There is no token {name}:. Tokens are {', '.join(NAMES)}."
    if not value:
        return f"{name}: has no value."
    if name == "state":
        known = {*SHOWN_STATES, "retry", *(one.value for one in State)}
        stray = [one for one in value.split(",") if one and one not in known]
        return f"There is no state {stray[0]}." if stray else None
    if name == "since" and not (_DURATION.fullmatch(value) and _duration(value) <= LONGEST):
        return f"since:{value} is no duration. Write since:15m, since:1h or since:7d, ten years at most."
    if name in {"workflow", "parent"} and not is_job_id(value):
        return f"{name}: needs a whole id."
    return None


def _duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    assert found is not None
    return timedelta(seconds=int(found[1]) * _UNITS[found[2]])
