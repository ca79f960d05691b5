"""The workers of examples/http are real: they pass the same fence and kill tests as any other."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path

import httpx
import pytest

import tenure
from tests.waiting import wait_until
from tests.web.test_serve import serving

ROOT = Path(__file__).parents[2]
WORKERS = {
    "bash": (["bash", str(ROOT / "examples/http/worker.sh")], ("bash", "curl", "jq")),
    "node": (["node", str(ROOT / "examples/http/worker.mjs")], ("node",)),
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


def start(name: str, base: str, token: str, jobs: int) -> subprocess.Popen[bytes]:
    command, needs = WORKERS[name]
    missing = [one for one in needs if shutil.which(one) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")
    told = {"TENURE_API": base, "TENURE_TOKEN": token, "JOBS": str(jobs), "LEASE": "3"}
    return subprocess.Popen(command, env={**os.environ, **told}, start_new_session=True)


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_in_another_language_does_jobs_and_is_taken_over_when_killed(name: str, url: str) -> None:
    with tenure.App(url) as app:
        token = app.access.new_token(name, "worker:*").text
        ids = [app.enqueue("k", {"n": n}).id for n in range(2)]
        with serving("--url", url, "--no-link") as said:
            with start(name, str(said["url"]), token, jobs=2) as worker:
                assert worker.wait(60) == 0
            assert [app.get(one).result for one in ids] == [{"echo": {"n": 0}}, {"echo": {"n": 1}}]

            # One that dies while it holds a job: claimed by it, then killed with its whole group.
            slow = app.enqueue("k", {"n": 3}).id
            with httpx.Client(base_url=str(said["url"]), headers={"Authorization": f"Bearer {token}"}) as client:
                claimed = client.post("/api/v1/claims", json={"worker": "x", "queues": ["default"], "lease_seconds": 1})
                (grant,) = claimed.json()["grants"]
                with start(name, str(said["url"]), token, jobs=1) as worker:
                    assert worker.wait(60) == 0, "it takes the job over when the lease has run out"
                late = client.post(
                    "/api/v1/settlements",
                    json={"results": [{"id": slow, "token": grant["token"], "outcome": "complete", "result": "late"}]},
                )
            assert (late.status_code, late.json()["code"]) == (409, "lease_lost")
            assert app.get(slow).result == {"echo": {"n": 3}}


@pytest.mark.parametrize("name", WORKERS)
def test_a_killed_worker_loses_nothing(name: str, url: str) -> None:
    with tenure.App(url) as app:
        token = app.access.new_token(name, "worker:*").text
        with serving("--url", url, "--no-link") as said:
            with start(name, str(said["url"]), token, jobs=0) as worker:
                first = app.enqueue("k", {"n": 1}).id
                wait_until(lambda: app.get(first).state == "succeeded", 60)
                os.killpg(worker.pid, signal.SIGKILL)
            second = app.enqueue("k", {"n": 2}).id
            with start(name, str(said["url"]), token, jobs=1) as worker:
                assert worker.wait(60) == 0
        assert app.get(second).result == {"echo": {"n": 2}}


SLOW = {
    "bash": (
        """handle() { jq -c '{echo: .payload}' <<<"$1"; }""",
        """handle() { touch "$BEGUN"; while [ ! -e "$GO" ]; do sleep 0.1; done; echo '{"late": true}'; }""",
    ),
    "node": (
        "  return { echo: job.payload };",
        """  const { existsSync, writeFileSync } = await import("node:fs");
  writeFileSync(process.env.BEGUN, "");
  while (!existsSync(process.env.GO)) await new Promise((wake) => setTimeout(wake, 100));
  return { late: true };""",
    ),
}
"""The work of the examples, and work that says that it has begun and then waits for a word."""


@pytest.mark.parametrize("name", WORKERS)
@pytest.mark.parametrize("fate", ["killed", "stopped"])
def test_a_worker_that_falls_silent_while_it_holds_a_job_ends_it_no_more(
    name: str, fate: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole process group is killed, or stopped until another worker has done the job: then its late end is
    refused by the token that it still has."""
    command, _ = WORKERS[name]
    before, after = SLOW[name]
    script = Path(command[-1]).read_text()
    assert before in script
    slow = tmp_path / Path(command[-1]).name
    slow.write_text(script.replace(before, after))
    begun, go = tmp_path / "begun", tmp_path / "go"
    monkeypatch.setenv("BEGUN", str(begun))
    monkeypatch.setenv("GO", str(go))
    with tenure.App(url) as app, serving("--url", url, "--no-link") as said:
        token = app.access.new_token(name, "worker:*").text
        job_id = app.enqueue("k", {"n": 1}).id
        monkeypatch.setitem(WORKERS, name, ([command[0], str(slow)], WORKERS[name][1]))
        with start(name, str(said["url"]), token, jobs=1) as silent:
            try:
                wait_until(begun.exists, 60)
                held = app.get(job_id)
                os.killpg(silent.pid, signal.SIGKILL if fate == "killed" else signal.SIGSTOP)
                monkeypatch.setitem(WORKERS, name, (command, WORKERS[name][1]))
                with start(name, str(said["url"]), token, jobs=1) as other:
                    assert other.wait(120) == 0
                done = app.get(job_id)
                go.touch()
                if fate == "stopped":
                    os.killpg(silent.pid, signal.SIGCONT)
                    assert silent.wait(120) == 0
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(silent.pid, signal.SIGKILL)
        ended = app.get(job_id)

    assert (held.state, held.token) == ("running", 1)
    assert (done.state, done.token, done.result) == ("succeeded", 2, {"echo": {"n": 1}})
    assert ended == done
