"""Where an agent works: a folder per job for all its attempts, with a HOME for the tool and a fresh folder for each.

The job's folder belongs to the agent while it runs, so after the first attempt anything in it may have become a link.
The worker therefore makes new names only, beneath the open folder, and follows none; and the folder of all these
folders must be the worker's own.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import stat
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tenure.errors import ConfigError
from tenure.model.ids import JobId, Token
from tenure.sandbox.safe_path import Root

KEPT_SECONDS = 7 * 86_400.0
"""Folders of jobs that were cancelled while they waited, or ended elsewhere, are removed after this long."""

_JOB_FOLDER = re.compile(r"tenure-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Workspace:
    """The folder of one job."""

    def __init__(self, parent: Path, job_id: JobId) -> None:
        self._parent = parent.absolute()
        self.path = self._parent / f"tenure-{job_id}"
        self.home = self.path / "home"

    def fresh(self, token: Token, schema: dict[str, Any] | None) -> tuple[Path, Path | None]:
        """A new working folder for an attempt, and the file in it that holds the schema, if there is one.

        Raises: ConfigError, if the folder above could be changed by others.
        """
        _prepare(self._parent)
        with suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
            self.home.mkdir(mode=0o700)
        name = f"attempt-{token}-{secrets.token_hex(4)}"
        with Root(self.path) as root, root.folder(()) as top, top.subfolder(name) as new:
            if schema is None:
                return self.path / name, None
            with os.fdopen(new.create("output-schema.json"), "w") as file:
                json.dump(schema, file)
        return self.path / name, self.path / name / "output-schema.json"

    def has_sessions(self) -> bool:
        """Whether the tool left anything in its HOME: elsewhere, or after a clean-up, there is nothing to resume."""
        try:
            return next(self.home.iterdir(), None) is not None
        except OSError:
            return False

    def remove(self) -> None:
        """Remove it all, whatever an agent has made of it. Idempotent."""
        _remove(self.path)


def _prepare(parent: Path) -> None:
    """Make sure that the folder above is ours alone, and remove what was forgotten in it."""
    if not parent.is_dir():
        parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    found = parent.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ConfigError(
            f"The folder for agents' workspaces, {str(parent)!r}, must belong to the worker's user and be writable by "
            "no other user. Set `workspaces=` to a folder of its own."
        )
    with os.scandir(parent) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                if age > KEPT_SECONDS and _JOB_FOLDER.fullmatch(entry.name):
                    _remove(Path(entry.path))


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except (RecursionError, OSError):  # nested too deep for us, or its rights were taken away
        subprocess.run(["rm", "-rf", "--", str(folder)], check=False, timeout=600)
