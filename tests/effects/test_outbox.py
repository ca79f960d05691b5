"""A file and its side effects change in one step: all of it happens, or nothing, wherever somebody dies."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.effects import Outbox
from tenure.effects.atomic_file import write_file
from tenure.effects.outbox import Change
from tenure.sandbox.safe_path import PathEscape
from tenure.testing import ManualClock, drain, temporary_app
from tests.conformance.engines import fresh_url
from tests.effects.conftest import app_at, on_both_engines
from tests.effects.points import watch

OUTBOX_POINTS = Path(__file__).parent / "children/outbox_points.py"


class Bed:
    def __init__(self, app: tenure.App, outbox: Outbox, root: Path) -> None:
        self.app, self.outbox, self.root = app, outbox, root
        self.mails: list[Any] = []

    def add(self, path: str = "n.json", by: int = 1) -> tenure.Job:
        accepted = self.outbox.update(path, lambda data, _: {"n": (data or {"n": 0})["n"] + by})
        return self.app.get(accepted.job_id)

    def file(self, path: str = "n.json") -> Any:
        return json.loads((self.root / path).read_text()) if (self.root / path).exists() else None


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def bed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bed]:
    root = tmp_path / "root"
    root.mkdir()
    outbox = Outbox(root)
    app = tenure.App().use(outbox)
    with fresh_url(request, tmp_path) as url, app_at(app, url) as app:
        bed = Bed(app, outbox, root)

        @app.job
        def mail(payload: Any) -> None:
            bed.mails.append(payload)

        app.queues.set("default", backoff=tenure.Backoff(shape="none"))
        yield bed


def test_a_change_is_read_at_once_and_written_by_a_worker(bed: Bed) -> None:
    def change(data: Any, box: Change) -> Any:
        assert data is None
        box.enqueue("mail", "welcome")
        return {"email": "a@b"}

    accepted = bed.outbox.update("users/7.json", change)

    assert bed.outbox.read("users/7.json") == {"email": "a@b"}
    assert bed.file("users/7.json") is None
    assert (accepted.version, len(accepted.effects)) == (1, 1)
    drain(bed.app, raise_errors=False)
    assert bed.file("users/7.json") == {"email": "a@b"} == bed.outbox.read("users/7.json")
    assert bed.mails == ["welcome"]
    assert list(bed.app.effects.reconcile()) == []


def test_changes_build_on_what_was_accepted_before_not_on_what_is_written(bed: Bed) -> None:
    for _ in range(5):
        bed.add()

    drain(bed.app, raise_errors=False)

    assert bed.file() == {"n": 5}
    assert bed.app.queues.counts(state="succeeded")[0].jobs == 5


def test_a_change_may_work_in_place_and_a_failing_one_changes_nothing(bed: Bed) -> None:
    bed.outbox.put("n.json", {"n": 1})

    def in_place(data: Any, _: Change) -> None:
        data["n"] = 2

    def fail(data: Any, box: Change) -> None:
        box.enqueue("mail", "never")
        data["n"] = 3
        raise LookupError

    bed.outbox.update("n.json", in_place)
    with pytest.raises(LookupError):
        bed.outbox.update("n.json", fail)
    drain(bed.app, raise_errors=False)

    assert (bed.file(), bed.mails) == ({"n": 2}, [])


def test_of_two_changes_made_at_once_the_second_is_made_again(bed: Bed) -> None:
    threads = [threading.Thread(target=lambda: [bed.add() for _ in range(10)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    drain(bed.app, raise_errors=False)

    assert bed.file() == {"n": 40}


def test_a_change_whose_turn_comes_late_leaves_the_file_to_the_newer(bed: Bed) -> None:
    """The first write is paused about to rename; a newer change is accepted and written; then the first goes on."""
    first = bed.add(by=1)
    asleep, awake = threading.Event(), threading.Event()

    def hook(call: str) -> None:
        if call == "before rename" and not asleep.is_set():
            asleep.set()
            assert awake.wait(20)

    with watch(hook):
        worker = threading.Thread(target=drain, args=(bed.app,))
        worker.start()
        assert asleep.wait(20)
        bed.add(by=10)
        drain(bed.app, raise_errors=False)
        assert bed.file() == {"n": 11}
        awake.set()
        worker.join(20)

    assert bed.file() == {"n": 11}
    ended = bed.app.get(first.id)
    assert (ended.state, ended.result["superseded"]) == ("succeeded", True)
    assert [path.name for path in bed.root.iterdir()] == ["n.json"]


def test_an_older_write_that_fails_first_does_not_land_on_a_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, outbox, calls = ManualClock(), Outbox(tmp_path), []

    def fail_once(*args: Any, **settings: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            raise OSError("the disk is full")
        return write_file(*args, **settings)

    monkeypatch.setattr("tenure.effects.outbox.write_file", fail_once)
    with temporary_app(tenure.App().use(outbox), clock=clock) as app:
        first = outbox.put("f.json", "first").job_id
        drain(app, raise_errors=False)
        outbox.put("f.json", "second")
        drain(app, raise_errors=False)
        clock.advance(60)
        drain(app, raise_errors=False)

        assert json.loads((tmp_path / "f.json").read_text()) == "second"
        assert app.get(first).result["superseded"]


def test_what_was_left_to_a_change_that_is_given_up_is_still_read(bed: Bed) -> None:
    first, second = bed.add(by=1), bed.add(by=10)
    bed.app.run_worker(["outbox_files"], once=True, handle_signals=False)
    bed.app.cancel(second.id)

    assert bed.app.get(first.id).result["superseded"]
    assert bed.outbox.read("n.json") == {"n": 1}
    bed.add(by=5)
    drain(bed.app, raise_errors=False)
    assert bed.file() == {"n": 6}


def test_followers_come_with_the_completion_of_the_write(bed: Bed) -> None:
    def change(_: Any, box: Change) -> dict[str, int]:
        box.then("mail", {"after": True})
        return {"n": 1}

    bed.outbox.update("n.json", change)
    assert [count.kind for count in bed.app.queues.counts()] == ["outbox_write"]
    drain(bed.app, raise_errors=False)

    assert bed.mails == [{"after": True}]


def test_a_side_effect_whose_key_is_taken_by_something_else_refuses_the_whole_change(bed: Bed) -> None:
    bed.app.enqueue("mail", 1, key="k", delay=60)

    with pytest.raises(tenure.KeyConflict):
        bed.outbox.update("n.json", lambda _, box: [box.enqueue("mail", 2, key="k"), {"n": 1}][1])

    assert bed.outbox.read("n.json") is None


def test_paths_that_lead_out_and_content_that_is_no_json_are_refused(bed: Bed) -> None:
    with pytest.raises(PathEscape):
        bed.outbox.read("../x")
    with pytest.raises(PathEscape):
        bed.outbox.put("../x", 1)
    with pytest.raises(TypeError):
        bed.outbox.put("x", object())
    with pytest.raises(tenure.InvalidArgument, match="too large"):
        bed.outbox.update("x", lambda _, box: [[box.enqueue("mail", n) for n in range(1001)], 1][1])
    with pytest.raises(tenure.ConfigError, match=r"app\.use"):
        Outbox(bed.root).read("x")


def test_numbers_go_on_although_another_clock_is_ahead(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody whose clock is a minute ahead made the last change; the newest is still found by its id."""
    with monkeypatch.context() as patch:
        patch.setattr("tenure.effects.outbox.new_job_id", lambda: "0fffffff-ffff-7fff-bfff-000000000000")
        bed.add()
    jobs = [bed.add() for _ in range(3)]
    drain(bed.app, raise_errors=False)

    assert (bed.file(), sorted(job.id for job in jobs)) == ({"n": 4}, [job.id for job in jobs])


def test_a_queue_that_forgets_keys_is_refused(bed: Bed) -> None:
    bed.app.queues.set("outbox_files", key_scope="active")

    with pytest.raises(tenure.ConfigError, match="forever"):
        bed.add()


async def _twice(outbox: Outbox) -> Any:
    await outbox.aupdate("a.json", lambda *_: {"n": 1})
    return await outbox.aread("a.json")


@pytest.mark.anyio
async def test_async_callers_have_twins(bed: Bed) -> None:
    assert await _twice(bed.outbox) == {"n": 1}


@pytest.mark.parametrize(("sort", "step"), [("update", 97), ("work", 1)])
def test_whoever_dies_the_file_and_its_effects_come_together_or_not_at_all(
    tmp_path: Path, sort: str, step: int
) -> None:
    run = subprocess.run(
        [sys.executable, OUTBOX_POINTS, tmp_path, sort, str(step)],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )

    assert run.returncode == 0, run.stderr
    deaths = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(deaths) > 8
    assert [death["lived"] is None for death in deaths] == [True] * (len(deaths) - 1) + [False]
    for death in deaths:
        assert death["promised"] == death["written"] == death["file"], death
        assert (death["file"] is None) == (death["mails"] == 0), death
        assert death["file"] in (None, {"count": 1}), death
        assert set(death["states"]) <= {"succeeded"}, death
    outcomes = {death["file"] is None for death in deaths}
    assert outcomes == ({True, False} if sort == "update" else {False})


@on_both_engines
def test_m13_the_profile_and_the_class_of_that_name_share_a_database(tmp_path: Path, store_url: str) -> None:
    """M13: both claimed the queue `outbox`, one with keys for ever, one with keys of active jobs."""
    (tmp_path / "data").mkdir()
    outbox = Outbox(tmp_path / "data")
    with app_at(tenure.App().use(outbox), store_url) as app:
        app.profiles.install("outbox")
        app.enqueue("note", {}, queue="outbox", key="k")

        outbox.update("a.json", lambda *_: {"n": 1})
        outbox.update("a.json", lambda data, _: data | {"n": 2})
        drain(app, queues=["outbox_files"], raise_errors=False)

        assert json.loads((tmp_path / "data/a.json").read_text()) == {"n": 2}
        assert app.enqueue("note", {}, queue="outbox", key="k").duplicate
