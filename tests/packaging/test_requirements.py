"""What is required: nothing that no code imports, ceilings where a major release may break us, and hashes."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {name: list(map(Requirement, lines)) for name, lines in PROJECT["optional-dependencies"].items()}
CORE = [Requirement(line) for line in PROJECT["dependencies"]]
PINNED = sorted((ROOT / "requirements").glob("*.txt"))

NOT_IMPORTED = {
    "python-multipart": "FastAPI reads forms with it",
    "wordllama": "its wheel holds the vectors, which are opened without its loader: that one downloads",
}
"""Requirements that another one of the same extra, or a command, needs at run time."""
NO_CEILING = {"rich": "its major numbers change with minor features; what we use has been there since 10"}


@cache
def imported() -> set[str]:
    """Every distribution that a module under src/tenure imports, also late ones."""
    modules: set[str] = set()
    for path in (ROOT / "src" / "tenure").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module.partition(".")[0])
    known = packages_distributions()
    return {canonicalize_name(one) for module in modules for one in known.get(module, ())}


def test_every_requirement_of_the_core_and_of_an_extra_is_imported() -> None:
    wanted = {canonicalize_name(one.name) for part in (CORE, *EXTRAS.values()) for one in part if one.name != "tenure"}
    wanted -= {canonicalize_name(one.name) for one in EXTRAS["dev"]} - {
        canonicalize_name(one.name) for name, part in EXTRAS.items() if name not in {"dev", "all"} for one in part
    }

    assert wanted - imported() <= set(NOT_IMPORTED)


@pytest.mark.parametrize("extra", sorted(set(EXTRAS) - {"all", "dev"}))
def test_an_extra_has_code_that_imports_it(extra: str) -> None:
    """U7: extras were declared for which there was no code."""
    wanted = {canonicalize_name(one.name) for one in EXTRAS[extra]}

    assert wanted & imported(), extra


LATE = """
import sys
from tenure import App
import tenure.cli.main

app = App("sqlite:///jobs.db")

@app.job
def hello(name: str) -> str:
    return name

job = hello.enqueue("ada")
app.run_worker(drain=True)
assert app.get(job.id).result == "ada"
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_extras_are_imported_late(tmp_path: Path) -> None:
    """U7. A job's whole life on SQLite, and the command line, import nothing of any extra, installed or not."""
    done = subprocess.run([sys.executable, "-P", "-c", LATE], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    known = packages_distributions()
    loaded = {canonicalize_name(one) for module in done.stdout.split() for one in known.get(module, ())}

    extras = {canonicalize_name(one.name) for name in set(EXTRAS) - {"all", "dev"} for one in EXTRAS[name]}
    assert loaded & extras == set()


def test_the_extra_all_is_all_extras_and_each_is_in_the_installation_page() -> None:
    (whole,) = EXTRAS["all"]
    page = (ROOT / "docs" / "operate" / "install.md").read_text()

    assert whole.extras == set(EXTRAS) - {"all", "dev"}
    for name in set(EXTRAS) - {"dev"}:
        assert f"| `{name}` |" in page, name


@pytest.mark.parametrize("extra", ["", *sorted(set(EXTRAS) - {"all", "dev"})])
def test_a_requirement_has_a_floor_and_a_ceiling(extra: str) -> None:
    for one in EXTRAS[extra] if extra else CORE:
        operators = {part.operator for part in one.specifier}
        assert ">=" in operators, one
        assert "<" in operators or one.name in NO_CEILING, one


@pytest.mark.parametrize("path", PINNED, ids=lambda path: path.name)
def test_every_pinned_requirement_has_hashes_and_names_no_index(path: Path) -> None:
    text = path.read_text()
    entries = re.split(r"\n(?=[^\s#])", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).strip())

    assert len(entries) > 3
    for entry in entries:
        assert re.match(r"[A-Za-z0-9._-]+(\[[\w,-]+\])?==[^\s\\]+", entry), entry[:80]
        assert "--hash=sha256:" in entry, entry[:80]
    assert "index-url" not in text
    assert "://" not in text


PINS = {
    "core.txt": [""],
    "image.txt": ["", "postgres", "web", "cron"],
    "dev.txt": ["", "dev", *sorted(set(EXTRAS) - {"dev", "all"})],
}


@pytest.mark.parametrize(("pinned", "parts"), PINS.items())
def test_what_is_pinned_fits_what_is_asked_for(pinned: str, parts: list[str]) -> None:
    text = (ROOT / "requirements" / pinned).read_text()
    versions = {
        canonicalize_name(name): version
        for name, version in re.findall(r"^([A-Za-z0-9._-]+)(?:\[[\w,-]+\])?==([^\s\\;]+)", text, re.MULTILINE)
    }

    for part in parts:
        for one in EXTRAS[part] if part else CORE:
            if one.name != "tenure":
                assert versions[canonicalize_name(one.name)] in one.specifier, one
