"""Every link from one of our pages to another leads somewhere, and every page can be reached from the index."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"!?\[[^\]\n]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```+).*?^\1", re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """A page without its blocks of code and its spans of code."""
    return re.sub(r"`[^`\n]*`", "``", FENCE.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(slug if slug not in found else f"{slug}-1")
    return found


def links(page: Path) -> Iterator[tuple[str, Path, str]]:
    """The page's links to files of ours: as written, the file, the anchor."""
    for target in LINK.findall(prose(page)):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield target, (page.parent / path).resolve() if path else page, anchor


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    broken = [
        target
        for target, path, anchor in links(page)
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path))
    ]

    assert not broken


def test_every_page_can_be_reached_from_the_index() -> None:
    seen: set[Path] = set()
    ahead = [ROOT / "docs" / "index.md"]
    while ahead:
        page = ahead.pop()
        if page not in seen and page.suffix == ".md":
            seen.add(page)
            ahead += [path for _, path, _ in links(page) if path.exists()]

    lost = {str(page.relative_to(ROOT)) for page in PAGES if page.is_relative_to(ROOT / "docs")} - {
        str(page.relative_to(ROOT)) for page in seen
    }
    assert not lost, "Run: python -m docs.generate"


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A b.c\n[x](#a-bc) [y](other.md#z) `[no](code.md)`\n```\n[no](either.md)\n```\n")

    assert [target for target, _, _ in links(page)] == ["#a-bc", "other.md#z"]
    assert anchors(page) == {"a-bc"}


def test_llms_txt_names_every_page() -> None:
    from docs.generate import DOCS, llms

    named = llms()

    assert (DOCS / "llms.txt").read_text() == named, "Run: make docs"
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - {"index.md"}
    assert {page for page in pages if f"({page})" not in named} <= {"decisions/README.md"}
