"""Reconciliation finds what is not as the jobs left it: exactly that, in a stream, and changes nothing."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.effects import EffectCall, Verdict, effect, files
from tenure.effects.reconcile import Discrepancy
from tenure.testing import ManualClock, drain, temporary_app
from tests.effects.points import watch
from tests.worker.bed import EventLog

LONG = bool(os.environ.get("TENURE_LONG"))
JOBS = 100_000 if LONG else 2_000
# The command line, which at its end tells the most memory that it ever had.
MEASURED = """
import sys
from tenure.cli.main import run
code = run(sys.argv[1:])
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")), file=sys.stderr)
sys.exit(code)
"""
SEED = int(os.environ.get("TENURE_SEED", "11"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def app(root: Path, clock: ManualClock) -> Iterator[tenure.App]:
    with temporary_app(tenure.App().use(files(root=root)), clock=clock) as app:
        yield app


def create(app: tenure.App, clock: ManualClock, path: str, content: str = "x") -> str:
    return run(app, clock, "create_file", {"path": path, "content": content, "overwrite": True})


def delete(app: tenure.App, clock: ManualClock, path: str) -> str:
    return run(app, clock, "delete_file", {"path": path})


def run(app: tenure.App, clock: ManualClock, kind: str, payload: dict[str, Any]) -> str:
    job_id = app.enqueue(kind, payload).id
    drain(app, raise_errors=False)
    clock.advance(1)
    return job_id


def sorts(found: Iterator[Discrepancy]) -> dict[str, str]:
    return {one.subject: one.sort for one in found}


def test_a_world_as_it_was_left_has_no_discrepancies(app: tenure.App, clock: ManualClock) -> None:
    create(app, clock, "a")
    create(app, clock, "b/c")
    delete(app, clock, "b/c")
    seen: list[int] = []

    assert list(app.effects.reconcile(progress=seen.append)) == []
    assert sum(seen) == 3


def test_each_sort_of_discrepancy_is_told_with_job_expected_and_found(
    app: tenure.App, clock: ManualClock, root: Path
) -> None:
    jobs = {name: create(app, clock, name) for name in ("missing", "changed", "folder")}
    jobs["back"] = delete(app, clock, "back")
    (root / "missing").unlink()
    (root / "changed").write_text("y")
    (root / "folder").unlink()
    (root / "folder").mkdir()
    (root / "back").write_text("boo")
    before = sorted(path.name for path in root.iterdir())

    found = {one.subject: one for one in app.effects.reconcile()}

    assert {name: one.sort for name, one in found.items()} == {
        "missing": "missing",
        "changed": "changed",
        "folder": "not_a_file",
        "back": "still_there",
    }
    assert {name: one.job_id for name, one in found.items()} == jobs
    assert hashlib.sha256(b"x").hexdigest() in found["changed"].expected
    assert hashlib.sha256(b"y").hexdigest() in found["changed"].found
    assert sorted(path.name for path in root.iterdir()) == before


def test_only_the_last_job_about_a_path_says_how_it_should_be(app: tenure.App, clock: ManualClock) -> None:
    create(app, clock, "f", "one")
    create(app, clock, "f", "two")
    create(app, clock, "g")
    delete(app, clock, "g")
    delete(app, clock, "h")
    create(app, clock, "h")

    assert list(app.effects.reconcile()) == []


def test_the_last_to_finish_counts_not_the_last_to_be_enqueued(app: tenure.App, clock: ManualClock, root: Path) -> None:
    first = app.enqueue("create_file", {"path": "f", "content": "first", "overwrite": True}, delay=60).id
    create(app, clock, "f", "second")
    clock.advance(60)
    drain(app, raise_errors=False)

    assert (root / "f").read_text() == "first"
    assert list(app.effects.reconcile()) == []

    (root / "f").write_text("second")
    assert [one.job_id for one in app.effects.reconcile()] == [first]


def test_what_finished_before_since_is_left_out(app: tenure.App, clock: ManualClock, root: Path) -> None:
    create(app, clock, "old")
    clock.advance(3600)
    create(app, clock, "new")
    for path in root.iterdir():
        path.unlink()

    assert sorts(app.effects.reconcile(since=clock.now() - timedelta(minutes=5))) == {"new": "missing"}


def test_a_file_that_a_job_is_at_work_on_is_no_discrepancy(app: tenure.App, clock: ManualClock, root: Path) -> None:
    create(app, clock, "f", "before")
    app.enqueue("create_file", {"path": "f", "content": "after", "overwrite": True})
    asleep, awake = threading.Event(), threading.Event()

    def hook(call: str) -> None:
        if call == "after rename" and not asleep.is_set():
            asleep.set()
            assert awake.wait(20)

    with watch(hook):
        worker = threading.Thread(target=drain, args=(app,))
        worker.start()
        assert asleep.wait(20)
        assert (root / "f").read_text() == "after"
        found = list(app.effects.reconcile())
        awake.set()
        worker.join(20)

    assert found == []


def test_pruned_jobs_and_failed_ones_are_not_compared(app: tenure.App, clock: ManualClock, root: Path) -> None:
    create(app, clock, "pruned")
    (root / "pruned").unlink()
    (root / "taken").write_text("other")
    run(app, clock, "create_file", {"path": "taken", "content": "mine"})
    clock.advance(10)
    app.prune(older_than=5)

    assert list(app.effects.reconcile()) == []


def test_effects_are_verified_and_what_cannot_be_looked_at_is_told(app: tenure.App, clock: ManualClock) -> None:
    world: dict[str, str] = {}

    @effect()
    def post(call: EffectCall) -> str:
        world[call.key] = call.args
        return call.key

    @post.verify
    async def is_there(call: EffectCall) -> Verdict:
        assert call.result == call.key
        if call.args == "sick":
            raise ConnectionError("no one there")
        return Verdict(call.key in world, found="no such post")

    @app.job
    def poster(payload: str, ctx: tenure.Context) -> None:
        post(ctx, payload)

    app.use(post)
    jobs = {word: run(app, clock, "poster", word) for word in ("kept", "lost", "sick")}  # type: ignore[arg-type]
    del world[next(row.key for row in app.effects.all(job_id=jobs["lost"]))]

    found = {one.job_id: one for one in app.effects.reconcile()}

    assert {one.sort for one in found.values()} == {"not_verified", "unreadable"}
    lost, sick = found[jobs["lost"]], found[jobs["sick"]]  # type: ignore[index]
    assert (lost.kind, lost.subject, lost.found) == ("poster", "post", "no such post")
    assert "ConnectionError" in sick.found


def test_a_worker_may_compare_at_its_start(app: tenure.App, clock: ManualClock, root: Path) -> None:
    job_id = create(app, clock, "f")
    (root / "f").unlink()
    log = EventLog()

    app.run_worker(emit=log, reconcile=True, drain=True, handle_signals=False)

    (event,) = [event for event in log.events if event.name == "discrepancy_found"]
    assert (event.job, event.fields["sort"]) == (job_id, "missing")


def plant(root: Path, paths: list[str], gone: list[str], chance: random.Random) -> dict[str, str]:
    """37 discrepancies of four sorts; answers what should be found."""
    chosen = chance.sample(paths, 28)
    planted = {path: ("missing", "changed", "not_a_file")[number % 3] for number, path in enumerate(chosen)}
    planted |= dict.fromkeys(chance.sample(gone, 9), "still_there")
    for path, sort in planted.items():
        target = root / path
        if sort != "still_there":
            target.unlink()
        if sort == "not_a_file":
            target.symlink_to("/etc/passwd")
        elif sort != "missing":
            target.parent.mkdir(exist_ok=True)
            target.write_text("other")
    return planted


@pytest.mark.timeout(900)
def test_planted_discrepancies_among_many_are_found_exactly_and_in_a_stream(tmp_path: Path, root: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    chance = random.Random(SEED)
    print(f"TENURE_SEED={SEED}")
    paths = [f"{number % 97}/{number}" for number in range(JOBS)]
    gone = paths[::10]
    with tenure.App(url).use(files(root=root)) as app:
        fill(app, root, paths, gone)
    planted = plant(root, sorted(set(paths) - set(gone)), gone, chance)

    done = subprocess.run(
        [sys.executable, "-c", MEASURED, "reconcile", "--root", root, "--url", url, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )

    answer = json.loads(done.stdout)
    found = answer["discrepancies"]
    assert done.returncode == 1, done.stderr
    assert {one["subject"]: one["sort"] for one in found} == planted
    assert len(found) == len(planted) == 37
    assert answer["checked"] == JOBS + len(gone)
    peak_kib = int(done.stderr.split()[-2])
    print(f"{JOBS:,} jobs, at most {peak_kib / 1024:.0f} MiB")
    assert peak_kib < 200_000


def fill(app: tenure.App, root: Path, paths: list[str], gone: list[str]) -> None:
    """The jobs and files that so many create_file and delete_file jobs leave, without waiting for a disk each time."""
    for folder in {path.partition("/")[0] for path in paths}:
        (root / folder).mkdir()
    sha256 = hashlib.sha256(b"content").hexdigest()
    result = {"sha256": sha256, "size": 7, "written": True}
    for first in range(0, len(paths), 1000):
        batch = paths[first : first + 1000]
        app.enqueue_many([("create_file", {"path": path, "content": "content"}) for path in batch])
        settle(app, {"create_file": result})
    for path in set(paths) - set(gone):
        (root / path).write_bytes(b"content")
    app.enqueue_many([("delete_file", {"path": path}) for path in gone])
    settle(app, {"delete_file": {"deleted": True}})


def settle(app: tenure.App, results: dict[str, Any]) -> None:
    while grants := app.claim(worker="w", queues="files", limit=1000):
        app.settle([tenure.Completed(one.id, one.token, json.dumps(results[one.kind])) for one in grants])


def tenure_command(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tenure.cli.main", *args], capture_output=True, text=True, check=False, cwd=cwd
    )


def test_the_command_reads_the_apps_own_roots_and_says_so_if_there_are_none(tmp_path: Path, root: Path) -> None:
    (tmp_path / "tasks.py").write_text(
        "import tenure\nfrom tenure.effects import files\n"
        "app = tenure.App('sqlite:///jobs.db').use(files(root='root'))\nbare = tenure.App('sqlite:///jobs.db')\n"
    )
    with tenure.App(f"sqlite:///{tmp_path / 'jobs.db'}").use(files(root=root)) as app:
        app.enqueue("create_file", {"path": "f", "content": "x"})
        drain(app, raise_errors=False)

    fine = tenure_command("reconcile", cwd=tmp_path)
    none = tenure_command("reconcile", "--json", cwd=tmp_path)
    (root / "f").unlink()
    missing = tenure_command("reconcile", "tasks:app", "--since", "1h", cwd=tmp_path)
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()

    assert (fine.returncode, fine.stdout) == (0, "")
    assert json.loads(none.stdout) == {"discrepancies": [], "checked": 1}
    assert "nothing differs" in fine.stderr
    assert missing.returncode == 1
    assert missing.stdout.splitlines()[1].split("\t")[:3] == ["missing", "f", "create_file"]
    assert tenure_command("reconcile", "--since", later, cwd=tmp_path).returncode == 0
    assert tenure_command("reconcile", "tasks:bare", cwd=tmp_path).returncode == 2
    assert tenure_command("reconcile", "tasks:app", "--root", "root", cwd=tmp_path).returncode == 2
    for wrong, why in (("--root=nowhere", "There is no folder 'nowhere'"), ("--since=tomorrow", "neither a duration")):
        refused = tenure_command("reconcile", *(() if "root" in wrong else ("tasks:app",)), wrong, cwd=tmp_path)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert why in refused.stderr
