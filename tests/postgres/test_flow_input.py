"""Bad input to the functions of durable flow, as from a worker that knows only SQL: a clear refusal, and nothing is
written. What Python's door refuses before it asks is in tests/conformance and tests/unit."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tenure.model.ids import new_job_id

pytestmark = pytest.mark.postgres

LARGE = "x" * 1_048_576
MEMO = "0" * 64


def call(connection: psycopg.Connection, function: str, request: Any) -> Any:
    row = connection.execute(f"SELECT tenure.{function}(%s)".encode(), [json.dumps(request)]).fetchone()
    assert row is not None
    return row[0]


def counts(connection: psycopg.Connection) -> list[int]:
    """Rows of every table that flow writes to."""
    tables = ("step", "signal", "job_group", "group_member", "memo", "workflow", "task", "edge", "job", "flow_event")
    found = [connection.execute(f"SELECT count(*) FROM tenure.{table}".encode()).fetchone() for table in tables]
    return [row[0] for row in found if row is not None]


@pytest.fixture
def held(admin: psycopg.Connection) -> dict[str, Any]:
    """A held job, as `job_id` and `token`."""
    job = {"i": new_job_id(), "p": {}}
    call(admin, "enqueue", {"groups": [{"queue": "default", "kind": "work", "jobs": [job]}]})
    call(admin, "claim", {"worker": "psql", "queues": ["default"], "limit": 1})
    return {"job_id": job["i"], "token": 1}


BAD_STEPS: dict[str, list[dict[str, Any]]] = {
    "blank key": [{"key": " "}],
    "no key": [{"value": 1}],
    "long key": [{"key": "k" * 301}],
    "unknown kind": [{"key": "a", "kind": "errand"}],
    "unknown state": [{"key": "a", "state": "half"}],
    "large value": [{"key": "a", "value": LARGE}],
    "no condition": [{"key": "a", "kind": "signal", "state": "open", "awaits": "anything"}],
    "one key twice": [{"key": "a"}, {"key": "a"}],
}


def test_steps_that_cannot_be_stored(admin: psycopg.Connection, held: dict[str, Any]) -> None:
    before = counts(admin)
    for case, bad in BAD_STEPS.items():
        steps = [{"key": "good"}, *bad]
        suspend = {"i": held["job_id"], "t": held["token"], "o": "suspend", "w": "it", "steps": steps}

        with pytest.raises(psycopg.Error) as recorded:
            call(admin, "record_steps", {**held, "steps": steps})
        with pytest.raises(psycopg.Error) as settled:
            call(admin, "settle", {"rest": [suspend]})

        assert (recorded.value.sqlstate, settled.value.sqlstate) == ("TN007", "TN007"), case
        assert "Nothing was" in str(recorded.value), case
    assert counts(admin) == before


BAD_SIGNALS: dict[str, tuple[dict[str, Any], str]] = {
    "blank key": ({"key": " "}, "TN007"),
    "long key": ({"key": "k" * 301}, "TN007"),
    "unknown scope": ({"key": "a", "scope": "all"}, "TN007"),
    "large value": ({"key": "a", "value": LARGE}, "TN007"),
    "no time": ({"key": "a", "keep": 0}, "TN007"),
    "blank actor": ({"key": "a", "actor": " "}, "TN007"),
    "for nobody": ({"key": "a", "to": new_job_id()}, "TN009"),
}


def test_signals_that_cannot_be_sent(admin: psycopg.Connection) -> None:
    for case, (request, state) in BAD_SIGNALS.items():
        with pytest.raises(psycopg.Error) as refused:
            call(admin, "signal", request)

        assert (refused.value.sqlstate, "Nothing was" in str(refused.value)) == (state, True), case
    assert counts(admin)[1] == 0


BAD_MEMOS: dict[str, tuple[str, dict[str, Any]]] = {
    "id": ("take_memo", {"id": "short", "name": "a", "key": "k"}),
    "no id": ("take_memo", {"name": "a", "key": "k"}),
    "name": ("take_memo", {"id": MEMO, "name": " ", "key": "k"}),
    "long name": ("take_memo", {"id": MEMO, "name": "n" * 301, "key": "k"}),
    "no key": ("take_memo", {"id": MEMO, "name": "a"}),
    "long key": ("take_memo", {"id": MEMO, "name": "a", "key": "k" * 301}),
    "a key without a name": ("list_memos", {"key": "k"}),
    "a key and a prefix": ("list_memos", {"name": "a", "key": "k", "prefix": "k"}),
    "nothing to forget": ("forget_memos", {"actor": "ops", "reason": "so"}),
    "ids and a name": ("forget_memos", {"ids": [MEMO], "name": "a", "actor": "ops", "reason": "so"}),
    "no value": ("keep_memo", {"id": MEMO, "ttl_seconds": 5}),
    "large value": ("keep_memo", {"id": MEMO, "ttl_seconds": 5, "value": LARGE}),
    "no time": ("keep_memo", {"id": MEMO, "ttl_seconds": 0, "value": 1}),
    "endless": ("keep_memo", {"id": MEMO, "ttl_seconds": 1e12, "value": 1}),
}


def test_memos_that_cannot_be_kept(admin: psycopg.Connection, held: Any) -> None:
    call(admin, "take_memo", {**held, "id": MEMO, "name": "a", "key": "k"})
    for case, (function, request) in BAD_MEMOS.items():
        with pytest.raises(psycopg.Error) as refused:
            call(admin, function, {**held, **request})

        assert refused.value.sqlstate == "TN007", case
    assert admin.execute("SELECT count(*) FROM tenure.memo WHERE state = 'done'").fetchone() == (0,)


def group(jobs: int = 1, **terms: Any) -> dict[str, Any]:
    ids = [new_job_id() for _ in range(jobs)]
    made = {"groups": [{"queue": "default", "kind": "c", "jobs": [{"i": one, "p": {}} for one in ids]}]}
    return {"id": new_job_id(), "step_key": "group", "jobs": made, "ids": ids, **terms}


BAD_GROUPS: dict[str, Callable[[], dict[str, Any]]] = {
    "blank step": lambda: group(step_key=" "),
    "negative tolerance": lambda: group(tolerate=-1),
    "negative need": lambda: group(need=-1),
    "no window": lambda: group(window=0),
    "too many": lambda: group(1001),
}


def test_groups_that_cannot_be(admin: psycopg.Connection, held: Any) -> None:
    before = counts(admin)
    for case, make in BAD_GROUPS.items():
        with pytest.raises(psycopg.Error) as refused:
            call(admin, "fill_group", {**held, "group": make(), "at": 0, "total": 1})

        assert refused.value.sqlstate == "TN007", case
    assert counts(admin) == before


def workflow(names: list[str], edges: list[tuple[int, int]], *, total: int | None = None, depths: Any = None) -> Any:
    """A request that starts a workflow whole; each task's depth is its place."""
    ids = [new_job_id() for _ in names]
    depths = depths or list(range(len(names)))
    needs = [sum(dst == place for _, dst in edges) for place in range(len(names))]
    new = {"id": new_job_id(), "name": "w", "profile": "default", "policy": {}, "data": {}, "digest": "d"}
    jobs = [{"i": one, "p": {}, "a": 253_370_764_800_000_000, "x": {"workflow_id": new["id"]}} for one in ids]
    return {
        "workflow": {**new, "total": len(names) if total is None else total},
        "tasks": [[one, names[n], needs[n], depths[n], False, None] for n, one in enumerate(ids)],
        "jobs": {"groups": [{"queue": "default", "kind": "t", "jobs": jobs}]},
        "edges": [[ids[src], ids[dst], "ok"] for src, dst in edges],
        "last": True,
    }


def with_policy(**policy: Any) -> Any:
    made = workflow(["a"], [])
    made["workflow"]["policy"] = policy
    return made


def with_fan_out(payload: Any = None, **changes: Any) -> Any:
    """The second task fans out over the result of the first."""
    made = workflow(["a", "b"], [(0, 1)])
    made["tasks"][1][5] = {"of": made["tasks"][0][0], "path": ["files"], "tolerate_count": 0} | changes
    made["jobs"]["groups"][0]["jobs"][1]["p"] = {} if payload is None else payload
    return made


BAD_WORKFLOWS: dict[str, Callable[[], Any]] = {
    "a count in words": lambda: with_policy(fail={"count": "x"}),
    "a count too large": lambda: with_policy(fail={"count": 3_000_000_000}),
    "both ways to count": lambda: with_policy(fail={"count": 1, "ppm": 1}),
    "a start of judging in words": lambda: with_policy(fail={"ppm": 10, "at_least": "x"}),
    "an unknown breach": lambda: with_policy(on_breach="explode"),
    "a ladder without levels": lambda: with_policy(on_breach="escalate"),
    "a ladder that is none": lambda: with_policy(ladder={"person": "ops"}),
    "a level that asks no one": lambda: with_policy(ladder=[{"after": 3}]),
    "a level that asks two": lambda: with_policy(ladder=[{"person": "ops", "queue": "q", "kind": "k"}]),
    "a level without a kind": lambda: with_policy(ladder=[{"queue": "q"}]),
    "a level for a time in words": lambda: with_policy(ladder=[{"person": "ops", "after": "1 h"}]),
    "a level for no time": lambda: with_policy(ladder=[{"person": "ops", "after": 0}]),
    "undos that are none": lambda: with_policy(undo=["a"]),
    "a fan-out over no job": lambda: with_fan_out(of="the first"),
    "a fan-out without a path": lambda: with_fan_out(path="files"),
    "a fan-out that tolerates words": lambda: with_fan_out(tolerate_count="some"),
    "a fan-out whose payload takes no item": lambda: with_fan_out([1]),
    "a circle": lambda: workflow(["a", "b"], [(0, 1), (1, 0)]),
    "a task that waits for itself": lambda: workflow(["a"], [(0, 0)]),
    "one name twice": lambda: workflow(["a", "a"], []),
    "a blank name": lambda: workflow([" "], []),
    "a task too few": lambda: workflow(["a"], [], total=2),
    "too many tasks": lambda: workflow(["a"], [], total=1_000_001),
    "no tasks": lambda: workflow([], [], total=0),
}


def test_workflows_that_cannot_be(admin: psycopg.Connection) -> None:
    before = counts(admin)
    for case, make in BAD_WORKFLOWS.items():
        with pytest.raises(psycopg.Error) as refused:
            call(admin, "start_workflow", make())

        assert (refused.value.sqlstate, "Nothing was started" in str(refused.value)) == ("TN007", True), case
    nowhere = workflow(["a"], [])
    nowhere["jobs"]["groups"][0]["queue"] = "NowhereAgent"
    with pytest.raises(psycopg.Error) as refused:
        call(admin, "start_workflow", nowhere)

    assert refused.value.sqlstate == "TN003"
    assert counts(admin) == before


def test_a_good_workflow_is_started(admin: psycopg.Connection) -> None:
    assert call(admin, "start_workflow", workflow(["a", "b", "c"], [(0, 1), (0, 2), (1, 2)]))["state"] == "running"
    assert admin.execute("SELECT count(*) FROM tenure.job WHERE state = 'queued'").fetchone() == (1,)
    ladder = [{"person": "ops", "after": 0.5}, {"to": "queue", "queue": "default", "kind": "k", "after": None}]
    good = with_policy(fail={"ppm": 10, "at_least": 0}, on_breach="escalate", ladder=ladder, undo={"a": "cancel"})
    assert call(admin, "start_workflow", good)["state"] == "running"
    assert call(admin, "start_workflow", with_fan_out())["state"] == "running"
