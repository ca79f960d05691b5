"""Every way out that a hostile program tries is shut, in each kind of world; and without walls nothing starts."""

from __future__ import annotations

import ast
import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tenure.sandbox import landlock, linux, seccomp
from tenure.sandbox.policy import (
    SandboxOffer,
    SandboxPolicy,
    SandboxUnavailable,
    _offers,
    hand_over,
    not_bounded,
    offers,
    plan,
)
from tenure.sandbox.process import Command, run
from tenure.sandbox.process_tree import disk_of
from tenure.sandbox.safe_path import PathEscape
from tests.effects.conftest import CHILDREN, processes_with, python_for_everybody
from tests.waiting import wait_until

COLUMN = {"x86_64": 0, "aarch64": 1}.get(linux.machine())
UNSHARE = [272, 97][COLUMN or 0]
LANDLOCK = [444]
SECCOMP = [317, 277][COLUMN or 0]
ORDINARY_USER = 12345

pytestmark = pytest.mark.skipif(sys.platform != "linux" or COLUMN is None, reason="the walls are made of Linux")


def names_of_attempts(decorator: str) -> list[str]:
    """Read from the script, not imported: it reads its arguments when imported."""
    tree = ast.parse((CHILDREN / "escapes.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [f.name for f in functions if any(isinstance(d, ast.Name) and d.id == decorator for d in f.decorator_list)]


ESCAPES = names_of_attempts("attempt")
HARMLESS = [  # what may be done for real on the machine that runs the tests
    "write_ssh_key",
    "read_database",
    "list_outside",
    "read_through_a_link",
    "hard_link_a_file_in",
    "connect_tcp",
    "listen_tcp",
    "send_udp",
    "connect_unix_socket",
    "connect_abstract_socket",
    "read_the_workers_environ",
    "read_environments",
    "open_the_workers_files",
    "signal_the_worker",
]
ALLOWED = names_of_attempts("may")


@dataclass(frozen=True)
class World:
    """A worker and a machine: who it is and which system calls its container refuses."""

    name: str
    user: int | None = None
    deny: tuple[int, ...] = ()
    bare: bool = False

    def run(self, workspace: Path, argv: list[str], **order: object) -> dict[str, Any]:
        proc = self.start(workspace, argv, **order)
        out, err = proc.communicate()
        assert proc.returncode == 0, err
        answer: dict[str, Any] = json.loads(out)
        return answer

    def start(self, workspace: Path, argv: list[str], **order: object) -> subprocess.Popen[str]:
        python = python_for_everybody() if self.user or self.deny or order.get("deny") else sys.executable
        if python is None:
            pytest.skip("no Python here that an ordinary user may run")
        real = Path(python).resolve()
        if self.user:
            os.chown(workspace, self.user, self.user)
        full = {
            "user": self.user,
            "deny": self.deny,
            "allow_degraded": bool(self.deny),
            "bare": self.bare,
            "workspace": str(workspace),
            "readable": [str(CHILDREN), str(real.parent.parent)],
            "argv": [str(real), *argv],
            **order,
        }
        proc = subprocess.Popen(
            [python, str(CHILDREN / "confined.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"CANARY": "canary-in-the-worker", "PATH": os.environ["PATH"]},
        )
        assert proc.stdin
        proc.stdin.write(json.dumps(full))
        proc.stdin.close()
        proc.stdin = None
        return proc


AS_WE_ARE = World("as we are")
ORDINARY = World("ordinary user", user=ORDINARY_USER)
CONTAINER = World("no namespaces", deny=(UNSHARE,))
CONTAINER_OF_USER = World("ordinary user, no namespaces", user=ORDINARY_USER, deny=(UNSHARE,))
BARE = World("no sandbox", user=ORDINARY_USER if os.geteuid() == 0 else None, bare=True)
WORLDS = [AS_WE_ARE, ORDINARY, CONTAINER, CONTAINER_OF_USER]


@pytest.fixture(params=WORLDS, ids=lambda world: world.name)
def world(request: pytest.FixtureRequest) -> World:
    found: World = request.param
    if found.user and os.geteuid() != 0:
        pytest.skip("we are an ordinary user already: the first world shows it")
    return found


# The escape suite.


@pytest.fixture(scope="module")
def outside() -> Iterator[tuple[Path, int, str]]:
    """What lies outside the sandbox and is open to everybody: files, a TCP port, sockets with and without a file."""
    folder = Path(tempfile.mkdtemp(prefix="tenure-outside-"))
    (folder / "home/.ssh").mkdir(parents=True)
    (folder / "jobs.db").write_text("the database")
    abstract = f"tenure-{uuid.uuid4().hex}"
    tcp, pg, hidden = (
        socket.create_server(("127.0.0.1", 0)),
        socket.socket(socket.AF_UNIX),
        socket.socket(socket.AF_UNIX),
    )
    pg.bind(str(folder / "pg.sock"))
    hidden.bind(f"\0{abstract}")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o777)
    servers = [tcp, pg, hidden]
    for server in servers:
        server.listen()
        threading.Thread(target=_greet, args=(server,), daemon=True).start()
    yield folder, tcp.getsockname()[1], abstract
    for server in servers:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
    shutil.rmtree(folder)


def _greet(server: socket.socket) -> None:
    while True:
        try:
            client, _ = server.accept()
        except OSError:
            return
        with client:
            client.sendall(b"hello")


@pytest.fixture(scope="module")
def reports(outside: tuple[Path, int, str]) -> dict[str, dict[str, Any]]:
    """What the hostile program achieved in each world; each world is tried once."""
    return {}


def report_of(
    world: World, reports: dict[str, dict[str, Any]], outside: tuple[Path, int, str], **order: object
) -> dict[str, dict[str, Any]]:
    key = world.name + json.dumps(order)
    if key not in reports:
        folder = Path(tempfile.mkdtemp(prefix="tenure-work-"))
        try:
            argv = [str(CHILDREN / "escapes.py"), ",".join(HARMLESS if world.bare else ESCAPES), *map(str, outside)]
            answer = world.run(folder, argv, tell_pid=True, **order)
        finally:
            shutil.rmtree(folder)
        assert answer.get("exit_code") == 0, answer
        reports[key] = json.loads(answer["stdout"])
    return reports[key]


@pytest.mark.parametrize("attempt", ESCAPES)
def test_the_way_out_is_shut(
    world: World, attempt: str, reports: dict[str, dict[str, Any]], outside: tuple[Path, int, str]
) -> None:
    went = report_of(world, reports, outside)[attempt]

    assert not went["done"], went


@pytest.mark.parametrize("deed", ALLOWED)
def test_ordinary_work_is_possible(
    world: World, deed: str, reports: dict[str, dict[str, Any]], outside: tuple[Path, int, str]
) -> None:
    went = report_of(world, reports, outside)[deed]

    assert went["done"], went


def test_nothing_outside_was_changed(
    world: World, reports: dict[str, dict[str, Any]], outside: tuple[Path, int, str]
) -> None:
    report_of(world, reports, outside)

    assert not (outside[0] / "home/.ssh/authorized_keys").exists()
    assert (outside[0] / "jobs.db").stat().st_nlink == 1
    assert not Path("/usr/tenure-escape").exists()
    assert not (Path(pwd.getpwuid(0).pw_dir) / ".ssh/tenure-escape").exists()


def test_without_walls_the_same_program_gets_out(
    reports: dict[str, dict[str, Any]], outside: tuple[Path, int, str]
) -> None:
    """The proof that the suite can fail: what is open to everybody is reached when nothing is in the way."""
    report = report_of(BARE, reports, outside)
    (outside[0] / "home/.ssh/authorized_keys").unlink()

    for attempt in HARMLESS:
        assert report[attempt]["done"], (attempt, report[attempt])


def test_the_network_is_open_only_when_the_policy_says_so(
    world: World, reports: dict[str, dict[str, Any]], outside: tuple[Path, int, str]
) -> None:
    report = report_of(world, reports, outside, network="host", all_ports=True)

    assert report["connect_tcp"]["done"], report["connect_tcp"]
    assert not any(report[name]["done"] for name in ("connect_unix_socket", "connect_abstract_socket", "read_database"))


@pytest.mark.parametrize("is_listed", [True, False], ids=["listed", "https only"])
def test_v20_an_agent_on_the_workers_network_reaches_its_ports_only(
    world: World, workspace: Path, outside: tuple[Path, int, str], is_listed: bool
) -> None:
    """V20: with network="host" every service on the machine was reached: databases, and the metadata address."""
    port = outside[1]
    order = {"connect_ports": [port]} if is_listed else {}
    connect = f"import socket; print(socket.create_connection(('127.0.0.1', {port}), 5).recv(5))"
    listen = "import socket; socket.create_server(('127.0.0.1', 0))"

    reached = world.run(workspace, ["-c", connect], network="host", **order)
    listened = world.run(workspace, ["-c", listen], network="host", **order)

    assert (reached["exit_code"] == 0) == is_listed, reached
    assert ("PermissionError" in reached["stderr"]) != is_listed, reached
    assert "PermissionError" in listened["stderr"]


BYPASSES = {  # each reached the port on a kernel that bounds `connect`
    "mptcp": "s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262); s.connect(to)",
    "fast open by sendto": "s = socket.socket(); s.sendto(b'x', 0x20000000, to)",
    "fast open by sendmsg": "s = socket.socket(); s.sendmsg([b'x'], [], 0x20000000, to)",
}


@pytest.mark.parametrize("way", BYPASSES)
def test_v20_no_other_way_to_connect_passes_the_list_of_ports(
    workspace: Path, outside: tuple[Path, int, str], way: str
) -> None:
    """V20: Landlock looks at `connect` on TCP sockets only, so MPTCP and a send that connects are refused."""
    program = f"import socket; to = ('127.0.0.1', {outside[1]}); {BYPASSES[way]}; print(s.recv(5))"

    answer = AS_WE_ARE.run(workspace, ["-c", program], network="host", allow_degraded=True)

    assert answer["exit_code"] == 1, answer
    assert "not supported" in answer["stderr"], answer


def test_v20_without_a_kernel_that_bounds_ports_nothing_is_run(workspace: Path) -> None:
    """V20: a list of ports that can't hold fails closed, unless the operator accepts less in so many words."""
    old = replace(offers(), layers=frozenset({"landlock", "seccomp"}), landlock_abi=3)
    policy = SandboxPolicy(workspace, network="host", require=frozenset())

    with pytest.raises(SandboxUnavailable, match="ports"):
        plan(policy, old)
    with pytest.raises(SandboxUnavailable, match="ports"):
        plan(policy, replace(old, layers=frozenset({"landlock"}), landlock_abi=7))
    assert plan(replace(policy, allow_degraded=True), old).spec["connect_ports"] is None
    assert plan(replace(policy, connect_ports=None), old).spec["connect_ports"] is None
    assert any("network" in line for line in not_bounded(old))


MEMORY_WITHOUT_A_PROCESS = {
    "memfd_create": "import os; os.memfd_create('x')",
    "memfd_secret": "check(447, 0)",
    "shmget": "check({'x86_64': 29}.get(machine, 194), 0, 4096, 0o1600)",
    "mq_open": "check({'x86_64': 240}.get(machine, 180), b'/x', 0o100, 0o600, None)",
}
CHECK = """
import ctypes, os, platform
machine = platform.machine()
libc = ctypes.CDLL(None, use_errno=True)
def check(*args):
    if libc.syscall(*args) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
"""


@pytest.mark.skipif("memory" in offers().cgroup_powers, reason="a memory cgroup bounds them here")
@pytest.mark.parametrize("call", MEMORY_WITHOUT_A_PROCESS)
def test_v6_memory_that_no_limit_counts_is_refused_without_a_cgroup(world: World, workspace: Path, call: str) -> None:
    """V6: 300 MiB in memfds passed a limit of 100 MiB."""
    answer = world.run(workspace, ["-c", CHECK + MEMORY_WITHOUT_A_PROCESS[call]])

    assert answer["stderr"].strip().splitlines()[-1].startswith("PermissionError: [Errno 1]"), answer


SMALL_FILES = """
import os, time
for n in range(100_000):
    with open(f'{n}', 'wb') as file:
        file.write(bytes(65536))
"""
DELETED_FILES = """
import os
kept = []
for n in range(300):
    file = open('x', 'wb'); os.unlink('x'); file.write(bytes(1 << 20)); file.flush(); kept.append(file)
while True:
    pass
"""


BURST = "open('x', 'wb').write(bytes(40 << 20))"


@pytest.mark.parametrize("program", [SMALL_FILES, DELETED_FILES, BURST], ids=["small files", "deleted files", "burst"])
def test_v6_the_disk_that_a_program_takes_is_bounded(world: World, workspace: Path, program: str) -> None:
    """V6: 300 MiB of small files passed, because only the size of each one was bounded."""
    answer = world.run(workspace, ["-c", program], timeout=60, limits={"disk_bytes": 30 << 20})

    assert answer["reason"] == "disk_limit", answer


def test_v6_a_folder_that_cannot_be_counted_is_too_much(tmp_path: Path) -> None:
    """V6: files in a folder without rights would not be counted. What can't be read is taken as over the limit."""
    (tmp_path / "file").write_bytes(bytes(10_000))
    (tmp_path / "link").hardlink_to(tmp_path / "file")
    (tmp_path / "out").symlink_to("/usr")

    assert 10_000 < disk_of([str(tmp_path)], [], 1 << 30) < 16_384
    assert disk_of([str(tmp_path)], [], 5_000) > 5_000
    deep = "/".join([str(tmp_path), *["d" * 200] * 25])  # a path too long to open; also for root
    assert disk_of([deep], [], 1 << 30) > 1 << 30


def test_v6_what_is_not_bounded_is_said() -> None:
    """V6: doctor said nothing of memory and disk that no limit holds."""
    told = " ".join(not_bounded(replace(offers(), cgroup_powers=frozenset())))

    assert "Memory" in told
    assert "Disk space" in told
    assert "memfd" in " ".join(not_bounded(replace(offers(), layers=frozenset(), cgroup_powers=frozenset())))
    assert "Memory" not in " ".join(not_bounded(replace(offers(), cgroup_powers=frozenset({"memory", "pids"}))))


def test_v2_the_sandboxs_own_processes_import_nothing_from_the_current_folder(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V2: a `json.py` in the current folder was executed by children."""
    for name in ("json", "sqlite3", "socket", "resource", "types", "sitecustomize", "usercustomize"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'w').close()\n")
        (workspace / f"{name}.py").write_text(f"open({str(workspace / 'canary')!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    _offers.cache_clear()

    degraded = "namespaces" in offers().missing
    ended = run(Command(("/bin/true",), workspace, {}, sandbox=SandboxPolicy(workspace, allow_degraded=degraded)))

    assert ended.is_success
    assert not (tmp_path / "canary").exists()
    assert not (workspace / "canary").exists()


def test_sockets_of_files_reach_only_the_childs_own(
    world: World, reports: dict[str, dict[str, Any]], outside: tuple[Path, int, str]
) -> None:
    report = report_of(world, reports, outside, network="host", unix_sockets=True)

    assert not report["connect_unix_socket"]["done"]
    assert not report["connect_abstract_socket"]["done"]
    assert report["use_own_unix_socket"]["done"] == ("namespaces" in plan_layers(world)), report["use_own_unix_socket"]


def test_the_child_has_no_privileges_at_all(workspace: Path) -> None:
    answer = AS_WE_ARE.run(workspace, ["-c", "print(open('/proc/self/status').read())"])

    status = dict(line.split(":\t", 1) for line in answer["stdout"].splitlines() if ":\t" in line)
    assert {status[name].strip("0") for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {""}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert "0" not in status["Uid"].split() + status["Gid"].split()


# Hostile use of resources, in each world.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "limits", "reasons"),
    [
        ("fork_bomb", {"processes": 40}, {"timeout"}),
        ("memory_hog", {"memory_bytes": 200 << 20}, {"exited", "memory_limit"}),
        ("many_hogs", {"memory_bytes": 300 << 20}, {"memory_limit"}),
        ("big_file", {"file_bytes": 8 << 20}, {"exited"}),
        ("spin", {"cpu_seconds": 1}, {"exited"}),
        ("flood", {}, {"output_limit"}),
        ("daemon", {}, {"exited"}),
        ("deaf_family", {}, {"timeout"}),
        ("stopped", {}, {"timeout"}),
    ],
)
def test_a_hostile_program_is_stopped_and_leaves_nothing(
    world: World, place: Path, workspace: Path, marker: str, program: str, limits: dict[str, int], reasons: set[str]
) -> None:
    script = [str(CHILDREN / "hostile.py"), program]

    # Only what ends by the clock alone is given little of it: on a busy machine the other limits take their time.
    timeout = 2 if reasons == {"timeout"} else 60

    answer = world.run(workspace, script, env={"MARKER": marker}, timeout=timeout, grace=0.3, limits=limits)

    assert answer.get("reason") in reasons, {**answer, "stdout": ""}
    assert answer["exit_code"] != 0 or program == "daemon"
    assert processes_with(marker) == []
    if program == "big_file":
        assert (workspace / "big").stat().st_size == 8 << 20
    if program == "spin":
        assert answer["signal"] == signal.SIGXCPU


@pytest.mark.parametrize("victim", ["worker", "init"])
def test_when_the_worker_is_killed_its_whole_tree_dies(world: World, workspace: Path, marker: str, victim: str) -> None:
    worker = world.start(
        workspace, [str(CHILDREN / "hostile.py"), "deaf_family"], env={"MARKER": marker}, timeout=60, grace=30
    )
    assert worker.stderr
    assert worker.stderr.readline() == "ready\n"
    assert len(processes_with(marker)) >= 3
    if victim == "worker":
        worker.kill()
    elif "namespaces" in plan_layers(world):
        os.kill(child_of(worker.pid), signal.SIGKILL)
    else:
        worker.kill()  # a subreaper that is itself killed loses its daemons: said in init.py, not promised

    wait_until(lambda: processes_with(marker) == [])
    told, _ = worker.communicate()
    if worker.returncode == 0:
        assert json.loads(told)["reason"] == "lost"
    else:
        assert worker.returncode == -signal.SIGKILL


def test_neighbours_finish_while_a_fork_bomb_runs(workspace: Path, place: Path, marker: str) -> None:
    bomb = AS_WE_ARE.start(
        workspace,
        [str(CHILDREN / "hostile.py"), "fork_bomb"],
        env={"MARKER": marker},
        timeout=60,
        limits={"processes": 60},
    )
    assert bomb.stderr
    assert bomb.stderr.readline() == "ready\n"
    neighbour = place / "neighbour"
    neighbour.mkdir()

    answer = AS_WE_ARE.run(neighbour, ["-c", "import os; os.wait() if os.fork() else print('fine')"], timeout=20)

    assert answer["stdout"] == "fine\n"
    bomb.kill()
    wait_until(lambda: processes_with(marker) == [])
    bomb.communicate()


def plan_layers(world: World) -> set[str]:
    return {str(layer) for layer in offers().layers} - ({"namespaces"} if UNSHARE in world.deny else set())


def child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


# Failing closed. The layers are really taken away: by the same filter that a container has.


@pytest.mark.parametrize(
    ("layer", "numbers"), [("namespaces", [UNSHARE]), ("landlock", LANDLOCK), ("seccomp", [SECCOMP])]
)
def test_a_missing_layer_is_named_and_nothing_runs(workspace: Path, layer: str, numbers: list[int]) -> None:
    answer = AS_WE_ARE.run(workspace, ["-c", "open('it-ran', 'w')"], deny=numbers)

    assert answer["unavailable"] == layer
    assert layer in answer["message"]
    assert "allow_degraded" in answer["message"]
    assert not (workspace / "it-ran").exists()


@pytest.mark.parametrize(
    ("layer", "numbers"), [("namespaces", [UNSHARE]), ("landlock", LANDLOCK), ("seccomp", [SECCOMP])]
)
def test_a_layer_that_fails_while_it_is_put_up_stops_the_program(
    workspace: Path, layer: str, numbers: list[int]
) -> None:
    """The machine offered it when it was asked, and refuses it now. Even a lenient policy does not go on half-way."""
    answer = AS_WE_ARE.run(
        workspace, ["-c", "open('it-ran', 'w')"], deny=numbers, offers_first=True, allow_degraded=True
    )

    assert answer["unavailable"] == layer
    assert not (workspace / "it-ran").exists()


@pytest.mark.parametrize("missing", ["namespaces", "landlock", "seccomp"])
def test_a_degraded_sandbox_is_used_only_when_asked_for_and_says_what_it_lacks(workspace: Path, missing: str) -> None:
    numbers = {"namespaces": [UNSHARE], "landlock": LANDLOCK, "seccomp": [SECCOMP]}[missing]

    answer = AS_WE_ARE.run(workspace, ["-c", "print('ran')"], deny=numbers, allow_degraded=True)

    assert answer["stdout"] == "ran\n"
    assert answer["missing"] == [missing]
    assert missing not in answer["layers"]


def test_what_the_machine_offers_is_told_with_reasons() -> None:
    offer = offers()

    assert offer.layers.isdisjoint(offer.missing)
    assert set(offer.layers) | set(offer.missing) == {"namespaces", "landlock", "seccomp", "cgroup"}
    assert all(offer.missing.values())
    assert offer.landlock_abi == landlock.abi()


def test_an_old_landlock_without_namespaces_is_not_enough(workspace: Path) -> None:
    offer = SandboxOffer(frozenset({"seccomp"}), 3, False, frozenset(), {"landlock": "too old", "namespaces": "no"})

    with pytest.raises(SandboxUnavailable, match="landlock"):
        plan(SandboxPolicy(workspace), offer)


def test_required_control_groups_fail_closed_too(workspace: Path) -> None:
    policy = SandboxPolicy(workspace, require=frozenset({"cgroup"}))
    offer = SandboxOffer(frozenset(), 0, False, frozenset(), {"cgroup": "none may be made"})

    with pytest.raises(SandboxUnavailable, match="cgroup"):
        plan(policy, offer)


def test_the_whole_machine_is_no_workspace() -> None:
    with pytest.raises(PathEscape):
        plan(SandboxPolicy(Path("/")), offers())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands things over")
def test_a_file_with_names_elsewhere_is_not_handed_over(workspace: Path, place: Path) -> None:
    (place / "precious").write_text("x")
    os.link(place / "precious", workspace / "planted")

    with pytest.raises(PathEscape, match="hard links"):
        hand_over(SandboxPolicy(workspace))

    assert (place / "precious").stat().st_uid == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands things over")
def test_handing_over_does_not_follow_links(workspace: Path, place: Path) -> None:
    (place / "precious").write_text("x")
    (workspace / "link").symlink_to(place / "precious")
    (workspace / "deep").mkdir()
    (workspace / "deep/file").write_text("x")

    hand_over(SandboxPolicy(workspace))

    assert (place / "precious").stat().st_uid == 0
    assert (workspace / "deep/file").stat().st_uid == 65534


# The filter, for both machines, as the kernel would read it.


def verdict(program: bytes, arch: int, number: int, *arguments: int) -> int:
    """Run a filter the way the kernel does, for one system call."""
    data = {0: number, 4: arch} | {16 + 8 * index: value for index, value in enumerate(arguments)}
    accumulator = at = 0
    while True:
        code, if_true, if_false, value = _unpack(program[8 * at : 8 * at + 8])
        at += 1
        if code == 0x20:
            accumulator = data.get(value, 0)
        elif code == 0x06:
            return value
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[code]
            at += if_true if holds else if_false


def _unpack(step: bytes) -> tuple[int, int, int, int]:
    return (int.from_bytes(step[:2], sys.byteorder), step[2], step[3], int.from_bytes(step[4:], sys.byteorder))


ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050000 | 38
EPROTONOSUPPORT, EOPNOTSUPP = 0x00050000 | 93, 0x00050000 | 95


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_refuses_what_it_should_and_nothing_else(machine: str) -> None:
    column, arch = seccomp._ARCH[machine]
    looked_at = {name: numbers[column] for name, numbers in seccomp._LOOKED_AT.items()}
    denied = {numbers[column] for numbers in seccomp._DENIED.values()} - {None}
    uncounted = {numbers[column] for numbers in seccomp._UNCOUNTED_MEMORY.values()}
    shut, host = seccomp.program(machine, ()), seccomp.program(machine, (2, 10))
    counted_only = seccomp.program(machine, (), uncounted_memory=False)

    for number in range(470):
        expected = EPERM if number in denied else ENOSYS if number == looked_at["clone3"] else ALLOW
        if number not in set(looked_at.values()) - {looked_at["clone3"]}:
            assert verdict(shut, arch, number, 1) == expected, number
            assert verdict(counted_only, arch, number, 1) == (EPERM if number in uncounted else expected), number
    assert [verdict(shut, arch, looked_at["socket"], family) for family in (1, 2, 10, 16)] == [EPERM] * 4
    assert [verdict(host, arch, looked_at["socket"], family) for family in (1, 2, 10, 16)] == [
        EPERM,
        ALLOW,
        ALLOW,
        EPERM,
    ]
    assert [verdict(host, arch, looked_at["socket"], 2, 1, kind) for kind in (6, 17, 132, 262)] == [
        ALLOW,
        ALLOW,
        EPROTONOSUPPORT,
        EPROTONOSUPPORT,
    ]
    for name, flags in (("sendto", (0, 0, 0)), ("sendmsg", (0, 0)), ("sendmmsg", (0, 0, 0))):
        assert verdict(host, arch, looked_at[name], *flags, 0x4000) == ALLOW
        assert verdict(host, arch, looked_at[name], *flags, 0x20004000) == EOPNOTSUPP
    assert [verdict(host, arch, looked_at["socketpair"], family) for family in (1, 2)] == [ALLOW, EPERM]
    assert verdict(host, arch, looked_at["clone"], 0x10000011) == EPERM
    assert verdict(host, arch, looked_at["clone"], 0x003D0F00) == ALLOW  # what a thread is made with
    assert verdict(host, arch, looked_at["ioctl"], 0, 0x5412) == EPERM
    assert verdict(host, arch, looked_at["ioctl"], 0, 0x5413) == ALLOW
    assert verdict(host, 0x40000003, 1) == KILL
    assert verdict(host, arch, 0x40000001) == KILL


def test_the_numbers_are_those_of_the_kernels_headers() -> None:
    headers = [Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm-generic/unistd.h")]
    if not all(path.exists() for path in headers):
        pytest.skip("the kernel's headers are not installed here")
    for column, path in enumerate(headers):
        defined = dict(re.findall(r"#define\s+__NR(?:3264)?_(\w+)\s+(\d+)", path.read_text()))
        for name, numbers in {**seccomp._DENIED, **seccomp._UNCOUNTED_MEMORY, **seccomp._LOOKED_AT}.items():
            number = numbers[column]
            if number is not None and name in defined:
                assert defined[name] == str(number), name
