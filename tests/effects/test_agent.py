"""Agents as jobs, with stand-ins for the real command lines: frozen prompts, kept sessions, walls, and nothing left."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tenure
from tenure.effects import AgentTool, Extraction, Outbox, agents, files, output_schema
from tenure.effects.atomic_file import write_file
from tenure.effects.outbox import Change
from tenure.sandbox.policy import offers
from tenure.sandbox.rlimits import MIB, Limits
from tenure.testing import adrain
from tests.effects.conftest import app_at, on_both_engines, processes_with

TOOLS = Path(__file__).parent / "tools"
PYTHON = str(Path(sys.executable).resolve())
CANARY = "canary-4f9a1c77e2"

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is built of Linux's parts"),
]


def tool(name: str, dialect: str, marker: str, **changes: Any) -> AgentTool:
    made = AgentTool(
        name,
        (PYTHON, str(TOOLS / "stand_in.py"), dialect),
        dialect,  # type: ignore[arg-type]
        env={"MARKER": marker, "STAND_IN_API_KEY": CANARY},
        readable=(TOOLS, Path(sys.base_prefix)),
        timeout=timedelta(seconds=20),
        grace=timedelta(seconds=1),
        limits=Limits(memory_bytes=512 * MIB, processes=32),
        allow_degraded="namespaces" in offers().missing,
        skills=frozenset({"pr-review"}),
    )
    return replace(made, **changes)


class Bed:
    """An app with agents, and where they write."""

    def __init__(self, app: tenure.App, place: Path) -> None:
        self.app = app
        self.root = place / "root"
        self.workspaces = place / "workspaces"
        self.artifacts = place / "artifacts"

    async def run(self, kind: str, payload: dict[str, Any], **options: Any) -> tenure.Job:
        job_id = self.app.enqueue(kind, payload, **options).id
        await adrain(self.app, raise_errors=False)
        return self.app.get(job_id)

    def events(self, job: tenure.Job, *kinds: str) -> list[Any]:
        return [event.data for event in self.app.events(job_id=job.id, kind=kinds)]

    def left(self) -> list[str]:
        return sorted(path.name for path in self.workspaces.iterdir()) if self.workspaces.exists() else []


def make_bed(place: Path, *tools: AgentTool, url: str | None = None) -> Iterator[Bed]:
    (place / "root").mkdir()
    kit = agents(*tools, root=place / "root", workspaces=place / "workspaces", artifacts=place / "artifacts")
    with app_at(tenure.App().use(kit), url or f"sqlite:///{place / 'agents.db'}") as app:
        app.queues.set("agents", backoff=tenure.Backoff(shape="none"))
        yield Bed(app, place)


@pytest.fixture
def bed(place: Path, marker: str, store_url: str) -> Iterator[Bed]:
    tools = (tool("claude", "claude", marker), tool("codex", "codex", marker), tool("plain", "plain", marker))
    yield from make_bed(place, *tools, url=store_url)


def read(path: str) -> str:
    return Path(path).read_text()


def exists(path: str) -> bool:
    return Path(path).exists()


def order(**what: Any) -> str:
    return json.dumps(what)


@on_both_engines
async def test_claude_extraction_writes_the_answer_and_keeps_what_the_run_told(bed: Bed) -> None:
    job = await bed.run(
        "claude_extraction", {"prompt": "extract it", "targetPath": "out/r.md", "requirementId": "REQ-7"}
    )

    assert (bed.root / "out/r.md").read_text() == "extract it"
    result = job.result
    assert result["sha256"] == hashlib.sha256(b"extract it").hexdigest()
    assert result["promptHash"] == hashlib.sha256(b"extract it").hexdigest()
    assert (result["costUsd"], result["tokens"], result["exit"], result["requirementId"]) == (
        0.25,
        {"input_tokens": 100, "output_tokens": 20},
        0,
        "REQ-7",
    )
    assert result["sessionId"] in read(result["transcriptPath"])
    (run,) = bed.events(job, "agent_run")
    assert (run["sessionId"], run["attempt"]) == (result["sessionId"], 1)
    assert bed.left() == []
    assert list(bed.app.effects.reconcile()) == []


EXTRACTION = Extraction("List the risks of {id}, by {owner.name}: {text}", target="risks/{id}.md")
REQUIREMENT = {"id": "REQ-7", "owner": {"name": "ada"}, "text": "Sign in with {a} key."}
PROMPT = "List the risks of REQ-7, by ada: Sign in with {a} key."


@on_both_engines
async def test_a_requirement_and_the_extraction_of_it_are_accepted_in_one_step(bed: Bed) -> None:
    """004, phase 4: the requirement's file is data, its prompt is made and frozen when it is queued."""
    outbox = Outbox(bed.root)
    bed.app.use(outbox)

    def change(_: Any, box: Change) -> Any:
        EXTRACTION.enqueue(box, REQUIREMENT)
        return REQUIREMENT

    accepted = outbox.update("requirements/REQ-7.json", change)
    queued = bed.app.get(accepted.effects[0])
    again = EXTRACTION.enqueue(bed.app, REQUIREMENT)
    changed = EXTRACTION.enqueue(bed.app, REQUIREMENT | {"text": "Sign in with a code."})
    outbox.put("requirements/REQ-7.json", {"id": "REQ-7"})  # the prompt is what it was when it was queued
    bed.app.cancel(changed.id, reason="another prompt is another run")
    await adrain(bed.app)

    assert (again.id, again.duplicate, changed.duplicate) == (queued.id, True, False)
    assert queued.payload["promptHash"] == hashlib.sha256(PROMPT.encode()).hexdigest()
    done = bed.app.get(queued.id)
    assert (done.result["requirementId"], done.result["promptHash"]) == ("REQ-7", queued.payload["promptHash"])
    assert (bed.root / "risks/REQ-7.md").read_text() == PROMPT
    assert json.loads((bed.root / "requirements/REQ-7.json").read_text()) == {"id": "REQ-7"}
    assert list(bed.app.effects.reconcile()) == []


async def test_a_refused_change_of_a_requirement_leaves_no_extraction(bed: Bed) -> None:
    outbox = Outbox(bed.root)
    bed.app.use(outbox)

    def change(_: Any, box: Change) -> Any:
        EXTRACTION.enqueue(box, REQUIREMENT)
        raise KeyError("not this one")

    with pytest.raises(KeyError):
        outbox.update("requirements/REQ-7.json", change)

    assert bed.app.jobs().items == []


@on_both_engines
async def test_codex_and_plain_tools_are_read_in_their_own_ways(bed: Bed) -> None:
    codex = await bed.run("codex_exec", {"prompt": "do it"})
    plain = await bed.run("agent", {"agent": "plain", "prompt": "do it"})

    assert (codex.result["output"], plain.result["output"]) == ("do it", "do it\n")
    assert codex.result["tokens"] == {"input_tokens": 50, "cached_input_tokens": 5, "output_tokens": 9}
    assert codex.result_summary == "do it"


@on_both_engines
async def test_a_skill_is_used_if_the_operator_allows_it(bed: Bed) -> None:
    allowed = await bed.run("codex_skill", {"skill": "pr-review", "prompt": "of this"})
    other = await bed.run("codex_skill", {"skill": "rm-rf", "prompt": "of this"})

    assert allowed.result["output"] == "$pr-review\n\nof this"
    assert (other.state, other.attempt) == ("failed", 1)


async def test_the_prompt_is_frozen_and_the_same_request_is_one_run(bed: Bed) -> None:
    payload = {"prompt": "once", "targetPath": "a", "requirementId": "R"}

    first = bed.app.enqueue("claude_extraction", payload)
    again = bed.app.enqueue("claude_extraction", payload)
    elsewhere = bed.app.enqueue("claude_extraction", payload | {"targetPath": "b"})
    of_another = bed.app.enqueue("claude_extraction", payload | {"targetPath": "c"}, tenant="acme")
    of_a_third = bed.app.enqueue("claude_extraction", payload | {"targetPath": "c"}, tenant="zeta")
    await adrain(bed.app, raise_errors=False)

    assert (again.id, again.duplicate, elsewhere.duplicate) == (first.id, True, False)
    assert not of_another.duplicate
    assert not of_a_third.duplicate
    key = bed.app.get(first.id).key
    assert key is not None
    assert key.startswith(hashlib.sha256(b"once").hexdigest())
    with pytest.raises(tenure.InvalidPayload, match="promptHash"):
        bed.app.enqueue("claude_extraction", payload | {"promptHash": "0" * 64})


async def test_an_answer_is_checked_against_its_schema_and_written_as_json(bed: Bed) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    fenced = 'Here you are:\n```json\n{"n": 7}\n```'
    good = await bed.run("codex_exec", {"prompt": order(say=fenced), "targetPath": "n.json", "outputSchema": schema})
    bad = await bed.run("codex_exec", {"prompt": order(say={"n": "seven"}), "outputSchema": schema}, max_attempts=2)
    none = await bed.run("codex_exec", {"prompt": order(say="no json"), "outputSchema": schema}, max_attempts=1)

    assert json.loads((bed.root / "n.json").read_text()) == {"n": 7}
    assert good.state == "succeeded"
    assert (bad.state, bad.attempt) == ("dead", 2)
    assert "does not fit outputSchema at $.n" in (bad.last_error or "")
    assert "not JSON" in (none.last_error or "")


@pytest.mark.parametrize(
    ("schema", "why"),
    [({"type": 7}, "no JSON schema"), ({"$ref": "http://127.0.0.1:9/x.json"}, "refers to something that is not in it")],
)
async def test_a_schema_that_cannot_be_used_fails_for_good_and_fetches_nothing(
    place: Path, marker: str, schema: dict[str, Any], why: str
) -> None:
    for bed in make_bed(place, tool("codex", "codex", marker, schema_keywords=frozenset({"$ref"}))):
        job = await bed.run("codex_exec", {"prompt": order(say={"n": 1}), "outputSchema": schema})

        assert (job.state, job.attempt) == ("failed", 1)
        assert why in (job.last_error or "")


def _bomb() -> dict[str, Any]:
    """References that fan out: two to each level, so that checking takes 2 to the power of the levels."""
    levels: dict[str, Any] = {f"l{n}": {"allOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 2} for n in range(22)}
    return {"$defs": {**levels, "l22": {"type": "integer"}}, "$ref": "#/$defs/l0"}


SLOW = {"pattern": ({"pattern": "^(a+)+$"}, "a" * 40 + "!"), "$ref": (_bomb(), 7)}


@pytest.mark.parametrize("keyword", SLOW)
async def test_v3_a_schema_that_takes_for_ever_is_refused_before_the_agent_runs(bed: Bed, keyword: str) -> None:
    """V3: a pattern stalled the event loop for 26 s, a small bomb of references for 13 s."""
    schema, answer = SLOW[keyword]

    job = await bed.run("codex_exec", {"prompt": order(say=answer), "outputSchema": schema})

    assert (job.state, job.attempt, bed.events(job, "agent_run")) == ("failed", 1, [])
    assert f"outputSchema uses {keyword}" in (job.last_error or "")


@pytest.mark.parametrize("keyword", SLOW)
async def test_v3_a_slow_schema_that_is_allowed_ends_a_child_and_stalls_nothing(
    place: Path, marker: str, keyword: str
) -> None:
    """V3: the check ran in the worker's own process, where nothing could stop it."""
    schema, answer = SLOW[keyword]
    allowed = tool("codex", "codex", marker, schema_keywords=frozenset({keyword}))
    for bed in make_bed(place, allowed):
        stalls: list[float] = []
        watching = asyncio.create_task(_watch_loop(stalls))

        say = json.dumps(answer)
        job = await bed.run("codex_exec", {"prompt": order(say=say), "outputSchema": schema}, max_attempts=1)
        watching.cancel()

        assert job.state == "failed"
        assert "took too much time or memory" in (job.last_error or "")
        assert max(stalls) < 3.0


async def _watch_loop(stalls: list[float]) -> None:
    """Take down how late the loop comes back each time."""
    while True:
        began = time.monotonic()
        await asyncio.sleep(0.05)
        stalls.append(time.monotonic() - began - 0.05)


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": ["x" * 40_000]},
        json.loads('{"not":' * 40 + "{}" + "}" * 40),
    ],
    ids=["large", "deep"],
)
async def test_v3_size_and_depth_of_a_schema_are_bounded_at_enqueue(bed: Bed, schema: dict[str, Any]) -> None:
    """V3: nothing bounded a schema before an agent's run was paid for."""
    with pytest.raises(tenure.InvalidPayload, match="outputSchema is refused"):
        bed.app.enqueue("codex_exec", {"prompt": "x", "outputSchema": schema})


async def test_v3_a_property_may_be_called_as_a_keyword(bed: Bed) -> None:
    """V3: only keywords are refused, not names."""
    schema = {"properties": {"pattern": {"type": "string"}, "$ref": {"enum": [{"pattern": "x"}]}}}

    job = await bed.run("codex_exec", {"prompt": order(say={"pattern": "a"}), "outputSchema": schema})

    assert job.state == "succeeded", job.last_error


async def test_v2_the_child_that_checks_a_schema_imports_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V2: a `json.py` in the current folder was executed by children."""
    for name in ("json", "sqlite3", "resource", "jsonschema", "typing", "attr", "rpds", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    verdicts = [output_schema.check({"type": "integer"}, value).sort for value in (7, "x")]

    assert verdicts == ["valid", "invalid"]
    assert not (tmp_path / "canary").exists()


@on_both_engines
@pytest.mark.parametrize("kind", ["claude_extraction", "codex_exec"])
async def test_a_retry_resumes_the_session_and_costs_add_up(bed: Bed, kind: str) -> None:
    more = {"targetPath": "x", "requirementId": "R"} if kind == "claude_extraction" else {}

    job = await bed.run(kind, {"prompt": order(acts=["fail", "crash", "answer"], say="third time"), **more})

    assert (job.state, job.attempt, job.result["runs"]) == ("succeeded", 3, 3)
    runs = bed.events(job, "agent_run")
    assert runs[0]["sessionId"] is not None
    assert runs[-1]["sessionId"] == runs[0]["sessionId"]
    if kind == "claude_extraction":
        assert job.result["costUsd"] == 0.5  # the one that crashed told no cost
    assert bed.left() == []


@on_both_engines
@pytest.mark.parametrize("said", ["API Error: 429 too many requests, retry after 90 s", "529 overloaded_error"])
async def test_a_busy_service_spends_no_attempt(bed: Bed, said: str) -> None:
    job = await bed.run("codex_exec", {"prompt": order(act="fail", say=said)})

    assert (job.state, job.attempt) == ("queued", 0)
    (attempt,) = bed.app.attempts(job.id)
    assert (attempt.outcome, attempt.failure_class) == ("released", "rate_limited")
    wait = job.run_at - bed.app.now()
    assert timedelta(seconds=80 if "90" in said else 50) < wait <= timedelta(seconds=90)
    assert len(bed.left()) == 1  # its session is needed again


async def test_an_answer_with_429_in_it_is_an_answer(bed: Bed) -> None:
    job = await bed.run("codex_exec", {"prompt": order(say="the code 429 means rate limit")})

    assert job.state == "succeeded"


async def test_a_run_that_costs_too_much_is_not_repeated(place: Path, marker: str) -> None:
    for bed in make_bed(place, tool("claude", "claude", marker, max_cost_usd=0.5)):
        job = await bed.run("agent", {"agent": "claude", "prompt": order(act="fail")}, max_attempts=10)

        assert (job.state, job.attempt) == ("failed", 3)
        assert "0.50 USD" in (job.last_error or "")
        assert bed.left() == []


async def test_one_that_hangs_is_killed_in_time_and_tried_again(place: Path, marker: str) -> None:
    for bed in make_bed(place, tool("codex", "codex", marker, timeout=timedelta(seconds=1.5))):
        job = await bed.run(
            "codex_exec", {"prompt": order(acts=["hang", "answer"], say="awake"), "timeoutSeconds": 600}
        )

        assert (job.state, job.attempt, job.result["output"]) == ("succeeded", 2, "awake")
        assert [run["exit"] for run in bed.events(job, "agent_run")] == ["timeout", 0]


async def test_one_that_floods_is_killed_and_leaves_few_rows_and_a_bounded_transcript(place: Path, marker: str) -> None:
    for bed in make_bed(place, tool("codex", "codex", marker, output_bytes=12 * MIB)):
        job = await bed.run("codex_exec", {"prompt": order(act="flood")}, max_attempts=1)

        assert (job.state, bed.left()) == ("dead", [])
        assert "printed more than it may" in (job.last_error or "")
        assert len(bed.events(job, "stdout")) <= 500
        (run,) = bed.events(job, "agent_run")
        transcripts = list(Path(run["transcriptPath"]).parent.glob("transcript-1*.log"))
        assert len(transcripts) == 2
        assert sum(path.stat().st_size for path in transcripts) <= 9 * MIB


async def test_what_an_agent_leaves_running_is_gone_with_it(bed: Bed, marker: str) -> None:
    job = await bed.run("codex_exec", {"prompt": order(act="fork")})

    assert job.state == "succeeded"
    assert bed.events(job, "agent_run")[0]["leftBehind"] >= 1
    assert processes_with(marker) == []


@on_both_engines
async def test_lines_of_output_are_events(bed: Bed) -> None:
    job = await bed.run("codex_exec", {"prompt": order(act="chat", lines=3, word="hello", say="bye")})

    assert [data["text"] for data in bed.events(job, "stderr")] == [f"line {n} hello" for n in range(3)]


async def test_events_come_before_the_run_has_ended(bed: Bed) -> None:
    job_id = bed.app.enqueue("codex_exec", {"prompt": order(act="hang")}).id
    worker = bed.app.worker(handle_signals=False, maintain=False, grace_seconds=0)
    task = asyncio.ensure_future(worker.run())
    deadline = time.monotonic() + 15
    while not bed.app.events(job_id=job_id, kind="stderr"):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    held = bed.app.get(job_id)
    (row,) = bed.app.effects.all(job_id=job_id)
    worker.stop()
    await task

    assert held.state == "running"
    assert row.result["runs"][0]["sessionId"] is not None  # known before the end, so a crash can be resumed
    released = bed.app.get(job_id)
    assert (released.state, released.attempt) == ("queued", 0)


async def test_a_cancelled_run_is_killed_and_leaves_nothing(bed: Bed, marker: str) -> None:
    job_id = bed.app.enqueue("codex_exec", {"prompt": order(act="hang")}).id
    worker = bed.app.worker(handle_signals=False, maintain=False)
    task = asyncio.ensure_future(worker.run())
    deadline = time.monotonic() + 15
    while not processes_with(marker):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    bed.app.cancel(job_id)
    while bed.app.get(job_id).state != "cancelled":
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    worker.stop()
    await task

    assert (processes_with(marker), bed.left()) == ([], [])


HOSTILE_PROMPTS = [
    "--dangerously-skip-permissions",
    "-p",
    "; touch /tmp/pwned",
    "$(touch /tmp/pwned)",
    "`touch /tmp/pwned`",
    "\n--resume\nx",
    "a\tb\"c'd\\",
]


@pytest.mark.parametrize("prompt", HOSTILE_PROMPTS)
async def test_a_prompt_is_never_an_argument_nor_a_command(bed: Bed, prompt: str) -> None:
    job = await bed.run("codex_exec", {"prompt": prompt})

    assert job.result["output"] == prompt
    assert not exists("/tmp/pwned")


async def test_arguments_environment_and_descriptors_are_just_those_intended(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-aws")
    monkeypatch.setenv("TENURE_URL", "postgresql://me:canary-dsn@db/x")

    job = await bed.run("codex_exec", {"prompt": order(act="look"), "targetPath": "seen.json"})

    text = (bed.root / "seen.json").read_text()
    seen = json.loads(text)
    assert seen["argv"] == ["exec", "--json", "--skip-git-repo-check", "-"]
    wanted = {"PATH", "LANG", "HOME", "MARKER", "STAND_IN_API_KEY", "TENURE_JOB_ID", "TENURE_ARTIFACTS"}
    assert set(seen["env"]) - {"LC_ALL", "LC_CTYPE", "TZ"} == wanted
    assert set(seen["fds"]) <= {0, 1, 2, 3}  # the last is the look itself
    assert seen["files"] == []
    assert "canary-aws" not in text
    assert "canary-dsn" not in text
    assert job.state == "succeeded"


async def test_a_known_secret_shows_nowhere_although_the_agent_prints_it(bed: Bed) -> None:
    prompt = order(act="chat", word=CANARY, say=f"the key is {CANARY}")
    fail = order(act="fail", say=f"cannot log in with {CANARY}")

    job = await bed.run("codex_exec", {"prompt": order(act="look")})
    chatty = await bed.run("agent", {"agent": "plain", "prompt": prompt, "targetPath": "x.txt"})
    failed = await bed.run("codex_exec", {"prompt": fail}, max_attempts=1)

    told = repr([bed.events(one) for one in (job, chatty, failed)])
    told += repr([one.result for one in (job, chatty)]) + repr(failed.last_error) + repr(bed.app.attempts(failed.id))
    told += repr([bed.app.effects.all(job_id=one.id).items for one in (job, chatty, failed)])
    told += (bed.root / "x.txt").read_text()
    told += "".join(path.read_text() for path in bed.artifacts.rglob("*.log"))
    assert "[redacted]" in told
    assert CANARY not in told


def result_of_claude(**told: Any) -> str:
    """What Claude Code would print at its end, with some of it made up."""
    return json.dumps({"type": "result", "subtype": "success", "is_error": False, "result": "done", **told})


async def test_a_secret_given_as_session_count_or_wrong_answer_shows_nowhere(bed: Bed) -> None:
    usage = {CANARY: 7, CANARY.replace("-", "_"): 7, "output_tokens": 3}
    named = result_of_claude(session_id=CANARY, usage=usage)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}

    job = await bed.run("agent", {"agent": "claude", "prompt": order(act="raw", print=named)})
    wrong = await bed.run(
        "agent",
        {"agent": "plain", "prompt": order(say={"n": "x" * 290 + CANARY}), "outputSchema": schema},
        max_attempts=1,
    )

    assert (job.state, job.result["sessionId"], wrong.state) == ("succeeded", None, "dead")
    assert "does not fit outputSchema at $.n" in (wrong.last_error or "")
    told = repr([one.result for one in (job, wrong)]) + repr(wrong.last_error) + repr(bed.app.attempts(wrong.id))
    told += repr([bed.events(one) for one in (job, wrong)])
    told += repr([bed.app.effects.all(job_id=one.id).items for one in (job, wrong)])
    assert CANARY not in told
    assert CANARY[:10] not in told.replace(CANARY.replace("-", "_"), "")


@on_both_engines
@pytest.mark.parametrize("cost", ["NaN", "1e999", "-5"])
async def test_a_cost_that_is_none_neither_breaks_a_store_nor_the_budget(bed: Bed, cost: str) -> None:
    printed = result_of_claude(session_id="s1", total_cost_usd="COST").replace('"COST"', cost)

    job = await bed.run("agent", {"agent": "claude", "prompt": order(act="raw", print=printed)})

    assert (job.state, job.result["costUsd"]) == ("succeeded", 0.0)


@on_both_engines
async def test_text_that_no_database_holds_is_kept_without_it(bed: Bed) -> None:
    plain = await bed.run("agent", {"agent": "plain", "prompt": order(act="raw", print="a\0b\x1b[31m\r\nc")})
    half = await bed.run("codex_exec", {"prompt": order(say="a\ud800b"), "targetPath": "half"})
    failed = await bed.run("codex_exec", {"prompt": order(act="fail", say="a\0b\ud800")}, max_attempts=1)
    crashed = await bed.run("codex_exec", {"prompt": order(act="crash", say="a\0b")}, max_attempts=1)

    assert (plain.state, plain.result["output"]) == ("succeeded", "a\ufffdb\x1b[31m\r\nc\n")
    assert (half.state, (bed.root / "half").read_text()) == ("succeeded", "a\ufffdb")
    assert (failed.state, crashed.state) == ("dead", "dead")
    assert bed.events(crashed, "stderr")[-1]["text"] == "a\ufffdb"


@pytest.mark.parametrize("value", ["NaN", '{"n": 1e999}', '["a\\u0000b"]', '"\\ud800"', "[" * 100_000])
async def test_json_that_no_database_holds_is_no_valid_answer(bed: Bed, value: str) -> None:
    job = await bed.run("agent", {"agent": "plain", "prompt": order(say=value), "outputSchema": {}}, max_attempts=1)

    assert job.state == "dead"
    assert "The answer is not JSON" in (job.last_error or "")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("act", "text"),
    [
        ("answer", "```json" + "\n" * 200_000 + "``"),
        ("answer", "```\n" * 100_001),
        ("fail", "retry" * 200_000),
        ("fail", "try again " + " " * 500_000),
    ],
    ids=["a fence without end", "many fences", "no number", "blanks"],
)
async def test_an_answer_made_to_be_slow_to_read_is_read_at_once(bed: Bed, act: str, text: str) -> None:
    """Patterns that go back and forth over an agent's text would hold up every other job of the worker."""
    payload = {"agent": "codex", "prompt": order(act=act, say=text), "outputSchema": {"type": "object"}}

    job = await bed.run("agent", payload, max_attempts=1)

    assert job.state == "dead"


async def test_a_hostile_agent_reaches_nothing_and_cannot_lead_the_worker_astray(bed: Bed, place: Path) -> None:
    secret = place / "jobs.db"
    secret.write_text("private")
    prompt = order(
        acts=["attack", "attack"],
        paths=["/etc/owned", str(bed.root / "owned"), str(place / "owned"), str(bed.artifacts / "owned")],
        reads=[str(secret), "/etc/shadow"],
    )

    job = await bed.run("codex_exec", {"prompt": prompt, "outputSchema": {"type": "array"}}, max_attempts=3)

    assert job.state == "dead"  # its answer never fits, so it runs three times in the folder that it has prepared
    tried = json.loads(bed.events(job, "stdout")[-2]["text"])["item"]["text"]
    assert set(json.loads(tried).values()) <= {"PermissionError", "FileNotFoundError", "OSError"}
    assert not exists("/etc/output-schema.json")
    assert not (place / "owned").exists()
    assert list(bed.root.iterdir()) == []
    assert bed.left() == []


@on_both_engines
async def test_a_target_that_is_taken_is_told_before_anything_is_run(bed: Bed) -> None:
    (bed.root / "taken").write_text("mine")

    job = await bed.run("codex_exec", {"prompt": "x", "targetPath": "taken"})
    forced = await bed.run("codex_exec", {"prompt": "x", "targetPath": "taken", "overwrite": True})

    assert (job.state, bed.events(job, "agent_run")) == ("failed", [])
    assert (forced.state, (bed.root / "taken").read_text()) == ("succeeded", "x")


@on_both_engines
async def test_an_answer_that_was_recorded_is_written_without_another_run(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker dies between the answer and the file; the next attempt has the answer."""
    calls: list[Any] = []

    def die_once(*args: Any, **settings: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            raise OSError("the disk went away")
        return write_file(*args, **settings)

    monkeypatch.setattr("tenure.effects.agent_jobs.write_file", die_once)

    job = await bed.run("codex_exec", {"prompt": "costly", "targetPath": "f"})

    assert (job.state, job.attempt, len(bed.events(job, "agent_run"))) == ("succeeded", 2, 1)
    assert (bed.root / "f").read_text() == "costly"


async def test_an_unknown_agent_and_one_that_is_not_configured_are_refused(place: Path, marker: str) -> None:
    for bed in make_bed(place, tool("plain", "plain", marker)):
        job = await bed.run("agent", {"agent": "plane", "prompt": "x"})

        assert "Did you mean 'plain'?" in (job.last_error or "")
        assert "claude_extraction" not in bed.app.registry


def test_a_program_is_named_by_its_absolute_path() -> None:
    with pytest.raises(tenure.ConfigError, match="absolute"):
        AgentTool("claude", ("claude",), "claude")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder that is somebody else's")
async def test_a_folder_for_workspaces_that_others_could_change_is_refused(bed: Bed) -> None:
    bed.workspaces.mkdir()
    bed.workspaces.chmod(0o777)

    job = await bed.run("codex_exec", {"prompt": "x"})

    assert "writable by no other user" in (job.last_error or "")


@pytest.mark.parametrize("kind", ["claude_extraction", "codex_exec"])
async def test_m11_a_refused_key_is_told_with_its_reason_and_class(bed: Bed, kind: str) -> None:
    """M11: «Invalid API key» on stderr with exit 3 became «it printed no result»."""
    more = {"targetPath": "x", "requirementId": "R"} if kind == "claude_extraction" else {}
    prompt = order(act="refused", say="Invalid API key. Please run /login", code=3)

    job = await bed.run(kind, {"prompt": prompt, **more}, max_attempts=1)

    error = job.last_error or ""
    assert error.startswith("AgentUnauthorized: ")
    assert "exit code 3" in error
    assert "Invalid API key" in error


async def test_m11_a_timeout_is_told_as_one(place: Path, marker: str) -> None:
    """M11: a timeout became «it printed no result»."""
    slow = tool("claude", "claude", marker, timeout=timedelta(seconds=1))
    for bed in make_bed(place, slow):
        payload = {"prompt": order(act="hang"), "targetPath": "x", "requirementId": "R"}

        job = await bed.run("claude_extraction", payload, max_attempts=1)

        assert (job.last_error or "").startswith("AgentTimedOut: ")
        assert "still at work after 1 s and was killed" in (job.last_error or "")


@pytest.mark.skipif(not Path("/bin").is_symlink(), reason="/bin is a folder of its own here")
async def test_v22_an_agent_named_in_bin_starts_where_bin_is_a_link(place: Path, marker: str) -> None:
    """V22: on merged-/usr systems a link was to be made inside the link /bin, so the sandbox was never set up."""
    shell = replace(tool("shell", "plain", marker), command=("/bin/sh", "-c", "cat"), readable=())
    for bed in make_bed(place, shell):
        job = await bed.run("agent", {"agent": "shell", "prompt": "hello"}, max_attempts=1)

        assert (job.last_error, job.state) == (None, "succeeded")
        assert job.result["output"] == "hello"


async def test_m12_the_last_job_on_a_path_counts_whatever_its_kind(bed: Bed) -> None:
    """M12: the target of an agent's job that a later file job deleted or overwrote was reported each time."""
    bed.app.use(files(root=bed.root))
    for path in ("deleted", "overwritten", "gone"):
        await bed.run("claude_extraction", {"prompt": f"for {path}", "targetPath": path, "requirementId": "R"})
    await bed.run("delete_file", {"path": "deleted"})
    await bed.run("create_file", {"path": "overwritten", "content": "new", "overwrite": True})
    await bed.run("create_file", {"path": "again", "content": "old"})
    await bed.run("codex_exec", {"prompt": "newer", "targetPath": "again", "overwrite": True})
    (bed.root / "gone").unlink()

    found = [(one.sort, one.subject, one.kind) for one in bed.app.effects.reconcile()]

    assert found == [("missing", "gone", "claude_extraction")]


ORDER = {"prompt": "extract it", "targetPath": "out/r.md", "requirementId": "REQ-7"}


@on_both_engines
async def test_a_run_is_paid_from_the_budgets_of_its_job(bed: Bed) -> None:
    bed.app.budgets.set("queue:agents", usd="1", tokens=1000, calls=5, seconds=500)
    await bed.run("claude_extraction", ORDER)

    found = {one.unit: one for one in bed.app.budgets.all()}
    assert (found["usd"].used, found["tokens"].used, found["calls"].used) == (250_000, 120, 1)
    assert 0 < found["seconds"].used < 20_000_000
    assert all(one.reserved == 0 for one in found.values())


async def test_a_run_that_no_budget_pays_for_waits_until_it_is_raised(place: Path, marker: str) -> None:
    for bed in make_bed(place, tool("claude", "claude", marker, reserve_usd="0.30")):
        bed.app.budgets.set("kind:claude_extraction", usd="0.29")
        job = await bed.run("claude_extraction", ORDER, max_attempts=1)
        assert (job.state, job.attempt, job.waiting_for) == ("waiting", 0, "budget:kind:claude_extraction:usd:total")
        assert bed.events(job, "agent_run") == []

        bed.app.budgets.raise_by("kind:claude_extraction", usd="0.01")
        await adrain(bed.app)

        assert bed.app.get(job.id).result["costUsd"] == 0.25
        [budget] = bed.app.budgets.all()
        assert (budget.used, budget.reserved) == (250_000, 0)
        assert bed.left() == []


def test_an_agent_that_reserves_a_float_is_refused() -> None:
    with pytest.raises(tenure.ConfigError, match=r"reserve_usd: 0\.3 is a float"):
        AgentTool("claude", (PYTHON,), "claude", reserve_usd=0.3)  # type: ignore[arg-type]
