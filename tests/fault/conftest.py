"""Stores on the real clock, for processes that share nothing but the database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tenure.model.policy import Backoff, QueuePolicy
from tenure.store.admin import SetQueues
from tenure.store.contract import Store
from tests.conformance.engines import fresh_url, open_store


@dataclass(frozen=True)
class Place:
    """A database that several processes use, and a store of the test's own on it."""

    engine: str
    url: str
    store: Store
    path: Path
    """The file of a SQLite database."""
    journal: Path


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with fresh_url(request, tmp_path, has_grace=False) as url:
        store = open_store(url)
        make_queues(store)
        yield Place(request.param, url, store, tmp_path / "jobs.db", tmp_path / "journal")
        store.close()


def make_queues(store: Store) -> None:
    policies = {
        "churn": QueuePolicy(backoff=Backoff(shape="none", jitter=0), max_attempts=1000),
        "quick": QueuePolicy(backoff=Backoff(shape="none", jitter=0)),
    }
    store.do(SetQueues(policies, actor="test"))
