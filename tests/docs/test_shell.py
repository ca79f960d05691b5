"""Shell examples run, and pages show what they print.

A block that opens with ```sh runnable is executed by sh on SQLite, one that opens with ```sh postgres with DATABASE_URL
naming a fresh PostgreSQL database that has the schema; the blocks of a page are one script, in order, in an empty
folder. A ```text block right after it is what it prints, where `…` stands for anything. A block that opens with a
language and file=NAME is written to that file first.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tenure.store.postgres.store import PostgresStore
from tests.servers import wheel_bin_path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"^```sh (?P<where>runnable|postgres)\n(?P<code>.*?)^```\n(?:\n```text\n(?P<text>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
FILE = re.compile(r"^```\w+ file=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = "--- end of block ---"
NODE_MODULES = ROOT / ".bench" / "node" / "node_modules"
"""Where the benchmarks keep the driver `pg`, if they were ever set up."""


@dataclass(frozen=True, slots=True)
class Block:
    code: str
    prints: str


def blocks_of(page: Path, where: str) -> list[Block]:
    found = BLOCK.finditer(page.read_text())
    return [Block(one["code"], one["text"] or "") for one in found if one["where"] == where]


def pages_with(where: str) -> list[Path]:
    return [page for page in PAGES if blocks_of(page, where)]


def run(page: Path, where: str, folder: Path, **variables: str) -> None:
    """Run the page's blocks as one script and compare what each prints."""
    blocks = blocks_of(page, where)
    for name, text in FILE.findall(page.read_text()):
        (folder / name).write_text(text)
    script = folder / "page.sh"
    script.write_text("set -eu\n" + "".join(f"{block.code}echo '{MARK}'\n" for block in blocks))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TENURE", "PG"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), str(wheel_bin_path(18)), kept.get("PATH", "")])
    done = subprocess.run(
        ["/bin/sh", str(script)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=kept | {"PATH": path, "TENURE_ACTOR": "you", "PYTHONUNBUFFERED": "1", "PAGER": "cat"} | variables,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    printed = done.stdout.split(f"{MARK}\n")
    assert len(printed) == len(blocks) + 1
    for block, output in zip(blocks, printed, strict=False):
        assert fits(block.prints, output), f"{block.code}\nprinted:\n{output}\nshown:\n{block.prints}"


def fits(shown: str, printed: str) -> bool:
    """Whether a text is what a page shows; `…` stands for anything within a line."""
    lines = [".*".join(re.escape(part) for part in line.rstrip().split("…")) for line in shown.splitlines()]
    found = [line.rstrip() for line in printed.splitlines()]
    return len(lines) == len(found) and all(re.fullmatch(*pair) for pair in zip(lines, found, strict=True))


@pytest.mark.parametrize("page", pages_with("runnable"), ids=lambda page: page.name)
def test_the_shell_examples_of_a_page_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    run(page, "runnable", tmp_path)


@pytest.mark.postgres
@pytest.mark.parametrize("page", pages_with("postgres"), ids=lambda page: page.name)
def test_the_examples_on_postgresql_print_what_the_page_shows(page: Path, tmp_path: Path, postgres_url: str) -> None:
    if "require('pg')" in page.read_text() and not (NODE_MODULES / "pg").is_dir():
        pytest.skip("the driver pg for Node is not installed (make bench brings it)")
    store = PostgresStore(postgres_url)
    store.migrate()
    store.close()
    run(page, "postgres", tmp_path, DATABASE_URL=postgres_url, NODE_PATH=str(NODE_MODULES))


def test_there_are_pages_of_both_sorts() -> None:
    assert pages_with("runnable")
    assert pages_with("postgres")


def test_a_dot_dot_dot_stands_for_anything_in_its_line_and_nothing_else() -> None:
    assert fits("a … c\nd\n", "a b c\nd\n")
    assert not fits("a … c\n", "a b d\n")
    assert not fits("a\n", "a\nb\n")
