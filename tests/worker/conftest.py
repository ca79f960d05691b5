"""A worker's tests run on both engines, in real time unless a test says otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.engines import fresh_url, open_store
from tests.worker.bed import AT_ONCE, Bed


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A fresh, migrated database."""
    with fresh_url(request, tmp_path, has_grace=False) as fresh:
        yield fresh


@pytest.fixture
def bed(url: str) -> Iterator[Bed]:
    """A store with nothing in it but the queue `default`, whose jobs are retried at once."""
    store = open_store(url)
    bed = Bed(store)
    bed.queue(AT_ONCE)
    yield bed
    store.close()
