"""The repository's own promises: help for every target, two commands to begin with, equal machines, nothing private."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

ROOT: Final = Path(__file__).parents[2]

# Paths and names of somebody's own machine have no place in a repository that everybody clones. The words are put
# together here, so that this file does not find itself.
PRIVATE: Final = re.compile(
    "|".join(
        [
            r"(?<![\w.$}/-])/" + r"work/",
            r"(?<![\w.$}-])/" + r"root/",
            r"/tmp/" + r"brief",
            r"/home/" + r"(?!user/|you/|app/|tenure/)\w+/",
            r"/Users/" + r"\w+/",
            r"/opt/" + r"(?:wheels|pypi)",
            r"(?:index-url|find-links|trusted-host)" + r"\s*[= ]",
        ]
    )
)


def test_every_target_of_the_makefile_has_help() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = next(line for line in makefile.splitlines() if line.startswith(".PHONY:")).split()[1:]

    without_help = [name for name in phony if not re.search(rf"^{name}:.*## \S", makefile, re.MULTILINE)]
    targets = re.findall(r"^([a-z][a-z-]*):(?!=)", makefile, re.MULTILINE)

    assert not without_help
    assert sorted(targets) == sorted(phony)


def test_every_target_that_runs_something_makes_its_own_set_up() -> None:
    makefile = (ROOT / "Makefile").read_text()

    rules = dict(re.findall(r"^([a-z][a-z-]*):(?!=)\s*(.*?)\s*##", makefile, re.MULTILINE))

    own = {"demo": "DEMO", "test-frameworks": "FRAMEWORKS", "docs-site": "DOCS", "sbom": "AUDIT"}
    others = {name: needs for name, needs in rules.items() if "$(STAMP)" not in needs}
    assert others == {"help": "", **{name: f"$({stamp}_STAMP)" for name, stamp in own.items()}}


def test_the_demo_installs_the_core_dependencies_and_nothing_else() -> None:
    """Every line of core.txt is a dependency of the project or of another line, at the version that is tested."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = _closure({_plain(re.split(r"[\[<>=!~; ]", line)[0]) for line in project["dependencies"]})
    core, tested = (
        {_plain(entry.partition("==")[0]): entry for entry in _pins(ROOT / "requirements" / name)}
        for name in ("core.txt", "dev.txt")
    )

    assert set(core) == wanted
    assert {name: tested.get(name) for name in core} == core


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_alone_lists_the_targets() -> None:
    listing = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True)

    for target in ("setup", "demo", "demo-postgres", "check", "test", "test-quick", "bench", "chaos"):
        assert re.search(rf"make {target}\s+\w", listing.stdout), target


def test_the_readme_opens_with_the_demo_and_the_tests() -> None:
    first_block = (ROOT / "README.md").read_text().split("```")[1]

    commands = re.findall(r"^make \w+", first_block, re.MULTILINE)

    assert commands[:2] == ["make demo", "make test"]


def test_every_requirement_is_pinned_to_one_version_and_to_its_hashes() -> None:
    files = sorted((ROOT / "requirements").glob("*.txt"))
    assert files

    for path in files:
        pinned = r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==[\w.!+]+( ; .+)?( --hash=sha256:[0-9a-f]{64})+"
        loose = [entry for entry in _pins(path) if not re.fullmatch(pinned, entry)]
        assert not loose, path.name


def test_every_dependency_is_among_the_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    pinned = {_plain(entry.partition("==")[0]) for entry in _pins(ROOT / "requirements" / "dev.txt")}

    missing = {_plain(re.split(r"[\[<>=!~; ]", line)[0]) for line in asked} - pinned - {"tenure"}

    assert not missing


def test_no_tracked_file_names_a_private_place() -> None:
    found = [
        f"{path}:{number}: {match.group()}"
        for path in _tracked()
        for number, line in enumerate(_text(ROOT / path).splitlines(), 1)
        if (match := PRIVATE.search(line))
    ]

    assert not found


@pytest.mark.parametrize(
    ("line", "is_private"),
    [
        ("cd /wo" + "rk/main", True),
        ("see /ro" + "ot/.cache", True),
        ("--extra-index" + "-url http://mirror", True),
        ("in docs/wo" + "rk/notes.md", False),
        ("https://example.com/ro" + "ot/x", False),
    ],
)
def test_a_private_place_is_recognised(line: str, is_private: bool) -> None:
    assert bool(PRIVATE.search(line)) is is_private


def _tracked() -> list[str]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git clone, so nothing is tracked")
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for path in listing.stdout.split("\0") if path and (ROOT / path).is_file()]


def _closure(names: set[str]) -> set[str]:
    """The distributions and all that they require, without extras, on this machine."""
    found: set[str] = set()
    left = set(names)
    while left:
        name = left.pop()
        found.add(name)
        needs = [Requirement(line) for line in metadata.requires(name) or ()]
        left |= {_plain(need.name) for need in needs if need.marker is None or need.marker.evaluate()} - found
    return found


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="ignore")


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pins(path: Path) -> list[str]:
    """Each requirement of a file with its hashes, on one line."""
    joined = re.sub(r"\s*\\\n\s*", " ", path.read_text())
    return [line.strip() for line in joined.splitlines() if line.strip() and not line.startswith("#")]
