"""A migration that was released is what `schema.sql` still builds: databases out there were made by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenure.store.postgres import migrate as postgres
from tenure.store.postgres.sql import FOLDER, schema_script
from tenure.store.sqlite import migrate as sqlite

CASES = {
    FOLDER / "migrations" / f"{postgres.NAME}.sql": schema_script,
    Path(sqlite.__file__).parent / "sql" / "migrations" / f"{sqlite.NAME}.sql": sqlite.script,
}


@pytest.mark.parametrize("frozen", CASES, ids=["postgres", "sqlite"])
def test_a_released_migration_is_what_the_schema_builds(frozen: Path) -> None:
    if not frozen.exists():
        pytest.skip("nothing was released yet; .ci/release.py freezes it")
    assert frozen.read_text(encoding="utf-8") == CASES[frozen](), "Write the change as the next migration."
