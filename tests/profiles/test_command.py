"""`tenure profile`: list, show, install; what programs read of it, and what people are told when it goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tenure import App
from tenure.cli.main import run


def told(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = run(args)
    seen = capsys.readouterr()
    return code, seen.out, seen.err


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("TENURE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    return f"sqlite:///{tmp_path / 'cli.db'}"


def test_ls_without_a_database_lists_what_comes_with_tenure(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, "profile", "ls", "--json")

    profiles = json.loads(out)["profiles"]
    assert code == 0
    assert [one["name"] for one in profiles] == [profile.name for profile in App().profiles.known()]
    assert {one["installed_at"] for one in profiles} == {None}


def test_install_makes_the_database_and_ls_shows_it(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    first = told(capsys, "profile", "install", "outbox", "--url", url, "--actor", "ada", "--json")
    again = told(capsys, "profile", "install", "outbox", "--url", url, "--json")
    listed = told(capsys, "profile", "ls", "--url", url, "--json")

    assert (first[0], again[0]) == (0, 0)
    installed = {"name": "outbox", "is_new": True, "queues": ["outbox"], "adopted": [], "gates": []}
    assert json.loads(first[1]) == {"installed": installed}
    assert json.loads(again[1])["installed"]["is_new"] is False
    found = {one["name"]: one for one in json.loads(listed[1])["profiles"]}
    assert found["outbox"]["installed_at"] is not None
    assert found["outbox"]["installed_by"] != "ada"  # who brought it up to date last
    assert found["substrate"]["installed_at"] is None


def test_show_tells_words_gates_and_policy(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, "profile", "show", "substrate", "--json")
    plain = told(capsys, "profile", "show", "substrate")[1]

    profile = json.loads(out)["profile"]
    assert code == 0
    assert (profile["specification"], profile["words"]["dead"]) == ("002", "dead_letter")
    assert profile["closed_gates"] == [f"substrate.{gate}" for gate in ("master", "worker", "notify", "heartbeat")]
    assert profile["policy"]["backoff"]["cap_seconds"] == 10240
    assert "retry_waiting" in plain
    assert "shape exponential" in plain


def test_a_file_of_ones_own_is_installed_by_its_path(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "\n".join(f'{stage} = "{stage}"' for stage in ["due", "later", "retry", "waiting", "leased", "running"])
    ends = "\n".join(f'{stage} = "{stage}"' for stage in ["succeeded", "failed", "dead", "cancelled"])
    (tmp_path / "mine.toml").write_text(f'name = "mine"\n[words]\n{words}\n{ends}\n')

    code, out, _ = told(capsys, "profile", "install", "./mine.toml", "--url", url, "--json")

    assert (code, json.loads(out)["installed"]["queues"]) == (0, ["mine"])


@pytest.mark.parametrize(
    ("args", "exit_code", "code", "sentence"),
    [
        (("show", "outbx"), 3, "unknown_profile", "Did you mean 'outbox'"),
        (("install", "./gone.toml"), 3, "unknown_profile", "no profile file"),
        (("sho", "outbox"), 2, "usage", "show"),
    ],
)
def test_what_goes_wrong_is_told_with_its_exit_code(
    url: str, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], exit_code: int, code: str, sentence: str
) -> None:
    found, _, err = told(capsys, "profile", *args, "--json")

    error = json.loads(err)["error"]
    assert (found, error["code"]) == (exit_code, code)
    assert sentence in error["message"]


@pytest.mark.parametrize(
    ("engine", "has"), [("postgres", "substrate.fn_job_claim("), ("sqlite", "substrate_job_queue")]
)
def test_the_sql_of_a_profile_can_be_printed(
    url: str, capsys: pytest.CaptureFixture[str], engine: str, has: str
) -> None:
    """M16: it could not, so no one could read what an install would run."""
    code, out, _ = told(capsys, "profile", "show", "substrate", "--sql", engine)

    assert code == 0
    assert has in out
    assert out.strip() == App().profiles.script("substrate", engine).strip()
    code, _, err = told(capsys, "profile", "show", "substrate", "--sql", "oracle")
    assert code == 2
    assert "postgres, sqlite" in err


def test_an_install_on_sqlite_lists_what_is_there(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """M16: it listed functions that SQLite does not have."""
    _, out, _ = told(capsys, "profile", "install", "substrate", "--url", url)

    assert "substrate_job_queue" in out
    assert "fn_" not in out
