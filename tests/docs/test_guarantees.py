"""The guarantees name tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CITED = re.compile(r"(tests/[\w/]+\.py)::(test_\w+)")
PAGES = [page for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")) if CITED.search(page.read_text())]


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: page.name)
def test_a_page_cites_tests_that_exist(page: Path) -> None:
    gone = [
        f"{path}::{name}"
        for path, name in CITED.findall(page.read_text())
        if not (ROOT / path).exists() or not re.search(rf"def {name}\(", (ROOT / path).read_text())
    ]

    assert not gone


def test_the_guarantees_are_among_them() -> None:
    assert ROOT / "docs" / "concepts" / "guarantees.md" in PAGES
