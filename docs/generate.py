# ruff: noqa: INP001 - a script; the folder is no package
"""The tables in the docs that repeat what the code says: errors, settings, SQL functions, names, events, the index.

    python -m docs.generate            write them
    python -m docs.generate --check    say which are out of date, and end with 1 if any is

A table stands in its page between `<!-- generated: NAME -->` and `<!-- end -->`; what is around it is written by hand.
What a setting means is told by the docstring under its field, or else by meanings.toml.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import tenure
import tenure.testing
from docs.build_site import FIRST, SECTIONS, nav
from tenure import errors
from tenure.handler.building import JobOptions
from tenure.model.event import EventKind
from tenure.model.policy import Backoff, Limits, QueuePolicy
from tenure.model.state import RULES, Rule, State
from tenure.worker.config import WorkerConfig

DOCS = Path(__file__).parent
SQL = DOCS.parent / "src" / "tenure" / "store" / "postgres" / "sql"
README = DOCS.parent / "README.md"
LLMS = DOCS / "llms.txt"
WIDTH = 100

_REGION = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_ACTS: dict[type[errors.TenureError], str] = {
    errors.UsageError: "the caller",
    errors.OperatorError: "the operator",
    errors.HandlerError: "the author of a handler",
    errors.InternalError: "the authors of Tenure",
}


def main(args: list[str]) -> int:
    """Write the pages, or only look."""
    stale = []
    for path in [README, *sorted(DOCS.rglob("*.md")), LLMS]:
        before = path.read_text() if path.exists() else ""
        after = llms() if path == LLMS else filled(before)
        if before != after:
            stale.append(str(path.relative_to(DOCS.parent)))
            if "--check" not in args:
                path.write_text(after)
    for name in stale:
        sys.stdout.write(f"{name} {'is out of date' if '--check' in args else 'was written'}\n")
    return 1 if stale and "--check" in args else 0


def llms() -> str:
    """The pages for a reader that is a language model (llmstxt.org): what Tenure is, then every page with its title."""
    head, _, _ = (DOCS / "index.md").read_text().partition("<!-- generated")
    title, summary, start = (part.strip() for part in head.strip().split("\n\n", 2))
    return f"{title}\n\n> {summary}\n\n{start}\n\n{_index(with_decisions=True).strip()}\n"


def filled(page: str) -> str:
    """The page with every generated part made anew."""
    return _REGION.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]().strip()}\n\n{found[3]}", page)


# --- errors and events ------------------------------------------------------------------------------------------------


def error_classes() -> list[type[errors.TenureError]]:
    """Every error that Tenure raises on purpose, as errors.py has them."""

    def beneath(error: type[errors.TenureError]) -> Iterator[type[errors.TenureError]]:
        yield error
        for one in error.__subclasses__():
            yield from beneath(one)

    return [one for one in beneath(errors.TenureError) if one.__module__ == errors.__name__]


def _errors() -> str:
    rows = []
    for error in error_classes():
        acts = next((who for base, who in _ACTS.items() if issubclass(error, base)), "")
        parent = f"`{error.__mro__[1].__name__}`" if error is not errors.TenureError else ""
        rows.append((f"`{error.code}`", f"`{error.__name__}`", parent, acts, error.exit_code, _doc(error)))
    return _table(("code", "class", "is a", "who must act", "exit", "meaning"), rows)


def _sqlstates() -> str:
    from tenure.store.postgres import errors as edge

    known: dict[str, type[errors.TenureError]] = {"TN002": errors.GateClosed, "TN003": errors.UnknownQueue}
    known |= edge._REFUSALS  # noqa: SLF001 - the one list
    texts = [path.read_text() for path in (SQL / "functions").glob("*.sql")]
    raised = set(re.findall("'(TN0[0-9]{2})'", "\n".join(texts)))
    rows = [(f"`{state}`", f"`{known[state].code}`", f"`{known[state].__name__}`") for state in sorted(raised)]
    return _table(("SQLSTATE", "code", "class"), rows)


def _events() -> str:
    return _table(("kind", "when"), [(f"`{kind.value}`", _meaning("event", kind.value)) for kind in EventKind])


LOGS = {"event", "job"}
"""The methods that write a log event."""


def log_event_names() -> set[str]:
    """The names of all log events that a worker may emit, as its code has them."""
    found: set[str] = set()
    for path in (DOCS.parent / "src" / "tenure" / "worker").glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in LOGS:
                first = call.args[0] if call.args else None
                if isinstance(first, ast.Constant) and isinstance(first.value, str) and len(call.args) > 1:
                    found.add(first.value)
    from tenure.worker import log

    return found | set(log._LEVELS)  # noqa: SLF001 - ends are named there


def _log_events() -> str:
    return _table(("event", "when"), [(f"`{name}`", _meaning("log_event", name)) for name in sorted(log_event_names())])


def _http_routes() -> str:
    from tenure.web.application import table

    rows = [
        (
            f"`{route.verb} {route.path}`",
            f"`{route.scope}`",
            f"`{route.audit}`" if route.audit else "",
            _doc(route.handler),
        )
        for route in table()
    ]
    return _table(("route", "scope", "audit", "what it does"), rows)


def _http_statuses() -> str:
    rows = [(f"`{error.code}`", error.http_status) for error in error_classes()]
    return _table(("code", "status"), rows)


def _http_limits() -> str:
    from tenure.web.site import Limits as WebLimits

    rows = [(f"`{one.name}`", str(one.default), _meaning("web_limits", one.name)) for one in fields(WebLimits)]
    return _table(("setting of `tenure.web.asgi`", "default", "meaning"), rows)


def _prometheus() -> str:
    from tenure.observe.prometheus import FAMILIES

    rows = [(f"`{one.name}`", one.sort, ", ".join(one.labels), one.meaning) for one in FAMILIES]
    return _table(("metric", "sort", "labels", "meaning"), rows)


_SPEED = {
    "W1": "enqueue one at a time, a synced commit each, jobs/s",
    "W2": "enqueue in bulk, jobs/s",
    "W3a": "drain, one worker process, jobs/s",
    "W4": "idle worker: from enqueue to the handler's start, p50 ms",
}


def _speed() -> str:
    """Figures of benchmarks.md, each beside the fastest of the others."""
    page = (DOCS / "benchmarks.md").read_text()
    rows = []
    for name, meaning in _SPEED.items():
        cells = []
        for engine in ("SQLite", "PostgreSQL"):
            section = re.search(rf"^## {name}: [^\n]*, {engine}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
            assert section is not None, f"docs/benchmarks.md has no section {name} of {engine}"
            found = re.findall(r"^\| (\S[^|]*?) \| (~?[\d.,]+) \|", section.group(1), re.MULTILINE)
            ours = next(figure for who, figure in found if who == "**tenure**")
            best = next(((who, figure) for who, figure in found if who != "**tenure**"))
            cells += [f"**{ours}**", f"{best[1]} {best[0]}"]
        rows.append((meaning, *cells))
    return _table(("", "SQLite", "the fastest other", "PostgreSQL", "the fastest other"), rows)


def _moves() -> str:
    """The table of `tenure.model.state`, in its order: the first rule that fits a case is carried out."""
    counts = ("attempt", "crashes", "suspicion", "run_at", "key", "attempt row", "dead letter", "event")
    return _table(("from", "move", "to", "when", *counts), [_rule(rule) for rule in RULES])


def _rule(rule: Rule) -> tuple[str, ...]:
    return (
        ", ".join(f"`{state.value}`" for state in State if state in rule.origin),
        rule.move.value,
        f"`{rule.to.value}`",
        rule.when,
        "0" if rule.resets else f"{rule.attempt:+d}" if rule.attempt else "",
        f"{rule.crashes:d}" if rule.resets else f"{rule.crashes:+d}" if rule.crashes else "",
        "" if rule.suspicion == "keep" else rule.suspicion,
        "" if rule.run_at == "keep" else rule.run_at.replace("_", " "),
        "freed" if rule.frees_key else "",
        f"`{rule.attempt_row}`" if rule.attempt_row else "",
        "yes" if rule.dead_letter else "",
        f"`{rule.event}`" if rule.event else "",
    )


# --- settings ---------------------------------------------------------------------------------------------------------


def _settings(record: type, section: str) -> str:
    told = _told(record)
    rows = [
        (f"`{name}`", f"`{kind}`", default, told.get(name) or _meaning(section, name))
        for name, kind, default in _fields(record)
    ]
    return _table(("setting", "type", "default", "meaning"), rows)


def _options() -> str:
    told, kinds = _told(JobOptions), _annotations(JobOptions)
    rows = [(f"`{name}`", f"`{kind}`", told.get(name) or _meaning("job", name)) for name, kind in kinds.items()]
    return _table(("option", "type", "meaning"), rows)


# --- names ------------------------------------------------------------------------------------------------------------


def _methods(owner: type, view: type, variable: str = "app") -> str:
    """Methods that `owner` defines, as a sync caller sees them on `view`, with their promises."""
    return "\n".join(
        _callable(f"{variable}.{name}", getattr(view, name), None)
        for name in vars(owner)
        if not name.startswith("_") and callable(getattr(view, name)) and name not in _SKIPPED.get(owner.__name__, ())
    )


def _app() -> str:
    from tenure.app import App
    from tenure.client.enqueue import Enqueueing
    from tenure.client.work import Work

    return "\n".join(_methods(owner, App) for owner in (App, Enqueueing, Work))


def _app_admin() -> str:
    from tenure.app import App
    from tenure.client.access import Access, SyncAccess
    from tenure.client.admin import Gates, Leases, SyncGates, SyncLeases, SyncWorkers, Upkeep, Workers
    from tenure.client.approvals import Approvals, Inbox, SyncApprovals
    from tenure.client.budgets import BudgetClient, SyncBudgets
    from tenure.client.dead_letters import DeadLetters, SyncDeadLetters
    from tenure.client.effects import Effects, SyncEffects
    from tenure.client.flow import JobSteps, Signals, SyncSteps
    from tenure.client.jobs import Jobs
    from tenure.client.limits import Limits, SyncLimits
    from tenure.client.memory import Memories, SyncMemories
    from tenure.client.metrics import Metrics
    from tenure.client.profiles import AgentTasks, Profiles, SyncProfiles
    from tenure.client.queues import Queues, SyncQueues
    from tenure.client.schedules import Schedules, SyncSchedules
    from tenure.client.streams import JobStreams, SyncStreams
    from tenure.client.workflows import SyncWorkflows, Workflows

    flat = [_methods(owner, App) for owner in (Jobs, Inbox, Signals, Upkeep, AgentTasks, Metrics)]
    groups = [
        _methods(Access, SyncAccess, "app.access"),
        _methods(Approvals, SyncApprovals, "app.approvals"),
        _methods(BudgetClient, SyncBudgets, "app.budgets"),
        _methods(DeadLetters, SyncDeadLetters, "app.dead_letters"),
        _methods(Effects, SyncEffects, "app.effects"),
        _methods(Gates, SyncGates, "app.gates"),
        _methods(Limits, SyncLimits, "app.limits"),
        _methods(Memories, SyncMemories, "app.memory"),
        _methods(Leases, SyncLeases, "app.leases"),
        _methods(Queues, SyncQueues, "app.queues"),
        _methods(Schedules, SyncSchedules, "app.schedules"),
        _methods(Profiles, SyncProfiles, "app.profiles"),
        _methods(JobSteps, SyncSteps, "app.steps"),
        _methods(JobStreams, SyncStreams, "app.streams"),
        _methods(SyncStreams, SyncStreams, "app.streams"),
        _methods(Workers, SyncWorkers, "app.workers"),
        _methods(Workflows, SyncWorkflows, "app.workflows"),
    ]
    return "\n".join(flat + groups)


def _class(owner: type, variable: str) -> str:
    parts = [_doc(owner, whole=True), ""]
    bases = [base for base in reversed(owner.__mro__) if base.__module__.startswith("tenure.")]
    members = {name: member for base in bases for name, member in vars(base).items()}
    for name, member in members.items():
        if name.startswith("_") or name in _SKIPPED.get(owner.__name__, ()):
            continue
        if isinstance(member, property):
            parts.append(f"- `{variable}.{name}`: {_doc(member) or _meaning('context', name)}")
    for name, member in members.items():
        if not name.startswith("_") and inspect.isfunction(member) and name not in _SKIPPED.get(owner.__name__, ()):
            is_async_form = name.startswith("a") and name[1:] in members
            if not is_async_form:
                parts += [
                    "",
                    _callable(f"{variable}.{name}", member, f"a{name}" if f"a{name}" in members else None),
                ]
    return "\n".join(parts)


def _names() -> str:
    """Every other public name: exceptions of handlers, values, enumerations."""
    parts = []
    for name in sorted(
        set(tenure.__all__) - {"App", "Context", "JobFunction", "JobHandle", "__version__"}, key=str.lower
    ):
        value = getattr(tenure, name)
        if isinstance(value, type) and issubclass(value, errors.TenureError) and value.__module__ == errors.__name__:
            continue
        parts.append(f"### {name}\n\n{_name(name, value)}\n")
    return "\n".join(parts)


def _name(name: str, value: Any) -> str:
    if isinstance(value, type) and issubclass(value, Enum):
        return f"{_doc(value)} " + ", ".join(f"`{one.value}`" for one in value) + "."
    if isinstance(value, type) and is_dataclass(value):
        told = _told(value)
        lines = [
            f"    {field}: {kind}" + (f" = {default[1:-1]}" if default else "") + "," + _comment(told.get(field))
            for field, kind, default in _fields(value)
        ]
        return f"{_doc(value, whole=True)}\n\n```python\n{name}(\n" + "\n".join(lines) + "\n)\n```"
    if isinstance(value, type):
        shape = f"\n\n```python\n{_signature(name, value)}\n```" if "__init__" in vars(value) else ""
        see = {"JobOptions": "job-options", "QueueSettings": "queues", "WorkerSettings": "workers"}.get(name)
        return _doc(value, whole=True) + (f" See [settings](settings.md#{see})." if see else "") + shape
    said = _assigned(_home(name), name)
    return f"{said[1]}\n\n```python\n{name} = {said[0]}\n```" if said else _doc(value)


def _comment(text: str | None) -> str:
    return f"  # {text}" if text else ""


def _error_names() -> str:
    return ", ".join(f"`{error.__name__}`" for error in error_classes())


def _testing() -> str:
    parts = []
    for name in tenure.testing.__all__:
        value = getattr(tenure.testing, name)
        is_plain = isinstance(value, type) and "__init__" not in vars(value)
        parts.append(f"### {name}\n")
        parts.append(f"{_doc(value)}\n" if is_plain else _callable(name, value, None))
    return "\n".join(parts)


# --- SQL --------------------------------------------------------------------------------------------------------------


def granted() -> dict[str, list[str]]:
    """Function → the roles that may call it, as roles.sql has them."""
    rows = re.findall(r"^\s*\('([a-z_]+)',\s*'([a-z ]+)'\),?$", (SQL / "roles.sql").read_text(), re.MULTILINE)
    return {name: roles.split() for name, roles in rows}


@cache
def signatures() -> Mapping[str, str]:
    """Function → its arguments and what it returns, as its file declares it."""
    texts = [
        path.read_text() for path in [*sorted(SQL.glob("schema*.sql")), *sorted((SQL / "functions").glob("*.sql"))]
    ]
    found = re.findall(r"FUNCTION tenure\.([a-z_]+)\(([^()]*)\)\s+RETURNS (\S+)", "\n".join(texts))
    return {name: f"tenure.{name}({' '.join(arguments.split())}) → {returns}" for name, arguments, returns in found}


def _functions() -> str:
    roles = ("producer", "worker", "reader", "operator", "admin")
    rows = []
    for name, callers in granted().items():
        link = f"[`{name}`](#tenure{name})"
        rows.append((link, *("yes" if role in callers else "" for role in roles), f"`{signatures()[name]}`"))
    return _table(("function", *roles, "signature"), rows)


def _sql_policy() -> str:
    columns = re.search(r"CREATE TABLE tenure\.queue \((.*?)\n\);", (SQL / "schema.sql").read_text(), re.DOTALL)
    assert columns is not None
    rows = []
    for line in columns[1].splitlines():
        match = re.match(r"\s+([a-z_]+) ([a-z]+(?: precision)?(?:\[\])?)(.*?),?$", line)
        if match and match[1] not in {"name", "paused_at", "paused_by", "created_at", "updated_at"}:
            default = re.search(r"DEFAULT (\S+)", match[3])
            rows.append((f"`{match[1]}`", match[2], f"`{default[1]}`" if default else "null"))
    return _table(("column", "type", "default"), rows)


# --- the index --------------------------------------------------------------------------------------------------------


def _index(*, with_decisions: bool = False) -> str:
    """The pages in the order of the site, which is that of a reader. Decisions have a page that lists them."""
    parts = ["## Start here\n", *(f"- [{_title(DOCS / page)}]({page})" for page in FIRST.values()), ""]
    for section in nav():
        ((title, pages),) = section.items()
        if title in SECTIONS:
            listed = pages[:1] if title == "Decisions" and not with_decisions else pages
            parts += [f"## {title}\n", *_listed(listed), ""]
    return "\n".join(parts).replace("\n\n\n", "\n\n")


def _listed(pages: list[Any]) -> Iterator[str]:
    """Links to pages; groups of them under headings."""
    for page in pages:
        if isinstance(page, dict):
            ((group, inner),) = page.items()
            yield from (f"### {group}\n", *_listed(inner), "")
        else:
            yield f"- [{_title(DOCS / page)}]({page})"


def _decisions() -> str:
    pages = [page for page in sorted((DOCS / "decisions").glob("*.md")) if page.name != "README.md"]
    return "\n".join(f"- [{_title(page)}]({page.name})" for page in pages)


def _title(page: Path) -> str:
    heading = next(line for line in page.read_text().splitlines() if line.startswith("# "))
    return heading.removeprefix("# ").strip()


# --- reading the code -------------------------------------------------------------------------------------------------

_SKIPPED = {
    "App": {"do", "store"},
    "Context": {
        "stop",
        "take_events",
        # For the worker and the ledger.
        *("aask", "acompensated", "ask", "awrite_drawn", "compensated", "is_replay", "journal", "left_over"),
        *("new_child", "park", "parked", "write_drawn"),
    },
    "JobFunction": {"handler"},
}
"""For other rooms of Tenure."""

_INWARD = ("Not frozen only", "Kept small")
"""How paragraphs begin that speak to readers of the code."""


@cache
def _meanings() -> Mapping[str, Mapping[str, str]]:
    with (DOCS / "meanings.toml").open("rb") as file:
        return tomllib.load(file)


def _meaning(section: str, name: str) -> str:
    try:
        return _meanings()[section][name]
    except KeyError:
        raise SystemExit(f"docs/meanings.toml: say in [{section}] what {name!r} means") from None


def _doc(thing: Any, *, whole: bool = False) -> str:
    """The first paragraph of a docstring in one line, or all of it with its arguments as a list."""
    text = inspect.cleandoc(getattr(thing, "__doc__", None) or "")
    if not whole:
        return " ".join(text.split("\n\n")[0].split())
    text = "\n\n".join(part for part in text.split("\n\n") if not part.startswith(_INWARD))
    head = re.search(r"^(?:Args|Attributes):\n", text, re.MULTILINE)
    if head is None:
        return text
    before, (given, _, rest) = text[: head.start()], text[head.end() :].partition("\n\n")
    items = re.findall(r"^ {4}(\w+): ((?:.*)(?:\n {8,}.*)*)", given, re.MULTILINE)
    listed = "\n".join(f"- `{name}`: {' '.join(told.split())}" for name, told in items)
    return "\n\n".join(part for part in (before.strip(), listed, rest.strip()) if part)


def _fields(record: type) -> Iterator[tuple[str, str, str]]:
    kinds = _annotations(record)
    for field in fields(record):
        if not field.init:
            continue
        made = field.default_factory() if field.default_factory is not MISSING else field.default
        default = "" if made is MISSING else f"`{_shown(made)}`"
        yield field.name, kinds[field.name], default


def _shown(value: Any) -> str:
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    return f"{type(value).__name__}()" if is_dataclass(value) else repr(value)


def _body(owner: type) -> list[ast.stmt]:
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(found, ast.ClassDef)
    return found.body


def _annotations(owner: type) -> dict[str, str]:
    return {
        one.target.id: ast.unparse(one.annotation)
        for one in _body(owner)
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }


def _told(owner: type) -> dict[str, str]:
    """Field → the docstring under it."""
    body = _body(owner)
    return {
        one.target.id: " ".join(after.value.value.split())
        for one, after in pairwise(body)
        if isinstance(one, ast.AnnAssign)
        and isinstance(one.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }


def _home(name: str) -> str:
    return tenure._HOME[name]  # noqa: SLF001 - where public names live


def _assigned(module: str, name: str) -> tuple[str, str] | None:
    """The right side and the docstring of `name = …` in a module."""
    body = ast.parse(inspect.getsource(import_module(module))).body
    for one, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name) and one.targets[0].id == name:
            told = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            return ast.unparse(one.value), " ".join(str(told).split())
    return None


def _callable(name: str, function: Any, async_name: str | None) -> str:
    beside = f"\n\nAsync: `{async_name}`." if async_name else ""
    return f"```python\n{_signature(name, function)}\n```\n\n{_doc(function, whole=True)}{beside}\n"


def _signature(name: str, function: Any) -> str:
    found = inspect.signature(function)
    parts, last = [], None
    for parameter in found.parameters.values():
        if parameter.name == "self":
            continue
        if last is not None and last.kind is parameter.POSITIONAL_ONLY and parameter.kind is not last.kind:
            parts.append("/")
        if parameter.kind is parameter.KEYWORD_ONLY and (
            last is None or last.kind not in {parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL}
        ):
            parts.append("*")
        parts.append(str(parameter).replace("'", "") if "'" in str(parameter.annotation) else _parameter(parameter))
        last = parameter
    returns = "" if found.return_annotation is found.empty else f" -> {_annotation(found.return_annotation)}"
    line = f"{name}({', '.join(parts)}){returns}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}"


def _parameter(parameter: inspect.Parameter) -> str:
    star = (
        "*" if parameter.kind is parameter.VAR_POSITIONAL else "**" if parameter.kind is parameter.VAR_KEYWORD else ""
    )
    text = f"{star}{parameter.name}"
    if parameter.annotation is not parameter.empty:
        text += f": {_annotation(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        shown = "..." if type(parameter.default) is object else _shown(parameter.default)
        text += f" = {shown}" if ":" in text else f"={shown}"
    return text


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


PARTS: dict[str, Callable[[], str]] = {
    "errors": _errors,
    "sqlstates": _sqlstates,
    "events": _events,
    "log-events": _log_events,
    "moves": _moves,
    "http-routes": _http_routes,
    "http-statuses": _http_statuses,
    "http-limits": _http_limits,
    "prometheus": _prometheus,
    "speed": _speed,
    "queue-settings": lambda: _settings(QueuePolicy, "queue"),
    "backoff-settings": lambda: _settings(Backoff, "backoff"),
    "worker-settings": lambda: _settings(WorkerConfig, "worker"),
    "limits": lambda: _settings(Limits, "limits"),
    "job-options": _options,
    "app": _app,
    "app-admin": _app_admin,
    "context": lambda: _class(tenure.Context, "ctx"),
    "job-function": lambda: _class(tenure.JobFunction, "welcome"),
    "job-handle": lambda: _class(tenure.JobHandle, "job"),
    "names": _names,
    "error-names": _error_names,
    "testing": _testing,
    "functions": _functions,
    "sql-policy": _sql_policy,
    "index": _index,
    "decisions": _decisions,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
