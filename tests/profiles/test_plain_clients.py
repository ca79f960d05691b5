"""A worker needs no Python: psql and Node run whole job lives, with no other right than tenure_worker's."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.profiles.ground import Ground, PostgresGround
from tests.servers import wheel_bin_path

pytestmark = pytest.mark.postgres

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = ROOT / "examples"


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=os.environ | environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("version", ["18", "15"])
def test_psql_alone_runs_a_whole_job_life(request: pytest.FixtureRequest, version: str) -> None:
    postgres_ground: PostgresGround = request.getfixturevalue(f"postgres{'15' if version == '15' else ''}_ground")
    server_ground = postgres_ground.fresh()
    psql = shutil.which("psql") or shutil.which("psql", path=str(wheel_bin_path(18)))
    assert psql is not None
    server_ground.app.gates.open("substrate.master")
    server_ground.app.gates.open("substrate.heartbeat")

    told = run(
        psql, postgres_ground.login("worker"), "-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1",
        "-f", str(EXAMPLES / "psql_worker.sql"),
    )  # fmt: skip

    answers = [line for line in told.splitlines() if line and not line.startswith("#")]
    assert answers == [
        "false",
        "true",
        "leased",
        "true",
        "retry_waiting",
        "2",
        "lease_lost",
        "succeeded",
        "dead_letter",
    ]
    states = {row["idempotency_key"]: row["state"] for row in server_ground.rows("substrate.job_queue")}
    assert states == {"unit-7": "succeeded", "unit-8": "dead_letter"}
    assert server_ground.row("substrate.job_dead_letter")["final_error"] == "unit 8 cannot be read"
    assert server_ground.rows("substrate.v_queue_health")[0]["jobs_succeeded"] == 1
    server_ground.app.close()


def test_psql_is_refused_politely_while_the_gates_are_closed(
    server_ground: Ground, postgres_ground: PostgresGround
) -> None:
    psql = shutil.which("psql") or shutil.which("psql", path=str(wheel_bin_path(18)))
    assert psql is not None

    told = run(
        psql, postgres_ground.login("worker"), "-X", "-q", "-t", "-A",
        "-c", "SELECT substrate.fn_job_claim('w') ->> 'gate'",
    )  # fmt: skip

    assert told.strip() == "queue.job_substrate.enabled"


def test_node_runs_a_whole_job_life_in_thirty_lines(server_ground: Ground, postgres_ground: PostgresGround) -> None:
    node = shutil.which("node")
    places = [Path(p) for p in (os.environ.get("NODE_MODULES", ""), str(ROOT / ".bench" / "node"), str(ROOT)) if p]
    place = next((p for p in places if (p / "node_modules" / "pg").is_dir()), None)
    if node is None or place is None:
        pytest.skip("node, or its package pg, is not installed (npm install pg, then NODE_MODULES names the folder)")
    assert len((EXAMPLES / "node_worker.mjs").read_text().splitlines()) <= 30
    server_ground.app.gates.open("substrate.master")
    server_ground.app.gates.open("substrate.heartbeat")

    told = run(node, str(EXAMPLES / "node_worker.mjs"), postgres_ground.login("worker"), NODE_MODULES=str(place))

    assert told.split() == ["1", "retry_waiting", "2", "succeeded", "dead_letter"]
    done = server_ground.row("substrate.job_queue", "state = 'succeeded'")
    assert server_ground.app.get(str(done["job_id"])).result == {"said": "Hello Ada"}
    assert server_ground.row("substrate.queue_heartbeat")["ticks_total"] == 2
