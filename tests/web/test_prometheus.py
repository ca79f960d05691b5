"""`GET /metrics`: it parses, tells what is so, and stays small whatever the database holds."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import tenure
from tenure.observe.prometheus import FAMILIES
from tenure.store.metrics import RollUp
from tenure.testing import ManualClock
from tests.waiting import wait_until
from tests.web.conftest import Server

pytestmark = pytest.mark.anyio
START = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
Labels = frozenset[tuple[str, str]]


async def scrape(client: httpx.AsyncClient) -> dict[str, dict[Labels, float]]:
    """Every sample by its name and labels, read by Prometheus's own parser."""
    answer = await client.get("/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


def labels(**given: str) -> Labels:
    return frozenset(given.items())


def count_minutes(app: tenure.App) -> None:
    """Count all that is over. On PostgreSQL another transaction on the server may hold it up for a moment."""
    wait_until(lambda: not app.store.do(RollUp()).more)


@pytest.fixture
def worked(url: str) -> Any:
    """A server whose app has done some work under a clock of its own, four minutes ago."""
    clock = ManualClock(START)
    app = tenure.App()

    @app.job(queue="mail", max_attempts=1)
    def send(to: str) -> None:
        clock.advance(2)
        if to == "bad":
            raise ValueError(to)

    is_sqlite = url.startswith("sqlite")
    with app.pointed_at(url, clock=clock if is_sqlite else None):
        if is_sqlite:
            yield from _work(app, clock)
        else:
            app.migrate()
            with clock.steer(url):
                yield from _work(app, clock)


def _work(app: tenure.App, clock: ManualClock) -> Any:
    from tenure.testing import drain

    app.queues.set("mail")
    count_minutes(app)
    for to in ("ann", "bob", "bad"):
        app.enqueue("send", to)
    drain(app, raise_errors=False)
    clock.advance(240)
    count_minutes(app)
    app.enqueue("send", "late")
    clock.advance(90)
    yield Server(app)


async def test_what_ended_and_what_waits_is_told(worked: Server) -> None:
    async with worked.client(worked.token("read:meta")) as client:
        found = await scrape(client)

    mail = labels(queue="mail")
    assert found["tenure_queue_oldest_ready_seconds"][mail] == 90.0
    assert found["tenure_queue_oldest_ready_seconds"][labels(queue="default")] == 0.0
    assert (found["tenure_jobs_ready"][mail], found["tenure_jobs_held"][mail]) == (1, 0)
    assert found["tenure_queue_backlog"][mail] == 1
    assert found["tenure_jobs_finished_total"] == {
        labels(queue="mail", kind="send", outcome="succeeded"): 2.0,
        labels(queue="mail", kind="send", outcome="dead"): 1.0,
        labels(queue="mail", kind="send", outcome="failed"): 0.0,
        labels(queue="mail", kind="send", outcome="cancelled"): 0.0,
    }
    assert found["tenure_dead_letters"][labels(triage="pending")] == 1
    assert found["tenure_job_run_seconds_count"][mail] == 2
    assert found["tenure_job_run_seconds_sum"][mail] == pytest.approx(4.0)
    below = {float(dict(key)["le"]): n for key, n in found["tenure_job_run_seconds_bucket"].items()}
    assert below[max(edge for edge in below if edge < 2)] == 0
    assert below[min(edge for edge in below if edge > 2)] == 2


async def test_every_family_is_there_with_its_sort_and_its_meaning(worked: Server) -> None:
    async with worked.client(worked.token("read:meta")) as client:
        text = (await client.get("/metrics")).text

    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert {family.name.removesuffix("_total") for family in FAMILIES} == set(found)
    for family in FAMILIES:
        told = found[family.name.removesuffix("_total")]
        assert (told.type, told.documentation) == (family.sort, family.meaning)
        used = {label for sample in told.samples for label in sample.labels} - {"le"}
        assert used <= set(family.labels), family.name


async def test_labels_that_hold_anything_are_read_back_as_they_are(small: Server) -> None:
    nasty = 'a "quoted" \\ back\\nslash {x="y"} ☃'
    small.app.queues.set(nasty)

    async with small.client(small.token("read:meta")) as client:
        found = await scrape(client)

    assert labels(queue=nasty) in found["tenure_jobs_ready"]


async def test_ten_thousand_kinds_make_no_more_series_than_two_hundred(tmp_path: Any) -> None:
    clock = ManualClock(START)
    app = tenure.App()
    with app.pointed_at(f"sqlite:///{tmp_path / 'kinds.db'}", clock=clock):
        count_minutes(app)
        app.enqueue_many(app.new_job(f"kind{number}", {}) for number in range(10_000))
        while grants := app.claim(limit=1000, worker="w"):
            for grant in grants:
                app.complete(grant)
        clock.advance(240)
        count_minutes(app)
        server = Server(app)
        async with server.client(server.token("read:meta")) as client:
            text = (await client.get("/metrics")).text

    series = re.findall(r"^tenure_jobs_finished_total\{.*\} (\d+)$", text, re.MULTILINE)
    assert len(series) == 201 * 4
    assert sum(map(int, series)) == 10_000
    assert f'kind="_other",outcome="succeeded"}} {10_000 - 200}' in text
    assert len(text) < 100_000


async def test_metrics_health_and_readiness_ask_for_what_they_should(server: Server) -> None:
    async with server.client() as client:
        assert (await client.get("/healthz")).json() == {"status": "ok"}
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/readyz")).status_code == 401
    async with server.client(server.token("read:meta")) as client:
        assert (await client.get("/readyz")).json() == {"status": "ok"}
    async with server.client(server.token("enqueue:*")) as client:
        assert (await client.get("/metrics")).status_code == 403


async def test_the_backlog_of_a_queue_is_one_number_for_an_autoscaler(server: Server) -> None:
    server.app.queues.set("mail")
    server.app.enqueue_many(server.app.new_job("send", {}, queue="mail") for _ in range(7))
    server.app.claim(queues="mail", limit=2, worker="w")

    async with server.client(server.token("read:meta")) as client:
        alone = (await client.get("/api/v1/queues/mail/backlog")).json()
        capped = (await client.get("/api/v1/queues/mail/backlog", params={"cap": 3})).json()
        within = (await client.get("/api/v1/queues/mail")).json()
        unknown = await client.get("/api/v1/queues/mial/backlog")

    assert alone == {"item": {"queue": "mail", "backlog": 7}}
    assert capped["item"]["backlog"] == 3
    assert within["item"]["scale"] == 7
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_queue")
    assert "mail" in unknown.json()["detail"]
