"""A server over a fresh database on each engine, asked through ASGI without sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import tenure
from tenure.web import asgi
from tests.conformance.engines import fresh_url, open_sqlite

BASE = "http://127.0.0.1:8400"


class Server:
    """One server and ways to ask it."""

    def __init__(self, app: tenure.App | dict[str, tenure.App], **settings: Any) -> None:
        self.apps = app if isinstance(app, dict) else {"default": app}
        self.app = next(iter(self.apps.values()))
        # A busy machine must not make a page too wide: the tests of that bound give their own.
        self.asgi = asgi(app, **{"look_seconds": 60.0, **settings})

    def client(self, token: str | None = None, **settings: Any) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        address = settings.pop("address", "127.0.0.1")
        transport = httpx.ASGITransport(self.asgi, client=(address, 1234))
        return httpx.AsyncClient(
            transport=transport, base_url=BASE, headers={**headers, **settings.pop("headers", {})}, **settings
        )

    def token(self, *scopes: str, name: str = "test") -> str:
        return self.app.access.new_token(name, scopes).text

    def link(self, *scopes: str, name: str = "ada") -> str:
        return self.app.access.new_link(name, scopes or tenure_everything())


def tenure_everything() -> tuple[str, ...]:
    from tenure.model.access import EVERYTHING

    return EVERYTHING


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A fresh database."""
    with fresh_url(request, tmp_path) as fresh:
        yield fresh


@pytest.fixture
def server(url: str) -> Iterator[Server]:
    """A server on either engine."""
    with tenure.App(url) as app:
        yield Server(app)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Server]:
    """A server on SQLite, for what does not depend on the engine."""
    open_sqlite(tmp_path / "small.db").close()
    with tenure.App(f"sqlite:///{tmp_path / 'small.db'}") as app:
        yield Server(app)
