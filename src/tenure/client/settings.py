"""A queue's policy as code and operators spell it: single settings by name, checked before a store sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypedDict

from tenure.client.operations import Steps, ask
from tenure.errors import InvalidArgument, UnknownProfile, nearest
from tenure.handler import arguments
from tenure.handler.building import check_backoff
from tenure.model.policy import (
    AgentEventsRule,
    Backoff,
    KeyConflictRule,
    KeyScope,
    KeySpace,
    PriorityOrder,
    QueuePolicy,
    ReviveRule,
    UnknownKindRule,
)
from tenure.store.queries import ListProfiles


class QueueSettings(TypedDict, total=False):
    """The fields of QueuePolicy, each of which may be left out; what they mean is written there."""

    profile: str
    priority_order: PriorityOrder
    priority_default: int
    aging_seconds: float | None
    start_on_claim: bool
    max_attempts: int
    backoff: Backoff
    lease_seconds: float
    lease_max_seconds: float
    key_scope: KeyScope
    key_space: KeySpace
    key_required: bool
    key_window_seconds: float
    key_conflict: KeyConflictRule
    revive: ReviveRule
    on_unknown_kind: UnknownKindRule
    forbidden_keys: tuple[str, ...]
    concurrency: int | None
    concurrency_per_key: int | None
    retain_seconds: float | None
    events: bool
    agent_events: AgentEventsRule


def with_settings(policy: QueuePolicy, settings: Mapping[str, Any]) -> QueuePolicy:
    """The policy with some settings changed. Raises InvalidArgument, naming the nearest setting for an unknown one."""
    known = {field.name for field in fields(QueuePolicy)}
    for setting in settings:
        if setting not in known:
            raise InvalidArgument(f"There is no queue setting {setting!r}.{nearest(setting, known)}")
    changed = replace(policy, **settings)
    check_policy(changed)
    return changed


def rules_of(profile: str) -> Steps[QueuePolicy]:
    """The policy that a queue takes when it comes to a profile. Raises: UnknownProfile."""
    if profile == QueuePolicy().profile:
        return QueuePolicy()
    rows = {row.name: row for row in (yield from ask(ListProfiles()))}
    if profile not in rows:
        raise UnknownProfile(
            f"Profile {profile!r} is not installed in this database, so its rules are not known."
            f"{nearest(profile, rows)} Install it with `tenure profile install {profile}`. Nothing was changed."
        )
    return rows[profile].policy


def check_policy(policy: QueuePolicy) -> None:
    """Raise InvalidArgument unless the policy makes sense."""
    for argument, allowed in _WORDS.items():
        arguments.one_of(argument, getattr(policy, argument), allowed)
    if not isinstance(policy.backoff, Backoff):
        raise InvalidArgument(f"`backoff` must be a tenure.Backoff, got {type(policy.backoff).__name__}.")
    check_backoff(policy.backoff)
    arguments.name("profile", policy.profile)
    arguments.whole("priority_default", policy.priority_default)
    arguments.whole("max_attempts", policy.max_attempts, 1)
    for argument in ("lease_seconds", "lease_max_seconds", "key_window_seconds", "aging_seconds"):
        if getattr(policy, argument) is not None or argument != "aging_seconds":
            arguments.seconds(argument, getattr(policy, argument), positive=True)
    if policy.lease_max_seconds < policy.lease_seconds:
        raise InvalidArgument(
            f"`lease_seconds` ({policy.lease_seconds:g}) is above `lease_max_seconds` ({policy.lease_max_seconds:g})."
        )
    for argument in ("concurrency", "concurrency_per_key"):
        if getattr(policy, argument) is not None:
            arguments.whole(argument, getattr(policy, argument), 1)
    if policy.retain_seconds is not None:
        arguments.seconds("retain_seconds", policy.retain_seconds)


_WORDS: dict[str, tuple[str, ...]] = {
    "priority_order": ("high", "low"),
    "key_scope": ("none", "active", "window", "forever"),
    "key_space": ("kind", "global"),
    "key_conflict": ("error", "tolerate"),
    "revive": ("revive", "clone"),
    "on_unknown_kind": ("leave", "reject", "release"),
    "agent_events": ("none", "completed", "ends"),
}
