# ruff: noqa: INP001 - a script; the folder is no package
"""Make a release: check, freeze the migrations, write the version, commit, tag. Pushes nothing.

    python .ci/release.py 0.2.0 --dry-run    say what would be done, change nothing
    python .ci/release.py 0.2.0

Freezing: the first release writes the whole schema of each engine to `sql/migrations/0001_….sql`. From then on a change
of the schema is a file `sql/changes/NNNN_….sql`, which the next release turns into a migration: on PostgreSQL with all
functions behind it. A migration never changes again: databases were made by it, and their ledgers keep its hash. A
schema that was changed without such a file is refused.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
UNRELEASED: Final = "## Unreleased"
_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:(a|b|rc)(\d+))?")


class Refused(Exception):
    """A release that cannot be made. The sentence says why, and what to do."""


def main(arguments: list[str]) -> int:
    """Make the release that the arguments ask for; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("version", help="as in 0.2.0")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, change nothing")
    given = parser.parse_args(arguments)
    try:
        _check_repository(given.version)
        changes = planned(given.version)
    except Refused as refused:
        print(f"Refused: {refused}", file=sys.stderr)  # noqa: T201 - a script talks
        return 1
    for path, text in changes.items():
        if not given.dry_run:
            _put(path, text)
        said = ("write", "wrote") if text is not None else ("remove", "removed")
        print(f"{f'would {said[0]}' if given.dry_run else said[1]} {path.relative_to(ROOT)}")  # noqa: T201
    if given.dry_run:
        print(f"would commit and tag v{given.version}; nothing was changed")  # noqa: T201
        return 0
    _git("add", "--", *(str(path) for path in changes))
    _git("commit", "--quiet", "--message", f"Release {given.version}")
    _git("tag", "--annotate", f"v{given.version}", "--message", f"Tenure {given.version}")
    print(f"tagged v{given.version}. Look at it, then: git push --follow-tags")  # noqa: T201
    return 0


def planned(version: str) -> dict[Path, str | None]:
    """Every file that the release writes, with its text; None for one that it removes. Raises: Refused."""
    return {**_frozen(), **_versioned(version), **_changelog(version)}


def _put(path: Path, text: str | None) -> None:
    if text is None:
        path.unlink()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _check_repository(version: str) -> None:
    if not _VERSION.fullmatch(version):
        raise Refused(f"{version!r} is no version. Write three numbers, as in 0.2.0; or 0.2.0rc1.")
    if left := _git("status", "--porcelain").strip():
        raise Refused(f"these files are changed and not committed:\n{left}\nCommit or stash them first.")
    if _git("tag", "--list", f"v{version}").strip():
        raise Refused(f"the tag v{version} is there already. A release is made once; take the next number.")
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    if _ordered(version) < _ordered(found.group(1)):
        raise Refused(f"{version} is older than the {found.group(1)} in pyproject.toml. Take a higher number.")


def _ordered(version: str) -> tuple[int, int, int, str, int]:
    """A version as what it is compared by: a candidate comes before the release itself."""
    found = _VERSION.fullmatch(version)
    assert found is not None
    major, minor, patch, stage, number = found.groups()
    return int(major), int(minor), int(patch), stage or "z", int(number or 0)


def _frozen() -> dict[Path, str | None]:
    """The migrations to write, and the changes that they are made from. Raises: Refused (a change has none)."""
    from tenure.store.postgres import migrate as postgres
    from tenure.store.postgres.sql import schema_script
    from tenure.store.sqlite import migrate as sqlite

    store = ROOT / "src" / "tenure" / "store"
    engines = {"sqlite": (sqlite.migrations(), sqlite.script()), "postgres": (postgres.migrations(), schema_script())}
    numbers = {engine: len(migrations) for engine, (migrations, _) in engines.items()}
    if len(set(numbers.values())) > 1:
        raise Refused(f"the engines have {numbers} migrations. Give both a change of the same number.")
    writes: dict[Path, str | None] = {}
    for engine, (migrations, schema) in engines.items():
        folder = store / engine / "sql"
        frozen = {folder / "migrations" / f"{one.name}.sql": one.script for one in migrations}
        made = {path: text for path, text in frozen.items() if not path.exists()}
        kept = folder / "migrations" / "schema.sha256"
        now = sha256(schema.encode()).hexdigest()
        if not made and kept.read_text(encoding="utf-8").strip() != now:
            raise Refused(
                f"the schema of {engine} was changed since {migrations[-1].name} was released, and databases were made "
                f"by it. Write it as {(folder / 'changes').relative_to(ROOT)}/{len(migrations) + 1:04}_NAME.sql."
            )
        if made:
            writes |= made | {kept: f"{now}\n"} | dict.fromkeys((folder / "changes").glob("*.sql"))
    return writes


def _versioned(version: str) -> dict[Path, str]:
    """The files that name the version."""
    chart = ROOT / "deploy" / "helm" / "tenure"
    places = {
        ROOT / "pyproject.toml": (r'^version = ".+"$', f'version = "{version}"'),
        chart / "values.yaml": (r'^  tag: ".+"$', f'  tag: "{version}"'),
    }
    done = {path: _replaced(path, path.read_text(encoding="utf-8"), *place) for path, place in places.items()}
    about = chart / "Chart.yaml"
    text = _replaced(about, about.read_text(encoding="utf-8"), r"^version: .+$", f"version: {version}")
    return done | {about: _replaced(about, text, r'^appVersion: ".+"$', f'appVersion: "{version}"')}


def _replaced(path: Path, text: str, pattern: str, line: str) -> str:
    done, count = re.subn(pattern, line, text, flags=re.MULTILINE)
    if count != 1:
        raise Refused(f"{path.relative_to(ROOT)} has {count} lines that match {pattern!r}, and should have one.")
    return done


def _changelog(version: str) -> dict[Path, str]:
    """The changelog with what is unreleased under the new version. Raises: Refused (nothing is)."""
    path = ROOT / "CHANGELOG.md"
    text = path.read_text(encoding="utf-8")
    head, found, rest = text.partition(f"{UNRELEASED}\n")
    body = rest.partition("\n## ")[0]
    if not found or not re.search(r"^- ", body, re.MULTILINE):
        raise Refused(f"CHANGELOG.md has nothing under «{UNRELEASED}». Say there what changes for users.")
    return {path: f"{head}{UNRELEASED}\n\n## {version} ({datetime.now(UTC):%Y-%m-%d})\n{rest}"}


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
