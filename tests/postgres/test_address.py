"""A URL with Tenure's own parameters opens a store, and libpq does not see them."""

from __future__ import annotations

import pytest

import tenure
from tenure.store.postgres.store import PostgresStore

pytestmark = pytest.mark.postgres


def test_the_url_says_how_many_connections_a_process_uses(url: str) -> None:
    with tenure.App(f"{url}?tenure_pool=3") as app:
        app.enqueue("k", {})

        store = app.store
        assert isinstance(store, PostgresStore)
        assert store._pool._size == 3
        assert "tenure_pool" not in store.url
