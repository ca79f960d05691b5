"""The README tells what is there: its tasks.py, its commands, its pictures and its links."""

from __future__ import annotations

import re
from pathlib import Path

from tenure.cli.main import COMMANDS
from tenure.cli.reference import commands
from tenure.cli.start import TASKS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_tasks_in_the_readme_are_those_that_init_writes() -> None:
    assert f"```python\n{TASKS}```" in README
    assert len(TASKS.splitlines()) == 12


def test_every_command_that_is_named_exists() -> None:
    paths = {path for path, _ in commands()}
    pages = [ROOT / "README.md", *(ROOT / "docs" / "guides").glob("*.md"), ROOT / "docs" / "quickstart.md"]

    for page in pages:
        for line in re.findall(r"(?:^|`)tenure ([a-z]+(?: [a-z]+)?)", page.read_text(), re.MULTILINE):
            first, _, second = line.partition(" ")
            assert first in COMMANDS, f"{page.name}: tenure {line}"
            assert first in paths or f"{first} {second}" in paths, f"{page.name}: tenure {line}"


def test_every_picture_and_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / target).exists(), target
