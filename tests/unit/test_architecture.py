"""The rooms of the house and the arrows between them.

Every import under `src/tenure` counts, also those inside functions, under TYPE_CHECKING and by `import_module`:
an arrow is a matter of what a room knows, not of when it loads it. `errors` is open to all.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

SRC: Final = Path(__file__).parents[2] / "src"

INNER: Final = frozenset(
    {"model", "profiles", "handler", "store", "store.contract", "store.sqlite", "store.postgres"}
    | {"worker", "effects", "sandbox", "flow", "observe"}
)

# room → the rooms it may import besides itself and `errors`. `tenure` is the package's own __init__: the public names.
ARROWS: Final[Mapping[str, frozenset[str]]] = {
    "errors": frozenset({"model"}),
    "model": frozenset(),
    "profiles": frozenset({"model"}),
    "handler": frozenset({"model"}),
    "store.contract": frozenset({"model"}),
    "store": frozenset({"model", "store.contract", "store.sqlite", "store.postgres"}),
    "store.sqlite": frozenset({"model", "store", "store.contract"}),
    "store.postgres": frozenset({"model", "store", "store.contract"}),
    "worker": frozenset({"model", "handler", "store.contract"}),
    "effects": frozenset({"model", "handler", "sandbox", "store.contract"}),
    "sandbox": frozenset({"model", "handler"}),
    "flow": frozenset({"model", "handler", "sandbox", "store.contract"}),
    "observe": frozenset({"model", "store.contract"}),
    "client": INNER,
    "async_app": INNER | {"client"},
    "app": INNER | {"client", "async_app"},
    "tenure": INNER | {"app", "async_app", "client"},
    "testing": frozenset(
        {"tenure", "app", "client", "handler", "model", "store", "store.contract", "store.sqlite", "store.postgres"}
    ),
    # The doors show what `observe` tells: explain, doctor, stats, and the events that it follows; and of `handler` the
    # kinds with the schemas of their payloads; acts on all that match are jobs of `effects`.
    "move": frozenset({"model", "profiles", "client", "store.contract"}),
    # Reads a job by the calls that any program has.
    "bundle": frozenset({"tenure", "app", "model"}),
    "web": frozenset({"tenure", "app", "model", "observe", "handler", "effects"}),
    "mcp": frozenset({"tenure", "app", "model", "observe"}),
    # Beside the clients: what to look at (observe), how to keep workers running, what the sandbox offers, a demo's
    # server.
    "cli": frozenset(
        {"tenure", "app", "model", "web", "mcp", "observe", "worker", "effects", "sandbox", "testing", "move", "bundle"}
    ),
    # One module per framework, over the same doors; `cli` for the command that a framework passes on to it. No
    # room imports this one.
    "integrations": frozenset({"tenure", "app", "client", "handler", "model", "observe", "testing", "worker", "cli"}),
    "__main__": frozenset({"cli"}),
}

# The contract has several files; to know one is to know the contract.
CONTRACT: Final = frozenset(
    {"access", "admin", "approvals", "browsing", "budgets", "contract", "flow", "gauges", "limits", "measuring"}
    | {"memo", "memory", "metrics", "moving", "queries", "schedules", "streams", "summary", "workflows"}
)

# A database's driver stays behind the store, and each engine knows only its own.
DRIVERS: Final[Mapping[str, frozenset[str]]] = {
    "sqlite3": frozenset({"store", "store.sqlite"}),
    "aiosqlite": frozenset({"store", "store.sqlite"}),
    "psycopg": frozenset({"store", "store.postgres"}),
    "psycopg_pool": frozenset({"store", "store.postgres"}),
    "asyncpg": frozenset({"store", "store.postgres"}),
    "sqlalchemy": frozenset({"store", "store.sqlite", "store.postgres", "integrations"}),
    "django": frozenset({"store", "store.sqlite", "store.postgres", "integrations"}),
}

# The model decides, it does not act: what it would need for acting stays out. Pydantic is there for payload types,
# cronsim for the ticks of an expression.
MODEL_LIBRARIES: Final = (sys.stdlib_module_names - {"asyncio", "sqlite3", "socket", "subprocess"}) | {
    "pydantic",
    "cronsim",
}

NO_NAMES: Final = frozenset({"utils", "util", "common", "helpers", "helper", "misc"})


def test_imports_follow_the_arrows() -> None:
    bent = bent_arrows(SRC)

    assert not bent, "\n".join(["These imports bend an arrow of the house:", *bent])


def test_the_page_on_architecture_shows_these_arrows() -> None:
    page = (SRC.parent / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", page.partition("## The arrows")[2].partition("\n## ")[0], re.MULTILINE)

    shown: dict[str, frozenset[str]] = {}
    for rooms, imported in rows:
        named = frozenset(shown) - {"errors"} if imported == "all of the above" else re.findall(r"`([\w.]+)`", imported)
        shown |= dict.fromkeys(re.findall(r"`([\w.]+)`", rooms), frozenset(named))

    assert shown == {room: arrows for room, arrows in ARROWS.items() if room != "__main__"}


def test_the_page_on_architecture_lists_every_room() -> None:
    page = (SRC.parent / "docs" / "architecture.md").read_text()
    tree = page.partition("## The rooms")[2].partition("\n## ")[0]

    rooms = {path.name for path in (SRC / "tenure").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms <= set(re.findall(r"^  (\w+)/", tree, re.MULTILINE))


def test_every_module_has_a_name_that_says_what_it_owns() -> None:
    named_for_nothing = [
        _show(path)
        for path in _sources(SRC)
        if NO_NAMES & {part.strip("_") for part in path.relative_to(SRC).with_suffix("").parts}
    ]

    assert not named_for_nothing


@pytest.mark.parametrize(
    ("path", "code", "arrow"),
    [
        ("model/job.py", "from tenure.store import contract", "model → store.contract"),
        ("model/job.py", "import asyncio", "model → asyncio"),
        ("model/job.py", "import requests", "model → requests"),
        ("worker/run.py", "from tenure.store.sqlite.store import S", "worker → store.sqlite"),
        ("worker/run.py", "def f():\n    import tenure.store.postgres", "worker → store.postgres"),
        (
            "worker/run.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..web import api",
            "worker → web",
        ),
        ("worker/__init__.py", "from ..cli.main import main", "worker → cli"),
        ("store/sqlite/store.py", "from tenure.store.postgres import x", "store.sqlite → store.postgres"),
        ("store/sqlite/store.py", "import psycopg", "store.sqlite → psycopg"),
        ("store/contract.py", "from .sqlite import store", "store.contract → store.sqlite"),
        ("store/contract.py", "from tenure.handler import registry", "store.contract → handler"),
        ("effects/aws.py", "from tenure.worker import run", "effects → worker"),
        ("observe/log.py", "from tenure import app", "observe → app"),
        ("observe/log.py", "from tenure import App", "observe → tenure"),
        ("app.py", "import importlib\nimportlib.import_module('tenure.web')", "app → web"),
        ("cli/jobs.py", "import sqlite3", "cli → sqlite3"),
        ("cli/jobs.py", "from tenure.store.contract import Store", "cli → store.contract"),
        ("pantry/shelf.py", "import os", "pantry has no line in the table of rooms"),
    ],
)
def test_a_bent_arrow_is_named(tmp_path: Path, path: str, code: str, arrow: str) -> None:
    _house(tmp_path, {path: code})

    (found,) = bent_arrows(tmp_path)

    assert arrow in found
    assert path in found


def test_arrows_that_point_inwards_are_fine(tmp_path: Path) -> None:
    _house(
        tmp_path,
        {
            "app.py": "from .store.postgres.store import S\nfrom tenure.effects import ledger\nfrom tenure import flow",
            "worker/run.py": "from tenure.store.contract import Store\nfrom ..errors import E\nfrom . import fetch",
            "store/sqlite/store.py": "import sqlite3\nfrom ..contract import Store\nfrom ...model.job import Job",
            "testing.py": "from tenure.app import App\nfrom tenure.store.sqlite import store",
            "cli/main.py": "from tenure import App\nfrom tenure.web import api\nimport typer",
        },
    )

    assert bent_arrows(tmp_path) == []


def bent_arrows(src: Path) -> list[str]:
    """Every import under `src` that the table does not allow, as `file:line: room → room`."""
    bent = []
    for path in _sources(src):
        where = path.relative_to(src).as_posix()
        room = _room(_module_name(path, src))
        if room not in ARROWS:
            bent.append(f"src/{where}: {room} has no line in the table of rooms")
            continue
        for line, target in _imports(path, src):
            if not _is_allowed(room, target):
                bent.append(f"src/{where}:{line}: {room} → {_room(target)}  ({target})")
    return bent


def _is_allowed(room: str, target: str) -> bool:
    top = target.partition(".")[0]
    if top != "tenure":
        if room == "model" and top not in MODEL_LIBRARIES:
            return False
        return top not in DRIVERS or room in DRIVERS[top]
    target_room = _room(target)
    return target_room in {room, "errors"} or target_room in ARROWS[room]


def _room(module: str) -> str:
    parts = module.split(".")
    if parts[0] != "tenure":
        return parts[0]
    if len(parts) == 1:
        return "tenure"
    if parts[1] == "store" and len(parts) > 2:
        if parts[2] in CONTRACT:
            return "store.contract"
        if parts[2] in {"sqlite", "postgres"}:
            return f"store.{parts[2]}"
    return parts[1]


def _imports(path: Path, src: Path) -> Iterator[tuple[int, str]]:
    """The line and full name of each imported module; `from x import y` gives x.y where that is a module, else x."""
    package = _module_name(path, src).split(".")
    if path.stem != "__init__":
        package.pop()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for name in sorted({_deepest(base, alias.name, src) for alias in node.names}):
                yield node.lineno, name
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "import_module":
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield node.lineno, argument.value.lstrip(".")


def _deepest(base: str, name: str, src: Path) -> str:
    inside = src.joinpath(*base.split("."), name)
    return f"{base}.{name}" if inside.is_dir() or inside.with_suffix(".py").is_file() else base


def _module_name(path: Path, src: Path) -> str:
    parts = path.relative_to(src).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _sources(src: Path) -> list[Path]:
    return sorted((src / "tenure").rglob("*.py"))


def _show(path: Path) -> str:
    parts = path.parts
    return "/".join(["src", *parts[len(parts) - parts[::-1].index("tenure") - 1 :]])


def _house(src: Path, files: Mapping[str, str]) -> None:
    """A small house of the same shape, in which `files` are written."""
    for room in ("model", "handler", "worker", "effects", "flow", "observe", "web", "mcp", "cli", "store/sqlite"):
        (src / "tenure" / room).mkdir(parents=True, exist_ok=True)
    for module in ("store/contract.py", "app.py"):
        (src / "tenure" / module).touch()
    for name, code in files.items():
        path = src / "tenure" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
