"""Every error is one sentence with a code on stderr, nothing on stdout, and the exit code that DESIGN gives it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tenure import App
from tenure.cli.main import EXIT_CODES, run
from tests.cli.conftest import Cli
from tests.cli.test_text import NASTY

NOBODY = "01890000-0000-7000-8000-000000000000"


def _gate(app: App) -> None:
    app.gates.close("master")


def _nothing(app: App) -> None: ...


@pytest.mark.parametrize(
    ("args", "code", "word", "before"),
    [
        (["jobs", "show", NOBODY], 3, "not_found", _nothing),
        (["jobs", "show", "nonsense"], 2, "invalid_argument", _nothing),
        (["jobs", "explain", NOBODY], 3, "not_found", _nothing),
        (["jobs", "explain", "nonsense"], 2, "invalid_argument", _nothing),
        (["jobs", "cancel", NOBODY], 3, "not_found", _nothing),
        (["jobs", "revive", NOBODY], 3, "not_found", _nothing),
        (["jobs", "wait", NOBODY], 3, "not_found", _nothing),
        (["jobs", "logs", NOBODY], 3, "not_found", _nothing),
        (["jobs", "ls", "--state", "runing"], 2, "invalid_argument", _nothing),
        (["jobs", "ls", "--limit", "0"], 2, "usage", _nothing),
        (["dlq", "show", NOBODY], 3, "not_found", _nothing),
        (["dlq", "replay"], 2, "usage", _nothing),
        (["enqueue", "k", "{oops"], 2, "invalid_payload", _nothing),
        (["enqueue", "k", "@missing.json"], 2, "invalid_argument", _nothing),
        (["enqueue", "k", "--queue", "nowhere"], 3, "unknown_queue", _nothing),
        (["enqueue", "k", "--delay", "soon"], 2, "usage", _nothing),
        (["enqueue", "k", "--run-at", "soon"], 2, "usage", _nothing),
        (["enqueue", "k"], 7, "gate_closed", _gate),
        (["claim"], 7, "gate_closed", _gate),
        (["claim", "--queue", "nowhere"], 3, "unknown_queue", _nothing),
        (["complete", NOBODY, "1"], 3, "not_found", _nothing),
        (["complete", NOBODY, "one"], 2, "usage", _nothing),
        (["heartbeat", NOBODY, "1"], 3, "not_found", _nothing),
        (["queues", "resume", "nowhere"], 3, "unknown_queue", _nothing),
        (["queues", "ls", "nowhere"], 3, "unknown_queue", _nothing),
        (["tail", "--once", "--job", "nonsense"], 2, "invalid_argument", _nothing),
        (["memory", "forget"], 2, "usage", _nothing),
        (["workflows", "ls", "--state", "runing"], 2, "invalid_argument", _nothing),
        (["install-skill", "--toolsets", "inspect,wrk"], 2, "config", _nothing),
        (["token", "new", "ci", "--scope", "read:meta", "--days", "999"], 2, "usage", _nothing),
        (["gates", "open", "nowhere"], 2, "invalid_argument", _nothing),
        (["worker", "no_such_module:app"], 2, "config", _nothing),
        (["worker"], 2, "config", _nothing),
        (["dev"], 2, "config", _nothing),
        (["stats", "--url", "mysql://x"], 2, "config", _nothing),
        (["stats", "--url", "sqlite:///missing.db"], 5, "unavailable", _nothing),
        (["stats", "--url", "postgresql://nobody@127.0.0.1:1/x"], 5, "unavailable", _nothing),
        (["jobs", "lss"], 2, "usage", _nothing),
        (["sats"], 2, "usage", _nothing),
        (["--nonsense"], 2, "usage", _nothing),
    ],
)
def test_each_error_has_its_exit_code_and_its_word(
    cli: Cli, app: App, args: list[str], code: int, word: str, before: Callable[[App], None]
) -> None:
    before(app)

    plain = cli(*args)
    told = cli(*args, "--json") if args[0] not in {"dev", "--nonsense", "jobs"} or len(args) > 2 else None

    assert (plain.code, plain.out) == (code, "")
    assert f"[{word}]" in plain.err
    assert code in EXIT_CODES
    if told is not None:
        assert (told.code, told.out) == (code, "")
        assert (told.error["code"], told.error["exit_code"]) == (word, code)
        assert told.error["message"]


def test_an_ended_job_cannot_be_cancelled_nor_a_live_one_revived(cli: Cli, app: App) -> None:
    done, live = (app.enqueue("k").id for _ in range(2))
    app.complete(app.claim(limit=1)[0])

    assert cli("jobs", "cancel", done).code == 4
    assert cli("jobs", "revive", live).code == 4


def test_a_key_for_another_payload_is_refused_with_4(cli: Cli, app: App) -> None:
    cli("enqueue", "k", '{"a": 1}', "--key", "one")

    found = cli("enqueue", "k", '{"a": 2}', "--key", "one")

    assert found.code == 4
    assert "[key_conflict]" in found.err


def test_a_name_that_is_not_there_offers_the_nearest(cli: Cli, app: App) -> None:
    assert "Did you mean `jobs`?" in cli("jbos").err
    assert "Did you mean `cancel`?" in cli("jobs", "cancle", NOBODY).err
    assert "Did you mean 'running'?" in cli("jobs", "ls", "--state", "runing").err
    assert "Did you mean 'mail'?" in cli("enqueue", "k", "--queue", "mial").err
    assert "--queue" in cli("jobs", "ls", "--quee", "mail").err
    assert "Missing argument 'KEY'. See `tenure signal --help`." in cli("signal").err


def test_without_a_url_the_file_in_this_folder_is_used_or_asked_for(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TENURE_URL", raising=False)
    monkeypatch.chdir(tmp_path)

    assert cli("jobs", "ls").code == 2
    assert "TENURE_URL" in cli("jobs", "ls").err
    assert cli("enqueue", "k", "--url", "sqlite:///jobs.db").code == 0
    assert len(cli("jobs", "ls").rows) == 1


def test_reading_creates_no_file(cli: Cli, url: str, tmp_path: Path) -> None:
    for args in (["jobs", "ls"], ["stats"], ["doctor", "--no-sandbox"], ["queues", "ls"], ["claim"]):
        assert cli(*args).code == 5

    assert list(tmp_path.iterdir()) == []


def test_a_schema_that_is_behind_ends_with_6(cli: Cli, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.observe.stats.schema_versions", lambda _store: (1, 2))

    found = cli("migrate", "--check")

    assert found.code == 6
    assert "[schema_behind]" in found.err


def test_a_fault_of_our_own_is_told_as_such(cli: Cli, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object, **_options: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("tenure.client.admin.Gates.all", broken)

    found = cli("gates", "ls")

    assert (found.code, found.out) == (1, "")
    assert "[internal]" in found.err
    assert "ZeroDivisionError" in found.err
    monkeypatch.setenv("TENURE_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        run(["gates", "ls"])


def test_ctrl_c_ends_with_130(cli: Cli, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_args: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tenure.client.admin.Gates.all", interrupted)

    assert cli("gates", "ls").code == 130


def test_nothing_that_a_stranger_wrote_reaches_the_terminal_raw(cli: Cli, app: App) -> None:
    nasty = NASTY.replace("\x00", "")
    app.queues.set("loud", events=True, max_attempts=1)
    job_id = app.enqueue(
        "k", {nasty: nasty}, queue="loud", key=nasty, tenant=nasty, source_ref=nasty, concurrency_key=nasty
    ).id
    (grant,) = app.claim(queues="loud")
    app.heartbeat(grant, progress={job_id: nasty})
    app.fail(grant, f"{nasty}\nsecond {nasty}")
    app.enqueue("k", {"a": nasty}, queue="loud")
    letter = app.dead_letters.all().items[0].id
    cli("dlq", "ack", letter, "--note", nasty)

    commands = [
        ["jobs", "ls"],
        ["jobs", "show", job_id],
        ["jobs", "explain", job_id],
        ["jobs", "logs", job_id],
        ["dlq", "ls"],
        ["dlq", "show", letter],
        ["dlq", "groups", "--triage", "acknowledged"],
        ["stats"],
        ["tail", "--once"],
        ["claim", "--queue", "loud"],
        ["queues", "pause", nasty],
        ["enqueue", "k", nasty],
    ]
    for command in commands:
        for args in (command, [*command, "--json"]):
            found = cli(*args)
            for char in (found.out + found.err).replace("\n", "").replace("\t", ""):
                assert ord(char) >= 32, (args, found.out)
                assert not 127 <= ord(char) < 160, (args, found.out)
                assert char not in "\u202e\u2028", (args, found.out)
    assert json.loads(cli("jobs", "show", job_id, "--json").out)["job"]["payload"] == {nasty: nasty}
