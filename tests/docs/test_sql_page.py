"""The reference of the SQL functions is complete, and its examples answer what it says."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from docs.generate import granted
from tenure.store.postgres.store import PostgresStore
from tenure.testing import ManualClock, drop_restart_grace

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sql.md"
STEP = re.compile(r"^<!-- clock \+(\d+) -->|^```sql\n(.*?)^```\n\n```json\n(.*?)^```", re.MULTILINE | re.DOTALL)
SECTION = re.compile(r"^### tenure\.(\w+)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
ANY = "…"


@dataclass(frozen=True, slots=True)
class Step:
    """Either time that passes, or a statement and its answer."""

    seconds: int = 0
    sql: str = ""
    answer: str = ""


def steps(page: str) -> list[Step]:
    return [Step(int(found[1] or 0), found[2] or "", found[3] or "") for found in STEP.finditer(page)]


def differences(expected: Any, found: Any, where: str = "$") -> list[str]:
    """Where an answer is not the one that is shown. `…` stands for any value, and as a key for any other keys."""
    if expected == ANY:
        return []
    if isinstance(expected, dict) and isinstance(found, dict):
        missing = set(expected) - set(found) - {ANY}
        extra = set(found) - set(expected) if ANY not in expected else set()
        inner = [
            d for key in set(expected) & set(found) for d in differences(expected[key], found[key], f"{where}.{key}")
        ]
        return inner + [f"{where}.{key}: {'not there' if key in missing else 'not shown'}" for key in missing | extra]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return [d for i, (one, other) in pairs for d in differences(one, other, f"{where}[{i}]")]
    return [] if expected == found else [f"{where}: {expected!r} is shown, and it is {found!r}"]


def test_every_function_that_a_role_may_call_has_its_argument_and_its_answer() -> None:
    sections = dict(SECTION.findall(PAGE.read_text()))

    assert set(sections) == set(granted()), "Write a section `### tenure.NAME` with an example, or take one out."
    for name, text in sections.items():
        assert re.search(rf"^```sql\nSELECT .*tenure\.{name}\(", text, re.MULTILINE), name
        assert "```json\n" in text, name


@pytest.mark.postgres
def test_the_examples_answer_what_the_page_shows(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    store.migrate()
    store.close()
    drop_restart_grace(postgres_url)
    clock = ManualClock()
    wrong = []
    with clock.steer(postgres_url), psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("SET ROLE tenure_admin")
        for step in steps(PAGE.read_text()):
            if step.seconds:
                clock.advance(step.seconds)
                continue
            row = connection.execute(f"SELECT to_json(({step.sql}))".encode()).fetchone()
            assert row is not None
            wrong += [f"{step.sql}\n  {one}" for one in differences(json.loads(step.answer), row[0])]

    assert not wrong, "\n".join(wrong)


def test_a_difference_is_found() -> None:
    assert differences({"a": [1, ANY], ANY: ANY}, {"a": [1, 2], "b": 3}) == []
    assert differences({"a": 1}, {"a": 2}) == ["$.a: 1 is shown, and it is 2"]
    assert differences({"a": 1}, {"a": 1, "b": 2}) == ["$.b: not shown"]
    assert differences({"a": 1, "b": 2}, {"a": 1}) == ["$.b: not there"]
    assert differences([1], [1, 2]) == ["$: [1] is shown, and it is [1, 2]"]
