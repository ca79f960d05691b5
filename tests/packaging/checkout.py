"""A repository of its own with the product's files, which a test may change and release."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Checkout:
    """A repository of its own, with the files of this one and a change to tell of.

    With `before_any_release` its migrations are not frozen yet, whatever was released here.
    """

    def __init__(self, path: Path, *, before_any_release: bool = False) -> None:
        self.path = path
        path.mkdir()
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
        wanted = ("src/", "deploy/", ".ci/", "pyproject.toml", "CHANGELOG.md")
        for name in tracked.decode().split("\0"):
            is_left_out = before_any_release and re.search(r"/sql/(migrations|changes)/", name)
            if name.startswith(wanted) and (ROOT / name).is_file() and not is_left_out:
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                (path / name).write_bytes((ROOT / name).read_bytes())
        self.change("CHANGELOG.md", r"## Unreleased\n", "## Unreleased\n\n- **New.** Something.\n")
        self.git("init", "--quiet", "--initial-branch", "main")
        self.commit("all")

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *identity, *arguments], cwd=self.path, check=True, capture_output=True, text=True)
        return done.stdout

    def commit(self, message: str) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)

    def change(self, name: str, pattern: str, text: str) -> None:
        path = self.path / name
        path.write_text(re.sub(pattern, text, path.read_text(), count=1, flags=re.MULTILINE | re.DOTALL))

    def release(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ, "PYTHONPATH": str(self.path / "src"), "PYTHONDONTWRITEBYTECODE": "1",
            "GIT_AUTHOR_NAME": "test", "GIT_AUTHOR_EMAIL": "test@example.org",
            "GIT_COMMITTER_NAME": "test", "GIT_COMMITTER_EMAIL": "test@example.org",
        }  # fmt: skip
        return subprocess.run(
            [sys.executable, str(self.path / ".ci" / "release.py"), *arguments],
            cwd=self.path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
