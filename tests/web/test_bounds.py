"""No page runs an unbounded query: what each asks of the store, by which plan, and what becomes of a look that is too
wide."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, get_args

import pytest

from tenure.client.jobs import SHOWN_STATES
from tenure.errors import TooWide
from tenure.store.browsing import BrowseJobs, bounded_looks
from tenure.store.queries import ListJobs
from tenure.store.sqlite import readers
from tenure.web.api.jobs import ListedState
from tests.web.conftest import Server
from tests.web.test_pages import PAGES, _populate, _text, signed_in

pytestmark = pytest.mark.anyio
MOST = 16
"""Requests that one page may make of the store, beside the look that all viewers share."""


@contextmanager
def asked(server: Server) -> Iterator[list[Any]]:
    """What is asked of a SQLite store within, but for the shared look, which has a thread and a pace of its own."""
    store, found = server.app.store, []
    plain: Callable[[Any], Any] = store.do
    plain_async: Callable[[Any], Awaitable[Any]] = store.ado

    def noted(request: Any) -> Any:
        if threading.current_thread().name != "tenure-pulse":
            found.append(request)
        return plain(request)

    async def noted_async(request: Any) -> Any:
        found.append(request)
        return await plain_async(request)

    store.do, store.ado = noted, noted_async  # type: ignore[method-assign]
    try:
        yield found
    finally:
        del store.do, store.ado


@pytest.mark.parametrize("path", [*PAGES, "/jobs?q=kind:welcome", "/jobs/{done}", "/jobs/{dead}?tab=output"])
async def test_a_page_asks_as_much_of_many_jobs_as_of_few_and_never_without_a_bound(small: Server, path: str) -> None:
    path = path.format(**_populate(small.app))
    counts = []
    async with signed_in(small) as client:
        for _ in range(2):
            await client.get(f"/ui{path}")
            with asked(small) as requests:
                assert (await client.get(f"/ui{path}")).status_code == 200
            counts.append([type(one).__name__ for one in requests])
            # Jobs by one of these are found through an index; any other list of jobs is a look of bounded size.
            listed = [one for one in requests if isinstance(one, ListJobs)]
            assert all(one.parent_id or one.workflow_id or one.worker for one in listed), listed
            assert not {"CountJobs", "ListVectors"} & {type(one).__name__ for one in requests}
            small.app.enqueue_many([small.app.new_job("welcome", {"n": n}, queue="mail") for n in range(200)])

    assert counts[0] or path == "/connect"
    assert counts[0] == counts[1]
    assert len(counts[0]) <= MOST


@pytest.fixture
def slow_look(server: Server) -> Any:
    """A look at so many jobs that no machine is through with it in a millisecond."""
    app = server.app
    for _ in range(4):
        app.enqueue_many([app.new_job("k", {"n": n}) for n in range(1000)])
    return BrowseJobs(error="nothing has this", limit=50, scan=4000)


def test_a_look_that_takes_too_long_is_stopped_by_the_engine_and_the_next_one_is_not(
    server: Server, slow_look: Any
) -> None:
    store = server.app.store
    began = time.monotonic()
    with bounded_looks(0.001), pytest.raises(TooWide) as told:
        store.do(slow_look)

    assert time.monotonic() - began < 30
    assert "Nothing was changed" in str(told.value)
    with bounded_looks(60):
        assert store.do(slow_look).scanned == 4000
    assert store.do(slow_look).scanned == 4000


def test_a_look_that_waits_for_a_busy_machine_is_not_too_wide(small: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that many shared, `/jobs?q=state:dead` beside two million jobs was refused as too wide: its 15
    milliseconds of work had taken two seconds. What it waits is not its width."""
    small.app.enqueue_many([small.app.new_job("k", {"n": n}) for n in range(1000)])
    look, plain = BrowseJobs(error="nothing has this", limit=50, scan=1000), time.monotonic
    monkeypatch.setattr(readers, "LOOK_STEPS", 1_000)
    waits = iter(range(10**6))
    monkeypatch.setattr(time, "monotonic", lambda: plain() + 0.1 * next(waits))

    with bounded_looks(2):
        assert small.app.store.do(look).scanned == 1000
    assert next(waits) > 20, "more than two seconds by the clock"
    with bounded_looks(0.001), pytest.raises(TooWide):
        small.app.store.do(look)


async def test_a_page_whose_look_is_too_wide_says_so_and_the_console_goes_on(url: str, server: Server) -> None:
    app = server.app
    for _ in range(4):
        app.enqueue_many([app.new_job("k", {"n": n}) for n in range(1000)])
    narrow = Server(app, look_seconds=0.0001)

    async with signed_in(narrow) as client:
        wide = await client.get("/ui/jobs", params={"q": "error:nothing"})
        went_on = await client.get("/ui/nowhere")

    assert wide.status_code == 422, url
    assert "That was too wide" in _text(wide)
    assert "too_wide" in _text(wide)
    assert went_on.status_code == 404


async def test_a_list_of_programs_whose_look_is_too_wide_says_so_and_the_server_goes_on(
    url: str, server: Server
) -> None:
    app = server.app
    for _ in range(4):
        app.enqueue_many([app.new_job("k", {"n": n}) for n in range(1000)])
    narrow = Server(app, look_seconds=0.0001)

    async with narrow.client(server.token("read:meta", "enqueue:*")) as client:
        wide = await client.get("/api/v1/jobs", params={"key": "nothing has this"})
        counted = await client.get("/api/v1/jobs:count")
        made = await client.post("/api/v1/jobs", json={"kind": "k"})
    async with server.client(server.token("read:meta")) as client:
        after = await client.get("/api/v1/jobs:count")

    assert (wide.status_code, wide.json()["code"]) == (422, "too_wide"), url
    assert (counted.status_code, counted.json()["code"]) == (422, "too_wide")
    assert made.status_code == 201
    assert sum(one["jobs"] for one in after.json()["counts"]) == 4001


async def test_a_filter_that_matches_little_is_looked_for_a_part_at_a_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page may hold fewer jobs than asked for, or none, while `next` leads on; in the end each was shown once."""
    monkeypatch.setattr("tenure.web.api.jobs.SCAN", 10)
    app = server.app
    rare = {app.enqueue("rare", queue="default").id}
    app.enqueue_many([app.new_job("k") for _ in range(35)])
    rare.add(app.enqueue("rare").id)
    app.enqueue_many([app.new_job("k") for _ in range(25)])

    pages = []
    async with server.client(server.token("read:meta")) as client:
        found = (await client.get("/api/v1/jobs", params={"kind": "rare", "state": "queued"})).json()
        pages.append(found["jobs"])
        while found["next"]:
            found = (await client.get("/api/v1/jobs", params={"cursor": found["next"]})).json()
            pages.append(found["jobs"])

    assert [len(page) for page in pages] == [0, 0, 1, 0, 0, 0, 1]
    assert {job["id"] for page in pages for job in page} == rare


async def test_a_stored_state_is_found_however_it_is_shown(server: Server) -> None:
    """A job that waits to be tried again is shown as `retry_waiting`, and one without its payload as `cleaned`."""
    app = server.app
    app.queues.set("default", max_attempts=3)
    retried, done = app.enqueue("k").id, app.enqueue("k").id
    first, second = app.claim(limit=2)
    app.fail(first, "boom")
    app.complete(second)
    app.prune(older_than=0.0)

    async with server.client(server.token("read:meta")) as client:
        queued = (await client.get("/api/v1/jobs", params={"state": "queued"})).json()["jobs"]
        ended = (await client.get("/api/v1/jobs", params={"state": "succeeded"})).json()["jobs"]
        words = [
            [one["id"] for one in (await client.get("/api/v1/jobs", params={"state": state})).json()["jobs"]]
            for state in ("retry_waiting", "cleaned", ["cleaned", "retry_waiting"], ["leased", "retry_waiting"])
        ]
        by_command = [
            [job.id for job in app.jobs(state=state)]
            for state in ("retry_waiting", "cleaned", ["cleaned", "retry_waiting"], ["leased", "retry_waiting"])
        ]

    assert [(one["id"], one["shown_state"]) for one in queued] == [(retried, "retry_waiting")]
    assert [(one["id"], one["shown_state"]) for one in ended] == [(done, "cleaned")]
    assert words == by_command == [[retried], [done], [done, retried], [retried]]


def test_a_list_takes_every_state_that_the_command_line_takes() -> None:
    assert set(get_args(ListedState)) == set(SHOWN_STATES)
