"""Examples run, and pages show what their code prints.

A block that opens with ```python runnable is executed; the blocks of a page are one script, in order, in an empty
folder. A ```text block right after it is what it prints.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted([*(ROOT / "examples").glob("*.py"), *(ROOT / "examples").glob("*/main.py")])
PAGES = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "```python runnable" in path.read_text()
]
BLOCK = re.compile(
    r"^```python runnable\n(?P<code>.*?)^```\n(?:\n*```text\n(?P<text>.*?)^```\n)?", re.MULTILINE | re.DOTALL
)
MARK = "--- end of block ---"


@dataclass(frozen=True, slots=True)
class Block:
    code: str
    prints: str | None


def blocks_of(page: str) -> list[Block]:
    return [Block(found["code"], found["text"]) for found in BLOCK.finditer(page)]


def run(script: Path, folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in {"TENURE_URL", "PYTHONWARNINGS"}}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=environment | {"PYTHONUNBUFFERED": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=[str(path.relative_to(ROOT / "examples")) for path in EXAMPLES])
def test_an_example_runs_in_an_empty_folder(example: Path, tmp_path: Path) -> None:
    assert run(example, tmp_path).strip()


@pytest.mark.parametrize("page", PAGES, ids=[path.name for path in PAGES])
def test_a_page_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    blocks = blocks_of(page.read_text())
    script = tmp_path / "page.py"
    script.write_text("\n".join(f"{block.code}\nprint({MARK!r})" for block in blocks))

    printed = run(script, tmp_path).split(f"{MARK}\n")

    assert len(printed) == len(blocks) + 1
    for block, output in zip(blocks, printed, strict=False):
        assert output == (block.prints or ""), block.code


NOT_RUN = {
    ("guides/agent-frameworks.md", "from agents import Agent"): "needs an account; tests/frameworks has the same",
    ("guides/your-transaction.md", "with transaction.atomic():"): "needs a project; test_django_guide.py has one",
    ("guides/your-transaction.md", "async with pool.acquire()"): "needs a server; test_your_transaction.py has one",
}
"""Blocks that are compiled only, by page and first words, with the reason."""
ANY_BLOCK = re.compile(r"^```python(?P<mark>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
RUN_ELSEWHERE = {"frameworks": "by tests/frameworks/test_guide.py", "file": "by test_shell.py or test_django_guide.py"}


def unmarked() -> Iterator[tuple[str, str]]:
    """Every block of a page, the generated reference apart, that no test runs."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        name = page.relative_to(ROOT / "docs").as_posix() if page.is_relative_to(ROOT / "docs") else page.name
        if not name.startswith("reference/"):
            for found in ANY_BLOCK.finditer(page.read_text()):
                word = found["mark"].strip().partition("=")[0]
                if word != "runnable" and word not in RUN_ELSEWHERE:
                    yield name, found["code"]


def test_every_block_of_python_is_run_or_compiled_for_a_reason() -> None:
    left = list(unmarked())

    without = [(page, code) for page, code in left if not any(_fits(page, code, *one) for one in NOT_RUN)]
    assert not without, "Mark it as ```python runnable, or say in NOT_RUN why it cannot be run."
    assert [one for one in NOT_RUN if not any(_fits(page, code, *one) for page, code in left)] == []
    for page, code in left:
        compile(code, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def _fits(page: str, code: str, known: str, begin: str) -> bool:
    return page == known and code.startswith(begin)


def test_the_quickstart_and_an_example_are_among_them() -> None:
    assert ROOT / "docs" / "quickstart.md" in PAGES
    assert ROOT / "examples" / "quickstart.py" in EXAMPLES


def test_blocks_and_what_they_print_are_found() -> None:
    page = "x\n```python runnable\na = 1\n```\n\n```text\nout\n```\n```python\nno\n```\n```python runnable\nb\n```\ny\n"

    assert blocks_of(page) == [Block("a = 1\n", "out\n"), Block("b\n", None)]


def test_code_that_fails_is_found(tmp_path: Path) -> None:
    script = tmp_path / "bad.py"
    script.write_text("raise SystemExit('broken')")

    with pytest.raises(AssertionError, match="broken"):
        run(script, tmp_path)
