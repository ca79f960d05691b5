"""The pytest plugin, in projects of its own: real pytest processes on folders that a test writes."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = "tenure.integrations.pytest_plugin"

TASKS = """
import tenure

app = tenure.App("postgresql://never.invalid/opened")
sent: list[int] = []

@app.job(queue="mail", max_attempts=2)
def welcome(user_id: int) -> None:
    if user_id < 0:
        raise ValueError("no such user")
    sent.append(user_id)
"""
SETTINGS = """
[tool.pytest.ini_options]
pythonpath = ["."]
tenure_app = "tasks:app"
filterwarnings = ["error"]
"""


def run(
    folder: Path, tests: str, *arguments: str, url: str | None = None, settings: str = SETTINGS
) -> subprocess.CompletedProcess[str]:
    """Run pytest on one file of tests, with no plugin but ours."""
    (folder / "tasks.py").write_text(TASKS)
    (folder / "pyproject.toml").write_text(settings)
    (folder / "test_it.py").write_text(tests)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "TENURE"))}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    if url is not None:
        environment["TENURE_TEST_URL"] = url
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=environment,
    )


def test_the_package_declares_the_plugin() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]

    assert declared == {"tenure": PLUGIN}


STORY = """
import pytest, tenure
from tasks import sent, welcome

@pytest.fixture(autouse=True)
def forget():
    sent.clear()

def test_a_job_runs_when_its_time_has_come(tenure_app, tenure_clock, tenure_drain, tenure_assert_enqueued):
    welcome.options(delay=3600, key="w7").enqueue(7)
    (job,) = tenure_assert_enqueued(welcome, 7, queue="mail", key="w7")
    tenure_drain()
    assert sent == []
    tenure_clock.advance(3600)
    tenure_drain()
    assert sent == [7]
    assert tenure_app.get(job.id).state == "succeeded"

def test_every_test_begins_with_an_empty_queue_and_time_that_goes_on(tenure_app, tenure_assert_enqueued):
    tenure_assert_enqueued("welcome", times=0)
    assert tenure_app.now() < tenure_app.now()

def test_what_a_handler_raises_is_raised_here(tenure_app, tenure_drain):
    welcome.enqueue(-1)
    with pytest.raises(tenure.JobFailed, match="no such user") as failed:
        tenure_drain()
    assert "in welcome" in failed.value.__notes__[0]

def test_a_missing_job_is_told_with_what_was_there(tenure_app, tenure_assert_enqueued):
    welcome.enqueue(1)
    with pytest.raises(AssertionError, match=r"Expected at least one job of kind 'welcome' with payload=2, found 0"):
        tenure_assert_enqueued(welcome, 2)
    with pytest.raises(AssertionError, match=r"Expected 2 jobs .* found 1[\\s\\S]*welcome 1 in 'mail', queued"):
        tenure_assert_enqueued("welcome", times=2)

def test_an_answer_can_be_lost(tenure_app, tenure_crash_at, tenure_assert_enqueued):
    point = tenure_crash_at("after_commit_before_reply", error=tenure.StoreUnavailable("the line went dead"))
    job = welcome.new(3)
    with pytest.raises(tenure.StoreUnavailable):
        tenure_app.enqueue(job)
    assert point.crashes == 1
    tenure_app.enqueue(job)
    tenure_assert_enqueued(welcome, 3, times=1)

def test_async_tests_drain_on_their_loop(tenure_app, tenure_adrain):
    import asyncio
    async def story():
        await welcome.aenqueue(8)
        await tenure_adrain()
    asyncio.run(story())
    assert sent == [8]
"""


def test_fixtures_serve_a_project_on_sqlite(tmp_path: Path) -> None:
    done = run(tmp_path, STORY)

    assert "6 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.postgres
def test_fixtures_serve_a_project_on_postgresql_and_leave_nothing_there(tmp_path: Path, postgres_url: str) -> None:
    done = run(tmp_path, STORY, url=postgres_url)

    assert "6 passed" in done.stdout, done.stdout + done.stderr
    import psycopg

    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT to_regnamespace('tenure')").fetchone() == (None,)


def test_a_test_whose_handler_fails_says_where(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "from tasks import welcome\ndef test_it(tenure_app, tenure_drain):\n"
        "    welcome.enqueue(-1)\n    tenure_drain()\n",
    )

    assert done.returncode == 1
    assert "ValueError: no such user" in done.stdout
    assert "tasks.py" in done.stdout


def test_an_app_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    done = run(tmp_path, "def test_it(tenure_app): ...", settings=SETTINGS.replace("tasks:app", "tasks:nothing"))

    assert "'tasks:nothing', which names no tenure.App" in done.stdout, done.stdout + done.stderr


def test_an_app_and_a_database_can_be_chosen_in_code(tmp_path: Path) -> None:
    tests = """
import pytest, tenure

own = tenure.App()

@pytest.fixture
def tenure_app_under_test():
    return own

def test_it(tenure_app):
    assert tenure_app is own
    assert tenure_app.url.startswith("sqlite:///")
"""
    done = run(tmp_path, tests, settings="")

    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_a_project_that_does_not_use_it_loads_nothing_of_it(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "import sys\ndef test_it():\n"
        "    loaded = {name for name in sys.modules if name.startswith('tenure')}\n"
        "    assert loaded == {'tenure', 'tenure.integrations', 'tenure.integrations.pytest_plugin'}\n"
        "    assert not {'pydantic', 'sqlite3', 'asyncio'} & set(sys.modules)\n",
        settings="",
    )

    assert "1 passed" in done.stdout, done.stdout + done.stderr
