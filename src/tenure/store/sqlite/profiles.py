"""Installing profiles in a SQLite file, and which are installed."""

from __future__ import annotations

import json
import sqlite3
from typing import Final, Literal

from tenure.errors import IllegalMove, SchemaError
from tenure.model.clock import from_us
from tenure.store.admin import InstalledProfile, InstallProfile, SetGate, SetQueues
from tenure.store.queries import ListProfiles, ProfileRow
from tenure.store.sqlite import admin, codec
from tenure.store.sqlite.maintenance import tally_up
from tenure.store.sqlite.statements import load, split
from tenure.store.sqlite.transaction import Transaction

_SQL: Final = load("profiles")
_ADMIN: Final = load("admin")


def install(transaction: Transaction, asked: InstallProfile) -> InstalledProfile:
    """See store.contract.Store.install_profile."""
    profile = asked.profile
    admin.audit(transaction, asked.actor, "install_profile", profile.name, None, {"checksum": asked.checksum})
    is_new = transaction.one(_SQL["profile_found"], (profile.name,)) is None
    policy = codec.policy_row(profile.name, profile.policy)
    values = {
        "name": profile.name,
        "title": profile.title,
        "policy": json.dumps(policy),
        "words": json.dumps(dict(profile.words)),
        "settings": json.dumps(dict(profile.settings)),
        "shows": json.dumps(profile.shows),
        "checksum": asked.checksum,
        "actor": asked.actor,
        "now": transaction.now,
    }
    transaction.run(_SQL["profile_set"], values)
    try:
        for statement in split(_SQL["profile_people"] + "\n" + asked.script):
            transaction.run(statement)
    except (sqlite3.OperationalError, sqlite3.ProgrammingError) as exc:
        raise SchemaError(
            f"The SQL of profile {profile.name!r} was refused: {exc}. Nothing was installed. Correct its .sql file."
        ) from exc
    made = {name: _make_queue(transaction, name, asked) for name in profile.queues}
    gates = [gate for gate in profile.closed_gates if _close_gate(transaction, f"{profile.name}.{gate}", asked.actor)]
    tally_up(transaction)
    return InstalledProfile(
        is_new,
        [name for name, how in made.items() if how == "created"],
        [f"{profile.name}.{gate}" for gate in gates],
        [name for name, how in made.items() if how == "adopted"],
    )


def list_profiles(transaction: Transaction, _request: ListProfiles) -> list[ProfileRow]:
    """See store.queries.ListProfiles."""
    return [_profile_row(*row) for row in transaction.all(_SQL["profiles"])]


def _profile_row(
    name: str,
    title: str,
    policy: str,
    words: str,
    settings: str,
    shows: str,
    queues: str,
    checksum: str,
    actor: str,
    installed_at: int,
    updated_at: int,
) -> ProfileRow:
    return ProfileRow(
        name,
        title,
        codec.policy(json.loads(policy)),
        json.loads(words),
        json.loads(settings),
        json.loads(shows),
        json.loads(queues),
        checksum,
        actor,
        from_us(installed_at),
        from_us(updated_at),
    )


def _make_queue(transaction: Transaction, name: str, asked: InstallProfile) -> Literal["created", "adopted", "kept"]:
    found = transaction.one(_ADMIN["queue_profile"], (name,))
    owner = None if found is None else found[0]
    if owner == asked.profile.name:
        return "kept"
    if owner not in (None, "default"):
        raise IllegalMove(
            f"Queue {name!r} is there already and belongs to profile {owner!r}, so {asked.profile.name!r} was not "
            f"installed. Take it from that profile with `tenure queues set {name} profile=default` and install again, "
            "or name another queue in the profile file."
        )
    admin.set_queues(transaction, SetQueues({name: asked.profile.policy}, asked.actor))
    return "created" if owner is None else "adopted"


def _close_gate(transaction: Transaction, name: str, actor: str) -> bool:
    if transaction.one(_ADMIN["gate_found"], (name,)) is not None:
        return False
    admin.set_gate(transaction, SetGate(name, False, actor, "installed closed"))
    return True
