"""The newsletter of examples/django_tasks: a real server and a real worker on one SQLite file."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import tenure
from tests.examples.running import EXAMPLES, ask, await_server
from tests.integrations.served import started
from tests.servers import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

PEOPLE = 25


def test_a_letter_reaches_everyone_once_and_a_refused_one_no_one(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(EXAMPLES / "django_tasks", project, ignore=shutil.ignore_patterns("__pycache__", "db.sqlite3*"))
    migrated = subprocess.run(
        [sys.executable, "manage.py", "migrate"], cwd=project, capture_output=True, text=True, check=False
    )
    assert migrated.returncode == 0, migrated.stdout + migrated.stderr
    port = free_port()
    at = f"http://127.0.0.1:{port}"
    with (
        started(["manage.py", "runserver", "--noreload", f"127.0.0.1:{port}"], project) as site,
        started(["manage.py", "tenure", "worker"], project) as worker,
        tenure.App(f"sqlite:///{project / 'db.sqlite3'}") as app,
    ):
        await_server(f"{at}/letters/1/", site)
        emails = [f"person-{number}@example.org" for number in range(PEOPLE)]
        assert ask(f"{at}/subscribers/", {"emails": emails}) == (201, {"subscribers": PEOPLE})

        status, refused = ask(f"{at}/letters/", {"subject": ""})
        assert status == 400
        assert app.get_many([refused["task"]]) == [None]

        status, sent = ask(f"{at}/letters/", {"subject": "Hello"})
        assert status == 202, site.output
        letter = f"{at}/letters/{sent['letter']}/?task={sent['task']}"
        wait_until(lambda: ask(letter)[1].get("delivered") == PEOPLE, 120)
        wait_until(lambda: all(job.state == "succeeded" for job in app.jobs(limit=100)), 60)

        assert ask(letter) == (200, {"delivered": PEOPLE, "status": "SUCCESSFUL", "recipients": PEOPLE})
        assert len(app.jobs(queue="letters", limit=100)) == PEOPLE
        assert worker.terminate() == 0, worker.output
    with sqlite3.connect(project / "db.sqlite3") as connection:
        rows = connection.execute("SELECT text, count(*) FROM letters_delivery GROUP BY text").fetchall()
    assert sorted(rows) == sorted((f"Hello, {email}!", 1) for email in emails)
