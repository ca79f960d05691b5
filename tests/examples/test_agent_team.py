"""The agents of examples/agent_team: a 429, a killed process, an empty budget and an approval, on both engines."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

import tenure
from tests.examples.running import EXAMPLES
from tests.integrations.served import started

pytestmark = pytest.mark.slow

FOLDER = EXAMPLES / "agent_team"
PROMPTS = [
    "plan a page",
    "collect facts",
    "check the facts",
    "outline the text",
    "write the text",
    "sketch a picture",
    "draw the picture",
]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    is_file = request.param == "sqlite"
    found: str = f"sqlite:///{tmp_path / 'team.db'}" if is_file else request.getfixturevalue("postgres_url")
    return found


def test_the_team_goes_on_after_all_that_happens_to_it(url: str, tmp_path: Path) -> None:
    with started([str(FOLDER / "main.py"), url], tmp_path) as program:
        assert program.process.wait(timeout=200) == 0, program.output
        told = program.output
    readme = re.search(r"^```text\n(.*?)^```", (FOLDER / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert readme is not None
    assert told == readme[1]

    calls = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text().splitlines()]
    ends = Counter((call["prompt"], call["end"]) for call in calls)
    assert ends == {
        **{(prompt, "answered"): 1 for prompt in PROMPTS},  # none is answered again after the crash
        ("check the facts", "refused"): 1,
        ("write the text", "unanswered"): 1,
    }

    with tenure.App(url) as app:
        (plan,) = app.jobs(kind="plan")
        workers = {job.kind: job for job in app.jobs(parent_id=plan.id)}
        assert {kind: (job.state, job.attempt) for kind, job in workers.items()} == {
            "research": ("succeeded", 1),  # the 429 has spent no attempt
            "write": ("succeeded", 2),
            "illustrate": ("succeeded", 1),
        }
        ended = {kind: [one.failure_class for one in app.attempts(job.id)] for kind, job in workers.items()}
        assert ended == {"research": ["rate_limited"], "write": ["crash"], "illustrate": []}

        (approval,) = app.approvals.all(state=None)
        assert approval.args == {
            "title": "Bicycle lamp",
            "text": workers["write"].result,
            "facts": workers["research"].result,
            "picture": workers["illustrate"].result,
        }
        assert (approval.state, [(vote.voter, vote.choice) for vote in approval.votes]) == (
            "used",
            [("maria", "approve")],
        )
        assert plan.result == {"state": "published", "by": ["maria"]}
        assert workers["write"].result in (tmp_path / "page.md").read_text()

        (budget,) = app.budgets.all()
        assert (budget.limit, budget.reserved, budget.waiting) == (600_000, 0, 0)
        assert budget.used == len(PROMPTS) * 60_000 + 100_000  # the unanswered call is counted as reserved
        (limiter,) = app.limits.all()
        assert (limiter.key, limiter.strikes) == ("model", 0)


def test_a_second_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "calls.jsonl").write_text("")

    with started([str(FOLDER / "main.py")], tmp_path) as program:
        assert program.process.wait(timeout=60) == 1
        assert "Start in an empty folder" in program.output
    assert not list(tmp_path.glob("*.db"))
