"""Approvals: questions of durable jobs that people answer, each bound to the exact arguments that were shown.

What is asked stands in the open step that the job waits on, as JSON text:

    {"id", "name", "args": the canonical JSON text of the arguments, "text", "need", "ask": [name],
     "expires": seconds or null, "on_expiry": "deny" | "grant"}

The store makes the approval's row from it, in the transaction that parks the job.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from tenure.errors import InvalidArgument
from tenure.model.access import Scope
from tenure.model.frozen import frozen
from tenure.model.ids import JobId

STATES: Final = ("pending", "granted", "denied", "expired", "void", "used")
ON_EXPIRY: Final = ("deny", "grant")
CHOICES: Final = ("approve", "deny")
ARGS_BYTES: Final = 65_536
"""A person reads the arguments; what is larger belongs into a file that they name."""
TEXT_CHARS: Final = 4_000
NOTE_CHARS: Final = 2_000
ASKED_MAX: Final = 100
NAME_CHARS: Final = 200
VOIDS_MAX: Final = 3
"""So many times the arguments of one approval may change; then the job fails."""
VOID: Final = "void"
"""The error of a step whose approval was void VOIDS_MAX times."""


@frozen
class Vote:
    """One answer of one person."""

    voter: str
    choice: str
    """approve or deny."""
    note: str | None
    door: str
    """Where the answer was given: python, cli, http, console, link, mcp."""
    at: datetime
    vouched_by: str | None = None
    """Who made the link by which it was given."""


@frozen
class Approval:
    """An approval as it stands."""

    id: str
    job_id: JobId
    step_key: str
    name: str
    args_text: str | None
    """The frozen arguments: canonical JSON. None once the job's data was pruned."""
    args_hash: str
    """SHA-256 of `args_text`, in hex."""
    text: str
    """What is asked, in the words of the handler."""
    need: int
    """So many have to approve. One denial denies."""
    asked_of: tuple[str, ...]
    """Who may answer; empty: anyone who has the right to."""
    asked_by: str
    """The worker that asked."""
    state: str
    why: str | None
    """Why it is void (changed, ended, forgotten), or granted without an answer (expiry)."""
    on_expiry: str
    created_at: datetime
    expires_at: datetime | None
    decided_at: datetime | None
    used_at: datetime | None
    used_for: str | None
    """The effect that used it: STEP:NAME, where the step is empty outside of steps."""
    kind: str | None
    """Of the job, as are the next six; None if the job was deleted."""
    queue: str | None
    job_state: str | None
    actor: str | None
    created_by: str | None
    requested_by: str | None
    workflow_id: str | None
    votes: tuple[Vote, ...] = ()

    @property
    def args(self) -> Any:
        """The frozen arguments, parsed."""
        return None if self.args_text is None else json.loads(self.args_text)

    @property
    def involved(self) -> tuple[str, ...]:
        """Who may not answer: those who had the job done, and what does it."""
        names = (self.actor, self.created_by, self.requested_by, self.queue, self.asked_by)
        return tuple(name for name in names if name)

    @property
    def unlocks(self) -> str:
        """What a grant lets happen, in words."""
        return (
            f"job {self.job_id} ({self.kind} in {self.queue}) goes on behind {self.step_key!r}, and one effect may be "
            "done with exactly these arguments"
        )

    @property
    def used_by(self) -> str | None:
        """The effect that used it, with its step if that has a name."""
        return None if self.used_for is None else self.used_for.removeprefix(":")

    @property
    def approved(self) -> int:
        """How many have approved."""
        return sum(vote.choice == "approve" for vote in self.votes)


def canonical(value: Any) -> str:
    """JSON text that is the same for equal arguments: keys sorted, no blanks, numbers as Python writes them."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def hash_of(args_text: str) -> str:
    """The SHA-256 of the canonical text."""
    return hashlib.sha256(args_text.encode()).hexdigest()


@frozen
class Question:
    """What a step asks, read from its value."""

    id: str
    name: str
    args: str
    text: str
    need: int
    ask: tuple[str, ...]
    expires: float | None
    on_expiry: str

    def to_json(self) -> str:
        """The value of the step."""
        return json.dumps(asdict(self), ensure_ascii=False)


def parse_question(where: str, value: str | None) -> Question:
    """The question in a step's value. Raises: InvalidArgument, and nothing was changed."""
    try:
        told = json.loads(value or "null")
        found = Question(
            str(told["id"]),
            told["name"],
            told["args"],
            told.get("text") or "",
            told.get("need", 1),
            tuple(told.get("ask") or ()),
            told.get("expires"),
            told.get("on_expiry") or "deny",
        )
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise InvalidArgument(
            f"{where}: the value of an open approval is an object with id, name and args, not this ({exc!r}). "
            "Nothing was changed."
        ) from exc
    check_question(where, found)
    return found


def check_question(where: str, asked: Question) -> None:
    """Refuse a question that no store can hold or people cannot answer. Raises: InvalidArgument."""
    texts: tuple[Any, ...] = (asked.name, asked.args, asked.text, *asked.ask)
    need: Any = asked.need
    expires: Any = asked.expires
    if not all(isinstance(one, str) and "\0" not in one for one in texts):
        raise InvalidArgument(f"{where}: name, args, text and ask are texts without NUL. Nothing was changed.")
    size = len(asked.args.encode("utf-8", "surrogatepass"))
    if size > ARGS_BYTES:
        raise InvalidArgument(
            f"{where}: its arguments take {size:,} bytes, and people can be asked to read {ARGS_BYTES:,}. Store the "
            "data elsewhere and ask about its name and hash. Nothing was changed."
        )
    if len(asked.text) > TEXT_CHARS:
        raise InvalidArgument(f"{where}: its text has {len(asked.text):,} characters; {TEXT_CHARS:,} are the limit.")
    if isinstance(need, bool) or not isinstance(need, int) or not 1 <= need <= ASKED_MAX:
        raise InvalidArgument(f"{where}: need is {asked.need!r}; it must be a number from 1 to {ASKED_MAX}.")
    if len(asked.ask) > ASKED_MAX or any(not one.strip() or len(one) > NAME_CHARS for one in asked.ask):
        raise InvalidArgument(
            f"{where}: ask names up to {ASKED_MAX} people or groups, each with 1 to {NAME_CHARS} characters."
        )
    if asked.on_expiry not in ON_EXPIRY:
        raise InvalidArgument(f"{where}: on_expiry is {asked.on_expiry!r}; it is one of {', '.join(ON_EXPIRY)}.")
    if expires is not None and not (isinstance(expires, int | float) and 0 < expires < math.inf):
        raise InvalidArgument(f"{where}: it expires after more than 0 seconds, not {asked.expires!r}.")
    if asked.expires is None and asked.on_expiry == "grant":
        raise InvalidArgument(f"{where}: on_expiry is 'grant', but it never expires. Say when with `expires`.")


def is_asker(approval: Approval, token_id: str | None, scopes: Iterable[Scope]) -> bool:
    """Whether the holder of a token is the agent that asks: its token works for the job's queue by name, or claimed
    the job. A worker with a token claims as `NAME@TOKEN_ID`, whatever name it gives itself."""
    works = any(one.verb == "worker" and one.queue is not None and one.queue == approval.queue for one in scopes)
    return works or (token_id is not None and approval.asked_by.endswith(f"@{token_id}"))


def same_arguments(left: str, right: str) -> bool:
    """Whether two JSON texts say the same: numbers by value, and no number is a truth value."""
    return bool(_parsed(left) == _parsed(right))


def _parsed(text: str) -> Any:
    # In Python 1 == True. No JSON value is a tuple, so a number in one equals a number only.
    def number(digits: str) -> tuple[str, Decimal]:
        return "number", Decimal(digits)

    return json.loads(text, parse_int=number, parse_float=number)


def is_among(names: Iterable[str], asked_of: Iterable[str]) -> bool:
    """Whether one of these names is among those asked."""
    asked = tuple(asked_of)
    return any(same_name(name, one) for name in names for one in asked)


def same_name(left: str, right: str | None) -> bool:
    """Whether two names mean one person: case and blanks at the ends do not tell people apart."""
    return right is not None and left.strip().lower() == right.strip().lower()
