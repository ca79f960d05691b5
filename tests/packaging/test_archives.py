"""What the wheel and the source archive hold, and that the wheel runs in an empty environment (S39, R34)."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A wheel and a source archive of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "--directory", str(folder)], cwd=ROOT, check=True)
    return {"wheel": next(folder.glob("*.whl")), "sdist": next(folder.glob("*.tar.gz"))}


def test_the_wheel_holds_the_package_and_nothing_that_runs_by_itself(archives: dict[str, Path]) -> None:
    names = zipfile.ZipFile(archives["wheel"]).namelist()

    strays = [name for name in names if not name.startswith(("tenure/", "tenure-"))]
    assert strays == []
    assert [name for name in names if name.endswith((".pth", ".pyc", ".so"))] == []
    for needed in ("tenure/py.typed", "tenure/store/sqlite/sql/schema.sql", "tenure/profiles/outbox.toml"):
        assert needed in names


def test_every_data_file_of_the_package_is_in_the_wheel(archives: dict[str, Path]) -> None:
    names = set(zipfile.ZipFile(archives["wheel"]).namelist())

    tracked = subprocess.run(["git", "ls-files", "src/tenure"], cwd=ROOT, check=True, capture_output=True, text=True)
    missing = [name for name in tracked.stdout.split() if name.removeprefix("src/") not in names]

    assert missing == []


def test_the_source_archive_holds_what_the_tests_need(archives: dict[str, Path]) -> None:
    with tarfile.open(archives["sdist"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    for needed in ("Makefile", "pyproject.toml", "requirements/dev.txt", "tests/conftest.py", "README.md", "LICENSE"):
        assert needed in names
    assert {
        "mkdocs.yml",
        "CONTRIBUTING.md",
        "requirements/docs.txt",
        ".ci/release.py",
        "deploy/grafana/tenure.json",
    } <= names
    assert not [name for name in names if name.startswith((".git/", ".venv", ".bench", ".site"))]


def test_the_core_asks_for_three_packages(archives: dict[str, Path]) -> None:
    wheel = zipfile.ZipFile(archives["wheel"])
    metadata = email.message_from_bytes(
        wheel.read(next(name for name in wheel.namelist() if name.endswith("METADATA")))
    )

    plain = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]

    assert sorted(re.split(r"[<>=,]", line)[0] for line in plain) == ["pydantic", "rich", "typer"]


@pytest.mark.slow
def test_the_wheel_runs_its_demo_in_an_environment_with_the_core_alone(
    archives: dict[str, Path], tmp_path: Path
) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    installed = subprocess.run([*pip, "-r", str(ROOT / "requirements" / "core.txt")], check=False, capture_output=True)
    if installed.returncode:
        pytest.skip("the package registry cannot be reached")
    subprocess.run([*pip, "--no-deps", str(archives["wheel"])], check=True)
    clean = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}

    begun = time.monotonic()
    done = subprocess.run(
        [python.with_name("tenure"), "demo"], cwd=tmp_path, env=clean, capture_output=True, text=True, check=False
    )
    print(f"tenure demo took {time.monotonic() - begun:.1f} s")  # a figure to read: a loaded machine decides nothing

    assert done.returncode == 0, done.stdout + done.stderr
