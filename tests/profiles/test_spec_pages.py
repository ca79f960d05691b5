"""docs/specs: one page for each specification. Every line of it is answered, and every answer is shown by a test."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

import pytest

from tenure import App
from tests.docs.test_shell import pages_with

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = sorted((ROOT / "docs" / "specs").glob("*.md"))
ROW: Final = re.compile(r"^\| ([\d–, ]+) \| (.+) \| (.+) \| (.*) \|$", re.MULTILINE)
CITED: Final = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
WORDS: Final = {
    "000": "30d8f9fc52f016a1ca24685fb4c15ad78f9029167e3674b4e76ccc0253967072",
    "001": "9bf621b9612f0201142c9e36b66ba328470b43c6f4e4713f706fc328cb087875",
    "002": "eddc82afced6bf4c451c9389ac6dda7a0c298240308e2d747a2522d2b17452ce",
    "003": "a800b4c8223d4c142ab4e87edb879eef38a082245252b377404f481afd772adf",
    "004": "5e2203d46b683c0433b0978b905ee264758cb727bee1238d7c531c268a9cd28f",
}
"""SHA-256 of what each page quotes, taken from the specification itself when the page was written: a quotation that is
shortened or changed is found. Left out were the marks of lists, tables and headings, and one folder's name."""
SILENT: Final = re.compile(r"which has (\d+)\. Lines that state nothing \(.*?\): ([\d–, ]+)\.")


def unshown(page: str) -> list[str]:
    """The statements of a page for which no test is named that exists."""
    return [
        what
        for _, what, _, tests in ROW.findall(page)
        if not CITED.findall(tests) or not all(_exists(path, name) for path, name in CITED.findall(tests))
    ]


def unanswered(page: str) -> list[int]:
    """The lines of the specification that are answered by no row, or by two, and not said to state nothing."""
    found = SILENT.search(page)
    assert found is not None
    answered = [number for lines, *_ in ROW.findall(page) for number in _numbers(lines)] + _numbers(found[2])
    return [number for number in range(1, int(found[1]) + 1) if answered.count(number) != 1]


def _numbers(lines: str) -> list[int]:
    spans = [part.partition("–") for part in lines.split(", ")]
    return [number for first, _, last in spans for number in range(int(first), int(last or first) + 1)]


def _exists(path: str, name: str) -> bool:
    return (ROOT / path).is_file() and re.search(rf"\bdef {name}\(", (ROOT / path).read_text()) is not None


def test_there_is_a_page_for_each_specification_that_a_profile_stands_for() -> None:
    wanted = {profile.specification for profile in App().profiles.known()} - {None}

    assert {page.stem for page in PAGES} == wanted


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_statement_names_a_test_that_exists(page: Path) -> None:
    text = page.read_text()

    assert len(ROW.findall(text)) > 20
    assert unshown(text) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_line_of_the_specification_is_answered_once(page: Path) -> None:
    assert unanswered(page.read_text()) == []


def quoted(page: str) -> str:
    """What a page quotes, row by row, without the marks of the table."""
    rows = [re.sub(r"\s*<br>\s*", " ", what).replace("&lt;", "<") for _, what, *_ in ROW.findall(page)]
    return "\n".join(re.sub(r"\s+", " ", what).strip() for what in rows)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_quotes_its_specification_without_shortening_it(page: Path) -> None:
    """M8: the page of 001 left "in admin UI" out."""
    assert hashlib.sha256(quoted(page.read_text()).encode()).hexdigest() == WORDS[page.stem]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_row_says_that_something_is_not_built(page: Path) -> None:
    answers = [how for _, _, how, _ in ROW.findall(page.read_text())]

    assert [
        how for how in answers if re.search(r"not (yet )?(built|done|there yet)|missing|todo", how, re.IGNORECASE)
    ] == []


def test_a_statement_without_a_test_and_a_line_without_an_answer_are_found() -> None:
    page = (
        "By the line of the specification, which has 4. Lines that state nothing (headings): 1.\n"
        "| 2 | fine | so | `tests/profiles/test_spec_pages.py::test_every_statement_names_a_test_that_exists` |\n"
        "| 3 | gone | so | `tests/profiles/test_spec_pages.py::test_that_was_renamed` |\n"
        "| 3 | bare | so |  |\n"
    )

    assert unshown(page) == ["gone", "bare"]
    assert unanswered(page) == [3, 4]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_begins_with_what_to_type_and_the_examples_of_pages_are_executed(page: Path) -> None:
    """M17. tests/docs/test_shell.py executes the blocks and compares what they print."""
    head = page.read_text().partition("## Every statement")[0]

    assert "\n## Start here\n" in head
    assert page in pages_with("runnable"), "on SQLite"
    assert page in pages_with("postgres"), "on PostgreSQL"
    for word in ("tenure profile install", "```text\n"):
        assert word in head
