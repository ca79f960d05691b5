"""Run the examples and the unit tests under every Python at hand, warnings as errors: `make test-pythons`.
With --django: run the tests of the Django integration on Django 6, which needs Python 3.12: `make test-django`.

Pythons are looked for on PATH and among pyenv's, and of each minor version from 3.11 to 3.14 the newest is
taken; `--python 3.12` chooses among them. Each gets an environment of its own in `.venv-pythons/`, built from the
pinned requirements and kept for the next run. The tests are spread over the processors, as in `make test`: two minutes
of processor time for each Python. What was run where is said at the end; exit 1 if anything failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / ".venv-pythons"
MINORS = (11, 12, 13, 14)
TESTS = ("tests/docs/test_examples.py", "tests/unit", "tests/client")
DJANGO_TESTS = ("tests/integrations/test_django.py", "tests/examples/test_django_tasks.py")
DJANGO_MINOR = 12
_ASK = "import json, sys; print(json.dumps([*sys.version_info[:3], sys.implementation.name, sys.version_info[3]]))"


@dataclass(frozen=True, slots=True, order=True)
class Python:
    version: tuple[int, int, int]
    path: Path

    @property
    def name(self) -> str:
        return ".".join(map(str, self.version))


def main(args: list[str]) -> int:
    """Find them, build what is missing, run, and say what happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", help="the examples and the unit tests if left out")
    parser.add_argument("--python", action="append", metavar="3.N", help="only this one; may be repeated")
    parser.add_argument("--django", action="store_true", help="only the tests of Django, on Django 6")
    parser.add_argument("--list", action="store_true", help="only say which Pythons are there")
    asked = parser.parse_args(args)
    found = newest(pythons())
    for python in found:
        sys.stdout.write(f"Python {python.name:<8} {python.path}\n")
    missing = [f"3.{minor}" for minor in MINORS if minor not in {python.version[1] for python in found}]
    if missing:
        sys.stdout.write(f"not at hand: {', '.join(missing)}\n")
    if asked.list:
        return 0
    if asked.django:
        return run_django(found, asked.tests or DJANGO_TESTS)
    if asked.python:
        found = [python for python in found if f"3.{python.version[1]}" in asked.python]
    ends = {python.name: run(python, asked.tests or TESTS) for python in found}
    for name, end in ends.items():
        sys.stdout.write(f"Python {name}: {end}\n")
    return 0 if ends and all(end == "passed" for end in ends.values()) else 1


def pythons() -> Iterator[Python]:
    """Every CPython of 3.11 or later on PATH or among pyenv's; a release, no pre-release."""
    names = [f"python3.{minor}" for minor in MINORS] + ["python3"]
    folders = [Path(folder) for folder in os.get_exec_path()]
    candidates = [Path(sys.executable), *(folder / name for folder in folders for name in names)]
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates += sorted(root.glob("versions/*/bin/python"))
    for path in dict.fromkeys(one for one in candidates if "shims" not in one.parts and one.is_file()):
        try:
            answer = subprocess.run([path, "-I", "-c", _ASK], capture_output=True, text=True, timeout=30, check=True)
            major, minor, micro, implementation, level = json.loads(answer.stdout)
        except (OSError, ValueError, subprocess.SubprocessError):
            continue
        if (major, implementation, level) == (3, "cpython", "final") and minor in MINORS:
            yield Python((major, minor, micro), path)


def newest(found: Iterator[Python]) -> list[Python]:
    """One of each minor version."""
    best: dict[int, Python] = {}
    for python in found:
        kept = best.get(python.version[1])
        if kept is None or python.version > kept.version:
            best[python.version[1]] = python
    return [best[minor] for minor in sorted(best)]


def run_django(found: list[Python], tests: Sequence[str]) -> int:
    """Run the tests of Django under the oldest Python that Django 6 takes; the exit code."""
    fit = [python for python in found if python.version[1] >= DJANGO_MINOR]
    if not fit:
        sys.stdout.write("skipped: Django 6 needs Python 3.12 or later, and none is at hand\n")
        return 0
    end = run(fit[0], tests, f"django-{fit[0].name}", "django.txt")
    sys.stdout.write(f"Django 6 on Python {fit[0].name}: {end}\n")
    return 0 if end == "passed" else 1


def run(python: Python, tests: Sequence[str], name: str = "", pinned: str = "dev.txt") -> str:
    """Build its environment, if that is not there or older than its requirements, and run the tests in it."""
    folder, requirements = ENVIRONMENTS / (name or python.name), ROOT / "requirements" / pinned
    ready = folder / ".ready"
    try:
        if not ready.exists() or ready.stat().st_mtime < requirements.stat().st_mtime:
            build(python, folder, requirements)
    except subprocess.CalledProcessError as exc:
        return f"its environment could not be built: {' '.join(map(str, exc.cmd[:6]))} …"
    command = [str(folder / "bin" / "python"), "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    spread = ["--numprocesses", "auto", "--dist", "worksteal"] if pinned == "dev.txt" else []
    command += [*spread, *tests]
    sys.stdout.write(f"--- Python {python.name}\n")
    sys.stdout.flush()
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return "passed" if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0 else "FAILED"


def build(python: Python, folder: Path, requirements: Path) -> None:
    """An environment with the pinned requirements; this tree comes by PYTHONPATH. The mark is written last."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python.path, "-m", "venv", folder], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # The pins are complete: without dependencies pip has nothing to resolve, which costs more than the installation.
    subprocess.run([*pip, "--no-deps", "-r", str(requirements)], check=True)
    if requirements.name == "dev.txt":  # its tests ask for the installed command and for the metadata
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-e", str(ROOT)], check=True)
    (folder / ".ready").touch()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
