"""Completions sent as two arrays end jobs exactly as completions sent as objects do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tenure.model.ids import JobId, Token, WorkerId
from tenure.model.job import Grant
from tenure.model.outcome import Completed
from tenure.store.contract import Cancel, Claim, Enqueue, Settle
from tenure.store.postgres.moves import encode_outcomes
from tenure.store.postgres.store import PostgresStore
from tests.conformance.acts import new_job

pytestmark = pytest.mark.postgres

NOBODY = "019b76da-0000-7000-8000-00000000ffff"


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    made = PostgresStore(url)
    yield made
    made.close()


@pytest.fixture
def grants(store: PostgresStore) -> list[Grant]:
    """Five held jobs: one was asked to stop, one has ended already."""
    store.do(Enqueue([new_job(key=f"k{n}") for n in range(5)]))
    held = store.do(Claim(WorkerId("w1"), ["default"], limit=5))
    store.do(Cancel([held[1].id], actor="ann", reason="test"))
    store.do(Settle([Completed(held[2].id, held[2].token)]))
    return held


def settled(admin: psycopg.Connection, outcomes: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """The answer as states by job, and what is left in the tables; nothing of it stays."""
    with admin.transaction(force_rollback=True):
        moment = "SELECT tenure.settle_outcomes(%s, (SELECT max(updated_at) FROM tenure.job))"
        [[answer]] = admin.execute(moment, [json.dumps(outcomes)]).fetchall()
        rows = admin.execute("SELECT row_to_json(j) FROM tenure.job AS j ORDER BY id").fetchall()
        attempts = admin.execute("SELECT row_to_json(a) FROM tenure.attempt AS a ORDER BY job_id").fetchall()
    return {job_id: state for job_id, _, state, _ in answer or ()}, [*rows, *attempts]


def objects(ends: list[tuple[str, int]]) -> dict[str, Any]:
    return {"done": [{"i": job_id, "t": token} for job_id, token in ends]}


def arrays(ends: list[tuple[str, int]]) -> dict[str, Any]:
    return {
        "ids": f"{{{','.join(job_id for job_id, _ in ends)}}}",
        "tokens": f"{{{','.join(str(token) for _, token in ends)}}}",
    }


def test_both_forms_leave_the_same_rows_and_answers(admin: psycopg.Connection, grants: list[Grant]) -> None:
    held, stopping, ended, overtaken, twice = grants
    ends = [
        (held.id, held.token),
        (stopping.id, stopping.token),
        (ended.id, ended.token),
        (overtaken.id, overtaken.token - 1),
        (twice.id, twice.token),
        (twice.id, twice.token),
        (NOBODY, 1),
    ]

    as_objects = settled(admin, objects(ends))
    as_arrays = settled(admin, arrays(ends))

    assert as_arrays == as_objects
    assert as_arrays[0] == {stopping.id: "cancelled", overtaken.id: None, NOBODY: None}
    for end in ends:  # one by itself goes the shortest way
        assert settled(admin, arrays([end])) == settled(admin, objects([end]))


def test_both_forms_and_the_rest_go_in_one_request(admin: psycopg.Connection, grants: list[Grant]) -> None:
    held, _, _, other, third = grants
    rest = {"rest": [{"i": third.id, "t": third.token, "o": "reject", "e": "no good"}]}

    together, rows = settled(
        admin, arrays([(held.id, held.token)]) | objects([(other.id, other.token), (NOBODY, 1)]) | rest
    )

    assert together == {NOBODY: None, third.id: "failed"}
    states = {row["id"]: row["state"] for [row] in rows if "state" in row}
    assert [states[grant.id] for grant in (held, other, third)] == ["succeeded", "succeeded", "failed"]


def test_only_what_leaves_nothing_behind_and_has_a_sound_id_goes_as_arrays() -> None:
    given = [
        Completed(JobId(NOBODY), Token(1)),
        Completed(JobId(NOBODY), Token(2), result="1"),
        Completed(JobId(NOBODY), Token(3), result_summary="s"),
        Completed(JobId(NOBODY), Token(4), artifacts_path="a"),
        Completed(JobId(f"{NOBODY},{NOBODY}"), Token(5)),
        Completed(JobId(f"{NOBODY}\n"), Token(6)),
        Completed(JobId(NOBODY.upper()), Token(7)),
    ]

    sent = json.loads(encode_outcomes(given))

    assert sent["ids"] == f"{{{NOBODY},{NOBODY.upper()}}}"
    assert sent["tokens"] == "{1,7}"
    assert [row["t"] for row in sent["done"]] == [2, 3, 4, 5, 6]
