"""One real 429, from an HTTP server or from an agent's program, holds back all jobs of its limiter's key: no attempt is
spent, other keys go on, and the key reopens slowly."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.effects import agents, webhooks
from tenure.effects.webhook_jobs import BUSY_SECONDS, retry_after
from tenure.sandbox.ssrf import SsrfPolicy
from tenure.testing import ManualClock, adrain, drain
from tests.effects.conftest import app_at, on_both_engines
from tests.effects.test_agent import tool

JOBS = 8


class Receiver:
    """An HTTP server that answers 429 to a path as often as it was told to, and 200 otherwise."""

    def __init__(self) -> None:
        self.refusals: dict[str, int] = {}
        self.seen: list[str] = []
        self.retry_after = "90"
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                receiver.seen.append(self.path)
                is_refused = receiver.refusals.get(self.path, 0) > 0
                if is_refused:
                    receiver.refusals[self.path] -= 1
                self.send_response(429 if is_refused else 200)
                if is_refused:
                    self.send_header("Retry-After", receiver.retry_after)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator[Receiver]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def states(app: tenure.App, ids: Sequence[str]) -> list[tuple[str, int]]:
    return [(str(job.state), job.attempt) for job in app.get_many(ids) if job is not None]


@on_both_engines
def test_a_receiver_that_says_429_is_left_alone_by_all_of_its_key(store_url: str, clock: ManualClock) -> None:
    kit = webhooks(policy=SsrfPolicy(allow_private=True, allow_http=True), limits=["crm"])
    with Receiver().running() as receiver, app_at(tenure.App().use(kit), store_url, clock) as app:
        receiver.refusals = {"/crm": 2}
        ids = [app.enqueue("http_request", {"url": f"{receiver.url}/crm"}).id for _ in range(JOBS)]
        other = app.enqueue("http_request", {"url": f"{receiver.url}/erp"}, limits=["erp"]).id

        drain(app, raise_errors=False, concurrency=1)
        assert receiver.seen.count("/crm") == 1, "one refusal is enough"
        assert states(app, [other]) == [("succeeded", 1)]
        assert states(app, ids) == [("queued", 0)] * JOBS
        [blocked] = [one for one in app.limits.all() if one.key == "crm"]
        assert (blocked.room, blocked.strikes) == (0, 1)
        assert "429" in (blocked.reason or "")

        clock.advance(89)
        drain(app, raise_errors=False, concurrency=1)
        assert receiver.seen.count("/crm") == 1, "the time that the receiver named is not over"
        clock.advance(1)
        drain(app, raise_errors=False, concurrency=JOBS)
        assert receiver.seen.count("/crm") == 2, "one probe, which is refused again"
        assert states(app, ids) == [("queued", 0)] * JOBS

        clock.advance(90)
        drain(app, raise_errors=False, concurrency=JOBS)
        assert states(app, ids) == [("succeeded", 1)] * JOBS, "its success opens the key"
        assert receiver.seen.count("/crm") == 2 + JOBS
        failed = [one for job_id in ids for one in app.attempts(job_id)]
        assert {(one.outcome, one.failure_class) for one in failed} == {("released", "rate_limited")}
        assert len(failed) == 2


@pytest.mark.anyio
@on_both_engines
async def test_an_agents_program_that_reports_a_rate_limit_holds_back_the_others(
    store_url: str, clock: ManualClock, place: Path, marker: str
) -> None:
    (place / "root").mkdir()
    kit = agents(
        tool("codex", "codex", marker), root=place / "root", workspaces=place / "workspaces", limits=["openai"]
    )
    with app_at(tenure.App().use(kit), store_url, clock) as app:
        said = "API Error: 429 too many requests, retry after 40 s"
        busy = json.dumps({"act": "fail", "say": said})
        first = app.enqueue("codex_exec", {"prompt": busy}, priority=0).id
        rest = [app.enqueue("codex_exec", {"prompt": f"do {number}"}).id for number in range(3)]
        other = app.enqueue("codex_exec", {"prompt": "do it"}, limits=["mistral"]).id

        await adrain(app, raise_errors=False, concurrency=1)
        assert states(app, [other]) == [("succeeded", 1)]
        assert states(app, [first, *rest]) == [("queued", 0)] * 4
        assert [one.failure_class for one in app.attempts(first)] == ["rate_limited"]
        app.cancel(first)
        clock.advance(39)
        await adrain(app, raise_errors=False, concurrency=4)
        assert states(app, rest) == [("queued", 0)] * 3
        clock.advance(1)
        await adrain(app, raise_errors=False, concurrency=4)

        assert states(app, rest) == [("succeeded", 1)] * 3


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("nan", BUSY_SECONDS), ("inf", 3600.0), ("-inf", 0.0), ("1e999", 3600.0), ("-5", 0.0), ("", BUSY_SECONDS)],
)
def test_a_retry_after_that_is_no_time_is_bounded(value: str, seconds: float) -> None:
    assert retry_after(value) == seconds
