"""The first hour at the command line: one's own errors, one's own log, one's own handlers, and nothing else's code.

Rows U2, U4, U6, U10, U18, V2 and V14 of what was found by trying Tenure as its users would.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

import tenure
from tenure import App
from tenure.cli import main as command_line
from tenure.cli.group import OTHER_VERBS
from tenure.cli.loading import declared_url
from tenure.cli.reference import commands
from tests.waiting import wait_until

TASKS = """
import tenure

app = tenure.App("sqlite:///jobs.db")

@app.job(queue="mail", max_attempts=7)
def greet(name: str, ctx: tenure.Context) -> str:
    ctx.logger.info("greeting %s", name)
    if name == "nobody":
        raise ValueError("there is nobody to greet")
    return f"Hello, {name}!"

@app.job(isolate=True)
def apart(n: int) -> int:
    return n + 1
"""

CANARY = """
import pathlib
pathlib.Path(__file__).with_name("EXECUTED").open("a").write(__name__ + "\\n")
raise ImportError("this is not the library")
"""


def tenure_command(*args: str) -> list[str]:
    return [str(Path(sys.executable).with_name("tenure")), *args]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TENURE_", "PYTHON"))}
    return {**kept, **more}


def run(folder: Path, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        tenure_command(*args),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(**more),
    )


@contextmanager
def started(folder: Path, *args: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    log = (folder / "log").open("w")
    process = subprocess.Popen(tenure_command(*args), cwd=folder, stderr=log, text=True, env=environment(**more))
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        finally:
            process.kill()
            log.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import tenure\napp = tenure.App('sqlite:///j.db')\n1 / 0", "ZeroDivisionError: division by zero"),
        ("def f(:\n", "SyntaxError"),
        ("import json\nimport not_there", "ModuleNotFoundError: No module named 'not_there'"),
        (
            "import tenure\napp = tenure.App('sqlite:///j.db')\napp.job(lambda: None)",
            "has no name that could be its kind",
        ),
        ("raise SystemExit('no settings')", "SystemExit: no settings"),
    ],
)
@pytest.mark.parametrize("command", [("worker", "--drain"), ("enqueue", "greet"), ("worker", "./tasks.py", "--drain")])
def test_an_error_in_the_users_module_is_shown_as_theirs(
    tmp_path: Path, code: str, says: str, command: tuple[str, ...]
) -> None:
    """U4: it was called "a fault of Tenure's", without a traceback."""
    (tmp_path / "tasks.py").write_text(code)

    done = run(tmp_path, *command)

    assert done.returncode == 2
    assert "app_not_loaded" in done.stderr
    assert says in done.stderr
    assert f'File "{tmp_path}/tasks.py", line {len(code.splitlines())}' in done.stderr
    assert "fault of Tenure" not in done.stderr
    assert "importlib" not in done.stderr


@pytest.mark.parametrize(
    "target", ["./tasks.py", "tasks.py:app", "tasks", "tasks:app", "sub/more.py:other", "sub.more:other"]
)
def test_an_app_may_be_named_by_its_file(folder: Path, target: str) -> None:
    """U4: `tenure worker ./tasks.py` was a fault of ours."""
    (folder / "sub").mkdir()
    (folder / "sub" / "more.py").write_text(TASKS.replace("app =", "other = app ="))

    done = run(folder, "worker", target, "--drain")

    assert done.returncode == 0, done.stderr


def test_enqueue_honours_the_decorator_of_the_app_in_this_folder(folder: Path) -> None:
    """U6: queue, attempts and payload type were ignored unless --app was given."""
    job_id = run(folder, "enqueue", "greet", '"Ada"').stdout.strip()
    wrong = run(folder, "enqueue", "greet", "7")
    unknown = run(folder, "enqueue", "gret", '"Ada"')
    raw = run(folder, "enqueue", "gret", "7", "--raw")

    with App(f"sqlite:///{folder}/jobs.db") as app:
        job = app.get(job_id)
        assert (job.queue, job.max_attempts) == ("mail", 7)
        assert app.get(raw.stdout.strip()).queue == "default"
    assert wrong.returncode == 2
    assert "expected str, got int" in wrong.stderr
    assert unknown.returncode == 3
    assert "no handler for kind 'gret'. Did you mean 'greet'? Use --raw" in unknown.stderr


@pytest.mark.parametrize("command", ["worker", "dev"])
def test_the_live_log_shows_what_handlers_log_and_where_they_raise(folder: Path, command: str) -> None:
    """U10: `ctx.logger.info` was not shown, and a failure had no traceback."""
    run(folder, "enqueue", "greet", '"nobody"')

    with started(folder, command):
        wait_until(lambda: "Traceback" in (folder / "log").read_text())

    log = (folder / "log").read_text()
    assert re.search(r"log +greet [-0-9a-f]{36} queue=mail attempt=1 +greeting nobody", log)
    assert re.search(
        r'retried .*ValueError: there is nobody to greet\n    Traceback.*\n      File ".*tasks.py", line 10', log
    )
    assert re.search(r"run_at=\d\d:\d\d:\d\dZ", log), "U19: microseconds were shown"
    assert [name for name in ("claimed", "started") if f" {name} " in log] == ["claimed", "started"], "M10"


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (lambda app: app.job("mail"), "Write @app.job(kind='mail'), or @app.job(queue='mail')."),
        (lambda app: app.schedule("s", "0 3 * * *", "k", tz="Europe/Berln"), "the nearest is 'Europe/Berlin'"),
        (lambda app: App(app.url.removeprefix("sqlite:///")).jobs(), "For a SQLite file write sqlite:///"),
        (lambda app: App(*[Path("jobs.db")]).jobs(), "got PosixPath. For a SQLite file write sqlite:///jobs.db"),  # type: ignore[arg-type]
    ],
)
def test_a_first_line_as_other_libraries_have_it_is_answered(
    tmp_path: Path, mistake: Callable[[App], object], said: str
) -> None:
    """`@app.job("mail")` was told to give 'mail' a `kind=`, and a Path was a TypeError of the re module."""
    with App(f"sqlite:///{tmp_path / 'jobs.db'}") as app, pytest.raises(tenure.TenureError) as refused:
        mistake(app)

    assert said in str(refused.value)


def test_dev_runs_the_app_that_the_environment_names(folder: Path) -> None:
    """TENURE_APP counted for every command but `tenure dev`, which ran the tasks.py beside it."""
    (folder / "tasks.py").rename(folder / "shop.py")
    run(folder, "enqueue", "greet", '"nobody"', TENURE_APP="shop:app")

    with started(folder, "dev", "--no-console", TENURE_APP="shop:app") as process:
        wait_until(lambda: "Traceback" in (folder / "log").read_text() or process.poll() is not None)

    assert 'shop.py", line 10' in (folder / "log").read_text()


def test_a_module_with_one_app_needs_no_name_for_it(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(TASKS.replace("app", "queue"))

    assert run(tmp_path, "worker", "shop", "--drain").returncode == 0
    assert "It has: queue." in run(tmp_path, "worker", "shop:app", "--drain").stderr


@pytest.mark.parametrize(
    ("source", "url"),
    [
        ('app = tenure.App("sqlite:///shop.db")', "sqlite:///shop.db"),
        ('from tenure import App\napp = App(url="sqlite:///shop.db", actor="me").use()', "sqlite:///shop.db"),
        ('other = tenure.App("sqlite:///other.db")\napp = tenure.App("sqlite:///shop.db")', "sqlite:///shop.db"),
        ("app = tenure.App(os.environ['URL'])", None),
        ("app = tenure.App()", None),
        ("def f(:", None),
    ],
)
def test_the_database_of_this_folder_is_read_from_its_app_without_running_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, url: str | None
) -> None:
    monkeypatch.delenv("TENURE_APP", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.py").write_text(f"{source}\nraise SystemExit('run')\n")

    assert declared_url() == url


def test_every_command_looks_at_the_database_that_the_worker_uses(folder: Path) -> None:
    """`jobs ls` looked at ./jobs.db, whatever tasks.py said; with any other name no database was named at all."""
    run(folder, "enqueue", "greet", '"old"')
    # Of another length: Python takes a compiled file for fresh by the second and the size of its source.
    (folder / "tasks.py").write_text(TASKS.replace("jobs.db", "orders.db"))
    job_id = run(folder, "enqueue", "greet", '"Ada"').stdout.strip()

    listed = run(folder, "jobs", "ls")
    named = run(folder, "jobs", "ls", "--url", "sqlite:///jobs.db")

    assert [line.split("\t")[0] for line in listed.stdout.splitlines()] == ["id", job_id], listed.stderr
    assert job_id not in named.stdout
    assert "sqlite:///orders.db, 2 kinds" in run(folder, "worker", "--drain").stderr


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_dev_leaves_no_process_behind_when_its_terminal_is_closed(folder: Path, number: signal.Signals) -> None:
    """The console's server went on for ever: it has a session of its own, which no terminal closes."""
    with started(folder, "dev") as process:
        wait_until(
            lambda: "Sign in" in (folder / "log").read_text() and "worker_started" in (folder / "log").read_text()
        )
        children = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        process.send_signal(number)
        process.wait(30)
        wait_until(lambda: not any(map(alive, children)))

    assert len(children) == 2


def test_what_one_types_first_is_answered() -> None:
    """U18: --version, -h, python -m tenure, and the command that other programs call `run`."""
    here = Path.cwd()
    version = f"tenure {tenure.__version__}\n"

    assert run(here, "--version").stdout == version
    assert "Usage" in run(here, "-h").stdout
    assert "Usage" in run(here, "jobs", "ls", "-h").stdout
    module = [sys.executable, "-m", "tenure", "--version"]
    assert subprocess.run(module, capture_output=True, text=True, check=True, env=environment()).stdout == version
    assert "Did you mean `worker`?" in run(here, "run").stderr
    assert "Did you mean `jobs revive`?" in run(here, "retry").stderr
    assert "Did you mean `rm`?" in run(here, "queues", "delete", "mail").stderr
    assert "Did you mean `show`?" in run(here, "jobs", "get", "1").stderr


def test_the_word_of_another_program_leads_to_a_command_that_is_there() -> None:
    paths = {path for path, _ in commands()}
    words = command_line.OTHER_WORDS

    assert set(words).isdisjoint(command_line.COMMANDS)
    assert set(words.values()) <= paths | {"--help", "bundle"}
    assert {verb for meant in OTHER_VERBS.values() for verb in meant} <= {path.split()[-1] for path in paths}


def password_in_arguments(process: subprocess.Popen[str], secret: str) -> tuple[int, bool]:
    children = psutil.Process(process.pid).children(recursive=True)
    return len(children), any(secret in " ".join(child.cmdline()) for child in children)


@pytest.mark.parametrize("command", [("worker", "-P", "2"), ("dev",)])
def test_no_child_shows_the_url_in_its_arguments(folder: Path, command: tuple[str, ...]) -> None:
    """V14: the password stood in `ps`. TENURE_URL is read by worker and dev, and children get it by the environment."""
    secret = f"sqlite:///{folder}/secret.db"

    with started(folder, *command, "--url", secret) as process:
        wait_until(lambda: len(psutil.Process(process.pid).children()) >= (2 if "-P" in command else 1))
        wait_until((folder / "secret.db").exists)
        count, is_shown = password_in_arguments(process, secret)
    with started(folder, *command, TENURE_URL=f"sqlite:///{folder}/other.db"):
        wait_until((folder / "other.db").exists)

    assert count
    assert not is_shown
    assert not (folder / "jobs.db").exists()


COMMANDS = [
    ("version",),
    ("--help",),
    ("migrate",),
    ("jobs", "ls"),
    ("stats",),
    ("doctor",),
    ("queues", "ls"),
    ("enqueue", "greet", '"Ada"'),
    ("enqueue", "apart", "1"),
    ("worker", "--drain"),
    ("worker", "-P", "2", "--drain"),
    ("reconcile", "tasks:app"),
    ("bench", "--quick", "--rounds", "1"),
]


def test_no_command_and_no_child_imports_from_the_current_folder(folder: Path) -> None:
    """V2: a json.py in the current folder was executed by `dev`, `worker -P`, isolated handlers, demo and bench."""
    for name in ("json", "sqlite3", "typing", "asyncio", "socket"):
        (folder / f"{name}.py").write_text(CANARY)
    url = f"sqlite:///{folder}/jobs.db"

    for command in COMMANDS:
        done = run(folder, *command, TENURE_URL=url)
        assert "this is not the library" not in done.stdout + done.stderr, command
        assert not (folder / "EXECUTED").exists(), command
    with started(folder, "dev", TENURE_URL=url), App(url) as app:
        job = app.enqueue("apart", 1)
        app.result(job.id, timeout=30)
    with App(url) as app:
        states = {job.kind: job.state for job in app.jobs()}

    assert states == {"greet": "succeeded", "apart": "succeeded"}
    assert not (folder / "EXECUTED").exists()


def test_the_module_is_started_without_an_import_from_the_current_folder(folder: Path) -> None:
    """V2: Python puts the current folder first for `-m`, and imports the package before its __main__."""
    for name in ("__future__", "enum", "json", "re", "sqlite3", "typing"):
        (folder / f"{name}.py").write_text(CANARY)

    module = [sys.executable, "-m", "tenure", "--version"]
    done = subprocess.run(module, cwd=folder, capture_output=True, text=True, check=False, env=environment())

    assert (done.stdout, done.returncode) == (f"tenure {tenure.__version__}\n", 0), done.stderr
    assert not (folder / "EXECUTED").exists()


@pytest.mark.slow
def test_the_demo_imports_nothing_from_the_current_folder(folder: Path) -> None:
    """V2: and it does not even look there: it loads no app of the user's."""
    for name in ("json", "sqlite3"):
        (folder / f"{name}.py").write_text(CANARY)

    done = run(folder, "demo")

    assert done.returncode == 0, done.stdout + done.stderr
    assert not (folder / "EXECUTED").exists()


def test_a_file_with_a_librarys_name_is_not_taken_for_the_app(folder: Path) -> None:
    (folder / "queue.py").write_text(TASKS)

    done = run(folder, "worker", "queue:app", "--drain")

    assert done.returncode == 2
    assert "queue.py in this folder was not imported, because a library has its name: rename it." in done.stderr


EMBEDDED = """
import asyncio, os, signal, sys
import tasks

async def main():
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, asked.set)
    worker = tasks.app.worker()
    working = asyncio.create_task(worker.run())
    await worker.ready.wait()
    also = asyncio.create_task(tasks.app.aio.run_worker())
    await asyncio.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(asked.wait(), 10)
    print("the signal is the program's own", not working.done(), not also.done())
    worker.stop()
    await working
    also.cancel()

asyncio.run(main())
"""


def test_a_worker_on_somebody_elses_event_loop_leaves_the_signals_alone(folder: Path) -> None:
    """U2: `await app.aio.run_worker()` took SIGTERM and SIGINT from uvicorn, which then did not stop."""
    (folder / "server.py").write_text(textwrap.dedent(EMBEDDED))

    done = subprocess.run(
        [sys.executable, "server.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=False,
    )

    assert done.stdout == "the signal is the program's own True True\n", done.stderr
