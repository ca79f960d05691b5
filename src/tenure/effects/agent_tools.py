"""Command lines of coding agents: how each is called, and how what it prints is read.

The operator says which programs there are, by absolute path. A job's text never becomes an argument: prompts go in by
stdin. What a tool prints is data, also its session id, which must look like one before it is handed back to the tool.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from tenure.errors import ConfigError, InvalidArgument, InvalidPayload
from tenure.handler.payload import encode
from tenure.model.budget import Money, amounts_of
from tenure.model.frozen import frozen
from tenure.sandbox.policy import HTTPS_ONLY, Layer, Network
from tenure.sandbox.process import Ended
from tenure.sandbox.rlimits import MIB, Limits

Dialect = Literal["claude", "codex", "plain"]

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_COUNT = re.compile(r"[a-z][a-z0-9_]{0,63}")
_BUSY = re.compile(r"\b(?:429|529)\b|rate.?limit|overloaded|too many requests", re.IGNORECASE)
# Bounded, for they are held against what an agent wrote: one that it can make slow would stop the whole worker.
_WAIT = re.compile(
    r"(?:retry|try again|reset)\w{0,8}[ -]{0,3}(?:after|in)?[:\s]{1,3}(\d{1,9}(?:\.\d{1,9})?)\s?(ms|s|m)?",
    re.IGNORECASE,
)
_UNAUTHORIZED = re.compile(
    r"\b401\b|invalid (?:x-)?api.?key|invalid_api_key|authentication.?(?:error|failed)|unauthorized|not logged in"
    r"|please run /login|oauth token (?:has )?(?:expired|revoked)",
    re.IGNORECASE,
)
_PAID = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
"""Counts that add up to what a run took; others tell a part of these."""
_ERROR_CHARS = 8000
_STDERR_TAIL = 2000


@frozen
class AgentTool:
    """A program that jobs may run, with its bounds. Made by the operator; payloads only name it.

    Attributes:
        command: Absolute path of the program, and words that always come first.
        dialect: How it is called and read: `claude` (Claude Code), `codex` (Codex), or `plain`: stdin in, stdout out.
        args: Further options, as `("--model", "…")`.
        env: What it gets beside a plain PATH, a HOME of its own and the locale. Values that look secret are redacted.
        readable: Folders it needs besides the system's programs, such as its own installation.
        network: `host` for tools that talk to a service; `none` otherwise.
        connect_ports: With `host`, the TCP ports it may connect to: https alone if left out. None opens all, and with
            them databases on this machine and the cloud's metadata service.
        stream: Let Claude Code print its events as they happen (`stream-json`) instead of one object at the end.
        max_cost_usd: Once a job's runs have cost this much, no further one is started.
        reserve_usd, reserve_tokens: The most that one run may cost, reserved from budgets before it starts. Without
            `reserve_usd` what `max_cost_usd` leaves is reserved; without either, all that is left, so runs take turns.
        skills: Names that `codex_skill` may use.
        schema_keywords: Keywords that a payload's `outputSchema` may use although a small schema can take very long
            by them: `pattern`, `patternProperties`, `$ref`. Each check is bounded all the same.
        require, allow_degraded: Which layers of the sandbox must hold; see SandboxPolicy.
    """

    name: str
    command: tuple[str, ...]
    dialect: Dialect = "plain"
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    readable: tuple[Path, ...] = ()
    network: Network = "none"
    connect_ports: frozenset[int] | None = HTTPS_ONLY
    timeout: timedelta = timedelta(minutes=10)
    grace: timedelta = timedelta(seconds=5)
    output_bytes: int = 8 * MIB
    limits: Limits = field(default_factory=Limits)
    stream: bool = False
    max_cost_usd: float | None = None
    reserve_usd: Money | None = None
    reserve_tokens: int | None = None
    skills: frozenset[str] = frozenset()
    schema_keywords: frozenset[str] = frozenset()
    require: frozenset[Layer] = frozenset({"namespaces", "landlock", "seccomp"})
    allow_degraded: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"{self.name!r} is no name for an agent: lower-case letters, digits, - and _, at most 64."
            )
        if not self.command or not Path(self.command[0]).is_absolute():
            raise ConfigError(
                f"Agent {self.name!r}: `command` must begin with a program's absolute path, got {self.command[:1]}."
            )
        try:
            amounts_of(usd=self.reserve_usd, tokens=self.reserve_tokens)
        except InvalidArgument as exc:
            raise ConfigError(f"Agent {self.name!r}: reserve_{exc}") from exc

    @property
    def can_resume(self) -> bool:
        return self.dialect != "plain"

    def argv(self, session: str | None, schema: Path | None) -> tuple[str, ...]:
        """The whole command line. Nothing of a prompt is in it."""
        if self.dialect == "claude":
            shape = ("stream-json", "--verbose") if self.stream else ("json",)
            resume = ("--resume", session) if session else ()
            return (*self.command, "-p", "--output-format", *shape, *self.args, *resume)
        if self.dialect == "codex":
            wanted = ("--output-schema", str(schema)) if schema else ()
            resume = ("resume", session) if session else ()
            return (*self.command, "exec", "--json", "--skip-git-repo-check", *self.args, *wanted, *resume, "-")
        return (*self.command, *self.args)


@frozen
class Answer:
    """What a run came to, as far as the tool told."""

    text: str | None = field(default=None, repr=False)
    session: str | None = None
    cost_usd: float | None = None
    tokens: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None
    is_timeout: bool = False

    @property
    def token_count(self) -> int | None:
        """How many tokens were paid for; None if the tool did not tell. What it read from a cache counts."""
        told = [self.tokens[name] for name in _PAID if name in self.tokens]
        return sum(told) if told else None

    @property
    def is_unauthorized(self) -> bool:
        """Whether the service behind the tool refused its credentials."""
        return self.error is not None and bool(_UNAUTHORIZED.search(self.error[:_ERROR_CHARS]))

    @property
    def is_busy(self) -> bool:
        """Whether the service behind the tool had no room for it."""
        return self.error is not None and bool(_BUSY.search(self.error[:_ERROR_CHARS]))

    @property
    def wait_seconds(self) -> float | None:
        """How long the service asked to wait, if it said."""
        found = _WAIT.search((self.error or "")[:_ERROR_CHARS])
        if found is None:
            return None
        return float(found[1]) * {"ms": 0.001, "m": 60.0}.get(found[2] or "s", 1.0)


def read_answer(tool: AgentTool, ended: Ended) -> Answer:
    """What the tool printed, made sense of. A run that failed always has an error."""
    read = {"claude": _read_claude, "codex": _read_codex, "plain": _read_plain}[tool.dialect]
    answer = read(ended.stdout.decode(errors="replace"))
    if ended.reason != "exited" or (answer.error is None and not ended.is_success):
        return _with_error(answer, ended)
    if answer.error is None and answer.text is None:
        return Answer(None, answer.session, answer.cost_usd, answer.tokens, "it ended without an answer")
    return answer


def session_in(tool: AgentTool, line: str) -> str | None:
    """The session's id, if this line of output tells it: known early, a run that is cut off can be resumed."""
    event = _event(line)
    if event is None or tool.dialect == "plain":
        return None
    return _session(event.get("session_id") if tool.dialect == "claude" else event.get("thread_id"))


def json_in(text: str) -> Any:
    """The JSON value in an answer: all of it, or its one fenced block.

    Raises: ValueError, also for what no store holds: Python reads NaN and numbers without end, which JSON does not
    have, and PostgreSQL has neither NUL nor half a character.
    """
    try:
        value = json.loads(text)
    except ValueError:
        blocks = _fenced(text)
        if len(blocks) != 1:
            raise
        value = json.loads(blocks[0])
    try:
        encode(value, what="The answer")
    except InvalidPayload as exc:
        raise ValueError(str(exc)) from exc
    return value


def _fenced(text: str) -> list[str]:
    """What stands between lines of three backticks. By line, not by pattern: the time it takes grows with the text."""
    blocks: list[str] = []
    inside: list[str] | None = None
    for line in text.splitlines(keepends=True):
        mark = line.strip()
        if inside is not None and mark == "```":
            blocks.append("".join(inside))
            inside = None
        elif inside is not None:
            inside.append(line)
        elif mark in {"```", "```json"}:
            inside = []
    return blocks


def _read_claude(printed: str) -> Answer:
    answer = Answer()
    session = None
    for event in _events(printed):
        session = _session(event.get("session_id")) or session
        if event.get("type") != "result":
            continue
        text = event.get("result")
        is_error = bool(event.get("is_error")) or event.get("subtype", "success") != "success"
        answer = Answer(
            text if isinstance(text, str) and not is_error else None,
            session,
            _cost(event.get("total_cost_usd", event.get("cost_usd"))),
            _numbers(event.get("usage")),
            f"{event.get('subtype', 'error')}: {text}" if is_error else None,
        )
    return answer if answer.session else Answer(answer.text, session, answer.cost_usd, answer.tokens, answer.error)


def _read_codex(printed: str) -> Answer:
    text, session, error = None, None, None
    tokens: dict[str, int] = {}
    for event in _events(printed):
        match event.get("type"):
            case "thread.started" | "thread.resumed":
                session = _session(event.get("thread_id"))
            case "item.completed" if (item := event.get("item")) and isinstance(item, dict):
                if item.get("type", item.get("item_type")) in {"agent_message", "assistant_message"}:
                    text = str(item.get("text", ""))
            case "turn.completed":
                for name, number in _numbers(event.get("usage")).items():
                    tokens[name] = tokens.get(name, 0) + number
                error = None
            case "turn.failed":
                failure = event.get("error")
                error = str(failure.get("message", failure)) if isinstance(failure, dict) else str(failure)
            case "error":
                error = str(event.get("message", event))
    return Answer(None if error else text, session, None, tokens, error)


def _read_plain(printed: str) -> Answer:
    return Answer(printed)


def _with_error(answer: Answer, ended: Ended) -> Answer:
    tails = (part[-_STDERR_TAIL:].decode(errors="replace").strip() for part in (ended.stderr, ended.stdout))
    said = answer.error or next((tail for tail in tails if tail), "")
    how = {
        "timeout": f"it was still at work after {ended.wall.total_seconds():.0f} s and was killed",
        "output_limit": "it printed more than it may and was killed",
        "memory_limit": "it took more memory than it may and was killed",
        "disk_limit": "it took more disk space than it may",
        "lost": "the process that watched it was lost",
        "cancelled": "it was stopped",
    }.get(ended.reason)
    if how is None:
        how = f"it ended by signal {ended.signal}" if ended.signal else f"it ended with exit code {ended.exit_code}"
    told = f"{how}. {said}".rstrip(". ")
    return Answer(None, answer.session, answer.cost_usd, answer.tokens, told, is_timeout=ended.reason == "timeout")


def _events(printed: str) -> Iterator[Mapping[str, Any]]:
    for line in printed.splitlines():
        if (event := _event(line)) is not None:
            yield event


def _event(line: str) -> Mapping[str, Any] | None:
    if not line.lstrip().startswith("{"):
        return None
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _session(value: Any) -> str | None:
    return value if isinstance(value, str) and _SESSION.fullmatch(value) else None


def _cost(value: Any) -> float | None:
    """An amount of money. What is none of it (less than nothing, NaN, without end) must not talk a budget away."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 1e9 else None


def _numbers(usage: Any) -> dict[str, int]:
    """The counts of tokens; whatever else is in there is left out."""
    if not isinstance(usage, dict):
        return {}
    return {
        name: value
        for name, value in list(usage.items())[:32]
        if _COUNT.fullmatch(name) and isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
    }
