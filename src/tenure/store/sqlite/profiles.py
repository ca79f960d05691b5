"""Installing profiles in a SQLite file, and which are installed."""

from __future__ import annotations

import json
import sqlite3

from tenure.errors import IllegalMove, SchemaError
from tenure.model.clock import from_us
from tenure.store.admin import InstalledProfile, InstallProfile, SetGate, SetQueues
from tenure.store.queries import ListProfiles, ProfileRow
from tenure.store.sqlite import operating, policies
from tenure.store.sqlite.migrate import statements
from tenure.store.sqlite.moves import audit
from tenure.store.sqlite.queries import load
from tenure.store.sqlite.tally import tally_up
from tenure.store.sqlite.transaction import Transaction


def install(transaction: Transaction, asked: InstallProfile) -> InstalledProfile:
    """See store.base.Store.install_profile."""
    profile = asked.profile
    audit(transaction, asked.actor, "install_profile", profile.name, None, {"checksum": asked.checksum})
    is_new = transaction.one(load("profile_found"), (profile.name,)) is None
    policy = policies.to_row(profile.name, profile.policy)
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
    transaction.run(load("profile_set"), values)
    try:
        for statement in statements(load("profile_people") + asked.script):
            transaction.run(statement)
    except (sqlite3.OperationalError, sqlite3.ProgrammingError) as exc:
        raise SchemaError(
            f"The SQL of profile {profile.name!r} was refused: {exc}. Nothing was installed. Correct its .sql file."
        ) from exc
    transaction.forget()  # the script may have changed queues and gates
    queues = [name for name in profile.queues if _make_queue(transaction, name, asked)]
    gates = [gate for gate in profile.closed_gates if _close_gate(transaction, f"{profile.name}.{gate}", asked.actor)]
    tally_up(transaction)
    return InstalledProfile(is_new, queues, [f"{profile.name}.{gate}" for gate in gates])


def list_profiles(transaction: Transaction, _request: ListProfiles) -> list[ProfileRow]:
    """See store.reading.ListProfiles."""
    return [
        ProfileRow(
            name,
            title,
            json.loads(words),
            json.loads(settings),
            json.loads(shows),
            json.loads(queues),
            checksum,
            actor,
            from_us(installed_at),
            from_us(updated_at),
        )
        for name, title, words, settings, shows, queues, checksum, actor, installed_at, updated_at in transaction.all(
            load("profiles")
        )
    ]


def _make_queue(transaction: Transaction, name: str, asked: InstallProfile) -> bool:
    found = transaction.one(load("queue_profile"), (name,))
    if found is None:
        operating.set_queues(transaction, SetQueues({name: asked.profile.policy}, asked.actor, only_new=True))
        return True
    if found[0] != asked.profile.name:
        raise IllegalMove(
            f"Queue {name!r} is there already and belongs to profile {found[0]!r}, so {asked.profile.name!r} was not "
            f"installed. Give that queue to it with `tenure queues set`, or name another in the profile file."
        )
    return False


def _close_gate(transaction: Transaction, name: str, actor: str) -> bool:
    if transaction.one(load("gate_found"), (name,)) is not None:
        return False
    operating.set_gate(transaction, SetGate(name, False, actor, "installed closed"))
    return True
