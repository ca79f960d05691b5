"""Examples run, and pages show what their code prints.

A block that opens with ```python runnable is executed; the blocks of a page are one script, in order, in an empty
folder. A ```text block right after it is what it prints.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
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
        timeout=100,
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
