"""Programs run with bounds on time and output, from threads and loops, and leave no process behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.errors import ConfigError
from tenure.sandbox import cgroups
from tenure.sandbox.policy import SandboxPolicy, offers
from tenure.sandbox.process import (
    Command,
    Ended,
    OnOutput,
    ProgramNotStarted,
    Running,
    Stream,
    clean_environment,
    run,
    run_async,
    start,
)
from tenure.sandbox.rlimits import Limits
from tests.effects.conftest import CHILDREN, processes_with
from tests.waiting import wait_until

PYTHON = str(Path(sys.executable).resolve())

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="children are kept by means of Linux")


@pytest.fixture(params=["sandboxed", "bare"])
def sandbox(request: pytest.FixtureRequest, workspace: Path) -> SandboxPolicy | None:
    if request.param == "bare":
        return None
    readable = (CHILDREN, Path(sys.base_prefix))
    return SandboxPolicy(workspace, readable=readable, allow_degraded="namespaces" in offers().missing)


class Runner:
    """Commands with the defaults of these tests."""

    def __init__(self, workspace: Path, sandbox: SandboxPolicy | None, marker: str) -> None:
        self.workspace, self.sandbox, self.marker = workspace, sandbox, marker

    def command(self, *argv: str, **changes: object) -> Command:
        settings: dict[str, object] = {
            "argv": (PYTHON, *argv),
            "cwd": self.workspace,
            "env": clean_environment(MARKER=self.marker),
            "timeout": timedelta(seconds=60),
            "grace": timedelta(seconds=30),
            "sandbox": self.sandbox,
            **changes,
        }
        return Command(**settings)  # type: ignore[arg-type]

    def hostile(self, program: str, **changes: object) -> Command:
        return self.command(str(CHILDREN / "hostile.py"), program, **changes)


@pytest.fixture
def runner(workspace: Path, sandbox: SandboxPolicy | None, marker: str) -> Runner:
    return Runner(workspace, sandbox, marker)


def when_ready(event: threading.Event) -> OnOutput:
    def hear(_: Stream, line: bytes) -> None:
        if line == b"ready":
            event.set()

    return hear


def test_a_program_runs_to_its_end_and_tells_how(runner: Runner) -> None:
    ended = run(runner.command("-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"))

    assert (ended.reason, ended.exit_code, ended.signal) == ("exited", 3, None)
    assert (ended.stdout, ended.stderr, ended.dropped_bytes) == (b"out\n", b"err\n", 0)
    assert not ended.is_success
    assert timedelta(0) < ended.user + ended.system
    assert timedelta(0) < ended.wall < timedelta(seconds=60)
    assert ended.peak_rss_bytes > 1_000_000
    assert run(runner.command("-c", "")).is_success


def test_death_by_a_signal_is_told_apart(runner: Runner) -> None:
    ended = run(runner.command("-c", "import os; os.kill(os.getpid(), 11)"))

    assert (ended.reason, ended.exit_code, ended.signal) == ("exited", None, signal.SIGSEGV)


def test_arguments_arrive_as_they_are_and_no_shell_sees_them(runner: Runner) -> None:
    nasty = ["; touch x", "$(touch x)", "`touch x`", "--dangerously-skip", "a\nb", "*", "ü\udcff", ""]

    ended = run(runner.command("-c", "import sys, json; print(json.dumps(sys.argv[1:]))", *nasty))

    assert json.loads(ended.stdout) == nasty
    assert not (runner.workspace / "x").exists()


def test_a_child_gets_the_environment_it_is_given_and_three_descriptors(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    monkeypatch.setenv("TENURE_URL", "postgresql://canary")
    monkeypatch.setenv("WANTED", "yes")
    inherited = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    code = "import os, json; print(json.dumps([dict(os.environ), os.getcwd(), [fd for fd in range(3, 64) if ok(fd)]]))"
    ok = "def ok(fd):\n try: os.fstat(fd); return True\n except OSError: return False\n"

    ended = run(runner.command("-c", f"import os\n{ok}{code}", env=clean_environment(["WANTED"], EXTRA="1")))

    os.close(inherited)
    env, cwd, descriptors = json.loads(ended.stdout)
    env.pop("LC_CTYPE", None)  # Python sets it by itself
    assert env == {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": env["LANG"], "WANTED": "yes", "EXTRA": "1"}
    assert cwd == str(runner.workspace)
    assert descriptors == []


def test_secrets_are_not_shown_with_a_command(runner: Runner) -> None:
    command = runner.command("-c", "", env={"KEY": "canary-1"}, stdin=b"canary-2")

    assert "canary" not in repr(command)


@pytest.mark.parametrize("argv", [(), ("python",), ("bin/python",), ("/bin/echo", "a\0b")])
def test_a_program_is_named_by_its_full_path(argv: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absolute path"):
        Command(argv, tmp_path, {})


@pytest.mark.parametrize("path", ["/no/such/program", "/etc/passwd", "/usr"])
def test_a_program_that_cannot_be_executed_is_an_error_with_its_name(runner: Runner, path: str) -> None:
    with pytest.raises(ProgramNotStarted, match=path):
        run(runner.command(argv=(path,)))


# Streams.


def test_ten_megabytes_go_in_and_come_out_without_a_deadlock(runner: Runner) -> None:
    content = os.urandom(1 << 20) * 10
    echo = "import shutil, sys; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)"

    ended = run(runner.command("-c", echo, stdin=content, output_bytes=16 << 20))

    assert ended.stdout == content


def test_a_program_that_does_not_read_its_input_is_no_trouble(runner: Runner) -> None:
    assert run(runner.command("-c", "print('done')", stdin=b"x" * (4 << 20))).stdout == b"done\n"
    assert run(runner.command("-c", "import os; os.close(0); print('done')", stdin=b"x" * (4 << 20))).is_success


def test_without_input_a_program_reads_the_end_at_once(runner: Runner) -> None:
    assert run(runner.command("-c", "import sys; print(repr(sys.stdin.read()))")).stdout == b"''\n"


def test_output_is_heard_while_the_program_runs(runner: Runner) -> None:
    """The program waits for a file that is only made when its first line has been heard."""
    chunks: list[tuple[str, bytes]] = []
    code = "import os, time\nprint('one', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('two')"

    def hear(stream: Stream, line: bytes) -> None:
        chunks.append((stream, line))
        (runner.workspace / "go").touch()

    assert run(runner.command("-c", code), on_line=hear).stdout == b"one\ntwo\n"
    assert chunks == [("stdout", b"one"), ("stdout", b"two")]


def test_lines_are_cut_at_their_ends_and_long_ones_in_pieces(runner: Runner) -> None:
    lines: list[tuple[str, bytes]] = []
    code = "import sys; sys.stdout.write('a\\n\\n' + 'b' * 150_000 + '\\nend'); sys.stderr.write('e')"

    run(runner.command("-c", code), on_line=lambda stream, line: lines.append((stream, line)))

    out = [line for stream, line in lines if stream == "stdout"]
    assert out[:2] == [b"a", b""]
    assert b"".join(out[2:-1]) == b"b" * 150_000
    assert max(map(len, out)) <= 131_072
    assert out[-1] == b"end"
    assert ("stderr", b"e") in lines


@pytest.mark.parametrize("program", ["flood", "both_streams"])
def test_a_flood_is_stopped_at_the_cap(runner: Runner, program: str) -> None:
    ended = run(runner.hostile(program, output_bytes=1_000_000))

    assert ended.reason == "output_limit"
    assert len(ended.stdout) + len(ended.stderr) == 1_000_000
    assert ended.dropped_bytes > 0


def test_too_much_output_is_dropped_when_the_policy_says_so(runner: Runner) -> None:
    heard = bytearray()
    code = "import sys; sys.stdout.write('x' * 3_000_000); sys.exit(4)"

    ended = run(
        runner.command("-c", code, output_bytes=1_000_000, on_excess="truncate"),
        on_output=lambda _, chunk: heard.extend(chunk),
    )

    assert (ended.reason, ended.exit_code) == ("exited", 4)
    assert (len(ended.stdout), ended.dropped_bytes, bytes(heard)) == (1_000_000, 2_000_000, ended.stdout)


def test_a_listener_that_fails_ends_the_program_and_is_what_wait_raises(runner: Runner) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("in the listener")

    with pytest.raises(ZeroDivisionError, match="in the listener"):
        run(runner.hostile("deaf_family"), on_output=fail)

    assert processes_with(runner.marker) == []


# Time.


def test_a_timeout_asks_first(runner: Runner) -> None:
    ended = run(runner.hostile("polite", timeout=timedelta(seconds=2)))

    assert (ended.reason, ended.exit_code) == ("timeout", 3)
    assert b"goodbye" in ended.stdout


def test_after_the_grace_the_deaf_are_killed(runner: Runner) -> None:
    ended = run(runner.hostile("deaf", timeout=timedelta(seconds=2), grace=timedelta(seconds=0.2)))

    assert (ended.reason, ended.exit_code, ended.signal) == ("timeout", None, signal.SIGKILL)
    assert ended.wall < timedelta(seconds=10)


def test_a_run_is_cancelled_from_another_thread(runner: Runner) -> None:
    ready = threading.Event()
    running = start(runner.hostile("polite"), on_line=when_ready(ready))
    assert ready.wait(30)
    with pytest.raises(TimeoutError):
        running.wait(0)

    threading.Thread(target=running.cancel).start()
    ended = running.wait(30)

    assert (ended.reason, ended.exit_code) == ("cancelled", 3)
    running.cancel()  # once more does no harm


def test_cancelling_at_once_does_not_wait_for_the_deaf(runner: Runner) -> None:
    ready = threading.Event()
    running = start(runner.hostile("deaf_family", grace=timedelta(minutes=10)), on_line=when_ready(ready))
    assert ready.wait(30)

    running.cancel()
    running.cancel(at_once=True)

    assert running.wait(30).reason == "cancelled"


def test_what_the_program_leaves_behind_is_killed_and_counted(runner: Runner) -> None:
    ended = run(runner.hostile("daemon"))

    assert ended.is_success
    assert ended.left_behind == 1
    assert processes_with(runner.marker) == []


def test_a_bare_program_dies_with_its_worker(workspace: Path, marker: str) -> None:
    order = {
        "bare": True,
        "workspace": str(workspace),
        "readable": [],
        "argv": [PYTHON, str(CHILDREN / "hostile.py"), "deaf_family"],
        "env": {"MARKER": marker},
    }
    worker = subprocess.Popen(
        [sys.executable, CHILDREN / "confined.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert worker.stdin
    assert worker.stderr
    worker.stdin.write(json.dumps(order))
    worker.stdin.close()
    worker.stdin = None
    assert worker.stderr.readline() == "ready\n"

    worker.kill()

    wait_until(lambda: processes_with(marker) == [])
    worker.communicate()


# Threads, loops, leftovers.


def test_many_threads_run_programs_at_once(runner: Runner) -> None:
    def one(number: int) -> Ended:
        return run(runner.command("-c", f"print({number})"))

    with ThreadPoolExecutor(6) as pool:
        ended = list(pool.map(one, range(18)))

    assert [int(e.stdout) for e in ended] == list(range(18))


def test_a_loop_awaits_a_program(runner: Runner) -> None:
    async def both() -> list[Ended]:
        commands = [runner.command("-c", f"print({number})") for number in range(2)]
        return await asyncio.gather(*(run_async(command) for command in commands))

    assert [ended.stdout for ended in asyncio.run(both())] == [b"0\n", b"1\n"]


def test_cancelling_the_task_ends_the_tree_before_it_returns(runner: Runner) -> None:
    async def cancelled() -> None:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        command = runner.hostile("deaf_family", grace=timedelta(seconds=0.2))

        def hear(*_: object) -> None:
            loop.call_soon_threadsafe(ready.set)

        task = asyncio.ensure_future(run_async(command, on_line=hear))
        await asyncio.wait_for(ready.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert processes_with(runner.marker) == []

    asyncio.run(cancelled())


def test_a_task_cancelled_while_it_starts_leaves_nothing_either(runner: Runner) -> None:
    async def cancelled() -> None:
        task = asyncio.ensure_future(run_async(runner.hostile("deaf", grace=timedelta(seconds=0.1))))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert processes_with(runner.marker) == []


def test_a_worker_that_is_gone_with_a_word_unread_takes_the_tree_along(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is killed closes its sockets before it is seen to be dead. The init was reset by that if its
    «started» was still unread, and ended without its tree: daemons lived on."""
    monkeypatch.setattr(Running, "_attend", lambda _: None)
    running = start(runner.hostile("deaf_family"))
    with running._init as init:
        assert init.stdout is not None
        assert init.stdout.readline() == b"ready\n"
        assert len(processes_with(runner.marker)) >= 3

        running._control.close()

        wait_until(lambda: processes_with(runner.marker) == [])
    running._drop_group()


def test_no_descriptor_thread_or_group_is_left(runner: Runner) -> None:
    run(runner.command("-c", ""))
    before = {path.name for path in Path("/proc/self/fd").iterdir()}
    threads = threading.active_count()

    for _ in range(3):
        run(runner.command("-c", "print('x')"))
        with pytest.raises(ProgramNotStarted):
            run(runner.command(argv=("/no/such/program",)))

    assert {path.name for path in Path("/proc/self/fd").iterdir()} <= before  # Python may have closed others' meanwhile
    wait_until(lambda: threading.active_count() <= threads)
    assert not [group for home in cgroups._homes() for group in home.glob(f"tenure-{os.getpid()}-*")]


def test_limits_ask_for_no_more_than_the_hard_limit_allows() -> None:
    code = (
        "import resource; from tenure.sandbox.rlimits import Limits\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "limits = Limits(open_files=1024).rlimits()\n"
        "assert limits[resource.RLIMIT_NOFILE] == (64, 64)\n"
        "assert limits[resource.RLIMIT_CORE] == (0, 0)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_limits_reach_the_program(runner: Runner) -> None:
    code = "import resource as r, json; print(json.dumps([r.getrlimit(n) for n in (r.RLIMIT_CORE, r.RLIMIT_FSIZE)]))"

    ended = run(runner.command("-c", code, limits=Limits(file_bytes=12345)))

    assert json.loads(ended.stdout) == [[0, 0], [12345, 12345]]
