"""A live page misses nothing: not what is committed between its making and the first connection of its stream."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

import tenure
from tests.browser.conftest import Console
from tests.browser.test_console import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
NO_LOCKS = "Object.defineProperty(Navigator.prototype, 'locks', { get: () => undefined })"
"""A tab beyond the fourth holds no stream and asks for the marker. A browser without locks does the same."""


class LateStream:
    """Keeps what a page asks of `/ui/changes` back until it is let go."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._held: list[Route] = []
        page.route("**/ui/changes?**", self._hold)

    def _hold(self, route: Route) -> None:
        self._held.append(route)

    def open(self, address: str) -> None:
        """Load the page, until its stream has been asked for."""
        with self._page.expect_request("**/ui/changes?**", timeout=PATIENCE):
            self._page.goto(address, wait_until="load")

    def let_go(self) -> None:
        for route in self._held:
            route.continue_()
        self._held.clear()
        self._page.unroute("**/ui/changes?**")


@pytest.mark.parametrize("holds_a_stream", [True, False], ids=["by its stream", "by asking"])
def test_a_tab_that_connects_late_catches_up_with_what_was_committed_meanwhile(
    console: Console, holds_a_stream: bool
) -> None:
    page = console.context.new_page()
    if not holds_a_stream:
        page.add_init_script(NO_LOCKS)
    late = LateStream(page)
    console.app.enqueue("welcome", {"to": "x"}, queue="mail")

    late.open(f"{console.root}/jobs")
    job_id = console.app.enqueue("welcome", {"to": "y"}, queue="mail").id
    _wait_until_the_server_knows(console, page)
    late.let_go()

    expect(page.locator(".newer")).to_have_text("1 newer matches. Show", timeout=PATIENCE)
    page.locator(".newer").click()
    expect(page.locator(f"#job-{job_id}")).to_be_visible(timeout=PATIENCE)
    assert console.complaints == []


def test_a_job_page_that_connects_late_shows_the_end_that_came_meanwhile(console: Console) -> None:
    page, app = console.context.new_page(), console.app
    job_id = app.enqueue("welcome", {"to": "x"}, queue="mail").id
    (grant,) = app.claim(queues="mail", worker="w-1", lease_seconds=600)
    late = LateStream(page)

    late.open(f"{console.root}/jobs/{job_id}")
    expect(page.locator(".say")).to_contain_text("running")
    app.complete(grant, {"ok": True})
    late.let_go()

    expect(page.locator(".say")).to_contain_text("succeeded", timeout=PATIENCE)
    assert console.complaints == []


def test_a_workflow_page_that_connects_late_shows_the_task_that_ended_meanwhile(console: Console) -> None:
    page, app = console.context.new_page(), console.app
    app.agent("Loader")
    flow = tenure.Workflow("import")
    flow.task("load", agent="Loader", task_type="load")
    run = app.workflows.start(flow)
    late = LateStream(page)

    late.open(f"{console.root}/workflows/{run.id}")
    (grant,) = app.claim(queues="Loader", worker="w-1")
    app.complete(grant, {"ok": True})
    app.workflows.advance()
    late.let_go()

    expect(page.locator(".say")).to_contain_text(re.compile("completed"), timeout=PATIENCE)
    assert console.complaints == []


def test_a_page_is_live_although_one_of_its_scripts_comes_late(console: Console) -> None:
    """htmx began before its extension for streams was there, and the page stayed as it was for good."""
    page = console.context.new_page()

    def come_late(route: Route) -> None:
        page.wait_for_timeout(1500)
        route.continue_()

    page.route("**/static/**hx-sse**", come_late)

    with page.expect_request("**/ui/changes?**", timeout=PATIENCE):
        page.goto(f"{console.root}/jobs", wait_until="load")


def _wait_until_the_server_knows(console: Console, page: Page) -> None:
    """Until the look that all viewers share has seen the change: a stream that began from it would never tell."""
    address = page.locator("#stream").get_attribute("hx-sse:connect") or ""
    seen = re.search("seen=([0-9a-f]+)", address)
    assert seen is not None
    while console.context.request.get(f"{console.root}/changes?topic=all&once=1").text() == seen[1]:
        page.wait_for_timeout(100)
