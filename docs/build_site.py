# ruff: noqa: INP001 - a script; the folder is no package
"""The sources of the docs site: the order of its pages, and what differs between a page there and in a checkout.

The pages are written for both. On the site a link to a file outside `docs/` has no target: the files in ROOT_PAGES are
made pages, and links to other files of the repository become plain text. A target that does not exist is left alone, so
that the strict build fails.
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Final

DOCS: Final = Path(__file__).parent
ROOT: Final = DOCS.parent
ROOT_PAGES: Final = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
}
"""Files of the repository that are pages of the site too."""
FIRST: Final = {"Why Tenure": "why.md", "Quickstart": "quickstart.md"}
SECTIONS: Final = {
    "Guides": "guides",
    "Concepts": "concepts",
    "Operate": "operate",
    "Reference": "reference",
    "Specifications": "specs",
    "Decisions": "decisions",
}
"""In the order of a reader: what for, the first steps, one task each, how it works, running it, looking things up."""
GUIDES: Final = {
    "Jobs and workers": (
        "guides/handlers",
        "guides/workers",
        "guides/schedules",
        "guides/your-transaction",
        "guides/testing",
        "cookbook",
        "faq",
    ),
    "Your framework": ("guides/django", "guides/fastapi", "guides/telemetry"),
    "Choose and move": ("guides/coming-from", "comparison", "guides/moving-to-postgres", "guides/profiles"),
    "Side effects": (
        "guides/effects",
        "guides/files",
        "guides/outbox",
        "guides/event-hooks",
        "guides/aws",
        "guides/reconcile",
    ),
    "Long jobs and workflows": (
        "guides/durable",
        "guides/workflows",
        "guides/approvals",
        "guides/limits",
        "guides/budgets",
        "guides/memo",
        "guides/streams",
    ),
    "Agents": ("guides/agents", "guides/agent-frameworks", "guides/memory", "guides/mcp"),
    "Look and operate": ("guides/console", "guides/metrics", "guides/bundle"),
    "Other languages": ("guides/http", "guides/other-languages", "guides/shell-worker"),
}
"""Guides by what one wants to do, from the first that a reader needs to the last."""
ORDER: Final = {
    "concepts": ("lifecycle", "leases", "guarantees", "failure", "keys", "time", "durable"),
    "operate": (
        *("install", "deploy", "sqlite", "postgres", "serve", "monitor", "troubleshoot"),
        *("back-up", "upgrade", "deprecation", "measure", "scale"),
    ),
}
"""The pages of a section from the first that a reader needs to the last; those of other sections go by their names."""
AMONG_CONCEPTS: Final = ("architecture.md", "benchmarks.md")

COPIED: Final = {".md", ".css", ".png", ".svg", ".txt", ".json"}

_FENCE: Final = re.compile(r"^(?P<ticks>```+)(?P<language>\w+)[ ](?P<rest>[^\n]+)$", re.MULTILINE)
_BLOCK: Final = re.compile(r"^(```+).*?^\1", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(?<!!)\[(?P<text>[^\]\n]*)\]\((?P<target>[^)\s]+)\)")


def write(folder: Path) -> None:
    """Write the sources of the site: every page and picture, and the configuration with the order of the pages."""
    if folder.exists():
        shutil.rmtree(folder)
    for path in sorted(DOCS.rglob("*")):
        name = path.relative_to(DOCS).as_posix()
        if path.is_file() and path.suffix in COPIED:
            _put(folder / "docs" / name, path, name)
    for source, name in ROOT_PAGES.items():
        _put(folder / "docs" / name, ROOT / source, name)
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    (folder / "mkdocs.yml").write_text(f"{settings}nav: {json.dumps(nav())}\n", encoding="utf-8")


def _put(path: Path, source: Path, name: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix == ".md":
        path.write_text(adapted(source.read_text(encoding="utf-8"), name), encoding="utf-8")
    elif name == "llms.txt":
        path.write_text(built(source.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        shutil.copyfile(source, path)


def nav() -> list[dict[str, Any]]:
    """Every page, in the order of the site."""
    parts: list[dict[str, Any]] = [{"Tenure": "index.md"}, *({title: page} for title, page in FIRST.items())]
    for title, folder in SECTIONS.items():
        if title == "Guides":
            parts.append({title: [{group: [f"{page}.md" for page in pages]} for group, pages in GUIDES.items()]})
            continue
        names = ORDER.get(folder) or sorted(path.stem for path in (DOCS / folder).glob("*.md"))
        pages = [f"{folder}/{name}.md" for name in sorted(names, key=lambda name: name != "README")]
        beside = AMONG_CONCEPTS if title == "Concepts" else ()
        parts.append({title: [*pages, *beside]})
    return [*parts, {"Project": list(ROOT_PAGES.values())}]


def adapted(markdown: str, page: str) -> str:
    """A page of the repository as the site needs it. `page` is its path in the site's sources."""
    done, last = [], 0
    for block in _BLOCK.finditer(markdown):
        done += [_prose(markdown[last : block.start()], page), _FENCE.sub(_fence, block.group(), count=1)]
        last = block.end()
    return "".join([*done, _prose(markdown[last:], page)])


def built(text: str) -> str:
    """A text that the site's builder copies as it is, with the names that it gives the pages."""

    def link(found: re.Match[str]) -> str:
        target = re.sub(r"[.]md(?=#|$)", ".html", found["target"].replace("README.md", "index.md"))
        return f"[{found['text']}]({target})"

    return _LINK.sub(link, text)


def _fence(found: re.Match[str]) -> str:
    """The head of a block of code, without the words that are meant for the tests; a file's name is its title."""
    name = re.search(r"\bfile=(\S+)", found["rest"])
    title = f' title="{name.group(1)}"' if name else ""
    return f"{found['ticks']}{found['language']}{title}"


def _prose(text: str, page: str) -> str:
    return _LINK.sub(lambda found: _linked(found, page), text)


def _linked(found: re.Match[str], page: str) -> str:
    path, mark, anchor = found["target"].partition("#")
    if not path or re.match(r"[a-z]+:", path):
        return found.group()
    sources = {made: source for source, made in ROOT_PAGES.items()}
    here = posixpath.dirname(sources.get(page, f"docs/{page}"))
    target = posixpath.normpath(posixpath.join(here, path))
    if target in ROOT_PAGES:
        there = ROOT_PAGES[target]
    elif target.startswith("docs/") and (ROOT / target).is_file():
        there = target.removeprefix("docs/")
    elif (ROOT / target).exists():
        return found["text"]
    else:
        return found.group()
    return f"[{found['text']}]({posixpath.relpath(there, posixpath.dirname(page) or '.')}{mark}{anchor})"


if __name__ == "__main__":
    write(Path(sys.argv[1]))
