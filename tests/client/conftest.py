"""An app on a fresh database of each engine, with the real time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tenure
from tenure.testing import temporary_app
from tests.conformance.engines import migrated_database


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def app(request: pytest.FixtureRequest) -> Iterator[tenure.App]:
    if request.param == "sqlite":
        with temporary_app() as app:
            yield app
        return
    with migrated_database(request.getfixturevalue("postgres_server")) as url, tenure.App(url) as app:
        yield app
