"""The schema and the model say the same: states, terminal states, held states. Migrating again changes nothing."""

from __future__ import annotations

import re
import sqlite3

import psycopg
import pytest

from tenure.model.outcome import Triage
from tenure.model.state import HELD, TERMINAL, State
from tests.conformance.acts import Subject, enqueue
from tests.conformance.engines import sqlite_path


def table_text(store: Subject, table: str) -> str:
    """The table's CHECKs, and those of the domains of its columns and CHECKs, as the engine itself keeps them."""
    if store.engine == "sqlite":
        with sqlite3.connect(f"file:{sqlite_path(store.store.url)}?mode=ro", uri=True) as connection:
            [(text,)] = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", [f"tenure_{table}"])
        connection.close()
        return str(text)
    with psycopg.connect(store.store.url) as pg:
        rows = pg.execute(
            "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = %(table)s::regclass UNION ALL "
            "SELECT replace(pg_get_constraintdef(c.oid), 'VALUE', a.attname) FROM pg_constraint AS c "
            "JOIN pg_attribute AS a ON a.atttypid = c.contypid AND a.attrelid = %(table)s::regclass UNION ALL "
            "SELECT pg_get_constraintdef(c.oid) FROM pg_constraint AS c "
            "JOIN pg_depend AS d ON d.refobjid = c.contypid AND d.classid = 'pg_constraint'::regclass "
            "JOIN pg_constraint AS t ON t.oid = d.objid AND t.conrelid = %(table)s::regclass",
            {"table": f"tenure.{table}"},
        ).fetchall()
    return "\n".join(str(row[0]) for row in rows)


def lists_of(column: str, text: str) -> set[frozenset[str]]:
    """Every list of words that the text compares the column with."""
    found = re.findall(rf"\b{column}\s+IN\s*\(([^)]*)\)", text, re.IGNORECASE)
    found += re.findall(rf"\b{column} = ANY \(ARRAY\[([^\]]*)\]", text)
    lists = {frozenset(re.findall(r"'([a-z_]+)'", words)) for words in found}
    arrays = re.findall(rf"\b{column}\)?(?:::text)? = ANY \('{{([^}}]*)}}'", text)
    return lists | {frozenset(words.split(",")) for words in arrays}


def lists_of_states(text: str) -> set[frozenset[str]]:
    """The same, where a state may go by its first letter."""
    by_letter = {state.value[0]: state.value for state in State}
    letters = re.findall(r'\bstate\)::"char" = ANY \(\'{([^}]*)}\'', text)
    return lists_of("state", text) | {frozenset(by_letter[letter] for letter in few.split(",")) for few in letters}


def test_the_states_of_the_schema_are_the_states_of_the_model(store: Subject) -> None:
    lists = lists_of_states(table_text(store, "job"))

    assert frozenset(state.value for state in State) in lists
    assert frozenset(state.value for state in TERMINAL) in lists
    assert frozenset(state.value for state in HELD) in lists
    assert len(lists) == 3
    assert len({state.value[0] for state in State}) == len(State)


def test_the_triage_words_of_the_schema_are_those_of_the_model(store: Subject) -> None:
    lists = lists_of("triage", table_text(store, "dead_letter"))

    assert lists == {frozenset(triage.value for triage in Triage)}


@pytest.mark.parametrize(
    "change",
    [
        "state = 'resting'",
        "state = 'succeeded'",
        "state = 'running'",
        "finished_at = created_at",
        "lease_owner = 'w1'",
        "payload = NULL",
        "max_attempts = 0",
        "attempt = -1",
        "kind = ''",
    ],
)
def test_the_table_itself_refuses_what_breaks_its_rules(store: Subject, change: str) -> None:
    enqueue(store)

    if store.engine == "sqlite":
        connection = sqlite3.connect(sqlite_path(store.store.url))
        try:
            with pytest.raises(sqlite3.IntegrityError):
                connection.execute(f"UPDATE tenure_job SET {change}")
        finally:
            connection.close()
    else:
        with psycopg.connect(store.store.url) as pg, pytest.raises(psycopg.errors.IntegrityError):
            pg.execute(f"UPDATE tenure.job SET {change}".encode())


def test_migrating_again_applies_nothing(store: Subject) -> None:
    version = store.store.schema_version()

    assert store.store.migrate() == []

    assert store.store.schema_version() == version > 0


def test_the_migration_can_be_printed(store: Subject) -> None:
    """On SQLite what the file lacks, which is nothing; on PostgreSQL all of it, each part behind a question."""
    script = store.store.migration_sql()

    is_whole = store.engine != "sqlite"
    assert ("CREATE TABLE" in script, "dedup_slot" in script) == (is_whole, is_whole)
