"""`/ui/dead-letters`: a board of deaths by fingerprint, and what is decided about them.

Columns are 002's triage: pending, acknowledged, manual_replay, escalated, closed. A replay is asked for one letter,
a sample, or all of a group; a sample first tells whether the cause is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from difflib import SequenceMatcher
from typing import Any, Final

from tenure.errors import NotFound, UsageError
from tenure.model.frozen import frozen
from tenure.model.job import DeadLetter
from tenure.model.outcome import Triage
from tenure.model.redact import process_redactor
from tenure.observe.browse import Death, DeathColumn, DeathGroup, death_board, deaths_of, group_deaths
from tenure.web.pages import bulk, same_as
from tenure.web.pages.json_text import json_line, masked_line, masked_text
from tenure.web.pages.visit import Answer, Moved, Shown, Visit
from tenure.web.pages.words import NBSP, counted, first_line

MEMBERS: Final = 20
AT_ONCE: Final = 1_000
"""How many letters one act takes; a larger group is acted on in several."""
SAMPLE: Final = 5
NOBODY: Final = "-"
"""In the address: groups without an owner."""
ACTS: Final = {
    "ack": ("Acknowledge", Triage.ACKNOWLEDGED),
    "escalate": ("Escalate", Triage.ESCALATED),
    "close": ("Close", Triage.CLOSED),
    "assign": ("Assign", None),
    "replay": ("Replay", None),
}
NEXT: Final[Mapping[str, Sequence[str]]] = {
    "pending": ("ack", "replay", "escalate"),
    "acknowledged": ("replay", "escalate", "close"),
    "manual_replay": ("replay", "close"),
    "escalated": ("replay", "ack", "close"),
    "closed": (),
}
"""What can be done with the groups of a column. All that are open can be assigned too, on the page of the group."""
OPEN: Final = tuple(name for name, acts in NEXT.items() if acts)
SIMILAR: Final = 5
NOTES: Final = 5
ALIKE: Final = 0.6
"""How much of two messages must be the same, for groups that died of different errors to count as similar."""


@frozen
class Similar:
    """Another group that may have the same cause."""

    group: DeathGroup
    why: str


@frozen
class Difference:
    """A field of the payload and how many different values the members have in it."""

    name: str
    values: int
    sample: str


def board(visit: Visit) -> Answer:
    """The page."""
    now, whole = _board(visit)
    owner = visit.asked("owner")
    columns = [_owned(one, owner) for one in whole]
    open_columns = columns[:-1]
    possible = {act for one in open_columns if one.groups for act in NEXT[one.triage]}
    return Shown(
        "dead_letters.html",
        {
            "closed": columns[-1],
            "columns": open_columns,
            "groups": sum(len(one.groups) for one in open_columns),
            "is_whole": all(one.is_whole for one in open_columns),
            "keys": (
                ("j k", "card"),
                *_keys(visit, possible),
            ),
            "letters": sum(one.letters for one in open_columns),
            "next": NEXT,
            "now": now,
            "owner": owner,
            "owners": _owners(visit, whole),
            "running": replays(visit),
            "same": same_as.dead_letters() if not owner else None,
            "sample": SAMPLE,
            "topic": "all",
        },
    )


def _board(visit: Visit) -> tuple[datetime, list[DeathColumn]]:
    """Every triage with its groups, and when that was."""

    def read() -> tuple[datetime, list[DeathColumn]]:
        now = visit.app.now()
        return now, death_board(visit.app.store, now)

    return visit.pulse.shared("deaths", read)


def _owned(column: DeathColumn, owner: str) -> DeathColumn:
    """The groups of one owner, or those that have none; all if `owner` is empty."""
    if not owner:
        return column
    groups = [one for one in column.groups if one.owner == (None if owner == NOBODY else owner)]
    return replace(column, groups=groups, letters=sum(one.letters for one in groups))


def _owners(visit: Visit, columns: Sequence[DeathColumn]) -> list[tuple[str, str, str]]:
    """Whose groups can be shown alone: the value in the address, the words, the link."""
    named = {one.owner for column in columns for one in column.groups if one.owner} | {visit.viewer.name}
    told = [("", "anyone"), (visit.viewer.name, f"you, {visit.viewer.name}"), (NOBODY, "no owner")]
    told += [(name, name) for name in sorted(named - {visit.viewer.name})]
    return [(value, words, visit.link("/dead-letters", owner=value)) for value, words in told]


def group(visit: Visit) -> Answer:
    """One fingerprint: its members, how their payloads differ, and what can be done."""
    fingerprint = visit.params["fingerprint"]
    now = visit.app.now()
    deaths = deaths_of(visit.app.store, fingerprint)
    if not deaths:
        raise NotFound(f"No dead letter has the fingerprint {first_line(fingerprint, 60)!r}.")
    page = visit.app.dead_letters.all(fingerprint=fingerprint, limit=MEMBERS, after=visit.asked("after") or None)
    may_read = visit.viewer.may("read:payload")
    by_triage = Counter(one.triage for one in deaths)
    shown = group_deaths(deaths, now)[0]
    is_open = sum(count for one, count in by_triage.items() if one != "closed")
    open_triage = next((one for one in NEXT if by_triage.get(one) and one != "closed"), "closed")
    acts = NEXT[open_triage]
    return Shown(
        "dead_letter_group.html",
        {
            "acts": ACTS,
            "by_triage": [(one, by_triage[one]) for one in NEXT if by_triage.get(one)],
            "differences": differences(page.items) if may_read else (),
            "group": shown,
            "keys": _keys(visit, {*acts, "assign"} if is_open else ()),
            "letters": page.items,
            "may_read": may_read,
            "open_triage": open_triage,
            "payloads": [masked_text(json_line(one.payload), 240) for one in page.items] if may_read else (),
            "next": acts,
            "notes": _notes(deaths),
            "now": now,
            "older": visit.link(f"/dead-letters/{fingerprint}", after=page.next) if page.next else None,
            "running": replays(visit, fingerprint),
            "open": is_open,
            "sample": SAMPLE,
            "same": same_as.dead_letter_group(fingerprint),
            "similar": similar(shown, (one for column in _board(visit)[1] for one in column.groups)),
            "section": "/dead-letters",
            "topic": "all",
            "total": len(deaths),
        },
    )


def _keys(visit: Visit, acts: Collection[str]) -> list[tuple[str, str]]:
    """The keys of acts that the page offers."""
    told = {"ack": "a", "assign": "o", "replay": "r", "escalate": "e", "close": "c"}
    return [(key, ACTS[act][0].lower()) for act, key in told.items() if act in acts and visit.viewer.may("operate")]


def _notes(deaths: Sequence[Death]) -> list[tuple[Death, int]]:
    """The newest notes, and of how many letters each is: an act on a group leaves the same one on all of them."""
    first: dict[tuple[str | None, str | None, str], Death] = {}
    counts = Counter[tuple[str | None, str | None, str]]()
    for one in sorted(deaths, key=lambda one: one.triaged_at or one.moved_at, reverse=True):
        if one.triage_note:
            said = (one.triage_note, one.triaged_by, one.triage)
            first.setdefault(said, one)
            counts[said] += 1
    return [(one, counts[said]) for said, one in first.items()][:NOTES]


def similar(group: DeathGroup, others: Iterable[DeathGroup]) -> list[Similar]:
    """Groups with another fingerprint that may have the same cause: the same error, or a message much the same; those
    of the same kind first."""
    found: dict[str, tuple[float, Similar]] = {}
    for one in others:
        if one.fingerprint == group.fingerprint:
            continue
        share = SequenceMatcher(None, group.message[:200], one.message[:200], autojunk=False).ratio()
        is_same = one.title == group.title
        if not is_same and share < ALIKE:
            continue
        kinds = sorted(set(one.kinds) & set(group.kinds))
        why = "the same error" if is_same else f"{100 * share:.0f}{NBSP}% of the message"
        why += f", also {kinds[0]}" if kinds else f", in {one.kinds[0]}"
        found.setdefault(one.fingerprint, (bool(kinds) + is_same + share, Similar(one, why)))
    best = sorted(found.values(), key=lambda pair: (-pair[0], pair[1].group.fingerprint))
    return [one for _, one in best[:SIMILAR]]


def replays(visit: Visit, fingerprint: str | None = None) -> list[bulk.ActLine]:
    """Replays of groups that are under way, or of one."""
    if not visit.viewer.may("operate"):
        return []
    return [
        line
        for line in visit.pulse.shared("acts", lambda: bulk.under_way(visit.app))
        if fingerprint in (None, line.act.filter.get("fingerprint")) and "fingerprint" in line.act.filter
    ]


def differences(letters: Sequence[DeadLetter]) -> list[Difference]:
    """In which top-level fields of their payloads the members differ. Values under the name of a secret are counted
    and not shown."""
    payloads = [one.payload for one in letters if isinstance(one.payload, Mapping)]
    if len(payloads) < 2:
        return []
    found = []
    for name in sorted({str(key) for payload in payloads for key in payload}):
        values: dict[str, list[Any]] = {}
        for payload in payloads:
            values.setdefault(json_line(payload.get(name)), []).append(payload.get(name))
        if len(values) > 1:
            most = max(values.values(), key=len)
            is_secret = process_redactor().is_secret_key(name)
            found.append(Difference(name, len(values), "" if is_secret else first_line(masked_line(most[0]), 60)))
    return found[:12]


def confirm(visit: Visit) -> Answer:
    """The question before an act on a group."""
    fingerprint, act = visit.params["fingerprint"], visit.params["act"]
    if act not in ACTS:
        raise NotFound(f"There is no act {act!r} of dead letters.")
    letters = _open_letters(visit, fingerprint, visit.asked("of"))
    if not letters:
        raise UsageError("No letter of this group waits for that any more: all are closed, or were decided meanwhile.")
    (shown, *_) = group_deaths(deaths_of(visit.app.store, fingerprint), visit.app.now())
    chosen = _how_many(visit.asked("count"), len(letters))
    return Shown(
        "dead_letter_confirm.html",
        {
            "act": act,
            "at_once": AT_ONCE,
            "count": chosen,
            "group": shown,
            "owner": visit.viewer.name if act == "assign" else "",
            "letters": len(letters),
            "of": visit.asked("of"),
            "same": same_as.replay(fingerprint) if act == "replay" else same_as.triage(act, fingerprint),
            "section": "/dead-letters",
            "word": ACTS[act][0],
        },
    )


def act(visit: Visit) -> Answer:
    """Triage or replay a group, or a part of it."""
    fingerprint, verb = visit.params["fingerprint"], visit.params["act"]
    who = visit.viewer.name
    if verb not in ACTS:
        raise NotFound(f"There is no act {verb!r} of dead letters.")
    reason = visit.reason()
    letters = _open_letters(visit, fingerprint, visit.given("of"))
    count = _how_many(visit.given("count"), len(letters))
    chosen = letters[:count]
    visit.pulse.forget()
    here = visit.link(f"/dead-letters/{fingerprint}")
    triage, owner = ACTS[verb][1], visit.given("owner") or None
    if triage is not None:
        ids = [one.id for one in chosen]
        changed = visit.app.dead_letters.triage(ids, triage, actor=who, note=reason, owner=owner)
        return Moved(here, f"{counted(len(changed), 'letter')}: {triage.value}.")
    if verb == "assign":
        if owner is None:
            raise UsageError("To whom? The field owner is empty. Nothing was changed.")
        return Moved(here, f"{counted(_assign(visit, chosen, owner, reason), 'letter')}: {owner} takes care of it.")
    jobs = list(dict.fromkeys(one.job_id for one in chosen))
    visit.take_jobs(len(jobs))
    settled = visit.app.revive_many(jobs, actor=who, reason=reason)
    done = sum(1 for one in settled if not one.lost)
    rest = f"; {len(settled) - done} could not be: see the audit" if done < len(settled) else ""
    left = len(letters) - len(chosen)
    more = f" {left:,} more wait." if left else ""
    return Moved(here, f"{counted(done, 'job')} replayed{rest}.{more}")


def _assign(visit: Visit, letters: Sequence[Death], owner: str, reason: str) -> int:
    """Name who takes care of letters. What was decided about them stays; pending ones are acknowledged by it."""
    by_triage: dict[Triage, list[str]] = {}
    for one in letters:
        stays = Triage.ACKNOWLEDGED if one.triage == Triage.PENDING else Triage(one.triage)
        by_triage.setdefault(stays, []).append(one.id)
    acted = visit.app.dead_letters.triage
    return sum(
        len(acted(ids, stays, actor=visit.viewer.name, note=reason, owner=owner)) for stays, ids in by_triage.items()
    )


def _open_letters(visit: Visit, fingerprint: str, triage: str) -> list[Death]:
    """Letters that something can still be done about, AT_ONCE of them at most: those of one triage, so that what was
    decided about others stays, or all of them. Newest first, and those that were replayed behind all others."""
    if triage and triage not in OPEN:
        raise UsageError(f"Letters that are {first_line(triage, 40)!r} cannot be decided. Nothing was changed.")
    wanted = (triage,) if triage else OPEN
    found = [one for one in deaths_of(visit.app.store, fingerprint, AT_ONCE) if one.triage in wanted]
    found.sort(key=lambda one: one.moved_at, reverse=True)
    return sorted(found, key=lambda one: one.triage == Triage.MANUAL_REPLAY)[:AT_ONCE]


def _how_many(text: str, most: int) -> int:
    if not text or text == "all":
        return most
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= AT_ONCE:
        raise UsageError(f"How many? A number from 1 to {AT_ONCE:,}, or all. Nothing was changed.")
    return min(int(text), most)
