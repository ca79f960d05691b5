"""The same bad input at every door: a token that is no longer good, and money as a float."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from decimal import Decimal
from typing import Any

import httpx
import psycopg
import pytest

from tenure import Backoff, WorkerRow
from tenure.cli.main import run
from tenure.effects import AgentTool
from tenure.errors import ConfigError, InvalidArgument, LeaseLost, NotFound
from tenure.model.ids import WorkerId
from tests.mcp.conftest import Served, ask, names, refused, serving
from tests.servers import PostgresServer

pytestmark = pytest.mark.anyio
ENDS = ("complete", "fail", "release", "suspend", "heartbeat")
FLOATS: tuple[dict[str, Any], ...] = (
    {"usd": 0.1},
    {"usd": 5.0},
    {"usd_micro": 0.5},
    {"tokens": 1.5},
    {"usd": True},
    {"usd": float("nan")},
    {"usd": float("inf")},
)
Late = Callable[[str], Awaitable[str]]
"""Says one of ENDS with the token that a claim gave out, and answers what the door said to it."""


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('doors') / 'doors.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    found = server.create_database()
    yield found
    server.drop_database(found)


@pytest.fixture(scope="module")
def server(url: str) -> Iterator[Served]:
    with serving(url) as found:
        yield found


def _by_python(served: Served, queue: str) -> Late:
    (grant,) = served.app.claim(worker="late", queues=queue)
    acts: dict[str, Callable[[], Any]] = {
        "complete": lambda: served.app.complete(grant, 1),
        "fail": lambda: served.app.fail(grant, "late"),
        "release": lambda: served.app.release(grant),
        "suspend": lambda: served.app.suspend(grant, "word"),
    }

    async def late(end: str) -> str:
        if end == "heartbeat":
            beat = served.app.heartbeat(grant, progress={grant.id: 99})
            assert grant.id in beat.lost
            return "lease_lost"
        with pytest.raises(LeaseLost) as lost:
            acts[end]()
        return lost.value.code

    return late


def _by_command(served: Served, queue: str, capsys: pytest.CaptureFixture[str]) -> Late:
    capsys.readouterr()
    assert run(["claim", "--queue", queue, "--worker", "late", "--url", served.app.url, "--json"]) == 0
    (held,) = json.loads(capsys.readouterr().out)["grants"]
    options = {"fail": ["--error", "late"], "heartbeat": ["--progress", "99"]}

    async def late(end: str) -> str:
        if end == "suspend":  # no such command
            return "lease_lost"
        words = [end, held["id"], str(held["token"]), *options.get(end, []), "--url", served.app.url, "--json"]
        assert run(words) == 4
        found: str = json.loads(capsys.readouterr().err)["error"]["code"]
        return found

    return late


async def _by_http(served: Served, queue: str, opened: AsyncExitStack) -> Late:
    headers = {"Authorization": f"Bearer {served.token(f'worker:queue={queue}')}"}
    client = httpx.AsyncClient(base_url=f"{served.url}/api/v1", headers=headers, timeout=60)
    http = await opened.enter_async_context(client)
    claimed = await http.post("/claims", json={"worker": "late", "queues": [queue]})
    (held,) = claimed.json()["grants"]
    grant = {"id": held["job"]["id"], "token": held["token"]}
    more = {"fail": {"error": "late"}, "suspend": {"waiting_for": "word"}}

    async def late(end: str) -> str:
        if end == "heartbeat":
            body = {"worker": "late", "grants": [{**grant, "progress": 99}]}
            answer = await http.post("/heartbeats", json=body)
            assert answer.json()["lost"] == [grant["id"]]
            return "lease_lost"
        result = {**grant, "outcome": end, **more.get(end, {})}
        answer = await http.post("/settlements", json={"results": [result]})
        assert answer.status_code == 409
        found: str = answer.json()["code"]
        return found

    return late


def _by_sql(served: Served, queue: str, opened: AsyncExitStack) -> Late:
    connection = opened.enter_context(psycopg.connect(served.app.url, autocommit=True))
    request = json.dumps({"worker": "late", "queues": [queue], "limit": 1})
    connection.execute("SELECT tenure.claim(%s::json)", [request])
    (held,) = served.app.jobs(queue=queue, state="running").items
    grant = {"i": held.id, "t": held.token}
    outcomes: dict[str, Any] = {
        "complete": {"done": [grant]},
        "fail": {"rest": [{**grant, "o": "fail", "e": "late"}]},
        "release": {"rest": [{**grant, "o": "release"}]},
        "suspend": {"rest": [{**grant, "o": "suspend", "w": "word"}]},
    }

    async def late(end: str) -> str:
        beat = {"holds": [{**grant, "p": 99}], "lease": 60}
        function, request = ("heartbeat", beat) if end == "heartbeat" else ("settle", outcomes[end])
        row = connection.execute(f"SELECT tenure.{function}(%s::json)".encode(), [json.dumps(request)]).fetchone()
        assert row is not None
        told = row[0]["lost"] if end == "heartbeat" else [one[0] for one in row[0] if one[2] is None]
        assert told == [held.id], row[0]
        return "lease_lost"

    return late


@pytest.mark.parametrize("door", ["python", "command line", "http", "mcp", "sql"])
async def test_a_token_that_was_passed_on_changes_nothing(
    server: Served, door: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if door == "sql" and server.app.url.startswith("sqlite"):
        pytest.skip("SQLite has no functions in SQL: its rules are in Python")
    app, queue = server.app, f"late-{door}".replace(" ", "-")
    app.queues.set(queue, max_attempts=5, backoff=Backoff(shape="none"), actor="test")
    job = app.enqueue("k", queue=queue)
    async with server.client(f"worker:queue={queue}") as client, AsyncExitStack() as opened:
        match door:
            case "python":
                late = _by_python(server, queue)
            case "command line":
                late = _by_command(server, queue, capsys)
            case "http":
                late = await _by_http(server, queue, opened)
            case "sql":
                late = _by_sql(server, queue, opened)
            case _:
                held = (await ask(client, "claim"))["job"]
                more: dict[str, Any] = {
                    "fail": {"error": "late"},
                    "ask": {"question": "?"},
                    "progress": {"value": 99},
                }

                async def late(end: str) -> str:
                    tool = {"suspend": "ask"}.get(end, end)
                    for one in {tool, "progress"}:
                        told = {"job_id": job.id, "token": held["token"], **more.get(one, {})}
                        said = await refused(client, one, **told)
                    return str(json.loads(said[said.index("{") :])["error"]["code"])

        lost = app.get(job.id)
        row = WorkerRow(WorkerId(lost.lease_owner or ""), "host", 1, [queue], [], 1, "")
        app.heartbeat((job.id, lost.token), worker=row)
        assert app.workers.remove([row.id])
        (new,) = app.claim(worker="new", queues=queue)
        before = app.get(job.id)

        for end in ENDS:
            assert await late(end) == "lease_lost", end
            assert app.get(job.id) == before, end
    assert app.complete(new, "mine").state == "succeeded"
    assert app.get(job.id).result == "mine"


async def test_money_as_a_float_is_refused(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    app = server.app
    for act in (app.budgets.set, app.budgets.raise_by):
        for given in FLOATS:
            with pytest.raises(InvalidArgument):
                act("queue:floats", **given)
    with pytest.raises(ConfigError, match="binary fractions"):
        AgentTool("a", ("/bin/true",), reserve_usd=0.1)  # type: ignore[arg-type]

    for amount in ("nan", "inf", "-1", "1e-7", "0x10", ""):
        assert run(["budgets", "set", "queue:floats", "--usd", amount, "--url", app.url]) == 2
    assert run(["budgets", "set", "queue:floats", "--tokens", "1.5", "--url", app.url]) == 2

    headers = {"Authorization": f"Bearer {server.token('operate')}"}
    async with httpx.AsyncClient(base_url=f"{server.url}/api/v1", headers=headers) as http:
        for wrong in (
            *FLOATS[:5],
            {"usd": "nan"},
            {"tokens": 5.0},
            {"calls": True},
            {"usd_micro": "5"},
            {"seconds": True},
        ):
            for method, path in (("PUT", "/budgets"), ("POST", "/budgets/raise")):
                answer = await http.request(method, path, json={"scope": "queue:floats", **wrong})
                assert answer.status_code in {400, 422}, (wrong, answer.text)

    if app.url.startswith("postgres"):
        with psycopg.connect(app.url, autocommit=True) as connection:
            for limit in (0.1, 5.0, "0.1", "1e3", True, None):
                budget = {"scope": "queue:floats", "unit": "usd", "limit": limit}
                request = json.dumps({"budgets": [budget], "actor": "ops"})
                with pytest.raises(psycopg.Error, match="whole number"):
                    connection.execute("SELECT tenure.set_budgets(%s::json)", [request])

    async with server.client("read:meta", "enqueue:*", "worker:*", "operate", "approve", "admin") as client:
        assert not [tool for tool in await names(client) if "budget" in tool], "no agent sets its own"
    assert app.budgets.all("queue:floats") == []
    with pytest.raises(NotFound):
        app.budgets.raise_by("queue:floats", usd=Decimal("0.1"))
