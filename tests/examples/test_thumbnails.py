"""The thumbnails of examples/thumbnails: two workers on one SQLite file, one of them killed."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import tenure
from tests.examples.running import EXAMPLES
from tests.integrations.served import started
from tests.waiting import wait_until

FOLDER = EXAMPLES / "thumbnails"


@pytest.fixture(scope="module")
def png() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("thumbnails_png", FOLDER / "png.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["thumbnails_png"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["thumbnails_png"]


def picture(png: ModuleType, colour: tuple[int, ...], width: int = 200, height: int = 130) -> bytes:
    data: bytes = png.write(png.Picture(width, height, len(colour), [bytes(colour) * width] * height))
    return data


@pytest.mark.slow
def test_every_picture_gets_one_thumbnail_and_owners_wait_for_no_one_else(png: ModuleType, tmp_path: Path) -> None:
    pictures, thumbnails = tmp_path / "pictures", tmp_path / "thumbnails"
    for owner, colour in (("ann", (250, 0, 0)), ("bob", (0, 0, 250))):
        (pictures / owner).mkdir(parents=True)
        for number in range(6):
            (pictures / owner / f"{number}.png").write_bytes(picture(png, colour))
    (pictures / "bob" / "no.png").write_bytes(b"not a picture")
    worker = ["-m", "tenure", "worker", "thumbnails:app"]
    environment = {"PYTHONPATH": str(FOLDER)}
    made = [f"{owner}/{number}.png" for owner in ("ann", "bob") for number in range(6)]

    with (
        started(worker, tmp_path, environment) as first,
        started(worker, tmp_path, environment) as second,
    ):
        wait_until(lambda: any(thumbnails.glob("*/*.png")), 60)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        with tenure.App(f"sqlite:///{tmp_path / 'thumbnails.db'}") as app:
            wait_until(lambda: all((thumbnails / path).exists() for path in made), 150)
            wait_until(lambda: not app.jobs(kind="thumbnail", state=["queued", "leased", "running"]).items, 150)

            jobs = {job.payload: job for job in app.jobs(kind="thumbnail", limit=100)}
            assert set(jobs) == {*made, "bob/no.png"}, "each version of a file is one job"
            assert {jobs[path].state for path in made} == {"succeeded"}
            assert {tuple(jobs[path].result.values()) for path in made} == {(50, 32)}
            assert jobs["bob/no.png"].state == "failed"
            assert "no PNG file" in (jobs["bob/no.png"].last_error or "")
            assert jobs["ann/5.png"].progress is not None
            assert most_at_once(app, "ann") == most_at_once(app, "bob") == 1
            wait_until(lambda: len(app.jobs(kind="look", state="succeeded")) > 1, 60)  # the schedule ticks

            # A file that changes is a new version; one that does not is not made again.
            (pictures / "ann" / "0.png").write_bytes(picture(png, (0, 250, 0)))
            os.utime(pictures / "ann" / "0.png", ns=(1, 1))
            wait_until(lambda: len(app.jobs(kind="thumbnail", state="succeeded", limit=100)) == len(made) + 1, 60)
        assert second.terminate() == 0, second.output

    small = png.read((thumbnails / "ann" / "0.png").read_bytes())
    assert (small.width, small.height, set(small.rows)) == (50, 32, {bytes((0, 250, 0)) * 50})
    assert set(png.read((thumbnails / "bob" / "3.png").read_bytes()).rows) == {bytes((0, 0, 250)) * 50}


def most_at_once(app: tenure.App, owner: str) -> int:
    """How many jobs of an owner were held at the same time, by the events of the queue."""
    owned = {job.id for job in app.jobs(kind="thumbnail", limit=100) if job.payload.startswith(f"{owner}/")}
    held: set[str] = set()
    most = 0
    for event in app.events(queue="pictures", limit=10_000):
        if event.job_id not in owned:
            continue
        if event.kind == "claimed":
            held.add(str(event.job_id))
        elif event.kind in {"completed", "failed", "dead", "retried", "reclaimed", "released"}:
            held.discard(str(event.job_id))
        most = max(most, len(held))
    return most


@pytest.mark.parametrize("colour", [(7,), (7, 200), (7, 8, 9), (7, 8, 9, 10)])
def test_pictures_of_every_kind_read_back_and_shrink(png: ModuleType, colour: tuple[int, ...]) -> None:
    whole = png.read(picture(png, colour, 65, 3))
    told: list[float] = []

    small = png.shrink(whole, 64, told.append)

    assert (whole.width, whole.height, whole.rows[0]) == (65, 3, bytes(colour) * 65)
    assert (small.width, small.height, small.rows) == (32, 1, [bytes(colour) * 32])
    assert told == [1.0]


def test_every_filter_of_png_is_undone(png: ModuleType) -> None:
    """Rows with each of the five filters, made by the rules of the specification, give the same pixels."""
    rows = [bytes((x * 7 + y * 13) % 256 for x in range(12)) for y in range(5)]
    raw = bytearray()
    above = bytes(12)
    for kind, row in enumerate(rows):
        raw.append(kind)
        for at, value in enumerate(row):
            left, corner = (row[at - 3], above[at - 3]) if at >= 3 else (0, 0)
            raw.append((value - predicted(kind, left, above[at], corner)) % 256)
        above = row

    assert png._unfiltered(bytes(raw), 12, 3) == rows


def predicted(kind: int, left: int, up: int, corner: int) -> int:
    if kind == 4:
        guess = left + up - corner
        away = [abs(guess - one) for one in (left, up, corner)]
        return (left, up, corner)[away.index(min(away))]
    return (0, left, up, (left + up) // 2)[kind]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"GIF89a" + data[6:],
        lambda data: data[:60],
        lambda data: data[:45] + b"\xff" + data[46:],
        lambda data: data[:24] + b"\x10" + data[25:],
        lambda _: b"",
    ],
)
def test_what_is_no_picture_is_refused(png: ModuleType, spoil: object) -> None:
    data = spoil(picture(png, (1, 2, 3)))  # type: ignore[operator]

    with pytest.raises(png.NoPicture):
        png.read(data)
