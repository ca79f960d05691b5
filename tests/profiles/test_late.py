"""What a profile's functions answer if a lease runs out while they wait for the lock on its job.

They look for the grant first, which locks the job's row. Another transaction may hold that row, such as one that writes
an effect of this job, and the lease may end meanwhile. The act then changed nothing, and "ok": true was a lie: the
caller dropped a task that another worker got and ran again.
"""

from __future__ import annotations

import json
import threading
from typing import Any, Final

import psycopg
import pytest

from tests.profiles.ground import Ground, wait_until_blocked

pytestmark = pytest.mark.postgres

ACTS: Final = {
    "automechanica": {
        "complete_task": "SELECT automechanica.complete_task(%s, 'w1')",
        "fail_task": "SELECT automechanica.fail_task(%s, 'w1', '{}')",
        "start_task": "SELECT automechanica.start_task(%s, 'w1')",
        "extend_lease": "SELECT automechanica.extend_lease(%s, 'w1')",
    },
    "substrate": {
        "fn_job_ack": "SELECT substrate.fn_job_ack(%s, 'w1')",
        "fn_job_fail_or_retry": "SELECT substrate.fn_job_fail_or_retry(%s, 'w1', 'no')",
        "fn_queue_heartbeat_tick": "SELECT substrate.fn_queue_heartbeat_tick('x-1', 'Codex', 'ok', %s, 'w1')",
    },
}
ENQUEUE: Final = {
    "automechanica": """SELECT automechanica.create_task('{"agent_name": "A", "task_type": "k"}')""",
    "substrate": "SELECT substrate.fn_job_enqueue('k', 'key', 'ada')",
}
CLAIM: Final = {
    "automechanica": "SELECT t ->> 'id', t ->> 'token' FROM automechanica.claim_task('A', 'w1') AS t",
    "substrate": "SELECT t #>> '{job,job_id}', t #>> '{job,token}' FROM substrate.fn_job_claim('w1') AS t",
}


@pytest.mark.parametrize("is_late", [True, False], ids=["late", "in time"])
@pytest.mark.parametrize(("profile", "act"), [(profile, act) for profile in ACTS for act in ACTS[profile]])
def test_an_act_that_waited_past_the_end_of_its_lease_says_that_it_is_lost(
    server_ground: Ground, profile: str, act: str, is_late: bool
) -> None:
    server_ground.open()
    answers: list[Any] = []

    def ask(job_id: str) -> None:
        with psycopg.connect(server_ground.app.url, autocommit=True) as connection:
            row = connection.execute(ACTS[profile][act].encode(), [job_id]).fetchone()
            answers.append(row and row[0])

    with psycopg.connect(server_ground.app.url) as first:
        first.execute(ENQUEUE[profile].encode())
        claimed = first.execute(CLAIM[profile].encode()).fetchone()
        assert claimed is not None
        first.commit()
        held = {"job_id": claimed[0], "token": claimed[1], "events": []}
        assert first.execute("SELECT tenure.append_events(%s)", [json.dumps(held)]).fetchone() == (True,)
        before = server_ground.execute("SELECT state, token, lease_until FROM tenure.job")
        waiting = threading.Thread(target=ask, args=[claimed[0]])
        waiting.start()
        wait_until_blocked(first)
        server_ground.clock.advance(301 if is_late else 1)
        first.commit()
        waiting.join(20)

    [answer] = answers
    if act == "fn_queue_heartbeat_tick":
        assert (answer["lease_until"] is None) == is_late
    else:
        assert (answer["ok"], answer.get("error")) == ((False, "lease_lost") if is_late else (True, None))
    assert (server_ground.execute("SELECT state, token, lease_until FROM tenure.job") == before) == is_late
