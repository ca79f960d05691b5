"""Agents as jobs: `claude_extraction`, `codex_exec`, `codex_skill` and `agent` run a coding agent's command line.

    prompt (frozen at enqueue, its hash the key) ──stdin──► program in the sandbox ──stdout──► answer ──► target file

A run is an effect with a row in the ledger. Its answer is recorded before it is written to the target, so a crash in
between costs no second run; and what a run left (session, cost) is recorded as soon as it is known, so that the next
attempt resumes the session where the tool can. Each job has a folder of its own for all attempts, with a HOME for the
tool, and a fresh working folder for each; they are gone when the job has ended. What the agent prints is data: it is
parsed, checked against a schema if there is one, and never carried out.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.effects import output_schema
from tenure.effects.agent_tools import AgentTool, Answer, json_in, read_answer, session_in
from tenure.effects.atomic_file import FileRecord, Tag, write_file
from tenure.effects.file_jobs import Place, holds, refusals
from tenure.effects.kinds import Finding, Host, Terms, fence, register
from tenure.effects.prompts import request_key
from tenure.effects.stream import StreamLog
from tenure.effects.workspace import Workspace
from tenure.errors import ConfigError, LeaseLost, nearest
from tenure.handler.arguments import Names
from tenure.handler.budgets import Reservation
from tenure.handler.building import limiter_keys
from tenure.handler.context import Context
from tenure.handler.signals import Interrupt, Parked, Permanent, RateLimited, Snooze
from tenure.model.budget import Money
from tenure.model.frozen import frozen
from tenure.model.job import Job
from tenure.model.outcome import EffectRecord
from tenure.sandbox.policy import SandboxPolicy
from tenure.sandbox.process import Command, Ended, Stream, clean_environment, run_async
from tenure.sandbox.redact import Redactor

if TYPE_CHECKING:
    from tenure.effects.payloads import Agent, ClaudeExtraction, CodexExec, CodexSkill

    Prompted = Agent | ClaudeExtraction | CodexExec | CodexSkill

BUSY_SECONDS = 60.0
ANSWER_CHARS = 500_000
"""An answer is kept in the database until it is written; a larger one is refused."""

_UNSTORABLE = re.compile(r"[\0\ud800-\udfff]")


class AgentFailed(Exception):
    """A run of an agent did not succeed; another attempt may."""


class AgentTimedOut(AgentFailed, TimeoutError):
    """The agent was still at work at its time limit and was killed."""


class AgentUnauthorized(AgentFailed):
    """The service behind the agent refused its credentials: a matter for the operator."""


class AnswerInvalid(Exception):
    """The agent's answer does not fit the schema that the job gave."""


@frozen
class Agents:
    """The kit of the kinds that run agents."""

    tools: Mapping[str, AgentTool]
    place: Place
    terms: Terms
    workspaces: Path
    artifacts: Path | None
    redactor: Redactor
    values_only: Redactor
    kinds: tuple[str, ...] = ("agent", "claude_extraction", "codex_exec", "codex_skill")

    def install(self, app: Host) -> None:
        """Called by `app.use`. Kinds whose tool is not configured are left out."""
        for kind, function, tool in (
            ("agent", self.agent, None),
            ("claude_extraction", self.claude_extraction, "claude"),
            ("codex_exec", self.codex_exec, "codex"),
            ("codex_skill", self.codex_skill, "codex"),
        ):
            if tool is None or tool in self.tools:
                register(app, kind, function, _payload_type(kind), self.terms, mode="async", key_of=request_key)
        app.registry.checkers.append(self)

    async def agent(self, payload: Agent, ctx: Context) -> dict[str, Any]:
        """Run whichever of the configured tools the payload names."""
        tool = self.tools.get(payload.agent)
        if tool is None:
            raise Permanent(f"There is no agent {payload.agent!r} here.{nearest(payload.agent, self.tools)}")
        return await self._do(tool, payload.prompt, payload, ctx)

    async def claude_extraction(self, payload: ClaudeExtraction, ctx: Context) -> dict[str, Any]:
        """Let Claude Code answer, and write the answer to the target."""
        done = await self._do(self.tools["claude"], payload.prompt, payload, ctx)
        return done | {"requirementId": payload.requirementId}

    async def codex_exec(self, payload: CodexExec, ctx: Context) -> dict[str, Any]:
        """Let Codex carry out a prompt."""
        return await self._do(self.tools["codex"], payload.prompt, payload, ctx)

    async def codex_skill(self, payload: CodexSkill, ctx: Context) -> dict[str, Any]:
        """Let Codex use a skill, if the operator allows it."""
        tool = self.tools["codex"]
        if payload.skill not in tool.skills:
            raise Permanent(f"Skill {payload.skill!r} is not among those allowed.{nearest(payload.skill, tool.skills)}")
        return await self._do(tool, f"${payload.skill}\n\n{payload.prompt}", payload, ctx)

    @property
    def scope(self) -> str:
        """See Checker."""
        return self.place.scope

    def subject(self, job: Job) -> str | None:
        """See Checker."""
        path = job.payload.get("targetPath") if isinstance(job.payload, dict) else None
        return path if isinstance(path, str) and isinstance(job.result, dict) else None

    def check(self, job: Job) -> Finding | None:
        """See Checker."""
        return holds(self.place.root, job.payload["targetPath"], str(job.result.get("sha256")))

    async def _do(self, tool: AgentTool, prompt: str, payload: Prompted, ctx: Context) -> dict[str, Any]:
        """One attempt: run unless an earlier one has the answer, then write it."""
        work = _Work(self, tool, prompt, payload, ctx)
        try:
            kept = await work.known()
            if "text" not in kept:
                await asyncio.to_thread(work.check_request)
                kept = await work.run(kept)
            record = await asyncio.to_thread(work.write, kept["text"])
        except BaseException as exc:
            if _is_over(ctx, exc):
                await asyncio.shield(asyncio.to_thread(work.workspace.remove))
            raise
        await asyncio.to_thread(work.workspace.remove)
        return work.result(kept, record)


def agents(
    *tools: AgentTool,
    root: Path | str,
    queue: str = "agents",
    workspaces: Path | str | None = None,
    artifacts: Path | str | None = None,
    hide: Iterable[str] = (),
    max_attempts: int | None = None,
    limits: Names = (),
) -> Agents:
    """Kinds that run coding agents, for `app.use(agents(AgentTool(…), root="data"))`.

    The kind `agent` takes any of the tools by name; `claude_extraction` wants one named `claude`, `codex_exec` and
    `codex_skill` one named `codex`.

    Args:
        root: Where answers are written, by relative paths.
        workspaces: Where agents work while they run; a folder in the system's temporary one if left out.
        artifacts: Where transcripts and artifacts are kept, a folder per job; the worker's own if left out.
        hide: Values that must not show in logs, errors and results, besides those in the tools' environments.
        limits: Limiters that the jobs carry: with exactly one, a rate limit that a tool reports holds back all of them.
            Tools of several providers name their own as jobs are enqueued: `limits=["anthropic"]`.
    """
    named = {tool.name: tool for tool in tools}
    if len(named) != len(tools):
        raise ConfigError("Two agents have the same name. Jobs choose by name, so each needs one of its own.")
    guess = Redactor()
    hidden = [*hide, *(v for tool in tools for name, v in tool.env.items() if guess.is_secret_key(name))]
    return Agents(
        named,
        Place(root),
        Terms(queue, max_attempts=max_attempts, limiter=limiter_keys("limits", limits)),
        Path(tempfile.gettempdir(), f"tenure-agents-{os.geteuid()}") if workspaces is None else Path(workspaces),
        None if artifacts is None else Path(artifacts),
        Redactor(hidden),
        Redactor(hidden, keys=(), shapes=False),
    )


class _Work:
    """One attempt of one job."""

    def __init__(self, kit: Agents, tool: AgentTool, prompt: str, payload: Prompted, ctx: Context) -> None:
        self._kit = kit
        self._tool = tool
        self._prompt = prompt
        self._payload = payload
        self._ctx = ctx
        self.workspace = Workspace(kit.workspaces, ctx.id)
        self._artifacts = self._find_artifacts()

    async def known(self) -> dict[str, Any]:
        """What earlier attempts left: runs with session and cost, and the answer if there is one."""
        args = json.dumps({"agent": self._tool.name, "promptHash": self._payload.promptHash})
        row = await self._record(EffectRecord("run", "intended", args=args))
        kept: dict[str, Any] = row.result if isinstance(row.result, dict) else {"runs": []}
        spent = _spent(kept)
        if self._tool.max_cost_usd is not None and spent >= self._tool.max_cost_usd and "text" not in kept:
            raise Permanent(f"Its runs have cost {spent:.2f} USD, and {self._tool.max_cost_usd:.2f} are allowed.")
        return kept

    def check_request(self) -> None:
        """Before money is spent: an answer that could not be checked or written is not asked for."""
        if self._payload.outputSchema is not None:
            _check_schema(self._payload.outputSchema, self._tool.schema_keywords)
        path = self._payload.targetPath
        if path is None or self._payload.overwrite:
            return
        with refusals():
            if self._kit.place.root.stat(path) is not None:
                raise Permanent(f"File {path!r} is there already, and the job does not allow overwriting.")

    async def run(self, kept: dict[str, Any]) -> dict[str, Any]:
        """Run the tool once, within the budgets that concern the job. Raises unless there is a valid answer."""
        async with self._reserve(kept) as reservation:
            return await self._run(kept, reservation)

    def _reserve(self, kept: dict[str, Any]) -> Reservation:
        """The most that a run may cost, as far as the tool's bounds tell. Unknown costs reserve what is left."""
        tool = self._tool
        usd: Money | None = tool.reserve_usd
        if usd is None and tool.max_cost_usd is not None:
            usd = Decimal(str(tool.max_cost_usd)) - Decimal(str(_spent(kept)))
        return self._ctx.reserve(
            usd=usd, tokens=tool.reserve_tokens, seconds=self._time_limit().total_seconds(), name="run"
        )

    async def _run(self, kept: dict[str, Any], reservation: Reservation) -> dict[str, Any]:
        """Run the tool once and take down what came of it."""
        session = next((run["sessionId"] for run in reversed(kept["runs"]) if run.get("sessionId")), None)
        begun = {"attempt": self._ctx.attempt, "token": self._ctx.token, "sessionId": session}
        kept = {"runs": [*kept["runs"], begun]}
        await self._record(EffectRecord("run", "sent", result=json.dumps(kept)))
        listener = _SessionListener(self, kept)
        transcript = self._transcript()
        with StreamLog(self._ctx, self._kit.redactor, transcript) as log:

            def hear(stream: Stream, chunk: bytes) -> None:
                log(stream, chunk)
                listener(stream, chunk)

            ended = await run_async(await asyncio.to_thread(self._command, session), on_output=hear)
        answer = read_answer(self._tool, ended)
        # A float as the tool printed it: its shortest decimal is what was meant.
        cost = None if answer.cost_usd is None else Decimal(str(answer.cost_usd))
        reservation.used(usd=cost, tokens=answer.token_count)
        kept["runs"][-1] = begun | self._told(answer, ended, transcript)
        self._ctx.event("agent_run", kept["runs"][-1])
        # What is checked, told in errors and written is the answer without secrets.
        shown = self._shown(answer.text or "")
        await self._judge(answer, shown, kept)
        kept["text"] = shown
        await self._record(EffectRecord("run", "confirmed", result=json.dumps(kept)))
        return kept

    async def _judge(self, answer: Answer, shown: str, kept: dict[str, Any]) -> None:
        """Raise what a run without a valid answer means; first keep what it told."""
        trouble: Exception | None = None
        if answer.error is not None:
            said = self._kit.redactor.bounded(f"Agent {self._tool.name!r}: {answer.error}", 4000)
            if answer.is_timeout:
                trouble = AgentTimedOut(said)
            elif answer.is_unauthorized:
                trouble = AgentUnauthorized(said)
            elif answer.is_busy:
                trouble = RateLimited(min(answer.wait_seconds or BUSY_SECONDS, 3600.0), said)
            else:
                trouble = AgentFailed(said)
        elif len(shown) > ANSWER_CHARS:
            trouble = Permanent(f"The answer has {len(shown):,} characters, and {ANSWER_CHARS:,} are allowed.")
        elif self._payload.outputSchema is not None:
            try:
                await asyncio.to_thread(_check_answer, shown, self._payload.outputSchema)
            except (AnswerInvalid, Permanent) as exc:
                trouble = exc
        if trouble is not None:
            await self._record(EffectRecord("run", "sent", result=json.dumps(kept), error=str(trouble)[:2000]))
            raise trouble

    def write(self, text: str) -> FileRecord | None:
        """Write the answer to the target, if there is one."""
        ctx, path = self._ctx, self._payload.targetPath
        if path is None:
            return None
        content = text
        if self._payload.outputSchema is not None:
            content = json.dumps(json_in(content), ensure_ascii=False, indent=2) + "\n"
        with refusals():
            return write_file(
                self._kit.place.root,
                path,
                content.encode(errors="replace"),
                overwrite=self._payload.overwrite,
                check=fence(ctx),
                tag=Tag(ctx.id, ctx.token),
            )

    def result(self, kept: dict[str, Any], record: FileRecord | None) -> dict[str, Any]:
        """What is stored with the job."""
        last = kept["runs"][-1]
        shown = kept["text"]
        self._ctx.set_result_summary(shown.strip().partition("\n")[0][:200])
        done: dict[str, Any] = {
            "agent": self._tool.name,
            "promptHash": self._payload.promptHash,
            "runs": len(kept["runs"]),
            "costUsd": round(_spent(kept), 6),
            **{name: last.get(name) for name in ("sessionId", "tokens", "exit", "transcriptPath")},
        }
        if record is not None:
            return done | {"path": self._payload.targetPath, "sha256": record.sha256, "size": record.size}
        return done | {"output": json_in(shown) if self._payload.outputSchema is not None else shown}

    def remember_session(self, kept: dict[str, Any], session: str) -> None:
        """From the run's thread: keep the session while the tool is still at work."""
        runs = [*kept["runs"][:-1], kept["runs"][-1] | {"sessionId": session}]
        record = self._ctx.services.record
        assert record is not None
        record(self._ctx, EffectRecord("run", "sent", result=json.dumps({"runs": runs})))

    def session_of(self, line: str) -> str | None:
        return self._unless_secret(session_in(self._tool, line))

    def _command(self, session: str | None) -> Command:
        tool, ctx = self._tool, self._ctx
        cwd, schema = self.workspace.fresh(ctx.token, self._payload.outputSchema)
        own = {"HOME": str(self.workspace.home), "TENURE_JOB_ID": ctx.id, **tool.env}
        files = None
        if self._artifacts is not None:
            files = self._artifacts / "files"
            files.mkdir(mode=0o700, exist_ok=True)
            own["TENURE_ARTIFACTS"] = str(files)
        policy = SandboxPolicy(
            self.workspace.path,
            files,
            readable=(Path(tool.command[0]), *tool.readable),
            network=tool.network,
            connect_ports=tool.connect_ports,
            require=tool.require,
            allow_degraded=tool.allow_degraded,
        )
        return Command(
            tool.argv(session if tool.can_resume and self.workspace.has_sessions() else None, schema),
            cwd,
            clean_environment(**own),
            stdin=self._prompt.encode(),
            timeout=self._time_limit(),
            grace=tool.grace,
            output_bytes=tool.output_bytes,
            limits=tool.limits,
            sandbox=policy,
        )

    def _time_limit(self) -> timedelta:
        asked = self._payload.timeoutSeconds
        return self._tool.timeout if asked is None else min(self._tool.timeout, timedelta(seconds=asked))

    def _told(self, answer: Answer, ended: Ended, transcript: Path | None) -> dict[str, Any]:
        return {
            "sessionId": self._unless_secret(answer.session),
            "costUsd": answer.cost_usd,
            "tokens": {name: count for name, count in answer.tokens.items() if self._unless_secret(name)},
            "exit": ended.exit_code if ended.reason == "exited" and ended.signal is None else ended.reason,
            "seconds": round(ended.wall.total_seconds(), 3),
            "leftBehind": ended.left_behind,
            "transcriptPath": None if transcript is None else str(transcript),
        }

    def _find_artifacts(self) -> Path | None:
        if self._kit.artifacts is not None:
            folder = self._kit.artifacts.absolute() / self._ctx.id
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return folder
        return self._ctx.artifacts if self._ctx.services.artifacts_dir is not None else None

    def _transcript(self) -> Path | None:
        return None if self._artifacts is None else self._artifacts / f"transcript-{self._ctx.token}.log"

    def _shown(self, text: str) -> str:
        """The answer as it is kept: without secrets, and without what no text in a database can hold."""
        return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", self._kit.values_only.text(text))

    def _unless_secret(self, name: str | None) -> str | None:
        """A name that the agent chose, unless it chose a secret."""
        return name if name is not None and self._kit.redactor.text(name) == name else None

    async def _record(self, record: EffectRecord) -> Any:
        arecord = self._ctx.services.arecord
        row = None if arecord is None else await arecord(self._ctx, record)
        if row is None:
            raise LeaseLost(f"Job {self._ctx.id}: the run was left to a newer attempt, because the lease has ended.")
        return row


class _SessionListener:
    """Looks for the session's id in the first lines of stdout."""

    def __init__(self, work: _Work, kept: dict[str, Any]) -> None:
        self._work = work
        self._kept = kept
        self._head: bytes | None = b""

    def __call__(self, stream: Stream, chunk: bytes) -> None:
        if self._head is None or stream != "stdout":
            return
        *lines, self._head = (self._head + chunk).split(b"\n")
        for line in lines:
            session = self._work.session_of(line.decode(errors="replace"))
            if session is not None:
                self._work.remember_session(self._kept, session)
                self._head = None
                return
        if len(self._head) > 65_536:  # no tool begins like that
            self._head = None


def _check_schema(schema: dict[str, Any], allowed: frozenset[str]) -> None:
    """Raises: Permanent, if the schema is none, or has keywords that the tool does not allow; MissingExtra."""
    if (why := output_schema.why_too_large(schema)) is not None:
        raise Permanent(f"outputSchema is refused: {why}.")
    if refused := output_schema.powerful_keywords(schema, allowed):
        raise Permanent(
            f"outputSchema uses {', '.join(refused)}, by which a small schema can take very long to check. "
            "If jobs need it, an operator has to allow it: AgentTool(schema_keywords=…)."
        )
    _raise_for(output_schema.check(schema))


def _check_answer(text: str, schema: dict[str, Any]) -> None:
    try:
        value = json_in(text)
    except (ValueError, RecursionError) as exc:
        raise AnswerInvalid(f"The answer is not JSON: {str(exc)[:300]}") from exc
    _raise_for(output_schema.check(schema, value))


def _raise_for(verdict: output_schema.Verdict) -> None:
    match verdict.sort:
        case "no_schema":
            raise Permanent(f"outputSchema is no JSON schema: {verdict.message}")
        case "unresolvable":
            raise Permanent(f"outputSchema refers to something that is not in it: {verdict.message}")
        case "too_slow":
            raise Permanent(f"outputSchema took too much time or memory to check. {verdict.message}".strip())
        case "invalid":
            raise AnswerInvalid(f"The answer does not fit outputSchema at {verdict.at}: {verdict.message}")


def _spent(kept: dict[str, Any]) -> float:
    """What the runs of a job have cost so far, as far as the tool told."""
    return float(sum(run.get("costUsd") or 0.0 for run in kept["runs"]))


def _is_over(ctx: Context, exc: BaseException) -> bool:
    """Whether no attempt will come back for the job's folder: an end for good, a cancel, or the last attempt."""
    if isinstance(exc, LeaseLost | Snooze | Parked) or ctx.interrupt in {
        Interrupt.LOST,
        Interrupt.FENCED,
        Interrupt.SHUTDOWN,
    }:
        return False
    return isinstance(exc, Permanent) or ctx.interrupt is Interrupt.CANCEL or ctx.attempt >= ctx.max_attempts


def _payload_type(kind: str) -> Any:
    def find() -> Any:
        from tenure.effects import payloads

        names = {"agent": "Agent", "claude_extraction": "ClaudeExtraction", "codex_exec": "CodexExec"}
        return getattr(payloads, names.get(kind, "CodexSkill"))

    return find
