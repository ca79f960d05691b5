"""`tenure move` as it is typed."""

from __future__ import annotations

from pathlib import Path

from tenure import App
from tests.cli.conftest import Cli


def test_a_dry_run_counts_and_changes_nothing(app: App, cli: Cli, tmp_path: Path, url: str) -> None:
    app.enqueue("welcome", {}, queue="mail")
    other = tmp_path / "other.db"

    result = cli("move", url, f"sqlite:///{other}", "--dry-run")

    assert result.code == 0
    assert ["job", "1"] in result.rows
    assert "Nothing was changed" in result.err
    assert not other.exists()
    app.enqueue("welcome", {}, queue="mail")


def test_a_move_tells_tables_rows_and_hashes(app: App, cli: Cli, tmp_path: Path, url: str) -> None:
    job = app.enqueue("welcome", {"user_id": 7}, queue="mail")
    other = f"sqlite:///{tmp_path / 'other.db'}"

    result = cli("move", url, other, "--json")

    assert result.code == 0
    move = result.json["move"]
    (jobs,) = [one for one in move["tables"] if one["table"] == "job"]
    assert jobs["rows"] == 1
    assert len(jobs["digest"]) == 64
    assert cli("jobs", "show", job.id, "--url", other, "--json").json["job"]["payload"] == {"user_id": 7}
    late = cli("enqueue", "welcome", "{}", "--queue", "mail", "--json")
    assert late.code == 5
    assert late.error["code"] == "moved"
    assert other in late.error["message"]


def test_what_cannot_be_moved_is_refused(app: App, cli: Cli, tmp_path: Path, url: str) -> None:
    app.enqueue("welcome", {}, queue="mail")
    filled = f"sqlite:///{tmp_path / 'filled.db'}"
    with App(filled) as other:
        other.enqueue("welcome", {})

    assert "is not empty" in cli("move", url, filled).err
    assert cli("move", url, filled).code == 4
    assert cli("move", url, filled, "--dry-run").code == 4
    assert cli("move", url).code == 2
    assert cli("move", url, url).code == 4
    assert cli("move", f"sqlite:///{tmp_path / 'none.db'}", url).code == 5
    assert not (tmp_path / "none.db").exists()
    assert cli("move", url, "mysql://host/db").code == 2
    assert cli("move", url, filled, "--reopen", "--yes").code == 2
    app.enqueue("welcome", {}, queue="mail")


def test_a_move_is_given_up(app: App, cli: Cli, tmp_path: Path, url: str) -> None:
    app.enqueue("welcome", {}, queue="mail")
    assert cli("move", "--reopen", url, "--yes").code == 4
    assert cli("move", url, f"sqlite:///{tmp_path / 'other.db'}").code == 0

    result = cli("move", "--reopen", url, "--yes")

    assert result.code == 0
    assert "other.db" in result.out
    app.enqueue("welcome", {}, queue="mail")
