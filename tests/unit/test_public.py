"""The public names: all there, cheap to import, and typed as they say."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import tenure
import tenure.errors
import tenure.testing

HEAVY: Final = ("pydantic", "psycopg", "rich", "typer", "sqlite3", "asyncio", "starlette", "mcp")


def errors() -> list[type[tenure.TenureError]]:
    found = vars(tenure.errors).values()
    return [one for one in found if isinstance(one, type) and issubclass(one, tenure.TenureError)]


@pytest.mark.parametrize("module", [tenure, tenure.testing], ids=["tenure", "tenure.testing"])
def test_every_public_name_is_there(module: object) -> None:
    names: list[str] = module.__all__  # type: ignore[attr-defined]

    assert len(names) == len(set(names))
    assert [name for name in names if not hasattr(module, name)] == []
    assert set(names) <= set(dir(module))


def test_the_names_for_type_checkers_are_those_that_are_resolved() -> None:
    source = Path(tenure.__file__).read_text()
    pairs = {(name, home) for home, name in re.findall(r"^    from ([\w.]+) import (\w+) as \2$", source, re.MULTILINE)}

    assert {name for name, _ in pairs} | {"__version__"} == set(tenure.__all__)
    for name, home in pairs:
        assert getattr(importlib.import_module(home), name) is getattr(tenure, name)


def test_every_error_is_public() -> None:
    assert {error.__name__ for error in errors()} <= set(tenure.__all__)


def test_codes_of_errors_are_stable_names_that_differ() -> None:
    codes = [error.code for error in errors()]

    assert len(codes) == len(set(codes))
    assert all(re.fullmatch(r"[a-z_]+", code) for code in codes)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'Ap'"):
        getattr(tenure, "Ap")  # noqa: B009 - mypy would find it first


def test_packages_that_the_guides_name_are_found_by_importing_tenure_alone() -> None:
    """`api.mount("/tenure", tenure.web.asgi(app))`, as the guide on FastAPI has it, was an AttributeError."""
    code = "import tenure; tenure.web.asgi, tenure.effects.bulk, tenure.mcp.http, tenure.testing.drain"

    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_version_is_that_of_the_distribution() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", tenure.__version__)


def test_importing_tenure_and_making_an_app_loads_nothing_heavy() -> None:
    code = (
        "import sys, tenure\n"
        "app = tenure.App('sqlite:///never-opened.db')\n"
        "@app.job\n"
        "def handler(payload: dict) -> None: ...\n"
        "handler.new({'a': 1})\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert loaded.strip() == "[]"


def test_importing_tenure_is_quick() -> None:
    code = "import time; t = time.process_time(); import tenure; print(time.process_time() - t)"

    runs = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout) for _ in range(3)
    ]

    assert min(runs) < 0.12
