"""The README tells what is there: its tasks.py, its commands, its pictures and its links."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

from tenure.cli.main import COMMANDS
from tenure.cli.reference import commands
from tenure.cli.start import TASKS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_tasks_in_the_readme_are_those_that_init_writes() -> None:
    assert f"```python runnable\n{TASKS}```" in README
    assert len(TASKS.splitlines()) == 12


def test_it_is_short_and_comes_in_the_order_of_a_reader() -> None:
    assert len(README.splitlines()) < 120
    places = [
        README.index(part)
        for part in ("make demo", "overview-light-1440.png", "tenure init", "```python", "## What holds", "## How fast")
    ]
    assert places == sorted(places)
    for target in re.findall(r"^make ([a-z-]+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target


def test_every_profile_is_named_with_its_specification() -> None:
    for path in (ROOT / "src" / "tenure" / "profiles").glob("*.toml"):
        profile = tomllib.loads(path.read_text())
        if number := profile.get("specification"):
            assert f"`{profile['name']}` ([{number}](docs/specs/{number}.md))" in README, path.name


def test_its_tasks_and_commands_run_as_they_stand(tmp_path: Path) -> None:
    """`tenure init`, then the shell block line by line on the database that it makes."""
    environment = {**os.environ, "TENURE_URL": f"sqlite:///{tmp_path / 'jobs.db'}", "NO_COLOR": "1"}

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "tenure", *words],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("init")
    assert f"```python runnable\n{(tmp_path / 'tasks.py').read_text()}```" in README
    lines = re.findall(r"^tenure (.+?)(?:\s+#.*)?$", README, re.MULTILINE)
    assert [line.split()[0] for line in lines] == ["init", "dev", "enqueue", "enqueue", "jobs", "jobs", "dlq"]
    lines = lines[2:]
    ids = [run(*shlex.split(line)).split()[0] for line in lines[:2]]
    run("worker", "tasks:app", "--drain")
    told = run("jobs", "ls", "--json")
    states = {job["id"]: job["state"] for job in json.loads(told)["jobs"]}
    assert sorted(states.values()) == ["queued", "succeeded"]
    assert set(states) == set(ids)
    for line in lines[2:]:
        run(*(next(iter(states)) if word == "ID" else word for word in shlex.split(line)))


def test_every_command_that_is_named_exists() -> None:
    paths = {path for path, _ in commands()} | {"bundle"}  # `tenure bundle JOB` stands for `tenure bundle write JOB`
    pages = [ROOT / "README.md", *(ROOT / "docs" / "guides").glob("*.md"), ROOT / "docs" / "quickstart.md"]

    for page in pages:
        for line in re.findall(r"(?:^|`)tenure ([a-z][a-z-]*(?: [a-z][a-z-]*)?)", page.read_text(), re.MULTILINE):
            first, _, second = line.partition(" ")
            assert first in COMMANDS, f"{page.name}: tenure {line}"
            assert first in paths or f"{first} {second}" in paths, f"{page.name}: tenure {line}"


def test_every_picture_and_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / target).exists(), target
