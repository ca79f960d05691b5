"""The real `tenure`, as a process: worker, supervision, dev, init, a shell script as worker, the demo, the start-up."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure import App
from tenure.cli.start import TASKS
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
TENURE = [sys.executable, "-m", "tenure.cli.main"]
BIN = Path(sys.executable).parent

TASKS_PY = """\
import os, time
import tenure

app = tenure.App()

@app.job
def double(n: int) -> int:
    return 2 * n

@app.job
def nap(seconds: float) -> int:
    open("napping", "w").close()
    time.sleep(seconds)
    return os.getpid()
"""


@pytest.fixture
def folder(url: str, tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS_PY)
    return tmp_path


@pytest.fixture
def started(folder: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start commands; whatever is left of them is ended."""
    running: list[subprocess.Popen[str]] = []

    def start(*args: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*TENURE, *args], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        process.communicate()


def tenure(*args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TENURE, *args], cwd=cwd, text=True, capture_output=True, check=False, timeout=60, env={**os.environ, **env}
    )


def test_a_worker_drains_the_queue_and_says_what_it_did(folder: Path, app: App) -> None:
    made = [app.enqueue("double", number).id for number in range(20)]

    done = tenure("worker", "tasks:app", "--drain", "--json", cwd=folder)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["completed"] == 20
    assert [app.get(one).result for one in made] == [2 * number for number in range(20)]
    notices = [json.loads(line) for line in done.stderr.splitlines()]
    assert sum(one["event"] == "completed" for one in notices) == 20
    assert {one["kind"] for one in notices if one["event"] == "completed"} == {"double"}


@pytest.mark.parametrize("args", [["jobs", "ls"], ["jobs", "ls", "--json"], ["stats"]])
def test_a_reader_that_leaves_ends_a_command_quietly(folder: Path, app: App, args: list[str]) -> None:
    app.enqueue("double", 1)
    with subprocess.Popen([*TENURE, *args], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None

        process.stdout.close()

        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_an_answer_that_cannot_be_written_is_no_fault_of_ours(folder: Path, app: App) -> None:
    app.enqueue("double", 1)
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(
            [*TENURE, "jobs", "ls"], cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )

    assert found.returncode == 1
    assert found.stderr.startswith("Error [output]: The answer could not be written: No space left")
    assert len(found.stderr.splitlines()) == 1


def test_a_worker_that_runs_once_leaves_the_rest(folder: Path, app: App) -> None:
    for number in range(3):
        app.enqueue("double", number)

    done = tenure("worker", "--once", cwd=folder)

    assert done.returncode == 0, done.stderr
    assert sum(one.jobs for one in app.queues.counts(state="succeeded")) == 1


def test_sigterm_ends_a_worker_in_order(folder: Path, app: App, started: Callable[..., subprocess.Popen[str]]) -> None:
    job_id = app.enqueue("nap", 0.5).id
    worker = started("worker", "--log", "json")
    wait_until((folder / "napping").exists)  # granted is not begun: what has not begun is given back

    worker.send_signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert app.get(job_id).state == "succeeded"
    assert app.workers.all() == []


def test_a_supervisor_starts_a_killed_child_again(
    folder: Path, app: App, started: Callable[..., subprocess.Popen[str]]
) -> None:
    parent = started("worker", "--processes", "2", "--log", "json")
    first = wait_until(lambda: len(found := {one.row.pid for one in app.workers.all()}) == 2 and found)
    assert parent.pid not in first

    os.kill(min(first), signal.SIGKILL)

    wait_until(lambda: len({one.row.pid for one in app.workers.all()} - {min(first)}) == 2)
    job_id = app.enqueue("nap", 0.0).id
    wait_until(lambda: app.get(job_id).state == "succeeded")
    parent.terminate()
    assert parent.wait() == 0


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("taks:app", "Did you mean 'tasks'?"),
        ("tasks:application", "It has: app"),
        ("broken:app", "No module named 'no_such_library'"),
        ("empty:app", "Make one"),
    ],
)
def test_an_app_that_cannot_be_loaded_is_told_in_a_sentence(folder: Path, target: str, says: str) -> None:
    (folder / "broken.py").write_text("import no_such_library\n")
    (folder / "empty.py").write_text("")

    done = tenure("worker", target, "--drain", cwd=folder)

    assert done.returncode == 2
    assert says in done.stderr
    assert ("Traceback" in done.stderr) == (target == "broken:app")  # of the user's own code


def test_what_tenure_refuses_while_an_app_loads_is_shown_where_the_app_asked_for_it(folder: Path) -> None:
    """A newcomer saw ten frames of ours beneath their own line."""
    (folder / "wrong.py").write_text("import tenure\n\napp = tenure.App()\napp.schedule('x', job='y', every=-1)\n")

    done = tenure("worker", "wrong:app", "--drain", cwd=folder)

    assert done.returncode == 2
    assert re.findall(r'File ".*?([^/"]+)", line (\d+)', done.stderr) == [("wrong.py", "4")]


def test_commands_that_compare_an_app_with_its_database_make_none(folder: Path) -> None:
    (folder / "fresh.py").write_text(
        "import tenure\n\napp = tenure.App('sqlite:///fresh.db')\napp.use(tenure.effects.files(root='.'))\n"
    )

    for command in (["apply", "fresh:app", "--check"], ["reconcile", "fresh:app"]):
        done = tenure(*command, cwd=folder)
        assert done.returncode == 5, done.stdout + done.stderr
        assert "There is no database file" in done.stderr
    assert not (folder / "fresh.db").exists()


def test_serve_without_its_extra_makes_no_database(folder: Path) -> None:
    (folder / "uvicorn.py").write_text("raise ImportError('as if it were not installed')\n")
    (folder / "shadow.py").write_text("import sys\nsys.path.insert(0, '.')\nfrom tenure.cli.main import main\nmain()\n")

    done = subprocess.run(
        [sys.executable, "shadow.py", "serve", "--url", "sqlite:///fresh.db"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 2
    assert "[missing_extra]" in done.stderr
    assert not (folder / "fresh.db").exists()


def test_enqueue_with_an_app_checks_the_payload(folder: Path, app: App) -> None:
    good = tenure("enqueue", "double", "21", "--app", "tasks:app", cwd=folder)
    bad = tenure("enqueue", "double", '"many"', "--app", "tasks:app", cwd=folder)

    assert good.returncode == 0, good.stderr
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "[invalid_payload]" in bad.stderr


def test_init_writes_tasks_that_run_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENURE_URL", raising=False)
    first, second = tenure("init", cwd=tmp_path), tenure("init", cwd=tmp_path)

    assert first.returncode == 0
    assert second.returncode == 4
    assert (tmp_path / "tasks.py").read_text() == TASKS
    assert len(TASKS.splitlines()) <= 12
    assert tenure("migrate", "--url", "sqlite:///jobs.db", cwd=tmp_path).returncode == 0
    made = tenure("enqueue", "greet", '"Ada"', cwd=tmp_path).stdout.strip()
    worker = tenure("worker", "--drain", cwd=tmp_path)
    shown = tenure("jobs", "show", made, "--json", cwd=tmp_path)
    assert json.loads(shown.stdout)["job"]["result"] == "Hello, Ada!", worker.stderr
    assert "attempt 1 to greet Ada" in tenure("jobs", "logs", made, cwd=tmp_path).stdout


def test_dev_starts_anew_when_a_file_is_saved(
    folder: Path, app: App, started: Callable[..., subprocess.Popen[str]]
) -> None:
    before = app.enqueue("double", 4).id
    dev = started("dev", "--log-level", "warning")  # nobody reads its stderr, which must not fill up
    wait_until(lambda: app.get(before).state == "succeeded")

    (folder / "tasks.py").write_text(TASKS_PY.replace("2 * n", "200 * n"))
    wait_until(lambda: app.enqueue("double", 1).id and _newest_result(app) == 200)

    dev.send_signal(signal.SIGINT)
    assert dev.wait() == 0
    assert dev.stderr is not None
    assert "tasks.py changed" in dev.stderr.read()
    assert app.workers.all() == []


def _newest_result(app: App) -> Any:
    done = app.jobs(state="succeeded", limit=1).items
    return done[0].result if done else None


def test_the_shell_script_of_the_guide_is_a_worker(folder: Path, app: App) -> None:
    guide = (ROOT / "docs" / "guides" / "shell-worker.md").read_text()
    script, example = re.findall(r"```sh\n(.*?)```", guide, re.DOTALL)
    (folder / "worker.sh").write_text(script)
    app.queues.set("shell", max_attempts=1)
    good = app.enqueue("count", "one two three", queue="shell").id
    bad = app.enqueue("count", {"text": 'it\'s "quoted"\tand `odd`'}, queue="shell").id

    command = 'read -r line; case $line in *odd*) printf "no: %s" "$line"; exit 1;; esac; printf %s "$line" | wc -w'
    done = subprocess.run(
        ["sh", "worker.sh", "shell", "sh", "-c", command],
        cwd=folder,
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "WAIT": "0"},
    )

    assert done.returncode == 0, done.stderr
    assert app.get(good).state == "succeeded", done.stderr
    assert app.get(good).result.strip() == "3"
    assert app.get(bad).state == "dead"
    assert 'it\'s \\"quoted\\"\\tand `odd`' in (app.get(bad).last_error or "")
    assert "sh worker.sh shell wc -w" in example


def test_a_closed_pipe_is_no_error(folder: Path, app: App) -> None:
    app.enqueue_many([("k", {"n": number}) for number in range(1000)])
    command = f"{sys.executable} -m tenure.cli.main jobs ls -n 1000 | head -n 1"

    done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=True)

    assert done.stdout.startswith("id\t")
    assert done.stderr == ""


def test_colours_are_for_terminals_that_want_them(folder: Path, app: App) -> None:
    """A pseudo-terminal: colours there, none with NO_COLOR, and never an escape in a pipe."""
    app.enqueue("k")
    typescript = [sys.executable, "-c", "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"]
    command = [*typescript, *TENURE, "jobs", "ls"]
    terminal = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    terminal.pop("NO_COLOR", None)

    coloured = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, env=terminal)
    plain = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=True, env={**terminal, "NO_COLOR": "1"}
    )

    assert "\x1b[36mqueued" in coloured.stdout
    assert "\x1b[3" not in plain.stdout
    assert "queued" in plain.stdout
    assert "\x1b" not in tenure("jobs", "ls", cwd=folder).stdout


@pytest.mark.parametrize(("answer", "state", "code"), [("y", "cancelled", 0), ("n", "queued", 1), ("", "queued", 1)])
def test_a_person_is_asked_before_many_jobs_are_touched(
    folder: Path, app: App, answer: str, state: str, code: int
) -> None:
    made = [app.enqueue("k").id for _ in range(2)]
    primary, secondary = pty.openpty()
    with subprocess.Popen(
        [*TENURE, "jobs", "cancel", "--kind", "k"], cwd=folder, stdin=secondary, stdout=secondary, stderr=secondary
    ) as process:
        os.close(secondary)
        shown = ""
        while "[y/N]" not in shown:
            shown += os.read(primary, 4096).decode()
        os.write(primary, f"{answer}\n".encode())
        process.wait(30)
    os.close(primary)

    assert "cancel 2 jobs with kind k" in shown
    assert process.returncode == code
    assert {app.get(one).state for one in made} == {state}


def test_top_is_live_and_leaves_on_q(folder: Path, app: App) -> None:
    app.queues.set("video")
    primary, secondary = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    with subprocess.Popen(
        [*TENURE, "top", "--interval", "100ms"],
        cwd=folder,
        stdin=secondary,
        stdout=secondary,
        stderr=secondary,
        env=env,
    ) as process:
        os.close(secondary)
        shown = ""
        while "video" not in shown:
            shown += os.read(primary, 65_536).decode(errors="replace")
        app.queues.set("audio")
        while "audio" not in shown:
            shown += os.read(primary, 65_536).decode(errors="replace")
        os.write(primary, b"q")
        while process.poll() is None:
            with contextlib.suppress(OSError):
                os.read(primary, 65_536)
    os.close(primary)

    assert process.returncode == 0


def test_help_is_there_at_once(folder: Path) -> None:
    """CPU time, since a busy machine is no fault of ours; wall time follows on an idle one.

    Typer imports pydantic for every command that has an option, which is most of what `version` takes.
    """
    for args, limit in ((["--help"], 0.25), (["version"], 0.5)):
        best = min(_cpu_seconds(folder, args) for _ in range(3))
        assert best < limit, f"tenure {args[0]} took {best:.3f} s of CPU"
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tenure.cli.main", "--help"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    for heavy in ("rich", "pydantic", "psycopg", "sqlite3", "asyncio", "tenure.app"):
        assert not re.search(rf"\| +{re.escape(heavy)}$", loaded, re.MULTILINE), heavy


def _cpu_seconds(folder: Path, args: list[str]) -> float:
    before = os.times()
    subprocess.run([*TENURE, *args], cwd=folder, capture_output=True, check=True)
    after = os.times()
    return (after.children_user + after.children_system) - (before.children_user + before.children_system)


def test_completion_offers_commands(folder: Path) -> None:
    env = {"_TENURE_COMPLETE": "complete_bash", "COMP_WORDS": "tenure do", "COMP_CWORD": "1"}

    done = tenure(cwd=folder, **env)

    assert "doctor" in done.stdout


@pytest.mark.slow
def test_the_demo_really_happens(tmp_path: Path) -> None:
    done = tenure("demo", "--json", cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["ok"]
    assert told["seconds"] < 60
    assert len(told["findings"]) == 8
    assert all(one["ok"] for one in told["findings"])
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.postgres
def test_the_demo_happens_on_postgresql_too(tmp_path: Path, postgres_url: str) -> None:
    from tenure.testing import drop_restart_grace

    with App(postgres_url) as app:
        app.migrate()
    drop_restart_grace(postgres_url)

    done = tenure("demo", "--url", postgres_url, cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "SIGKILL to Ann" in done.stderr
