"""`tenure bundle` as it is typed."""

from __future__ import annotations

from pathlib import Path

from tenure import App, Context
from tenure.testing import drain
from tests.cli.conftest import Cli


def broken_job(app: App) -> str:
    app.queues.set("mail", events=True, max_attempts=1)

    @app.job(queue="mail")
    def welcome(payload: dict[str, str], ctx: Context) -> None:
        ctx.logger.info("half \x1b[31m way")
        raise RuntimeError("KeyError: 'a'\nsecond line")

    job_id = app.enqueue("welcome", {"to": "Ada", "password": "hunter2-and-more"}).id
    drain(app, raise_errors=False)
    return job_id


def test_a_job_is_written_and_opened_without_its_database(app: App, cli: Cli, tmp_path: Path) -> None:
    job_id = broken_job(app)

    written = cli("bundle", job_id)
    app.close()
    (tmp_path / "cli.db").unlink()
    opened = cli("bundle", "open", f"job-{job_id}.tenure.gz")

    assert written.code == 0
    assert f"job-{job_id}.tenure.gz" in written.out
    assert opened.code == 0
    for expected in (job_id, "second line", '"to": "Ada"', "half \\x1b[31m way", "pending", "secrets\tremoved"):
        assert expected in opened.out
    assert "hunter2" not in opened.out
    assert "\x1b" not in opened.out
    assert not (tmp_path / "cli.db").exists()


def test_the_bundle_answers_in_json_and_as_a_timeline(app: App, cli: Cli) -> None:
    job_id = broken_job(app)

    made = cli("bundle", "--out", "one.gz", job_id[:20], "--json").json
    told = cli("bundle", "open", "one.gz", "--json").json
    lines = cli("bundle", "open", "one.gz", "--timeline").rows

    assert made == {
        "file": "one.gz",
        "bytes": Path("one.gz").stat().st_size,
        "job_id": job_id,
        "is_redacted": True,
        "is_changing": False,
        "left_out": {},
    }
    assert told["bundle"]["job"]["payload"] == {"to": "Ada", "password": "[redacted]"}
    assert told["timeline"][0]["what"] == "created"
    assert [row[1] for row in lines] == [one["what"] for one in told["timeline"]]


def test_secrets_stay_only_if_asked_for(app: App, cli: Cli) -> None:
    job_id = broken_job(app)

    result = cli("bundle", job_id, "-o", "all.gz", "--with-secrets")

    assert "Keep the file to yourself" in result.err
    assert "hunter2-and-more" in cli("bundle", "open", "all.gz").out


def test_what_cannot_be_done_is_refused(app: App, cli: Cli) -> None:
    job_id = broken_job(app)
    Path("other.gz").write_bytes(b"kept")

    assert cli("bundle", job_id, "-o", "other.gz").code == 4
    assert Path("other.gz").read_bytes() == b"kept"
    assert cli("bundle", job_id, "-o", "other.gz", "--force").code == 0
    assert cli("bundle", "01890000-0000-7000-8000-000000000000").code == 3
    Path("bad.gz").write_bytes(b"no")
    refused = cli("bundle", "open", "bad.gz", "--json")
    assert refused.code == 2
    assert "bad.gz cannot be opened" in refused.error["message"]
    assert cli("bundle", "open", "none.gz").code == 2
    assert cli("bundle", "open", "other.gz", "--stream", "output").code == 3
    assert cli("bundle", "open", "other.gz", "--url", "x").code == 2


def test_the_text_of_a_stream_is_printed(app: App, cli: Cli) -> None:
    @app.job
    def talk(ctx: Context) -> None:
        stream = ctx.stream()
        stream.write("one ")
        stream.write("two\n")

    job_id = app.enqueue("talk").id
    drain(app)
    cli("bundle", job_id, "-o", "talk.gz")

    assert cli("bundle", "open", "talk.gz", "--stream", "output").out == "one two\n"
