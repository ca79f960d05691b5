"""A profile of one's own: a .toml, a .sql beside it, and `install`. What is wrong in one is told by its place."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

import tenure
from tenure import App, ConfigError, InvalidArgument, SchemaError, UnknownProfile
from tenure.profiles import loader
from tests.profiles.ground import PROFILES, Ground
from tests.servers import PostgresServer, wheel_bin_path

MINE = """
name = "bakery"
title = "A bakery"
queues = ["oven"]
shows = ["loaves"]

[policy]
max_attempts = 2
lease_seconds = 45
priority_order = "low"
retain_seconds = 0

[policy.backoff]
shape = "constant"
base_seconds = 3
jitter = 0

[gates]
closed = ["notify"]

[settings]
"oven.degrees" = 220

[words]
due = "dough"
later = "resting"
retry = "dough"
waiting = "resting"
leased = "oven"
running = "oven"
succeeded = "bread"
failed = "ash"
dead = "ash"
cancelled = "crumbs"
"""

POSTGRES = """
CREATE SCHEMA IF NOT EXISTS bakery;
CREATE OR REPLACE VIEW bakery.loaves AS
SELECT s.id, s.kind AS sort,
    CASE s.stage WHEN 'due' THEN 'dough' WHEN 'succeeded' THEN 'bread' ELSE 'oven' END AS status
FROM tenure.shown AS s
WHERE s.of_profile = 'bakery';
SELECT tenure.hand_over('bakery', '{"SELECT ON loaves": "reader"}');
"""

SQLITE = """
DROP VIEW IF EXISTS bakery_loaves;
CREATE VIEW bakery_loaves AS
SELECT s.id, s.kind AS sort,
    CASE s.stage WHEN 'due' THEN 'dough' WHEN 'succeeded' THEN 'bread' ELSE 'oven' END AS status
FROM tenure_shown AS s
WHERE s.of_profile = 'bakery';
CREATE TRIGGER bakery_enqueue INSTEAD OF INSERT ON bakery_loaves
BEGIN
    INSERT INTO tenure_inbox (profile, queue, kind) VALUES ('bakery', 'oven', NEW.sort);
END;
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "bakery.toml").write_text(MINE)
    (tmp_path / "bakery.postgres.sql").write_text(POSTGRES)
    (tmp_path / "bakery.sqlite.sql").write_text(SQLITE)
    return tmp_path / "bakery.toml"


@pytest.fixture
def bakery(ground: Ground, mine: Path) -> Any:
    yield str(mine)
    if ground.engine == "postgres":
        ground.execute("DROP SCHEMA IF EXISTS bakery CASCADE")


def test_a_profile_of_ones_own_gets_its_queue_gates_settings_and_view(ground: Ground, bakery: str) -> None:
    made = ground.app.profiles.install(bakery)

    assert (made.is_new, list(made.queues), list(made.gates)) == (True, ["oven"], ["bakery.notify"])
    (queue,) = ground.app.queues.all("oven")
    assert (queue.policy.profile, queue.policy.max_attempts, queue.policy.retain_seconds) == ("bakery", 2, None)
    found = {row.name: row for row in ground.app.profiles.installed()}["bakery"]
    assert (found.title, found.words["dead"], found.settings) == ("A bakery", "ash", {"oven.degrees": 220})
    assert (list(found.queues), list(found.shows)) == (["oven"], ["loaves"])
    ground.app.enqueue("rye", queue="oven")
    assert [row["status"] for row in ground.rows("bakery.loaves")] == ["dough"]


def test_installing_again_changes_what_the_file_says_and_nothing_that_operators_set(
    ground: Ground, bakery: str
) -> None:
    ground.app.profiles.install(bakery)
    ground.app.queues.set("oven", max_attempts=9)
    ground.app.gates.open("bakery.notify")
    Path(bakery).write_text(MINE.replace("A bakery", "The bakery").replace('dead = "ash"', 'dead = "coal"'))

    again = ground.app.profiles.install(bakery)

    assert (again.is_new, list(again.queues), list(again.gates)) == (False, [], [])
    found = {row.name: row for row in ground.app.profiles.installed()}["bakery"]
    assert (found.title, found.words["dead"]) == ("The bakery", "coal")
    assert ground.app.queues.all("oven")[0].policy.max_attempts == 9
    assert {gate.name: gate.is_open for gate in ground.app.gates.all()}["bakery.notify"] is True


def test_a_script_that_is_refused_leaves_nothing(ground: Ground, bakery: str) -> None:
    engine = ground.engine
    script = Path(bakery).with_name(f"bakery.{engine}.sql")
    script.write_text(
        script.read_text()
        + "\nCREATE VIEW broken AS SELECT nothing FROM nowhere_at_all;\nSELECT nonsense FROM nowhere;"
    )

    with pytest.raises(SchemaError, match="bakery"):
        ground.app.profiles.install(bakery)

    assert "bakery" not in {row.name for row in ground.app.profiles.installed()}
    assert [row.name for row in ground.app.queues.all() if row.name == "oven"] == []
    with pytest.raises((psycopg.Error, sqlite3.Error), match=r"bakery.loaves"):
        ground.rows("bakery.loaves")


def test_two_that_install_at_once_do_no_harm(ground: Ground, bakery: str) -> None:
    answers: list[Any] = []
    apps = [App(ground.app.url, clock=None) for _ in range(2)]

    def install(app: App) -> None:
        answers.append(app.profiles.install(bakery).is_new)

    threads = [threading.Thread(target=install, args=[app]) for app in apps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for app in apps:
        app.close()

    assert sorted(answers) == [False, True]


def test_async_callers_install_and_list_without_blocking(ground: Ground, bakery: str) -> None:
    async def act() -> list[str]:
        await ground.app.aio.profiles.install(bakery)
        return [row.name for row in await ground.app.aio.profiles.installed()]

    assert "bakery" in asyncio.run(act())


def test_a_profile_needs_no_sql(ground: Ground, tmp_path: Path) -> None:
    (tmp_path / "plain.toml").write_text(MINE.replace('"bakery"', '"plain"').replace('["oven"]', '["plainly"]'))

    ground.app.profiles.install(str(tmp_path / "plain.toml"))

    assert ground.app.queues.all("plainly")[0].policy.profile == "plain"


def test_the_shipped_profiles_are_the_five_and_our_own() -> None:
    assert loader.shipped() == ("agent_queue", "automechanica", "default", "orchestrator", "outbox", "substrate")
    assert [profile.name for profile in App().profiles.known()] == list(loader.shipped())
    assert {p.name: p.specification for p in App().profiles.known()} == {
        "agent_queue": "000",
        "automechanica": "001",
        "substrate": "002",
        "orchestrator": "003",
        "outbox": "004",
        "default": None,
    }


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(UnknownProfile, match="Did you mean 'substrate'"):
        App().profiles.read("substrat")
    with pytest.raises(UnknownProfile, match="no profile file"):
        App().profiles.read("./missing.toml")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('name = "bakery"', 'name = "Bakery!"', "name: 'Bakery!' is no name"),
        ('name = "bakery"', 'name = "tenure"', "is no name for a profile"),
        ("max_attempts = 2", "max_atempts = 2", r"policy\.max_atempts: there is no such setting.*max_attempts"),
        ("max_attempts = 2", 'max_attempts = "two"', r"policy\.max_attempts: 'two' does not fit"),
        ("max_attempts = 2", "max_attempts = true", r"policy\.max_attempts: True does not fit"),
        ("base_seconds = 3", "bass_seconds = 3", r"policy\.backoff\.bass_seconds"),
        ('dead = "ash"', "", "no word for dead"),
        ('dead = "ash"', 'dead = "ash"\nbaked = "x"', r"words\.baked"),
        ('closed = ["notify"]', 'closed = ["door"]', "gates of a profile are"),
        ('queues = ["oven"]', "queues = 7", "queues: expected a list of names"),
        ("[settings]", "[sittings]", "sittings: there is no such setting"),
        ("[policy]", "[policy]\nprofile = 'x'", r"policy\.profile"),
        ('shows = ["loaves"]', 'shows = ["loaves"]\nsql = {sqlite = ["gone.sql"]}', "no file 'gone.sql'"),
        ("[policy]", "[policy", "cannot be read as a profile"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_by_its_place(tmp_path: Path, old: str, new: str, told: str) -> None:
    path = tmp_path / "bakery.toml"
    path.write_text(MINE.replace(old, new))

    with pytest.raises(ConfigError, match=told):
        loader.load(str(path))


def test_a_policy_that_makes_no_sense_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    path = tmp_path / "bakery.toml"
    path.write_text(MINE.replace("lease_seconds = 45", "lease_seconds = -1"))

    with App(f"sqlite:///{tmp_path / 'jobs.db'}") as app, pytest.raises(InvalidArgument, match="lease_seconds"):
        app.profiles.install(str(path))


def test_importing_tenure_reads_no_profile() -> None:
    code = "import sys, tenure; tenure.App; sys.exit('tenure.profiles' in sys.modules or 'tomllib' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert tenure.Profile.__name__ == "Profile"


@pytest.mark.postgres
@pytest.mark.parametrize(("right", "owner"), [("", "plain"), ("CREATEROLE", "tenure_owner")])
def test_whoever_may_migrate_may_install_with_roles_or_without(right: str, owner: str) -> None:
    """On a cluster of its own, because roles belong to the whole cluster and other tests have made them."""
    server = PostgresServer(wheel_bin_path(18))
    try:
        server.start()
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(f"CREATE ROLE plain LOGIN {right}".encode())
            connection.execute("CREATE DATABASE plainly OWNER plain")
        url = server.url("plainly", user="plain")
        with App(url, migrate="always") as app:
            for name in (*PROFILES, *PROFILES):
                app.profiles.install(name)
            app.enqueue("x", queue="outbox")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("INSERT INTO orchestrator.tasks (type) VALUES ('x')")
            owners = connection.execute(
                "SELECT DISTINCT relowner::regrole::text FROM pg_class "
                "WHERE relnamespace::regnamespace::text IN ('substrate', 'outbox') AND relkind = 'v'"
            ).fetchall()
            shown = connection.execute("SELECT jobs_queued FROM substrate.v_queue_health").fetchall()
        assert (owners, shown) == ([(owner,)], [(0,)])
    finally:
        server.close()
