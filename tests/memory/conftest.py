"""Memory is tried on both engines, with real workers and the real model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure import App
from tests.conformance.engines import fresh_url


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A fresh, migrated database."""
    with fresh_url(request, tmp_path, has_grace=False) as fresh:
        yield fresh


@pytest.fixture
def app(url: str) -> Iterator[App]:
    """An app on it, with wordllama's vectors."""
    with App(url, embedder="wordllama:256") as app:
        yield app
