"""The docs site: every page in the reader's order, built with every warning an error, and nothing from elsewhere."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

from docs.build_site import DOCS, ROOT, ROOT_PAGES, adapted, built, nav, write
from tests.browser.conftest import CHROMIUM, FLAGS


def listed(part: Any) -> list[str]:
    if isinstance(part, str):
        return [part]
    return [page for inner in (part.values() if isinstance(part, dict) else part) for page in listed(inner)]


def test_every_page_stands_once_in_the_order_of_the_site() -> None:
    pages = listed(nav())

    ours = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert sorted(pages) == sorted([*ours, *ROOT_PAGES.values()])


def test_the_order_is_that_of_a_reader() -> None:
    titles = [next(iter(part)) for part in nav()]

    assert titles == [
        "Tenure", "Why Tenure", "Quickstart", "Guides", "Concepts", "Operate", "Reference", "Specifications",
        "Decisions", "Project",
    ]  # fmt: skip


def test_links_out_of_the_docs_become_pages_or_text_and_dead_ones_stay() -> None:
    page = "[a](../../CHANGELOG.md#x) [b](../../deploy) [c](../faq.md) [d](../gone.md) [e](https://x.test) [f](#here)"

    found = adapted(page, "operate/upgrade.md")

    assert found == "[a](../project/changelog.md#x) b [c](../faq.md) [d](../gone.md) [e](https://x.test) [f](#here)"


def test_links_of_a_page_from_the_root_are_seen_from_its_new_place() -> None:
    assert adapted("[a](docs/faq.md) [b](SECURITY.md)", "project/changelog.md") == "[a](../faq.md) [b](security.md)"


def test_words_for_the_tests_are_taken_from_blocks_of_code_and_their_content_stays() -> None:
    page = "```python runnable\n[x](../gone.md)\n```\n```toml file=a.toml\nb = 1\n```\n```sh\nls\n```\n"

    assert (
        adapted(page, "faq.md")
        == '```python\n[x](../gone.md)\n```\n```toml title="a.toml"\nb = 1\n```\n```sh\nls\n```\n'
    )


def test_llms_txt_on_the_site_names_pages_of_the_site() -> None:
    """The builder makes `faq.html` of `faq.md` and copies no Markdown: each link of the checkout was dead there."""
    assert built("[a](faq.md) [b](decisions/README.md) [c](guides/x.md#y)") == (
        "[a](faq.html) [b](decisions/index.html) [c](guides/x.html#y)"
    )


def test_a_list_or_a_table_begins_behind_a_blank_line() -> None:
    """GitHub does without it; the site would show one long paragraph."""
    for path in [*DOCS.rglob("*.md"), *(ROOT / name for name in ROOT_PAGES)]:
        prose = re.sub(r"^(```+).*?^\1", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        glued = re.findall(r"^(?![-*|#>\s]|\d+\. )[^\n]+\n(?:- |\d+\. |\|)[^\n]*", prose, re.MULTILINE)
        assert glued == [], path


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], subprocess.CompletedProcess[str]]:
    """Builds the sources in a folder, strictly, with the pinned builder in an environment of its own."""
    folder = tmp_path_factory.mktemp("builder")
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    installed = subprocess.run(
        [*pip, "--require-hashes", "-r", str(ROOT / "requirements" / "docs.txt")], check=False, capture_output=True
    )
    if installed.returncode:
        pytest.skip("the package registry cannot be reached")

    def run(sources: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [folder / "bin" / "zensical", "build", "--strict"], cwd=sources, capture_output=True, text=True, check=False
        )

    return run


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_can_be_searched_and_asks_no_other_server(
    build: Callable[[Path], subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    write(tmp_path / "sources")

    done = build(tmp_path / "sources")

    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "sources" / "site"
    for page in listed(nav()):
        made = page.replace("README.md", "index.md").removesuffix(".md") + ".html"
        assert (site / made).exists(), page
    named = re.findall(r"\]\(([^)#]+)", (site / "llms.txt").read_text())
    assert [name for name in named if not (site / name).exists()] == []
    text = (site / "guides" / "effects.html").read_text()
    assert "runnable" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    searched = json.dumps(json.loads((site / "search.json").read_text()))
    assert "tenure_queue_oldest_ready_seconds" in searched
    loaded = re.compile(
        r"""<(?:script|img|iframe)[^>]*\ssrc=["']?(?:https?:)?//|<link[^>]*\shref=["']?(?:https?:)?//"""
    )
    imported = re.compile(r"""(?:@import|url\()\s*["']?(?:https?:)?//""")
    for path in site.rglob("*.html"):
        outside = [tag for tag in loaded.findall(path.read_text()) if 'rel="canonical"' not in tag]
        assert not outside, path
    for path in site.rglob("*.css"):
        assert not imported.search(path.read_text()), path
    assert broken_codes(site / "guides" / "coming-from.html") == []


def broken_codes(page: Path) -> list[str]:
    """Codes of one word in tables that a browser shows on two lines. In eight columns `f.delay(…)` was cut in two."""
    if not Path(CHROMIUM).exists():
        return []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        shown = browser.new_page(viewport={"width": 1440, "height": 900})
        shown.goto(page.as_uri())
        found: list[str] = shown.evaluate(
            """[...document.querySelectorAll('td code')].filter(
                one => !one.innerText.includes(' ') && one.getClientRects().length > 1).map(one => one.innerText)"""
        )
        browser.close()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("link", ["[x](guides/gone.md)", "[x](faq.md#no-such-heading)"], ids=["page", "anchor"])
def test_a_dead_link_fails_the_build(
    build: Callable[[Path], subprocess.CompletedProcess[str]], tmp_path: Path, link: str
) -> None:
    write(tmp_path / "sources")
    why = tmp_path / "sources" / "docs" / "why.md"
    why.write_text(f"{why.read_text()}\n\n{link}\n")

    done = build(tmp_path / "sources")

    assert done.returncode != 0
    assert "why.md" in done.stdout + done.stderr
    shutil.rmtree(tmp_path / "sources")


def test_the_index_has_the_order_of_the_site() -> None:
    """Cookbook, questions and comparison stood below all decisions, where no one looks."""
    index = (DOCS / "index.md").read_text()
    listed_there = re.findall(r"^- \[.*\]\((\S+)\)$", index, re.MULTILINE)

    assert listed_there == [page for page in listed(nav()) if page in set(listed_there)]
    decisions = {page for page in listed(nav()) if page.startswith("decisions/") and page != "decisions/README.md"}
    assert set(listed(nav())) - set(listed_there) == {"index.md", *decisions, *ROOT_PAGES.values()}
