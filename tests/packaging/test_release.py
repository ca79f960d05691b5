"""The release script: a dry run that changes nothing, a release that does as it said, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.packaging.checkout import Checkout

MIGRATIONS = [
    "src/tenure/store/sqlite/sql/migrations/0001_schema.sql",
    "src/tenure/store/postgres/sql/migrations/0001_schema.sql",
]
HASHES = [
    "src/tenure/store/sqlite/sql/migrations/schema.sha256",
    "src/tenure/store/postgres/sql/migrations/schema.sha256",
]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "checkout", before_any_release=True)


def test_a_dry_run_says_what_would_be_done_and_changes_nothing(checkout: Checkout) -> None:
    before = checkout.git("rev-parse", "HEAD")

    done = checkout.release("9.8.7", "--dry-run")

    assert done.returncode == 0, done.stderr
    said = re.findall(r"^would write (.+)$", done.stdout, re.MULTILINE)
    files = ["CHANGELOG.md", "pyproject.toml", "deploy/helm/tenure/Chart.yaml", "deploy/helm/tenure/values.yaml"]
    assert sorted(said) == sorted([*MIGRATIONS, *HASHES, *files])
    assert "would commit and tag v9.8.7" in done.stdout
    assert (checkout.git("rev-parse", "HEAD"), checkout.git("status", "--porcelain")) == (before, "")
    assert checkout.git("tag") == ""


def test_a_release_freezes_the_migrations_writes_the_version_and_tags(checkout: Checkout) -> None:
    done = checkout.release("9.8.7")

    assert done.returncode == 0, done.stderr
    assert checkout.git("tag") == "v9.8.7\n"
    assert checkout.git("status", "--porcelain") == ""
    assert 'version = "9.8.7"' in (checkout.path / "pyproject.toml").read_text()
    chart = (checkout.path / "deploy/helm/tenure/Chart.yaml").read_text()
    assert "\nversion: 9.8.7\n" in chart
    assert 'appVersion: "9.8.7"' in chart
    log = (checkout.path / "CHANGELOG.md").read_text()
    assert re.search(r"^## Unreleased\n\n## 9\.8\.7 \(\d{4}-\d\d-\d\d\)\n", log, re.MULTILINE)
    for name in MIGRATIONS:
        text = (checkout.path / name).read_text()
        assert "CREATE TABLE tenure" in text
        assert "metric_total" in text


def test_a_schema_that_changed_under_a_released_number_is_refused(checkout: Checkout) -> None:
    assert checkout.release("9.8.7").returncode == 0
    checkout.change("CHANGELOG.md", r"## Unreleased\n", "## Unreleased\n\n- **New.** Something.\n")
    checkout.commit("a change without one of the schema")
    assert checkout.release("9.8.8").returncode == 0
    checkout.change("CHANGELOG.md", r"## Unreleased\n", "## Unreleased\n\n- **New.** Something.\n")
    checkout.change("src/tenure/store/sqlite/sql/schema_totals.sql", "kind TEXT NOT NULL", "kind TEXT")
    checkout.commit("a change of the schema")

    done = checkout.release("9.8.9")

    assert done.returncode == 1
    assert "the schema of sqlite was changed since 0001_schema was released" in done.stderr
    assert "src/tenure/store/sqlite/sql/changes/0002_NAME.sql" in done.stderr
    assert checkout.git("tag") == "v9.8.7\nv9.8.8\n"


@pytest.mark.parametrize(
    ("version", "spoil", "says"),
    [
        ("1.2", None, "is no version"),
        ("0.0.1", None, "is older than"),
        ("9.9.9", ("CHANGELOG.md", r"## Unreleased\n.*", "## Unreleased\n\nNothing.\n"), "nothing under"),
        ("9.9.9", ("deploy/helm/tenure/Chart.yaml", "appVersion: .*", "x: 1\n"), "should have one"),
    ],
)
def test_what_is_missing_is_named_and_nothing_is_written(
    checkout: Checkout, version: str, spoil: tuple[str, str, str] | None, says: str
) -> None:
    if spoil:
        checkout.change(*spoil)
        checkout.commit("spoilt")

    done = checkout.release(version)

    assert (done.returncode, says in done.stderr) == (1, True), done.stderr
    assert (checkout.git("tag"), checkout.git("status", "--porcelain")) == ("", "")


def test_a_tree_with_changes_and_a_tag_that_exists_are_refused(checkout: Checkout) -> None:
    checkout.git("tag", "v9.8.7")
    assert "is there already" in checkout.release("9.8.7").stderr
    (checkout.path / "CHANGELOG.md").write_text("gone")
    assert "not committed" in checkout.release("9.8.8").stderr
