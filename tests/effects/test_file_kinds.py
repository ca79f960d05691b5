"""create_file and delete_file as jobs: typed, beneath their root, safe to repeat, whole after any death."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.effects import files
from tenure.effects.kinds import fence
from tenure.handler.context import Context, Flag, WorkerServices
from tenure.model.ids import WorkerId
from tenure.store.contract import Claim
from tenure.testing import drain, temporary_app
from tests.conformance.engines import fresh_url
from tests.effects.conftest import app_at
from tests.effects.points import watch
from tests.fault.scale import LONG, scaled
from tests.waiting import wait_until

WORKER_POINTS = Path(__file__).parent / "children/worker_points.py"
ZOMBIES = scaled(6, 1000)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def app(request: pytest.FixtureRequest, tmp_path: Path, root: Path) -> Iterator[tenure.App]:
    with fresh_url(request, tmp_path) as url, app_at(tenure.App().use(files(root=root)), url) as app:
        yield app


def done(app: tenure.App, kind: str, payload: dict[str, Any], **options: Any) -> tenure.Job:
    job_id = app.enqueue(kind, payload, **options).id
    drain(app, raise_errors=False)
    return app.get(job_id)


def test_a_file_is_written_and_what_was_written_is_the_result(app: tenure.App, root: Path) -> None:
    job = done(app, "create_file", {"path": "a/b.txt", "content": "grüß dich"})

    content = "grüß dich".encode()
    assert (root / "a/b.txt").read_bytes() == content
    assert job.result == {
        "path": "a/b.txt",
        "sha256": hashlib.sha256(content).hexdigest(),
        "size": len(content),
        "written": True,
    }


def test_bytes_come_as_base64(app: tenure.App, root: Path) -> None:
    data = bytes(range(256))

    done(app, "create_file", {"path": "b", "content": base64.b64encode(data).decode(), "encoding": "base64"})

    assert (root / "b").read_bytes() == data


def test_the_right_content_is_success_and_other_content_a_permanent_failure(app: tenure.App, root: Path) -> None:
    done(app, "create_file", {"path": "f", "content": "mine"})

    again = done(app, "create_file", {"path": "f", "content": "mine"})
    other = done(app, "create_file", {"path": "f", "content": "other"})
    forced = done(app, "create_file", {"path": "f", "content": "other", "overwrite": True})

    assert (again.state, again.result["written"]) == ("succeeded", False)
    assert (other.state, other.attempt, other.failure_class) == ("failed", 1, "permanent")
    assert "FileConflict" in (other.last_error or "")
    assert (forced.state, (root / "f").read_text()) == ("succeeded", "other")


def test_deleting_what_is_gone_is_success_unless_it_must_exist(app: tenure.App, root: Path) -> None:
    (root / "f").write_text("x")

    first = done(app, "delete_file", {"path": "f", "requireExists": True})
    second = done(app, "delete_file", {"path": "f"})
    third = done(app, "delete_file", {"path": "f", "requireExists": True})

    assert (first.result, second.result) == ({"path": "f", "deleted": True}, {"path": "f", "deleted": False})
    assert (third.state, third.attempt) == ("failed", 1)
    assert not (root / "f").exists()


@pytest.mark.parametrize(
    "path", ["../out", "/etc/passwd", "a/../../out", "", "a//b", "a\0b", "a/", "x" * 300, "con.", ".", "a/./b"]
)
def test_a_path_that_could_lead_out_is_refused_at_enqueue(app: tenure.App, path: str) -> None:
    for kind in ("create_file", "delete_file"):
        with pytest.raises(tenure.InvalidPayload, match="path"):
            app.enqueue(kind, {"path": path} | ({"content": ""} if kind == "create_file" else {}))


def test_a_link_that_leads_out_is_a_permanent_failure(app: tenure.App, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "link").symlink_to(outside)

    job = done(app, "create_file", {"path": "link/f", "content": "x"})

    assert (job.state, list(outside.iterdir())) == ("failed", [])


def test_payloads_are_typed(app: tenure.App) -> None:
    with pytest.raises(tenure.InvalidPayload, match=r"\$\.overwite: there is no such field"):
        app.enqueue("create_file", {"path": "f", "content": "", "overwite": True})
    with pytest.raises(tenure.InvalidPayload, match="base64"):
        app.enqueue("create_file", {"path": "f", "content": "no!", "encoding": "base64"})


def test_a_file_larger_than_allowed_is_refused(tmp_path: Path) -> None:
    with temporary_app(tenure.App().use(files(root=tmp_path, max_bytes=10))) as app:
        job = done(app, "create_file", {"path": "f", "content": "x" * 11})

    assert (job.state, list(tmp_path.iterdir())) == ("failed", [])


def test_a_root_that_is_not_there_is_for_the_operator_and_the_job_is_tried_again(tmp_path: Path) -> None:
    with temporary_app(tenure.App().use(files(root=tmp_path / "missing"))) as app:
        job = done(app, "create_file", {"path": "f", "content": "x"})

        assert (job.state, job.attempt) == ("queued", 1)
        assert "set as root" in (job.last_error or "")


@pytest.mark.parametrize(
    ("operation", "before", "after"),
    [("create", "absent", "new"), ("replace", "old", "new"), ("delete", "old", "absent")],
)
def test_a_worker_killed_at_every_call_leaves_a_whole_file_and_the_next_one_ends_the_job(
    tmp_path: Path, operation: str, before: str, after: str
) -> None:
    run = subprocess.run(
        [sys.executable, WORKER_POINTS, tmp_path, operation], capture_output=True, text=True, check=False, timeout=110
    )

    assert run.returncode == 0, run.stderr
    deaths = [json.loads(line) for line in run.stdout.splitlines()]
    assert [death["died"] for death in deaths] == [True] * (len(deaths) - 1) + [False]
    assert len(deaths) > 10
    assert {death["seen"]["target"] for death in deaths} == {before, after}
    assert {(death["then"]["job"], death["then"]["target"]) for death in deaths} == {("succeeded", after)}
    assert {death["then"]["tickets"] for death in deaths} == {0}
    if operation == "delete":
        assert all(death["then"]["result"]["deleted"] for death in deaths)


@pytest.mark.timeout(1200 if LONG else 120)
def test_a_zombie_that_wakes_up_about_to_write_does_not_undo_a_newer_attempt(app: tenure.App, root: Path) -> None:
    """A worker is paused right before its rename, past its lease; the job is run by another; then the first goes on."""
    for number in range(ZOMBIES):
        newest = f"newest {number}"
        app.enqueue("create_file", {"path": "f", "content": newest, "overwrite": True})
        asleep, awake = threading.Event(), threading.Event()
        is_first = True

        def hook(call: str, asleep: threading.Event = asleep, awake: threading.Event = awake) -> None:
            nonlocal is_first
            if call == "before rename" and is_first:
                is_first = False
                asleep.set()
                assert awake.wait(20)

        with watch(hook):
            zombie = threading.Thread(target=drain, args=(app,), daemon=True)
            zombie.start()
            assert asleep.wait(20)
            wait_until(lambda: any(seen.held for seen in app.workers.all()))
            app.workers.remove([seen.row.id for seen in app.workers.all()])
            drain(app, raise_errors=False)  # the newer attempt
            assert (root / "f").read_text() == newest
            done(app, "create_file", {"path": "f", "content": "even newer", "overwrite": True})
            awake.set()
            zombie.join(20)

        assert (root / "f").read_text() == "even newer"
        assert [path.name for path in root.iterdir()] == ["f"]
    print(f"{ZOMBIES:,} zombies")


def test_m14_the_workers_lease_holds_for_kinds_that_check_it(app: tenure.App) -> None:
    """M14: the check before an act asked for the queue's own lease, 300 s, whatever `tenure worker --lease` said."""
    job_id = app.enqueue("create_file", {"path": "a.txt", "content": "x"}).id
    (grant,) = app.store.do(Claim(worker=WorkerId("w"), queues=["files"], limit=1, lease_seconds=20.0))
    nothing: Any = lambda *_: None  # noqa: E731
    ctx = Context(grant, WorkerServices(Flag(), nothing, nothing, nothing, call=app.store.do))

    fence(ctx)()

    until = app.get(job_id).lease_until
    assert until is not None
    assert 0 < (until - app.now()).total_seconds() <= 20
