"""Approvals: what durable jobs ask of people.

**Asked with the suspend.** An open step of kind `approval` carries the question as its value (model.approval). The
transaction that parks the job, or otherwise records the step, writes the approval's row; the step then awaits
`approval:ID` and its value becomes `{"approval": ID, "args_hash"}`. Asking again with the same arguments changes
nothing. With other arguments the approval is `void` and a new one is asked; at the third void the step fails with the
error `void`, which ends the job. An approval that was used stays as it is, whatever is asked later: what it allowed has
been done.

**Decided once.** The row is locked, so of two that answer at once one decides and the other is told. The step is closed
by the flow's own wake-up, with the value `{"approval", "state", "granted", "by": [name], "note", "args": text,
"args_hash"}`.

**Bound to what was shown.** A vote carries the hash of the arguments that the voter saw; a vote with another hash is
refused. Neither who had the job done (its `actor`, `created_by` and `requested_by`) nor what does it (its queue, which
is its agent, and the worker that asked) may vote. One person counts once: who made a link for another does not answer
the same approval, and the links of one maker count once, unless each was made for a person who was asked by name.

**Over with the job.** A job that ends voids what it still asks, in the same transaction. Expiry is judged by the
store's clock: a vote at or after `expires_at` is refused, and SweepFlow closes what has expired.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenure.errors import InvalidArgument
from tenure.model.approval import CHOICES, NAME_CHARS, NOTE_CHARS, STATES, Approval
from tenure.model.frozen import frozen
from tenure.store.contract import Request
from tenure.store.queries import Page


@frozen
class DecideApproval(Request[Approval]):
    """One person's answer. Answers the approval as it stands then.

    `need` approvals grant it; one denial denies it. The same answer of the same person again is harmless. Leaves an
    audit row.

    Raises: NotFound; Forbidden (the voter has the job done, does it, is not among those asked, or has answered by a
    link); IllegalMove (another
    hash than was asked about, decided, expired, void, the job has ended, or the voter has answered otherwise);
    InvalidArgument.
    """

    id: str
    voter: str
    choice: str
    """approve or deny."""
    args_hash: str
    note: str | None = None
    groups: Sequence[str] = ()
    """Names under which the voter may answer besides their own, as the door knows them: never as the voter typed them.
    On PostgreSQL only a login with the role tenure_admin may name any."""
    door: str = "python"
    vouched_by: str | None = None
    """Who made the link by which it was given. They must be as uninvolved as the voter."""


@frozen
class ListApprovals(Request[Page[Approval]]):
    """Approvals that match, newest first by id."""

    states: Sequence[str] = ()
    person: str | None = None
    """Only what this person or group may be asked: asked of them by name, or of none in particular."""
    job_id: str | None = None
    ids: Sequence[str] | None = None
    limit: int = 50
    after: str | None = None
    groups: Sequence[str] = ()
    """With `person`: also what is asked of these."""


@frozen
class CountApprovals(Request[int]):
    """How many approvals wait for an answer; 1,000 stands for that many or more."""


def check_decision(request: DecideApproval) -> None:
    """Refuse an answer that no store can hold. Raises: InvalidArgument."""
    if request.choice not in CHOICES:
        raise InvalidArgument(f"choice is {request.choice!r}; it must be one of {', '.join(CHOICES)}.")
    if not request.voter.strip() or len(request.voter) > NAME_CHARS or "\0" in request.voter:
        raise InvalidArgument(f"voter: a name of 1 to {NAME_CHARS} characters says who answers. Nothing was changed.")
    if request.note is not None and (len(request.note) > NOTE_CHARS or "\0" in request.note):
        raise InvalidArgument(f"note: up to {NOTE_CHARS:,} characters without NUL. Nothing was changed.")


def check_list(request: ListApprovals) -> None:
    """Refuse a list of states that there are not. Raises: InvalidArgument."""
    unknown = [state for state in request.states if state not in STATES]
    if unknown:
        raise InvalidArgument(f"An approval is never {unknown[0]!r}. Its states are: {', '.join(STATES)}.")
