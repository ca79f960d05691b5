"""The same commands on PostgreSQL: those that look into the engine, and one of each other sort."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tenure import App
from tests.cli.conftest import Cli
from tests.servers import PostgresServer, wheel_bin_path

pytestmark = pytest.mark.postgres


@pytest.fixture
def on_postgres(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setenv("TENURE_URL", postgres_url)
    with App(postgres_url, actor="test") as app:
        app.queues.set("mail", max_attempts=1, events=True)
        yield app


@pytest.fixture
def durable_url() -> Iterator[str]:
    """A database on a server that is set up as in production, unlike the session's."""
    server = PostgresServer(wheel_bin_path(18))
    try:
        server.start()
        url = server.create_database()
        with App(url, actor="test") as app:
            app.queues.set("mail")
        yield url
    finally:
        server.close()


def test_doctor_looks_into_the_server(cli: Cli, durable_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_URL", durable_url)
    found = cli("doctor", "--no-sandbox", "--json")

    checks = {one["name"]: one for one in found.json["checks"]}
    assert found.code == 0, found.out
    assert {"database", "commit", "roles", "connections", "clock", "schema", "workers", "stuck"} <= set(checks)
    assert checks["database"]["says"].startswith("postgresql 18")
    assert checks["commit"]["says"].startswith("fsync on, synchronous_commit on")


def test_doctor_finds_a_server_that_does_not_wait_for_its_disk(cli: Cli, on_postgres: App) -> None:
    found = cli("doctor", "--no-sandbox", "--json")

    assert found.code != 0
    assert [one["name"] for one in found.json["checks"] if one["status"] == "wrong"] == ["fsync"]
    assert not [one for one in found.json["checks"] if "fsync on" in one["says"]]


def test_stats_explain_top_tail_and_prune_answer(cli: Cli, on_postgres: App) -> None:
    app = on_postgres
    dead, done, waits = (app.enqueue(kind, queue="mail").id for kind in ("dies", "done", "waits"))
    grants = {grant.id: grant for grant in app.claim(queues="mail", limit=2)}
    app.fail(grants[dead], "KeyError: 'to'")
    app.complete(grants[done], {"ok": True})

    told = cli("stats", "--json").json
    assert [(one["kind"], one["jobs"]) for one in told["outstanding"]] == [("waits", 1)]
    assert {one["kind"] for one in told["summary"]["ran"]} == {"dies", "done"}
    assert [one["code"] for one in cli("jobs", "explain", waits, "--json").json["reasons"]] == ["no_worker", "next"]
    assert cli("top", "--json").json["failures"][0]["kind"] == "dies"
    assert len(cli("tail", "--once", "--json").out.splitlines()) >= 7
    assert cli("prune", "--older-than", "0", "--yes", "--json").json["pruned"]["cleaned"] == 1
    assert cli("dlq", "replay", dead, "--json").json["jobs"][0]["state"] == "queued"
    assert cli("claim", "--queue", "mail", "--limit", "5").out.count("\n") == 2


def test_a_rate_that_is_a_whole_number_is_listed(cli: Cli, on_postgres: App) -> None:
    """JSON writes 600.0 as 600, and before Python 3.12 `tenure limits ls` ended with an AttributeError."""
    on_postgres.limits.set("model", per_minute=600, tokens_per_minute=40_000)

    found = cli("limits", "ls")

    assert found.code == 0, found.err
    assert found.rows[0][3:5] == ["600", "40000"]
    assert [type(one.per_minute) for one in on_postgres.limits.all()] == [float]


def test_an_upgrade_is_left_to_the_operator(cli: Cli, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_URL", postgres_url)

    assert cli("migrate", "--check").code == 6
    assert "CREATE TABLE tenure.job" in cli("migrate", "--sql").out
    assert cli("migrate", "--json").json["applied"]
    assert cli("migrate", "--check").code == 0


@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("ada:secret@127.0.0.1:1/x", 5),
        ("ada:secret%zz@127.0.0.1:1/x", 2),
        ("ada:secret word@127.0.0.1:1/x", 2),
        ("ada:secret@[::1/x", 2),
    ],
)
def test_the_password_of_a_url_is_never_shown(cli: Cli, address: str, code: int) -> None:
    """libpq quotes the part of a URL that it cannot read, and the usual reason is a % in the password."""
    found = cli("jobs", "ls", "--url", f"postgresql://{address}")

    assert found.code == code
    assert "secret" not in found.err
    assert code == 5 or "with % written as %25" in found.err
