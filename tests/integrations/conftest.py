"""Databases for the integrations' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tenure.testing import temporary_url


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh, migrated database on each engine."""
    chosen = request.getfixturevalue("postgres_url") if request.param == "postgres" else None
    with temporary_url(chosen) as fresh:
        yield fresh
