"""Random lives of jobs: both stores, one model. `TENURE_LONG=1` makes it 20,000 steps for each store."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.conformance.engines import SteeredDatabase, scratch_folder
from tests.servers import PostgresServer
from tests.stateful.grounds import PostgresGround, SqliteGround
from tests.stateful.machine import Ground, StoreMachine, machine_on

LONG = os.environ.get("TENURE_LONG") == "1"
STEPS = 20_000 if LONG else 800
# Making a failure small takes minutes; the short form tells it as it was found.
PHASES = (Phase.generate, Phase.shrink) if LONG else (Phase.generate,)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def ground(request: pytest.FixtureRequest) -> Iterator[Ground]:
    if request.param == "sqlite":
        with scratch_folder() as folder:
            yield SqliteGround(folder)
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    database = SteeredDatabase(server)
    yield PostgresGround(database)
    database.close()


@pytest.mark.slow
@pytest.mark.timeout(3600 if LONG else 120)
def test_whatever_happens_to_jobs_the_store_holds_what_the_model_holds(ground: Ground) -> None:
    steps = StoreMachine.steps_run

    while StoreMachine.steps_run - steps < STEPS:
        run_state_machine_as_test(
            machine_on(ground),
            settings=settings(
                max_examples=100 if LONG else 10,
                stateful_step_count=50,
                phases=PHASES,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )

    print(f"{StoreMachine.steps_run - steps} steps")
