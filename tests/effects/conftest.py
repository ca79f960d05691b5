"""Places and people for the tests of effects that run real processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from tenure import App
from tenure.testing import ManualClock
from tests.conformance.engines import fresh_url

CHILDREN = Path(__file__).parent / "children"


@pytest.fixture
def store_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A fresh database: SQLite, or PostgreSQL for tests under `on_both_engines`; a test with a `clock` steers it."""
    with fresh_url(request, tmp_path_factory.mktemp("store"), is_steered="clock" in request.fixturenames) as fresh:
        yield fresh


@contextmanager
def app_at(app: App, url: str, clock: ManualClock | None = None) -> Iterator[App]:
    """The app on that database, which follows the clock."""
    is_file = url.startswith("sqlite")
    with (
        clock.steer(url) if clock is not None and not is_file else nullcontext(),
        app.pointed_at(url, clock=clock if is_file else None),
    ):
        yield app


on_both_engines = pytest.mark.parametrize(
    "store_url", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody may enter, unlike pytest's own, for children that run as somebody else."""
    folder = Path(tempfile.mkdtemp(prefix="tenure-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def workspace(place: Path) -> Path:
    folder = place / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def marker() -> Iterator[str]:
    """A word for the environment of children. Afterwards no process that bears it may be alive."""
    word = f"marker-{uuid.uuid4().hex}"
    yield word
    assert processes_with(word) == []


def processes_with(word: str) -> list[str]:
    """Living processes whose arguments or environment contain the word; zombies have neither."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:
            continue
        if word.encode() in words and folder.name != str(os.getpid()):
            found.append(f"{folder.name}: {words[:200]!r}")
    return found


def python_for_everybody() -> str | None:
    """An interpreter that an ordinary user may run, or None: a Python in root's home folder is not."""
    for path in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"):
        new_enough = "import sys; sys.exit(sys.version_info < (3, 11))"
        try:
            if os.geteuid() != 0:
                done = subprocess.run([path, "-c", new_enough], check=False)
            else:
                done = subprocess.run([path, "-c", new_enough], check=False, user=65534, group=65534, cwd="/")
        except OSError:
            continue
        if done.returncode == 0:
            return path
    return None
