"""What a database's catalog says about the schema `tenure`, as plain values that can be compared."""

from __future__ import annotations

from typing import Any, Final

import psycopg

_QUESTIONS: Final = {
    "tables": """
        SELECT c.relname, c.relkind, c.relpersistence, c.reloptions, c.relowner::regrole::text, c.relacl::text
        FROM pg_class AS c WHERE c.relnamespace = 'tenure'::regnamespace
    """,
    "columns": """
        SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
            pg_get_expr(d.adbin, d.adrelid)
        FROM pg_attribute AS a
        JOIN pg_class AS c ON c.oid = a.attrelid
        LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE c.relnamespace = 'tenure'::regnamespace AND c.relkind IN ('r', 'v')
            AND a.attnum > 0 AND NOT a.attisdropped
    """,
    "constraints": """
        SELECT conrelid::regclass::text, conname, contype, pg_get_constraintdef(oid), convalidated
        FROM pg_constraint WHERE connamespace = 'tenure'::regnamespace
    """,
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'tenure'",
    "functions": """
        SELECT oid::regprocedure::text, prosrc, prosecdef, proconfig, provolatile, proparallel, proowner::regrole::text,
            proacl::text, prorettype::regtype::text
        FROM pg_proc WHERE pronamespace = 'tenure'::regnamespace
    """,
    "schema": "SELECT nspname, nspowner::regrole::text, nspacl::text FROM pg_namespace WHERE nspname = 'tenure'",
}


def read_catalog(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Tables, columns, constraints, indexes, functions and rights of the schema `tenure`."""
    with psycopg.connect(url, autocommit=True) as connection:
        return {
            name: sorted(connection.execute(question.encode()).fetchall(), key=repr)
            for name, question in _QUESTIONS.items()
        }
