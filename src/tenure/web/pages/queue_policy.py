"""`/ui/queues/NAME/policy`: a form for what a queue decides for its jobs, in the words of `tenure queues set`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, get_args, get_type_hints

from tenure.errors import InvalidArgument, UsageError
from tenure.model.frozen import frozen
from tenure.model.policy import Backoff, QueuePolicy
from tenure.model.policy_words import read_settings, write_settings
from tenure.web.pages import same_as
from tenure.web.pages.queues import find
from tenure.web.pages.visit import Answer, Moved, Shown, Visit
from tenure.web.pages.words import counted, segment

FIELD: Final = "s."
"""What the names of the form's fields begin with."""


@frozen
class Setting:
    """One field of the form."""

    name: str
    label: str
    help: str

    @property
    def choices(self) -> Sequence[str]:
        """The words that it takes; empty if it is written freely."""
        owner, name = (Backoff, self.name.removeprefix("backoff.")) if "." in self.name else (QueuePolicy, self.name)
        kind = get_type_hints(owner)[name]
        if kind is bool:
            return ("true", "false")
        words = get_args(kind)
        return words if words and all(isinstance(one, str) for one in words) else ()


GROUPS: Final[Sequence[tuple[str, Sequence[Setting]]]] = (
    (
        "Retries",
        (
            Setting("max_attempts", "Attempts", "How often a job is tried in all."),
            Setting("backoff.shape", "The wait grows", "From one attempt to the next."),
            Setting("backoff.base_seconds", "First wait", "As 5s or 2m."),
            Setting("backoff.cap_seconds", "Longest wait", "As 1h."),
            Setting("backoff.factor", "Factor", "Of exponential growth."),
            Setting("backoff.power", "Power", "Of growth by power."),
            Setting("backoff.jitter", "Jitter", "Added at random: 0.1 is up to a tenth."),
        ),
    ),
    (
        "Lease",
        (
            Setting("lease_seconds", "Lease", "How long a silent worker keeps a job."),
            Setting("lease_max_seconds", "Longest lease", "What a claim may ask for."),
            Setting("start_on_claim", "Start on claim", "Otherwise a worker says when it starts."),
        ),
    ),
    (
        "Order and limits",
        (
            Setting("priority_order", "First comes", "The high or the low number."),
            Setting("priority_default", "Priority", "Of jobs that name none."),
            Setting("aging_seconds", "Aging", "Waiting time worth one step; none: no aging."),
            Setting("concurrency", "At once", "Held over all workers; none: any number."),
            Setting("concurrency_per_key", "At once per key", "Of one concurrency key; none: any number."),
        ),
    ),
    (
        "Keys",
        (
            Setting("key_scope", "A key holds", "Which jobs it must differ from."),
            Setting("key_space", "Key is unique in", "One kind, or the whole database."),
            Setting("key_required", "Key required", "Refuse jobs without one."),
            Setting("key_window_seconds", "Window", "Of the scope window."),
            Setting("key_conflict", "Another payload", "Under a key that is taken."),
        ),
    ),
    (
        "Ends and retention",
        (
            Setting("retain_seconds", "Retention", "Payloads of ended jobs; none: for ever."),
            Setting("revive", "A revive makes", "The same job again, or a copy."),
            Setting("on_unknown_kind", "Unknown kinds", "What a worker does with them."),
            Setting("forbidden_keys", "Forbidden keys", "Of payloads; by commas."),
            Setting("events", "Keep events", "One row for each move."),
            Setting("agent_events", "Agent events", "For agents to remember."),
        ),
    ),
)


def form(visit: Visit, *, wrong: str = "", status: int = 200) -> Answer:
    """The form, with what was given where it was refused."""
    row = find(visit)
    words = write_settings(row.policy)
    return Shown(
        "queue_policy.html",
        {
            "groups": GROUPS,
            "queue": row,
            "same": same_as.set_queue(row.name),
            "section": "/queues",
            "version": visit.given("version") or row.updated_at.isoformat(),
            "why": visit.given("reason"),
            "words": {name: visit.given(FIELD + name, word) for name, word in words.items()},
            "wrong": wrong,
        },
        status,
    )


def change(visit: Visit) -> Answer:
    """Set what differs from the policy that the form was made from."""
    row = find(visit)
    if visit.given("version") != row.updated_at.isoformat():
        raise UsageError(
            f"Queue {row.name!r} was changed since this form was made, so nothing was set. Open the form again."
        )
    changed = changes(row.policy, {name: values[0].strip() for name, values in visit.form.items() if values})
    try:
        if not changed:
            raise UsageError("No setting differs from what the queue has, so nothing was changed.")
        reason = visit.reason()
        settings: Any = read_settings(row.policy, changed)
        visit.app.queues.set(row.name, actor=visit.viewer.name, reason=reason, **settings)
    except (InvalidArgument, UsageError) as exc:
        return form(visit, wrong=str(exc), status=400)
    visit.pulse.forget()
    return Moved(
        visit.link(f"/queues/{segment(row.name)}"), f"{counted(len(changed), 'setting')} of queue {row.name} changed."
    )


def changes(policy: QueuePolicy, given: Mapping[str, str]) -> dict[str, str]:
    """The settings of the form that differ from the policy, in words."""
    now = write_settings(policy)
    return {name: given[FIELD + name] for name, word in now.items() if given.get(FIELD + name, word) != word}
