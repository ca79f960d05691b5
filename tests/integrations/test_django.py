"""Django: a real project, its management commands, its worker processes, and Django's own test runner."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

import tenure
from tests.integrations.served import started
from tests.waiting import wait_until

PROJECT = Path(__file__).parent / "django_project"


class Project:
    """A copy of the project with a database of its own."""

    def __init__(self, folder: Path, database: dict[str, Any], url: str) -> None:
        self.folder = folder
        self.database = database
        self.url = url

    @property
    def environment(self) -> dict[str, str]:
        return {"PROJECT_DATABASE": json.dumps(self.database), "PYTHONWARNINGS": "error"}

    def manage(self, *arguments: str, input: str | None = None) -> subprocess.CompletedProcess[str]:  # noqa: A002
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=self.folder,
            env={
                **self.environment,
                "PATH": "/usr/bin:/bin",
                "PYTHONUNBUFFERED": "1",
                "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            },
            input=input,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )

    def migrated(self) -> Project:
        done = self.manage("migrate", "--run-syncdb", "-v", "1")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Tenure: applied" in done.stdout
        return self


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    folder = tmp_path / "project"
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("__pycache__"))
    if request.param == "sqlite":
        database: dict[str, Any] = {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(folder / "db.sqlite3"),
            "OPTIONS": {"transaction_mode": "IMMEDIATE"},
            "TEST": {"NAME": str(folder / "test.sqlite3")},
        }
        yield Project(folder, database, f"sqlite:///{folder / 'db.sqlite3'}")
        return
    url = request.getfixturevalue("postgres_url")
    known = psycopg.conninfo.conninfo_to_dict(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": str(known["dbname"]),
        "USER": str(known.get("user", "")),
        "HOST": str(known.get("host", "")),
        "PORT": str(known.get("port", "")),
        "CONN_MAX_AGE": None,  # connections are kept for ever: the hard case for a worker
    }
    yield Project(folder, database, url)


def test_the_backend_passes_the_cases_of_djangos_own_tests(project: Project) -> None:
    done = project.manage("test", "shop", "--pattern", "cases.py")

    assert done.returncode == 0, done.stdout + done.stderr
    ran = int(done.stderr.partition("Ran ")[2].partition(" ")[0])
    assert ran == (PROJECT / "shop" / "cases.py").read_text().count("    def test_")


def test_commands_pass_through_with_the_projects_database(project: Project) -> None:
    project.migrated()

    enqueued = project.manage("tenure", "enqueue", "record", '"one"', "--json")
    assert enqueued.returncode == 0, enqueued.stdout + enqueued.stderr
    worked = project.manage("tenure", "worker", "--drain", "--json")
    assert worked.returncode == 0, worked.stdout + worked.stderr
    listed = project.manage("tenure", "jobs", "ls", "--json")
    wrong = project.manage("tenure", "jobs", "show", "01890000-0000-7000-8000-000000000000")

    with tenure.App(project.url) as app:
        (job,) = app.jobs()
        assert (job.kind, job.queue, job.state, job.result) == ("record", "mail", "succeeded", 1)
        assert job.id in listed.stdout
    assert wrong.returncode == 3
    assert "There is no job" in wrong.stderr


def test_processes_of_their_own_find_the_project(project: Project) -> None:
    """`--processes` starts workers afresh, and an isolated handler is imported by a process that knows nothing."""
    project.migrated()
    with tenure.App(project.url) as app:
        app.queue("mail")
        plain, isolated = app.enqueue("record", "a", queue="mail"), app.enqueue("record_isolated", "b", queue="mail")
        command = ["manage.py", "tenure", "worker", "--processes", "2"]
        with started(command, project.folder, project.environment) as program:
            wait_until(lambda: all(app.get(one.id).finished_at for one in (plain, isolated)), 120)
            states = [app.get(one.id).state for one in (plain, isolated)]
            assert states == ["succeeded", "succeeded"], [app.get(isolated.id).last_error, program.output]
            assert program.terminate() == 0, program.output


@pytest.mark.parametrize("project", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_after_every_session_was_cut_the_next_job_succeeds_at_once(project: Project) -> None:
    project.migrated()
    with (
        tenure.App(project.url) as app,
        started(["manage.py", "tenure", "worker", "-c", "1"], project.folder, project.environment) as program,
    ):
        app.queue("mail")
        for kind in ("record", "record_async"):
            first = app.enqueue(kind, "before", queue="mail")
            _wait_for_end(app, first.id)
            with psycopg.connect(project.url) as connection:
                cut = connection.execute(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                    " WHERE pid <> pg_backend_pid() AND datname = current_database()"
                ).fetchone()
            assert cut is not None
            assert cut[0] >= 2

            job = wait_until(partial(_enqueue, app, kind))
            _wait_for_end(app, job.id)

            found = app.get(job.id)
            assert (found.state, found.attempt, app.attempts(job.id)) == ("succeeded", 1, []), program.output
        assert program.terminate() == 0


def _wait_for_end(app: tenure.App, job_id: str) -> None:
    wait_until(lambda: app.get(job_id).finished_at, 120)


def _enqueue(app: tenure.App, kind: str) -> Any:
    """The app's own connections were cut, too."""
    try:
        return app.enqueue(kind, "after", queue="mail", key=kind)
    except tenure.StoreUnavailable:
        return None


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, {"dbname": "jobs"}),
        ({"HOST": "db1", "PORT": "6432", "USER": "me", "PASSWORD": "p@ss:w/rd"},
         {"host": "db1", "port": "6432", "user": "me", "password": "p@ss:w/rd", "dbname": "jobs"}),
        ({"HOST": "/var/run/pg", "PORT": 5433}, {"host": "/var/run/pg", "port": "5433", "dbname": "jobs"}),
        ({"HOST": "db1,db2", "PORT": "5432,5433", "OPTIONS": {"target_session_attrs": "read-write", "pool": True}},
         {"host": "db1,db2", "port": "5432,5433", "target_session_attrs": "read-write", "dbname": "jobs"}),
        ({"HOST": "::1", "USER": "me"}, {"host": "::1", "user": "me", "dbname": "jobs"}),
        ({"NAME": "", "OPTIONS": {"service": "shop"}}, {"service": "shop"}),
    ],
)  # fmt: skip
def test_the_url_names_what_the_settings_name(given: dict[str, Any], wanted: dict[str, str]) -> None:
    """Several hosts with a port each were made one host with a strange port."""
    from tenure.integrations.django.project import _postgres_url

    settings = {"NAME": "jobs", "USER": "", "PASSWORD": "", "HOST": "", "PORT": "", "OPTIONS": {}} | given

    assert psycopg.conninfo.conninfo_to_dict(_postgres_url(settings)) == wanted


@pytest.mark.parametrize("project", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("DATABASES['default']['NAME'] = ':memory:'", "in memory, which no worker can reach"),
        ("TENURE['DATABSE'] = 'default'", "no entry 'DATABSE'. Did you mean 'DATABASE'?"),
        ("DATABASES['default'] = {'ENGINE': 'django.db.backends.dummy'}", "jobs live on SQLite or PostgreSQL"),
    ],
)
def test_settings_that_cannot_work_are_found_by_check(project: Project, change: str, sentence: str) -> None:
    with (project.folder / "project_settings.py").open("a") as settings:
        settings.write(f"{change}\n")

    done = project.manage("check")

    assert done.returncode == 1
    assert sentence in done.stderr.replace("\n", " "), done.stderr


@pytest.mark.parametrize("project", ["sqlite"], indirect=True)
def test_a_backend_without_its_app_is_found_by_check(project: Project) -> None:
    """Django 6 checks its backends only once something has imported its tasks, as views do."""
    with (project.folder / "project_settings.py").open("a") as settings:
        settings.write("INSTALLED_APPS.remove('tenure.integrations.django')\n")

    code = "import shop.tasks; from django.core.management import call_command; call_command('check')"
    done = project.manage("shell", "--command", code)

    assert done.returncode == 1
    assert "not in INSTALLED_APPS" in done.stderr.replace("\n", " "), done.stderr
