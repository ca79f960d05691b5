"""The reference of the command line, made from the commands themselves: `python -m tenure.cli.reference`.

docs/reference/cli.md is its output; a test holds the two together.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tenure.cli import answers
from tenure.cli.bench.rounds import Benched
from tenure.cli.bundle import BundleOpened, BundleWritten
from tenure.cli.demo.command import Shown
from tenure.cli.main import COMMANDS, EXIT_CODES, SECTIONS, find_command
from tenure.cli.move import MoveAnswer
from tenure.cli.reconcile import Reconciled
from tenure.model.event import Event
from tenure.model.job import Job
from tenure.model.stream import Chunk
from tenure.model.usage import Usage
from tenure.observe.doctor import Diagnosis
from tenure.observe.explain import Explanation
from tenure.observe.stats import Glance
from tenure.worker.worker import WorkerStats

WIDTH = 100

SHAPES: Mapping[str, type] = {
    "demo": Shown,
    "bench": Benched,
    "worker": WorkerStats,
    "enqueue": answers.EnqueuedJobs,
    "claim": answers.Grants,
    "heartbeat": answers.Held,
    "complete": answers.SettledJobs,
    "fail": answers.SettledJobs,
    "release": answers.SettledJobs,
    "jobs ls": answers.Jobs,
    "jobs show": answers.JobShown,
    "jobs explain": Explanation,
    "jobs logs": Event,
    "jobs follow": Chunk,
    "jobs wait": answers.Jobs,
    "jobs cancel": answers.CancelledJobs,
    "jobs revive": answers.SettledJobs,
    "jobs edit": answers.Jobs,
    "jobs forget-step": answers.ForgottenSteps,
    "signal": answers.SentSignal,
    "dlq ls": answers.DeadLetters,
    "dlq show": answers.DeadLetterShown,
    "dlq groups": answers.DeadLetterGroups,
    "dlq ack": answers.Changed,
    "dlq escalate": answers.Changed,
    "dlq close": answers.Changed,
    "dlq replay": answers.SettledJobs,
    "bundle write": BundleWritten,
    "bundle open": BundleOpened,
    "queues ls": answers.Queues,
    "queues backlog": answers.QueueBacklog,
    "queues set": answers.Queues,
    "queues rm": answers.Changed,
    "queues pause": answers.Changed,
    "queues resume": answers.Changed,
    "memos ls": answers.MemoPage,
    "memos forget": answers.MemosForgotten,
    "usage": Usage,
    "budgets ls": answers.BudgetPage,
    "budgets set": answers.Budgets,
    "budgets raise": answers.Budgets,
    "budgets rm": answers.Changed,
    "gates ls": answers.Gates,
    "gates open": answers.Gates,
    "gates close": answers.Gates,
    "limits ls": answers.Limits,
    "limits waiting": answers.LimitedWaits,
    "limits set": answers.Limits,
    "limits block": answers.Limits,
    "limits clear": answers.Limits,
    "limits rm": answers.Changed,
    "serve": answers.Served,
    "install-skill": answers.SkillFiles,
    "confirm": answers.Agreed,
    "token new": answers.TokenNew,
    "token ls": answers.Tokens,
    "token revoke": answers.Changed,
    "audit ls": answers.AuditRows,
    "audit seal": answers.AuditSealed,
    "audit verify": answers.AuditVerified,
    "workers ls": answers.Workers,
    "workers drain": answers.Changed,
    "workers resume": answers.Changed,
    "schedules ls": answers.Schedules,
    "schedules run": answers.EnqueuedJobs,
    "schedules edit": answers.Schedules,
    "schedules rm": answers.Changed,
    "apply": answers.Applied,
    "schedules pause": answers.Changed,
    "schedules resume": answers.Changed,
    "inbox ls": answers.Inbox,
    "inbox show": answers.ApprovalShown,
    "inbox approve": answers.ApprovalShown,
    "inbox deny": answers.ApprovalShown,
    "inbox link": answers.ApprovalLink,
    "workflows ls": answers.Workflows,
    "workflows show": answers.WorkflowShown,
    "workflows cancel": answers.WorkflowMoved,
    "workflows retry": answers.WorkflowMoved,
    "workflows escalations": answers.Escalations,
    "workflows answer": answers.EscalationAnswered,
    "profile ls": answers.Profiles,
    "profile show": answers.ProfileShown,
    "profile install": answers.ProfileInstalled,
    "memory search": answers.MemoriesFound,
    "memory forget": answers.Forgotten,
    "memory reindex": answers.ReindexAsked,
    "memory stats": answers.MemoryShown,
    "stats": answers.Stats,
    "top": Glance,
    "tail": Event,
    "reconcile": Reconciled,
    "doctor": Diagnosis,
    "migrate": answers.Migrated,
    "move": MoveAnswer,
    "prune": answers.PruneDone,
    "version": answers.Version,
}
"""What each command answers with --json."""

LINES = frozenset({"tail", "jobs logs", "jobs follow"})
"""One object a line, as they come."""

WITHOUT_JSON = frozenset({"init", "dev", "mcp"})
"""They answer nothing."""

SHOWN_BESIDES: Mapping[type, Mapping[str, Any]] = {Job: {"shown_state": str}}
"""Fields of JSON that are computed."""

VARIABLES = {
    "TENURE_URL": "the database, where `--url` is left out",
    "TENURE_APP": "`module:app` for commands that load an app and are given none, such as `tenure worker`",
    "TENURE_ACTOR": "who is written down in the audit, where `--actor` is left out",
    "TENURE_EMBEDDER": "how memories are embedded: `words`, `wordllama:256`, `file:FOLDER`, `openai:URL#MODEL?dim=N`",
    "TENURE_EMBEDDER_KEY": "the key for an `openai:` embedder; OPENAI_API_KEY if left out",
    "TENURE_WORKER": "the name under which `tenure claim` claims",
    "TENURE_TENANTS": "databases of `tenure serve`, as NAME=URL, separated by spaces",
    "TENURE_LINK_KEY_FILE": "a file of mode 0600 that approval links are signed with besides the database's own key",
    "TENURE_DEBUG": "if set, a fault of Tenure's own shows its traceback",
    "NO_COLOR": "if set, no colours",
}

_HEAD = """\
# The command line

This page is made by `python -m tenure.cli.reference`; a test keeps it true.

Data goes to stdout, everything else to stderr. On a terminal, lists are tables; into a pipe they are tab-separated
lines under a heading, with moments in ISO 8601 and durations in seconds. `--json` answers in JSON, and then an error is
an object on stderr: `{"error": {"code", "message", "exit_code"}}`. Control characters in job data are always shown by
their number.
"""


def page() -> str:
    """The whole page."""
    return "\n".join(_page()) + "\n"


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that can be run, with its path, in the order of the help."""
    for name in COMMANDS:
        found = find_command(name)
        if hasattr(found, "commands"):
            for verb, command in found.commands.items():
                yield f"{name} {verb}", command
        else:
            yield name, found


def record_fields(record: type) -> dict[str, Any]:
    """The fields of a record in JSON, with their types."""
    hints = get_type_hints(record)
    return {field.name: hints[field.name] for field in fields(record)} | dict(SHOWN_BESIDES.get(record, {}))


def _page() -> Iterator[str]:
    yield _HEAD
    yield "| exit code | meaning |"
    yield "|---|---|"
    yield from (f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())
    yield ""
    yield "| variable | meaning |"
    yield "|---|---|"
    yield from (f"| `{name}` | {meaning} |" for name, meaning in VARIABLES.items())
    yield ""
    found = dict(commands())
    for section, names in SECTIONS.items():
        yield f"## {section}\n"
        for path, command in found.items():
            if path.split()[0] in names:
                yield from _command(path, command)
    yield "## Records\n"
    yield "Moments are text such as `2026-01-31T12:00:00.000000Z`. A field may be added; none changes its meaning.\n"
    for record in _records():
        yield from _record(record)


def _command(path: str, command: Any) -> Iterator[str]:
    context = command.context_class(command, info_name=f"tenure {path}", terminal_width=WIDTH)
    yield f"### tenure {path}\n"
    yield "```text"
    yield command.get_help(context).rstrip()
    yield "```\n"
    shape = SHAPES.get(path)
    if shape is not None:
        each = "one object a line, each" if path in LINES else "answers"
        yield f"`--json` {each} {_link(shape)}.\n"


def _record(record: type) -> Iterator[str]:
    yield f"### {record.__name__}\n"
    yield "| field | type |"
    yield "|---|---|"
    yield from (f"| `{name}` | {_words(kind)} |" for name, kind in record_fields(record).items())
    yield ""


def _records() -> list[type]:
    """Every record that a shape names, itself or inside, by name."""
    found: dict[str, type] = {}

    def visit(kind: Any) -> None:
        if isinstance(kind, type) and is_dataclass(kind) and kind.__name__ not in found:
            found[kind.__name__] = kind
            for inner in record_fields(kind).values():
                visit(inner)
        for inner in get_args(kind):
            visit(inner)

    for shape in SHAPES.values():
        visit(shape)
    return [found[name] for name in sorted(found)]


def _words(kind: Any) -> str:
    """A type in words."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in {Union, types.UnionType}:
        return " or ".join("null" if one is type(None) else _words(one) for one in args)
    if origin is Literal:
        return " or ".join(f"`{one}`" for one in args)
    if hasattr(kind, "__supertype__"):
        return _words(kind.__supertype__)
    if origin is not None and issubclass(origin, Mapping):
        return f"object of {_words(args[1])}"
    if origin is not None:
        return f"list of {_words(next(one for one in args if one is not Ellipsis))}"
    if kind is Any:
        return "any JSON"
    if isinstance(kind, type) and is_dataclass(kind):
        return _link(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(f"`{one.value}`" for one in kind)
    return {str: "text", int: "integer", float: "number", bool: "boolean", datetime: "moment"}[kind]


def _link(record: type) -> str:
    return f"[{record.__name__}](#{record.__name__.lower()})"


if __name__ == "__main__":
    print(page(), end="")
