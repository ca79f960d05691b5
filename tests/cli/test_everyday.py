"""What an operator does every day. Rows U9, U12, U14, U15, U16, U18 and U19 of what was found by trying Tenure."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import tenure
from tenure import App
from tenure.cli.ids import short_ids
from tenure.cli.options import complete_kind, complete_queue
from tenure.testing import adrain, drain, temporary_app
from tests.cli.conftest import Cli

SECONDS = 60.0


def on_terminal(
    folder: Path, width: int, *args: str, types: Callable[[str], str | None] | None = None, **more: str
) -> tuple[int, str]:
    """Run a command on a terminal of this width. `types` is asked with what was shown, and answers what to type."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    command = [str(Path(sys.executable).with_name("tenure")), *args]
    kept = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    environment = {**kept, "TERM": "xterm", "NO_COLOR": "1", **more}
    process = subprocess.Popen(
        command, cwd=folder, stdin=follower, stdout=follower, stderr=follower, env=environment, start_new_session=True
    )
    os.close(follower)
    shown, deadline = "", time.monotonic() + SECONDS
    try:
        while time.monotonic() < deadline:
            if select.select([leader], [], [], 0.1)[0]:
                try:
                    shown += os.read(leader, 65536).decode(errors="replace")
                except OSError:
                    break
            answer = types(shown) if types else None
            if answer:
                os.write(leader, answer.encode())
        return process.wait(SECONDS), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
        os.close(leader)


# --- U12: what is printed is accepted ---------------------------------------------------------------------------------


def test_states_are_accepted_as_they_are_printed(cli: Cli, app: App) -> None:
    """U12: `jobs ls --state retry_waiting` was refused although `ls` prints it."""
    app.enqueue("other")
    job = app.enqueue("work", max_attempts=3)
    (grant,) = app.claim(kinds=["work"])
    app.fail(grant, "not now", retry_after=600)

    assert [row[0] for row in cli("jobs", "ls", "--state", "retry_waiting").rows] == [job.id]
    assert cli("jobs", "cancel", "--state", "retry_waiting", "--yes").code == 0
    assert app.get(job.id).state == "cancelled"
    assert "cleaned" in cli("jobs", "ls", "--state", "claned").err


def test_a_prefix_of_an_id_is_enough(cli: Cli, app: App) -> None:
    """U12: ids had to be typed in full."""
    ids = [app.enqueue("work", n, id=f"0190000{n}-aaaa-7000-8000-000000000000").id for n in range(3)]

    assert cli("jobs", "show", "01900001", "--json").json["job"]["id"] == ids[1]
    assert cli("jobs", "explain", "01900001-aa", "--json").json["job_id"] == ids[1]
    assert cli("jobs", "cancel", "01900002-aaaa-7").code == 0
    several = cli("jobs", "show", "0190")
    none = cli("jobs", "show", "0191ffff")
    assert (several.code, none.code) == (2, 3)
    assert f"More than one job's id begins with 0190, such as {ids[2]} and {ids[1]}." in several.err
    assert "There is no job whose id begins with 0191ffff" in none.err


def test_dead_letters_and_workflows_are_found_by_a_prefix_too(cli: Cli, app: App) -> None:
    """A letter by that of its job: its own id is drawn at random."""
    job = app.enqueue("work", id="01900007-aaaa-7000-8000-000000000000")
    (grant,) = app.claim()
    app.reject(grant, "broken")
    held = app.enqueue("work", id="01900008-aaaa-7000-8000-000000000000")
    (grant,) = app.claim()
    flow = tenure.Workflow("one")
    flow.task("a", agent="default", task_type="work")
    started = app.workflows.start(flow)

    assert cli("dlq", "show", "01900007", "--json").json["dead_letter"]["job_id"] == job.id
    assert cli("dlq", "ack", "01900007-aaaa").code == 0
    assert cli("heartbeat", "01900008", "1", "--progress", "0.5").out == "ok\n"
    assert cli("complete", "01900008", "1").code == 0
    assert app.get(held.id).progress == 0.5
    assert cli("workflows", "show", started.id[:20], "--json").json["workflow"]["id"] == started.id


def test_jobs_are_listed_by_a_prefix_of_their_workflow_or_parent(cli: Cli, app: App) -> None:
    """The lists print ids cut short, and these two filters asked for a UUID in Python's words."""
    parent = app.enqueue("work", id="01900009-aaaa-7000-8000-000000000000")
    child = app.enqueue("part", parent_id=parent.id)
    flow = tenure.Workflow("one")
    flow.task("a", agent="default", task_type="task")
    started = app.workflows.start(flow)

    assert [row[0] for row in cli("jobs", "ls", "--parent", "01900009").rows] == [child.id]
    assert [row[2] for row in cli("jobs", "ls", "--workflow", started.id[:20]).rows] == ["task"]
    refused = cli("jobs", "ls", "--workflow", "nonsense")
    assert (refused.code, "'nonsense' is no id of a workflow." in refused.err) == (2, True)
    assert "'01' is no id of an approval." in cli("inbox", "show", "01").err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("jobs ls", "tenure enqueue KIND PAYLOAD"),
        ("dlq ls", "no job has failed for good"),
        ("dlq groups", "No dead letter needs a person."),
        ("workers ls", "Start one: tenure worker"),
        ("schedules ls", "app.schedule("),
        ("workflows ls", "app.workflows.start("),
        ("inbox ls", "Nothing here waits for a person."),
        ("budgets ls", "tenure budgets set tenant:7"),
        ("limits ls", "tenure limits set KEY"),
        ("limits waiting", "No due job carries a limiter."),
        ("memos ls", "`ctx.memo`"),
        ("token ls", "tenure token new ci"),
        ("usage", "No model call is recorded."),
    ],
)
def test_an_empty_list_says_what_would_fill_it(cli: Cli, url: str, command: str, said: str) -> None:
    """Most showed a heading and the word "none"."""
    cli("migrate")
    found = cli(*command.split())

    assert (found.code, found.rows) == (0, [])
    assert said in found.err
    assert " " not in found.out.strip(), "a heading in a pipe is one word"
    assert cli(*command.split(), "--json").err == ""


def test_the_audit_keeps_its_reasons_on_a_narrow_terminal(tmp_path: Path, url: str, app: App) -> None:
    """At 80 columns the reasons stood one syllable a line."""
    job = app.enqueue("work")
    app.cancel(job.id)
    app.revive(job.id, reason="the provider has mended its service")

    code, shown = on_terminal(tmp_path, 80, "audit", "ls", TENURE_URL=url)

    lines = shown.replace("\r", "").splitlines()
    assert code == 0
    assert all(len(line) <= 80 for line in lines)
    assert any("the provider" in line for line in lines)


def test_the_next_page_of_dead_letters_is_named_in_one_word(tmp_path: Path, url: str, app: App) -> None:
    """A terminal broke the cursor at the blank in it, and what was copied from there was no cursor."""
    app.enqueue_many([("work", n) for n in range(3)])
    for grant in app.claim(limit=3):
        app.reject(grant, "broken")

    code, shown = on_terminal(tmp_path, 80, "dlq", "ls", "--limit", "2", TENURE_URL=url)

    [after] = re.findall(r"--after\s+'(.*)'", shown)
    assert (code, " " in after) == (0, False)
    assert len(app.dead_letters.all(after=after).items) == 1


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("gates close queue:mial", "There is no queue 'mial'. Did you mean 'mail'?"),
        ("gates close kind:wrok", "No live job is of kind 'wrok'. Did you mean 'work'?"),
        ("jobs ls --kind wrok", "No live job is of kind 'wrok'. Did you mean 'work'?"),
        ("tail --once --queue mial", "There is no queue 'mial'. Did you mean 'mail'?"),
    ],
)
def test_a_misspelled_name_is_told(cli: Cli, app: App, command: str, said: str) -> None:
    """An operator who closed the gate of a misspelled queue was told that it is closed, and the queue worked on."""
    app.enqueue("work", queue="mail")

    found = cli(*command.split())

    assert (found.code, said in found.err) == (0, True)
    assert cli(*command.replace("mial", "mail").replace("wrok", "work").split()).err.count("Did you mean") == 0


@pytest.mark.parametrize("command", [("jobs", "ls"), ("dlq", "ls"), ("jobs", "cancel", "--yes")])
def test_a_filter_by_a_queue_that_is_not_there_says_so(cli: Cli, app: App, command: tuple[str, ...]) -> None:
    """A misspelled queue was an empty list, without a word."""
    found = cli(*command, "--queue", "mial")

    assert found.code == 0
    assert "There is no queue 'mial'. Did you mean 'mail'?" in found.err
    assert cli(*command, "--queue", "mail").err == ""


def test_a_text_that_was_not_quoted_as_json_is_shown_how(cli: Cli, url: str) -> None:
    assert """A text has quotes of its own: '"Ada"'.""" in cli("enqueue", "greet", "Ada").err


def test_a_payload_that_was_left_out_is_asked_for(cli: Cli, url: str, tmp_path: Path) -> None:
    (tmp_path / "greetings.py").write_text(
        "import tenure\napp = tenure.App('sqlite:///x.db')\n@app.job\ndef greet(name: str) -> None: ...\n"
    )

    refused = cli("enqueue", "greet", "--app", "greetings:app")

    assert refused.code == 2
    assert "No payload was given. Name it after the kind, as JSON." in refused.err


@pytest.mark.parametrize("width", [40, 80])
def test_a_sentence_is_broken_between_its_words_on_a_terminal(tmp_path: Path, url: str, app: App, width: int) -> None:
    code, shown = on_terminal(tmp_path, width, "queues", "set", "mail", "max_atempts=3", TENURE_URL=url)

    lines = shown.replace("\r", "").splitlines()
    assert code == 2
    assert len(lines) > 1
    assert max(map(len, lines)) <= width
    assert " ".join(lines) == (
        "Error [invalid_argument]: There is no queue setting 'max_atempts'. Did you mean 'max_attempts'?"
    )


def test_short_ids_tell_the_listed_ones_apart() -> None:
    one, two = "01900000-aaaa-7000-8000-000000000001", "01900000-aaaa-7000-9000-000000000001"

    assert short_ids([one, two, one]) == ["01900000-aaaa-7000-8", "01900000-aaaa-7000-9", "01900000-aaaa-7000-8"]
    assert short_ids([one]) == ["01900000-aaaa"]
    assert short_ids([]) == []


@pytest.mark.parametrize("width", [80, 160])
def test_a_list_keeps_its_columns_on_a_narrow_terminal(tmp_path: Path, url: str, app: App, width: int) -> None:
    """U12: at 80 columns the id took half of the line, and kind's neighbours were lost."""
    for n in range(3):
        app.enqueue("send_invoice", n, queue="mail", max_attempts=1)
    (grant,) = app.claim(queues=["mail"])
    app.fail(grant, "ValueError: the address is unknown")

    code, shown = on_terminal(tmp_path, width, "jobs", "ls", TENURE_URL=url)

    lines = shown.replace("\r", "").splitlines()
    assert code == 0
    assert all(len(line) <= width for line in lines)
    assert {"id", "state", "kind", "says"} <= set(lines[0].split())
    assert "ValueError: the address" in shown
    printed = re.findall(r"^[0-9a-f-]{13,}", "\n".join(lines), re.MULTILINE)
    ids = [job.id for job in app.jobs()]
    assert all(job_id.startswith(short) for job_id, short in zip(ids, printed, strict=True))
    assert (max(map(len, printed)) == 36) == (width == 160)


def test_what_agents_ask_spend_and_wait_for_fits_eighty_columns(tmp_path: Path, url: str, app: App) -> None:
    """What is asked, what is left of a budget and the rates of a key were pushed out by long names."""

    @app.job(durable=True)
    def order(ctx: tenure.Context) -> None:
        ctx.approve("refund", args={"eur": 120}, text="Pay it back to the one who complained twice?", expires=3600)

    @app.job
    def doubtful(ctx: tenure.Context) -> None:
        def do(call: tenure.EffectCall) -> None:
            raise TimeoutError

        ctx.effect("pay the supplier", do=do)

    @app.job
    def summarise(ctx: tenure.Context) -> None:
        with ctx.reserve(usd="1.00"):
            pass

    app.budgets.set("kind:summarise", usd="0.50", on_empty="escalate")
    app.budgets.set("workflow:01900000-aaaa-7000-8000-000000000000", usd="123456.50", tokens=123_456_789, per="day")
    app.limits.set("anthropic", per_minute=300, tokens_per_minute=40_000.5)
    app.limits.block("k" * 100, 3600, reason="429: too many requests of this organisation, as its dashboard says")
    jobs = [one.enqueue().id for one in (order, doubtful, summarise)]
    drain(app, raise_errors=False)
    [asked] = app.approvals.all()

    def shown(*args: str) -> list[str]:
        code, out = on_terminal(tmp_path, 80, *args, TENURE_URL=url)
        lines = out.replace("\r", "").splitlines()
        assert code == 0, out
        assert all(len(line) <= 80 for line in lines)
        return lines

    inbox, budgets, limits = shown("inbox", "ls"), shown("budgets", "ls"), shown("limits", "ls")

    assert {"id", "kind", "state", "what", "until"} <= set(inbox[0].split())  # and others, if the ids are short
    assert sum("twice?" in line for line in inbox) == 1
    names = [line.split()[0] for line in inbox[1:] if not line.startswith(" ")]
    assert "kind:summarise" in names
    assert any(jobs[1].startswith(name) for name in names)
    [short] = [name for name in names if asked.id.startswith(name)]
    assert short != asked.id
    assert any(asked.args_hash in line for line in shown("inbox", "show", short)), "what is printed is accepted"
    assert budgets[0].split() == ["scope", "per", "limit", "left", "waiting"]
    assert any("123,456,789 tokens" in line for line in budgets)
    assert limits[0].split() == ["limiter", "is", "opens", "per", "minute", "tokens", "per", "minute"]
    [anthropic] = [line.split() for line in limits if "anthropic" in line]
    assert anthropic == ["anthropic", "open", "–", "300", "40000.5"]


# --- U14: acts on many ------------------------------------------------------------------------------------------------


def test_typing_ahead_answers_no_question(tmp_path: Path, url: str, app: App) -> None:
    """U14: a "y" that was typed before the question was shown cancelled everything."""
    app.enqueue_many([("work", n) for n in range(1200)])
    typed: list[str] = []

    def types(shown: str) -> str | None:
        if not typed:
            typed.append("early")
            return "y\n"
        if "Go on? [y/N]" in shown and "late" not in typed and time.monotonic() > asked_at(shown):
            typed.append("late")
            return "n\n"
        return None

    begun: list[float] = []

    def asked_at(_: str) -> float:
        begun.append(time.monotonic())
        return begun[0] + 1.0

    code, shown = on_terminal(tmp_path, 100, "jobs", "cancel", "--kind", "work", types=types, TENURE_URL=url)

    assert "This will cancel 1,200 jobs with kind work. Go on? [y/N]" in shown
    assert (code, "Nothing was changed" in shown) == (1, True)
    assert {job.state for job in app.jobs(limit=1000)} == {"queued"}


def test_many_are_counted_without_being_read_and_acted_on_page_by_page(cli: Cli, app: App) -> None:
    """U14: all 200,005 were read before the question; now the count is one question, and reading goes with the act."""
    app.enqueue_many([("work", n) for n in range(1300)] + [("other", n) for n in range(3)])

    refused = cli("jobs", "cancel", "--kind", "work")
    done = cli("jobs", "cancel", "--kind", "work", "--yes", "--json")

    assert "This would cancel 1,300 jobs with kind work" in refused.err
    assert len(done.json["jobs"]) == 1300
    assert {(one.kind, one.state): one.jobs for one in app.queues.counts()} == {
        ("work", "cancelled"): 1300,
        ("other", "queued"): 3,
    }
    assert cli("jobs", "cancel", "--kind", "work", "--yes").code == 0


# --- U15: retention ---------------------------------------------------------------------------------------------------


def test_delete_after_deletes_what_its_queue_still_retains(cli: Cli, app: App) -> None:
    """U15: it deleted nothing unless rows had been cleaned first."""
    for n in range(3):
        app.enqueue("work", n)
    for grant in app.claim(limit=2):
        app.complete(grant)

    asked = cli("prune", "--delete-after", "0s")
    done = cli("prune", "--delete-after", "0s", "--yes", "--json")

    assert "clean 2 jobs (payload, result and error go), delete 2 jobs for good" in asked.err
    assert done.json["pruned"]["deleted"] == 2
    assert [job.state for job in app.jobs()] == ["queued"]


def test_workers_delete_rows_after_a_month_unless_told_otherwise(cli: Cli) -> None:
    """U15: by default rows were never deleted."""
    assert tenure.App("sqlite:///x.db").registry is not None
    from tenure.worker.config import WorkerConfig

    assert WorkerConfig().delete_after_seconds == 30 * 86_400
    assert "--delete-after" in cli("worker", "--help").out


# --- U16: nothing in silence ------------------------------------------------------------------------------------------


def test_a_failing_handler_fails_the_test_that_drains() -> None:
    """U16: `drain()` hid the handler's error."""
    with temporary_app() as app:

        @app.job(max_attempts=2)
        def fall(n: int) -> None:
            if n == 1:
                raise tenure.Permanent("on purpose")
            raise ValueError("not on purpose")

        fall.enqueue(1)
        drain(app)
        job = fall.enqueue(2)
        with pytest.raises(tenure.JobFailed, match=r"ended as retry_waiting.*ValueError: not on purpose") as failed:
            drain(app)
        assert any('raise ValueError("not on purpose")' in note for note in failed.value.__notes__)
        assert failed.value.job_id == job.id
        fall.enqueue(3)
        drain(app, raise_errors=False)


@pytest.mark.anyio
async def test_its_async_form_fails_too() -> None:
    with temporary_app() as app:

        @app.job
        async def fall() -> None:
            raise ValueError("not on purpose")

        await fall.aenqueue()
        with pytest.raises(tenure.JobFailed, match="not on purpose"):
            await adrain(app)
        await app.aio.close()


def test_a_moment_without_a_zone_is_refused(cli: Cli, app: App) -> None:
    """U16: it was taken as UTC in silence."""
    result = cli("enqueue", "work", "--run-at", "2030-01-31T12:00:00")

    assert result.code == 2
    assert "has no time zone, so it names no moment. Write 2030-01-31T12:00:00Z for UTC" in result.err
    assert not app.jobs().items


def test_a_worker_creates_no_queue_by_a_typing_mistake(cli: Cli, app: App, tmp_path: Path) -> None:
    """U16: `worker --queue typo` created the queue and waited."""
    (tmp_path / "shop.py").write_text(
        "import os, tenure\napp = tenure.App(os.environ['TENURE_URL'])\n@app.job(queue='bulk')\ndef work(): ...\n"
    )

    typo = cli("worker", "shop:app", "--queue", "mial", "--drain")
    known = cli("worker", "shop:app", "--queue", "mail=3", "--queue", "bulk", "--drain")

    assert typo.code == 3
    assert "There is no queue 'mial'. Did you mean 'mail'?" in typo.err
    assert known.code == 0
    assert "mial" not in {row.name for row in app.queues.all()}


@pytest.mark.postgres
def test_reading_creates_no_schema(cli: Cli, url: str, postgres_url: str) -> None:
    """U16: `jobs ls` on an empty database created the schema."""
    import psycopg

    for command in (("jobs", "ls"), ("stats",), ("queues", "ls")):
        result = cli(*command, "--url", postgres_url)
        assert result.code == 6
        assert "no schema of Tenure's yet, and reading makes none" in result.err
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT to_regnamespace('tenure')").fetchone() == (None,)


# --- U9: code and database --------------------------------------------------------------------------------------------

SHOP = """
import os, tenure
app = tenure.App(os.environ["TENURE_URL"])
app.queue("mail", max_attempts={attempts})

@app.job(queue="mail")
def work(): ...

app.schedule("tidy", job="work", every=60)
"""


def test_a_policy_changed_in_code_is_named_and_applied_on_demand(
    cli: Cli, app: App, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """U9: it was ignored without a word."""
    (tmp_path / "drifting.py").write_text(SHOP.format(attempts=9))

    worker = cli("worker", "drifting:app", "--drain")
    doctor = cli("doctor", "--app", "drifting:app", "--no-sandbox")
    check = cli("apply", "drifting:app", "--check", "--json")
    applied = cli("apply", "drifting:app")
    again = cli("apply", "drifting:app", "--check")

    assert "policy_differs" in worker.err
    assert "queue 'mail' has max_attempts=2 in the database, and the code says 9" in worker.err
    assert "queue 'mail' has max_attempts=2, and the code says 9" in doctor.out
    assert "tenure apply drifting:app" in doctor.out
    assert check.code == 1
    assert check.json["differences"] == [{"queue": "mail", "setting": "max_attempts", "in_code": 9, "in_database": 2}]
    assert (applied.code, again.code) == (0, 0)
    assert app.queues.all("mail")[0].policy.max_attempts == 9


def test_schedules_and_queues_can_be_removed(cli: Cli, app: App) -> None:
    """U9: a schedule that left the code ran for ever, and a queue stayed."""
    app.schedule("old", job="work", every=60)
    app.schedules.declare()
    app.queues.set("typo")
    app.enqueue("work", queue="mail")

    assert cli("schedules", "rm", "old").code == 0
    assert cli("schedules", "ls", "--json").json["schedules"] == []
    assert cli("queues", "rm", "typo").code == 0
    used, unknown, default = cli("queues", "rm", "mail"), cli("queues", "rm", "mial"), cli("queues", "rm", "default")
    assert (used.code, unknown.code, default.code) == (4, 3, 4)
    assert "it still has jobs, live or ended" in used.err
    assert {row.name for row in app.queues.all()} == {"default", "mail"}
    assert [one.subject for one in app.access.audit(limit=50) if one.act == "remove_queue"] == ["typo"]


# --- U18 and U19 ------------------------------------------------------------------------------------------------------


def test_the_shell_completes_queues_and_kinds(url: str, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """U18: completion knew neither."""
    app.enqueue("send_mail", queue="mail")

    assert complete_queue("m") == ["mail"]
    assert complete_kind("send") == ["send_mail"]
    monkeypatch.setenv("TENURE_URL", "sqlite:////nowhere/at/all.db")
    assert complete_queue("") == []


def test_an_error_from_before_a_success_is_not_told_as_the_end(cli: Cli, app: App) -> None:
    """U19: the old error stood beside a succeeded job."""
    app.enqueue("work")
    app.fail(app.claim()[0], "ValueError: at first", retry_after=0)
    app.complete(app.claim()[0], summary="all is well")

    (row,) = cli("jobs", "ls").rows
    assert (row[1], row[-1]) == ("succeeded", "all is well")


@pytest.mark.parametrize("command", [("complete",), ("heartbeat",), ("fail", "-e", "x"), ("release",)])
def test_an_id_that_is_not_there_is_not_found(cli: Cli, app: App, command: tuple[str, ...]) -> None:
    """U19: it was told as `lease_lost`."""
    app.migrate()
    result = cli(command[0], "01900000-0000-7000-8000-000000000000", "1", *command[1:])

    assert result.code == 3
    assert "There is no job 01900000-0000-7000-8000-000000000000" in result.err


def test_explain_names_an_effect_of_unknown_outcome_and_how_it_is_decided(cli: Cli, app: App) -> None:
    """It said that the job "waits for 'effect:ID:order'", without what that means or what helps."""

    @app.job
    def pizza(ctx: tenure.Context) -> None:
        def do(call: tenure.EffectCall) -> None:
            raise ConnectionError

        ctx.effect("order", do=do, step="lunch")

    job = pizza.enqueue()
    drain(app, raise_errors=False)

    [reason] = cli("jobs", "explain", job.id, "--json").json["reasons"]

    assert reason["code"] == "waits_for_effect"
    assert "not known whether the effect 'order' happened" in reason["sentence"]
    eval(reason["fix"].partition("  in Python")[0], {"app": app})
    assert app.get(job.id).state == "queued"


def test_explain_tells_why_a_queue_was_paused(cli: Cli, app: App) -> None:
    """U19: the reason was asked for, and never shown."""
    job = app.enqueue("work", queue="mail")
    cli("queues", "pause", "mail", "--reason", "the printer burns")

    assert ": the printer burns." in cli("jobs", "explain", job.id).out
    assert ": the printer burns\n" in cli("doctor").out


def test_explain_and_doctor_tell_why_a_gate_was_closed(cli: Cli, app: App) -> None:
    job = app.enqueue("work")
    cli("gates", "close", "kind:work", "--reason", "the printer burns")

    assert "no worker is given this job: the printer burns." in cli("jobs", "explain", job.id).out
    assert "'kind:work' is closed" in (told := cli("doctor").out)
    assert ": the printer burns\n" in told
