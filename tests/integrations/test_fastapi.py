"""FastAPI and Starlette: a worker in the server, the app as a dependency, errors as problem documents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

import tenure
from tenure.integrations.fastapi import TenureApp, add_error_handlers, get_tenure, lifespan
from tests.integrations.served import Program, started
from tests.waiting import wait_until

# A poll, a lease or a grace period that an end waited for would take longer than a test waits.
SERVER = """
import threading
from pathlib import Path

import tenure
from fastapi import FastAPI
from tenure.integrations.fastapi import TenureApp, add_error_handlers, lifespan

queue = tenure.App()
queue.queue("slow", lease_seconds=600)

@queue.job
async def double(number: int) -> int:
    return number * 2

@queue.job(queue="slow")
def until_stopped(ctx: tenure.Context) -> None:
    Path("begun").touch()
    threading.Event().wait(0.05)
    while not ctx.stopping:
        threading.Event().wait(0.05)
    raise tenure.Snooze(0)

@queue.job(queue="slow")
def until_told() -> str:
    Path("begun").touch()
    while not Path("go").exists():
        threading.Event().wait(0.05)
    return "finished"

api = FastAPI(lifespan=lifespan(queue, poll_seconds=600, grace_seconds=600))
add_error_handlers(api)

@api.post("/double/{number}")
async def enqueue_double(number: int, app: TenureApp) -> int:
    handle = await app.aio.enqueue("double", number)
    return await handle.aresult(timeout=60)
"""


@pytest.fixture
def server(url: str, tmp_path: Path) -> Iterator[Program]:
    """A real uvicorn process with an embedded worker."""
    (tmp_path / "site_under_test.py").write_text(SERVER)
    command = ["-m", "uvicorn", "site_under_test:api", "--port", "0"]
    with started(command, tmp_path, {"TENURE_URL": url}) as program:
        wait_until(lambda: "running on" in program.output or program.process.poll() is not None, 60)
        assert program.process.poll() is None, program.output
        yield program


def test_an_idle_server_ends_on_sigterm_without_waiting_for_a_poll_or_a_grace_period(server: Program, url: str) -> None:
    where = re.search(r"running on (http://\S+)", server.output)
    assert where is not None, server.output
    assert httpx.post(f"{where[1]}/double/21", timeout=60).json() == 42

    code = server.terminate()

    assert code in {0, -15}, server.output
    assert "Application shutdown complete" in server.output
    with tenure.App(url) as app:
        assert app.workers.all() == []


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_handler_that_runs_is_finished_before_the_server_ends(server: Program, url: str, tmp_path: Path) -> None:
    with tenure.App(url) as app:
        job = app.enqueue("until_told", queue="slow")
        wait_until((tmp_path / "begun").exists)

        server.process.terminate()
        wait_until(lambda: "Waiting for application shutdown" in server.output)
        assert app.get(job.id).state == "running"
        (tmp_path / "go").touch()

        assert server.process.wait(timeout=60) in {0, -15}
        assert app.get(job.id).result == "finished"


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_handler_that_hears_of_the_end_gives_its_job_back_unspent(server: Program, url: str, tmp_path: Path) -> None:
    with tenure.App(url) as app:
        job = app.enqueue("until_stopped", queue="slow")
        wait_until((tmp_path / "begun").exists)

        server.terminate()

        found = app.get(job.id)
        assert (found.state, found.attempt) == ("queued", 0)


def make_site(queue: tenure.App, *, worker: bool = False) -> FastAPI:
    site = FastAPI(lifespan=lifespan(queue, worker=worker))
    add_error_handlers(site)

    @site.get("/jobs/{id}")
    async def show(id: str, app: TenureApp) -> str:  # noqa: A002
        return (await app.aio.get(id)).kind

    @site.post("/jobs/{kind}")
    def enqueue(kind: str, app: tenure.App = Depends(get_tenure)) -> str:  # noqa: B008
        return app.enqueue(kind, "no number").id

    @site.get("/down")
    def down() -> None:
        raise tenure.StoreUnavailable("postgresql://secret-host does not answer.")

    return site


def test_a_server_without_a_worker_enqueues_only(url: str) -> None:
    queue = tenure.App(url)
    with TestClient(make_site(queue)) as client:
        job_id = client.post("/jobs/anything").json()

        assert client.get(f"/jobs/{job_id}").json() == "anything"
        assert queue.workers.all() == []
        assert queue.get(job_id).state == "queued"


def test_errors_are_problem_documents_with_their_status(url: str) -> None:
    queue = tenure.App(url)

    @queue.job
    def number(value: int) -> None: ...

    with TestClient(make_site(queue)) as client:
        invalid = client.post("/jobs/number")
        missing = client.get("/jobs/01890000-0000-7000-8000-000000000000")
        down = client.get("/down")

    assert invalid.status_code == 422
    assert invalid.headers["content-type"] == "application/problem+json"
    assert invalid.json()["code"] == "invalid_payload"
    assert "number" in invalid.json()["detail"]
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    assert (down.status_code, down.headers["retry-after"]) == (503, "2")
    assert "secret-host" not in down.text


def test_a_server_whose_worker_cannot_start_does_not_start() -> None:
    queue = tenure.App("sqlite:////nowhere/at/all/jobs.db")

    with pytest.raises(tenure.TenureError), TestClient(make_site(queue, worker=True)):
        pass


def test_starlette_has_the_app_in_its_requests(url: str) -> None:
    from tenure.integrations import starlette

    queue = tenure.App(url)

    @queue.job
    def noted(word: str) -> str:
        return word

    def enqueue(request: Request) -> PlainTextResponse:
        return PlainTextResponse(starlette.get_tenure(request).enqueue("noted", "seen").result(timeout=60))

    site = Starlette(routes=[Route("/", enqueue)], lifespan=starlette.lifespan(queue))

    with TestClient(site) as client:
        assert client.get("/").text == "seen"


def test_a_request_to_a_server_without_an_app_says_what_to_do() -> None:
    site = FastAPI()
    add_error_handlers(site)

    @site.get("/")
    def ask(app: TenureApp) -> None: ...

    with TestClient(site, raise_server_exceptions=False) as client:
        assert client.get("/").json()["code"] == "config"
