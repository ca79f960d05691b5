"""An agent's worker dies in the second model call: what was paid for is read back, on both engines."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import tenure
from tests.frameworks.conftest import Workers
from tests.waiting import wait_until

CALLED = Counter({"model": 3, "charge 700": 1, "charge 50": 1})
"""Three model calls: the first, the one in which the worker died, and that one again."""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["pydantic_ai", "openai_agents", "langgraph"])
def test_no_finished_call_is_repeated_after_a_crash(kind: str, url: str, notes: Path, workers: Workers) -> None:
    app = tenure.App(url)
    wait_until(lambda: any(queue.name == "agents" for queue in app.queues.all()), 60)
    job_id = app.enqueue(kind, {}, queue="agents").id

    def has_ended() -> bool:
        workers.tend()
        return app.get(job_id).state in {"succeeded", "failed", "dead"}

    wait_until(has_ended, 180)
    job = app.get(job_id)
    assert (job.state, job.result) == ("succeeded", "charged once"), job.last_error
    assert Counter(notes.read_text().splitlines()) == CALLED
    assert workers.deaths == 1
