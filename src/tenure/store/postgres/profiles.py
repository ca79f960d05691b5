"""Installing profiles on PostgreSQL, and which are installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tenure.errors import SchemaError
from tenure.store.admin import InstalledProfile, InstallProfile
from tenure.store.contract import Request
from tenure.store.postgres.call import Call
from tenure.store.postgres.errors import driver_errors, redact
from tenure.store.postgres.reading import encode, moment, policy_columns, text
from tenure.store.queries import ListProfiles, ProfileRow

_SQL: Final = Path(__file__).parent / "sql"


def install(url: str, asked: InstallProfile) -> InstalledProfile:
    """See store.base.Store.install_profile. The lock is that of migrations: a profile builds on their tables."""
    import psycopg

    profile = asked.profile
    request = {
        "name": profile.name,
        "title": profile.title,
        "policy": policy_columns(profile.policy),
        "words": dict(profile.words),
        "settings": dict(profile.settings),
        "shows": profile.shows,
        "checksum": asked.checksum,
        "queues": profile.queues,
        "closed": profile.closed_gates,
        "actor": asked.actor,
    }
    with driver_errors(url), psycopg.connect(url, application_name="tenure profile install") as connection:
        connection.execute((_SQL / "ledger/lock.sql").read_bytes())
        connection.execute((_SQL / "profile/search_path.sql").read_bytes())
        row = connection.execute((_SQL / "profile/install.sql").read_bytes(), {"request": text(request)}).fetchone()
        assert row is not None
        try:
            connection.execute((_SQL / "profile/people.sql").read_bytes())
            if asked.script:
                connection.execute(asked.script.encode())
        except psycopg.ProgrammingError as exc:
            if isinstance(exc, psycopg.errors.InsufficientPrivilege):
                raise
            raise SchemaError(
                f"The SQL of profile {profile.name!r} was refused: {redact(str(exc), url)}. Nothing was installed. "
                "Correct its .sql file; an existing view cannot lose or reorder columns, so drop it first in that case."
            ) from exc
    return InstalledProfile(**row[0])


def _to_row(found: dict[str, Any]) -> ProfileRow:
    times = {name: moment(found[name]) for name in ("installed_at", "updated_at")}
    return ProfileRow(**(found | times))


CALLS: Final[Mapping[type[Request[Any]], Call]] = {
    ListProfiles: Call("list_profiles", encode, lambda answer, _request: [_to_row(row) for row in answer]),
}
