"""A schema that was released is not changed without a migration: databases out there were made by it."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from tenure.store.postgres.sql import FOLDER, schema_script
from tenure.store.sqlite import migrate as sqlite

CASES = {"postgres": (FOLDER, schema_script), "sqlite": (Path(sqlite.__file__).parent / "sql", sqlite.script)}


@pytest.mark.parametrize("engine", CASES)
def test_a_released_schema_is_changed_by_a_migration_only(engine: str) -> None:
    folder, script = CASES[engine]
    kept = folder / "migrations" / "schema.sha256"
    if not kept.exists():
        pytest.skip("nothing was released yet; .ci/release.py freezes it")
    if list((folder / "changes").glob("*.sql")):
        pytest.skip("the change is written; test_upgrade compares what both ways build")
    assert kept.read_text().strip() == sha256(script().encode()).hexdigest(), "Write the change into sql/changes/."
