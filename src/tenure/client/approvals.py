"""What waits for people: approvals (`app.approvals`), and all of it in one list (`app.inbox`)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from tenure.client.link_key import link_key
from tenure.client.operations import AsyncClient, Client, Steps, SyncClient, ask, operation
from tenure.errors import Forbidden, IllegalMove, NotFound
from tenure.handler import arguments
from tenure.handler.arguments import Duration, Names
from tenure.model.access import new_secret
from tenure.model.approval import NAME_CHARS, NOTE_CHARS, STATES, Approval, is_among, same_name
from tenure.model.approval_link import KEY_NAME, LinkClaim, read_link, sign_link
from tenure.model.budget import Budget, show_amount, shown_name
from tenure.model.clock import SystemClock
from tenure.model.frozen import frozen
from tenure.store.access import KeepSecret
from tenure.store.approvals import CountApprovals, DecideApproval, ListApprovals
from tenure.store.budgets import ListBudgets
from tenure.store.queries import Effect, ListEffects, Page
from tenure.store.workflows import EscalationRow, ListEscalations

PAGE_MAX = 1_000
LINK_SECONDS = 86_400.0
LINK_SECONDS_MAX = 30 * 86_400.0

InboxKind = Literal["approval", "escalation", "effect", "budget"]


@frozen
class InboxEntry:
    """One thing that waits for a person."""

    kind: InboxKind
    """`approval`, `escalation` of a workflow, `effect` of unknown outcome, or `budget` that jobs wait for until it is
    raised."""
    id: str
    """Of an effect: JOB:STEP:NAME; of a budget: its name."""
    title: str
    since: datetime
    due_at: datetime | None
    asked_of: tuple[str, ...]
    """Empty: anyone who has the right to answer."""
    job_id: str | None
    workflow_id: str | None
    subject: Approval | EscalationRow | Effect | Budget

    @staticmethod
    def of(one: Approval) -> InboxEntry:
        """An approval as the inbox lists it."""
        title = f"{one.name}: {one.text}" if one.text else one.name
        return InboxEntry(
            "approval", one.id, title, one.created_at, one.expires_at, one.asked_of, one.job_id, one.workflow_id, one
        )


class Approvals(Client):
    """Approvals: `app.approvals`."""

    @operation
    def all(
        self,
        *,
        state: Names | None = "pending",
        person: str | None = None,
        groups: Names = (),
        job_id: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Steps[Page[Approval]]:
        """Approvals that match, newest first, a page at a time: pass `page.next` as `after` to go on.

        `state` None: in every state. `person`: what is asked of them by name, of one of their `groups`, or of no one
        in particular.
        """
        request = ListApprovals(
            arguments.one_of("state", state, STATES),
            None if person is None else arguments.text("person", person, NAME_CHARS),
            None if job_id is None else arguments.job_id("job_id", job_id),
            None,
            arguments.whole("limit", limit, 1, PAGE_MAX),
            None if after is None else arguments.uuid_text("after", after),
            arguments.names("groups", groups),
        )
        return (yield from ask(request))

    @operation
    def get(self, approval_id: str) -> Steps[Approval]:
        """One approval with its votes. Raises: NotFound."""
        return (yield from _get(arguments.uuid_text("approval_id", approval_id)))

    @operation
    def count(self) -> Steps[int]:
        """How many wait for an answer; 1,000 stands for that many or more."""
        return (yield from ask(CountApprovals()))

    @operation
    def approve(
        self,
        approval_id: str,
        *,
        by: str,
        args_hash: str,
        note: str | None = None,
        groups: Names = (),
        door: str = "python",
    ) -> Steps[Approval]:
        """Approve what was shown: `args_hash` is the hash of the arguments that the person saw.

        The job goes on once as many have approved as it needs. `groups`: names under which this person may answer
        besides their own, as your program knows them, and not as the person typed them. The same answer again is
        harmless.

        Raises: NotFound; Forbidden for a person who had the job done, is not among those asked, or made a link by which
        another has answered; IllegalMove if it was decided, expired or is void, or if the hash is another.
        """
        return (yield from _decide(approval_id, "approve", by, args_hash, note, groups, door))

    @operation
    def deny(
        self,
        approval_id: str,
        *,
        by: str,
        args_hash: str,
        note: str | None = None,
        groups: Names = (),
        door: str = "python",
    ) -> Steps[Approval]:
        """Deny what was shown; one denial decides. As `approve` otherwise."""
        return (yield from _decide(approval_id, "deny", by, args_hash, note, groups, door))

    # --- signed links ---

    @operation
    def link(
        self, approval_id: str, person: str, *, by: str, groups: Names = (), valid: Duration = LINK_SECONDS
    ) -> Steps[str]:
        """The text of a link by which this person answers this approval once, without an account.

        The link is the right to answer, so send it to that person only. `by` makes the link and vouches for the person:
        both must be allowed to answer. One person counts once: who made a link does not answer as well, and of the
        links of one maker one counts, unless each is for a person who was asked by name. It is valid for up to 30 days.

        Raises: NotFound, Forbidden, IllegalMove (the approval does not wait for an answer).
        """
        seconds = arguments.seconds("valid", valid, positive=True)
        voter = arguments.text("person", person, NAME_CHARS).strip()
        maker = arguments.text("by", by, NAME_CHARS).strip()
        found = yield from _get(arguments.uuid_text("approval_id", approval_id))
        if found.state != "pending":
            raise IllegalMove(f"Approval {found.id} is {found.state}, so it takes no answer and needs no link.")
        for name in (voter, maker):
            if any(same_name(name, one) for one in found.involved):
                raise Forbidden(f"Approval {found.id}: {name!r} had this job done or does it. Nothing was made.")
        names = (voter, maker, *arguments.names("groups", groups))
        if found.asked_of and not is_among(names, found.asked_of):
            raise Forbidden(
                f"Approval {found.id} was asked of {', '.join(found.asked_of)}; neither {voter!r} nor {maker!r} is one "
                "of them. Nothing was made."
            )
        until = int(self._now() + min(seconds, LINK_SECONDS_MAX))
        key = yield from _link_key()
        return sign_link(key, LinkClaim(found.id, voter, until, maker))

    @operation
    def open_link(self, text: str) -> Steps[tuple[Approval, str]]:
        """The approval that a link is for, and who it was made for. Changes nothing.

        Raises: Forbidden for a link that is not ours, or over.
        """
        claim = yield from self._claim(text)
        return (yield from _get(claim.approval_id)), claim.voter

    @operation
    def answer_link(
        self, text: str, choice: Literal["approve", "deny"], *, args_hash: str, note: str | None = None
    ) -> Steps[Approval]:
        """Answer by a link. A second answer by it is refused. Raises: as `approve`; Forbidden as `open_link`."""
        claim = yield from self._claim(text)
        found = yield from _get(claim.approval_id)
        if any(same_name(claim.voter, vote.voter) for vote in found.votes):
            raise IllegalMove(f"This link was used: {claim.voter!r} has answered approval {found.id}.")
        groups = found.asked_of  # checked when the link was made
        return (yield from _decide(found.id, choice, claim.voter, args_hash, note, groups, "link", claim.made_by))

    def _claim(self, text: Any) -> Steps[LinkClaim]:
        key = yield from _link_key()
        claim = read_link(key, text) if isinstance(text, str) else None
        if claim is None:
            raise Forbidden("This link is not valid. Ask for a new one with `tenure inbox link`.")
        if claim.until <= self._now():
            raise Forbidden("This link is over. Ask for a new one with `tenure inbox link`.")
        return claim

    def _now(self) -> float:
        """Seconds since 1970. A link is judged by the clock of the process that shows it; the approval, by the store's
        own."""
        clock = self._state.clock or SystemClock()
        return clock.now_us() / 1_000_000


class SyncApprovals(Approvals, SyncClient):
    """`app.approvals`."""


class AsyncApprovals(Approvals, AsyncClient):
    """`app.aio.approvals`."""


class Inbox(Client):
    """What waits for people."""

    @operation
    def inbox(self, person: str | None = None, *, groups: Names = (), limit: int = 100) -> Steps[list[InboxEntry]]:
        """What waits for a person, oldest first: approvals, escalations of workflows, effects of unknown outcome, and
        budgets that escalate, one entry for each that holds jobs back; raising it closes the entry.

        With `person`: what is asked of them by name, of one of their `groups`, or of no one in particular. At most
        `limit` entries of each kind.
        """
        most = arguments.whole("limit", limit, 1, PAGE_MAX)
        who = None if person is None else arguments.text("person", person, NAME_CHARS)
        approvals = yield from ask(
            ListApprovals(("pending",), who, limit=most, groups=arguments.names("groups", groups))
        )
        escalations = yield from ask(ListEscalations(person=who, limit=most))
        effects = yield from ask(ListEffects(None, ("unknown",), most))
        budgets = yield from ask(ListBudgets(limit=most, is_escalated=True))
        entries = [InboxEntry.of(one) for one in approvals]
        entries += [_escalation_entry(one) for one in escalations if one.person is not None]
        entries += [_effect_entry(one) for one in effects]
        entries += [_budget_entry(one) for one in budgets]
        return sorted(entries, key=lambda entry: entry.since)


def _escalation_entry(one: EscalationRow) -> InboxEntry:
    asked = () if one.person is None else (one.person,)
    title = f"{one.workflow}: {one.detail}"
    return InboxEntry("escalation", one.id, title, one.created_at, one.due_at, asked, None, one.workflow_id, one)


def _effect_entry(one: Effect) -> InboxEntry:
    title = f"{one.name}: it is not known whether it happened"
    identity = f"{one.job_id}:{one.step}:{one.name}"
    return InboxEntry("effect", identity, title, one.updated_at, None, (), one.job_id, None, one)


def _budget_entry(one: Budget) -> InboxEntry:
    jobs = "1 job waits" if one.waiting == 1 else f"{one.waiting:,} jobs wait"
    title = (
        f"{shown_name(one.scope, one.unit, one.per)} has {show_amount(one.unit, one.left)} left of "
        f"{show_amount(one.unit, one.limit)}, and {jobs} for a raise"
    )
    return InboxEntry("budget", one.name, title, one.waiting_since or one.updated_at, None, (), None, None, one)


def _get(approval_id: str) -> Steps[Approval]:
    page = yield from ask(ListApprovals(ids=[approval_id], limit=1))
    if not page.items:
        raise NotFound(f"There is no approval {approval_id}. `tenure inbox ls` lists what waits for an answer.")
    return page.items[0]


def _decide(
    approval_id: str,
    choice: str,
    by: str,
    args_hash: str,
    note: str | None,
    groups: Names,
    door: str,
    vouched_by: str | None = None,
) -> Steps[Approval]:
    request = DecideApproval(
        arguments.uuid_text("approval_id", approval_id),
        arguments.text("by", by, NAME_CHARS),
        choice,
        arguments.text("args_hash", args_hash),
        None if note is None or not note.strip() else arguments.text("note", note, NOTE_CHARS),
        arguments.names("groups", groups),
        arguments.name("door", door),
        vouched_by,
    )
    return (yield from ask(request))


def _link_key() -> Steps[str]:
    return link_key((yield from ask(KeepSecret(KEY_NAME, new_secret()))))
