"""A database of each engine with one job that has everything a bundle holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.testing import drain
from tests.conformance.engines import fresh_url

SECRET = "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A fresh database of each engine."""
    with fresh_url(request, tmp_path) as fresh:
        yield fresh


@pytest.fixture
def app(url: str) -> Iterator[tenure.App]:
    """An app whose kind `order` has steps, children, an effect, a stream, logs, and fails at its end."""
    app = tenure.App(url, actor="shop")
    app.queue("orders", max_attempts=2, events=True)

    @app.job
    def pack(number: int) -> int:
        return number

    @app.job(queue="orders", durable=True, backoff=tenure.Backoff("none"))
    def order(payload: dict[str, Any], ctx: tenure.Context) -> None:
        ctx.stream().write(f"attempt {ctx.attempt}: packing ☃\n")
        ctx.logger.info("packing with password=%s", "hunter2-and-more")
        ctx.step("price", lambda: {"eur": 40})
        ctx.map("packed", "pack", [1, 2])
        ctx.effect("mail", {"to": "ann@example.org"}, do=lambda call: {"id": call.key})
        raise RuntimeError(f"the carrier refused {payload['api_key']}\nand hung up")

    with app:
        yield app


@pytest.fixture
def order(app: tenure.App) -> str:
    """The id of such a job, dead after two attempts, triaged, revived once and dead again."""
    job_id = app.enqueue("order", {"api_key": SECRET, "n": 7}).id
    drain(app, raise_errors=False)
    (letter,) = app.dead_letters.all(job_id=job_id)
    app.dead_letters.triage([letter.id], "acknowledged", note="carrier is down")
    app.revive(job_id, reason="carrier is back", actor="ann")
    drain(app, raise_errors=False)
    return job_id
