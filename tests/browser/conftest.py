"""A real server, real workers and real Chromium. Where Chromium is missing the tests are skipped, with what helps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

import tenure
from tests.conformance.engines import fresh_url

CHROMIUM = os.environ.get("TENURE_CHROMIUM", "/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
CHILDREN = Path(__file__).parent / "children"


@dataclass
class Console:
    """A server on a fresh database, and the browser that looks at it."""

    app: tenure.App
    url: str
    root: str
    folder: Path
    context: BrowserContext
    page: Page
    complaints: list[str] = field(default_factory=list)
    """What Chromium said against a page: refused by the CSP, a request to another origin, an error in a script."""
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def worker(self) -> subprocess.Popen[bytes]:
        """Start a worker in a process of its own."""
        command = [sys.executable, "-m", "tenure.cli.main", "worker", "shop:app", "--concurrency", "2"]
        environment = {**os.environ, "TENURE_URL": self.url, "PYTHONPATH": str(CHILDREN)}
        started = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True)
        self.workers.append(started)
        return started

    @contextmanager
    def window(self, **settings: Any) -> Iterator[Page]:
        """Another window of the same session: without scripts, or in another part of the world."""
        browser = self.context.browser
        assert browser is not None
        with browser.new_context(**settings) as context:
            kept = [{key: one[key] for key in ("name", "value", "domain", "path")} for one in self.context.cookies()]
            context.add_cookies(kept)  # type: ignore[arg-type]
            yield context.new_page()

    def goto(self, path: str) -> None:
        self.page.goto(f"{self.root}{path}", wait_until="load")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, for the tests of one module. While it is there an event loop runs in this thread, which no other test
    could use, so it must not last for the session."""
    if not Path(CHROMIUM).exists():
        pytest.skip(f"{CHROMIUM} is not there. Install it with: apt-get install chromium (or set TENURE_CHROMIUM)")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def console(request: pytest.FixtureRequest, browser: Browser, tmp_path: Path) -> Iterator[Console]:
    """A console, signed in by the link that the server prints. On SQLite, unless the parameter names PostgreSQL."""
    with fresh_url(request, tmp_path) as url, tenure.App(url) as app:
        app.queues.set("mail", max_attempts=1, lease_seconds=3, events=True)
        command = [sys.executable, "-m", "tenure.cli.main", "serve", "--json", "--port", "0", "--url", url]
        command += ["--look-seconds", "60"]  # a busy machine must not make a page too wide; test_bounds tests the bound
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
            assert server.stdout is not None
            told = json.loads(server.stdout.readline())
            # Without motion: a dot that beats is drawn 60 times a second, by the processor where there is no GPU.
            context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
            made = Console(app, url, "", tmp_path, context, context.new_page())
            _listen(made, told["url"])
            try:
                made.page.goto(next(iter(told["links"].values())))
                made.page.wait_for_url("**/ui/")
                made.root = made.page.url.rstrip("/")
                yield made
            finally:
                context.close()
                for worker in made.workers:
                    _end(worker)
                server.terminate()


def _listen(made: Console, origin: str) -> None:
    def requested(address: str) -> None:
        if not address.startswith((origin, "data:", "about:")):
            made.complaints.append(f"a request to {address}")

    def said(text: str) -> None:
        if "Content Security Policy" in text or "Content-Security-Policy" in text:
            made.complaints.append(text)

    made.context.on("request", lambda request: requested(request.url))
    made.context.on("console", lambda message: said(message.text))
    made.context.on("weberror", lambda error: made.complaints.append(str(error.error)))


def _end(worker: subprocess.Popen[bytes]) -> None:
    if worker.poll() is None:
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
