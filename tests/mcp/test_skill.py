"""`tenure install-skill`: what it writes, shows, keeps and takes away."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tenure.cli.main import run
from tenure.cli.skill import SKILL

SKILL_FILE = ".claude/skills/tenure/SKILL.md"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def told(capsys: pytest.CaptureFixture[str]) -> object:
    return json.loads(capsys.readouterr().out)


def test_both_files_are_written_and_other_servers_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / ".mcp.json"
    config.write_text('{"mcpServers": {"other": {"command": "x"}, "tenure": {"command": "mine"}}}')

    assert run(["install-skill", "--json"]) == 2  # no terminal to ask on
    assert "mine" in config.read_text()
    assert not (tmp_path / ".claude").exists()
    capsys.readouterr()
    assert run(["install-skill", "--json", "--yes"]) == 0

    assert told(capsys) == {"changed": [SKILL_FILE, ".mcp.json"], "dry_run": False}
    assert set(json.loads(config.read_text())["mcpServers"]) == {"other", "tenure"}
    assert run(["install-skill", "--json"]) == 0
    assert told(capsys) == {"changed": [], "dry_run": False}
    assert run(["install-skill", "--json", "--yes", "--toolsets", "inspect,work"]) == 0
    assert json.loads(config.read_text())["mcpServers"]["tenure"]["args"] == ["mcp", "--toolsets", "inspect,work"]


def test_a_dry_run_shows_what_would_change_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".mcp.json").write_text('{"mcpServers": {}}\n')

    assert run(["install-skill", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert '+      "command": "tenure"' in out
    assert "+name: tenure" in out
    assert (tmp_path / ".mcp.json").read_text() == '{"mcpServers": {}}\n'
    assert not (tmp_path / ".claude").exists()


def test_remove_undoes_it_and_leaves_what_is_not_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["install-skill"]) == 0
    assert run(["install-skill", "--remove", "--json"]) == 0
    assert list(tmp_path.iterdir()) == []

    config = {"mcpServers": {"other": {"command": "x"}}, "note": "ä"}
    (tmp_path / ".mcp.json").write_text(json.dumps(config))
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / "mine.md").write_text("mine")
    assert run(["install-skill"]) == 0
    (tmp_path / SKILL_FILE).write_text(SKILL + "my own lines\n")
    capsys.readouterr()
    assert run(["install-skill", "--remove", "--json"]) == 2  # the skill file holds lines of the person's own
    assert "my own lines" in (tmp_path / SKILL_FILE).read_text()
    assert run(["install-skill", "--remove", "--yes"]) == 0

    assert json.loads((tmp_path / ".mcp.json").read_text()) == config
    assert [one.name for one in (tmp_path / ".claude").iterdir()] == ["mine.md"]
    capsys.readouterr()
    assert run(["install-skill", "--remove", "--json"]) == 0
    assert told(capsys) == {"changed": [], "dry_run": False}


@pytest.mark.parametrize("text", ["{", "[]", '{"mcpServers": 1}'])
def test_a_file_that_cannot_be_read_is_left_as_it_is(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".mcp.json").write_text(text)

    assert run(["install-skill", "--yes"]) == 2
    assert "Mend the file" in capsys.readouterr().err
    assert (tmp_path / ".mcp.json").read_text() == text
    assert not (tmp_path / ".claude").exists()
