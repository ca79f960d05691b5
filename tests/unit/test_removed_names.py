"""No name of a removed mechanism is left in the product, its docs and its tests.

Patterns name identifiers, files and settings, not plain words of prose: `asyncio.gather`, what a sandbox offers and an
in-flight request are no hits. Decisions may name what they removed.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("src", "docs", "tests", "README.md")
SUFFIXES = frozenset({".py", ".sql", ".md", ".toml", ".sh", ".txt", ".mjs", ""})
DECISIONS = ROOT / "docs" / "decisions"

REMOVED: dict[str, str] = {
    "scribe, dictation, teller": r"\b[Ss]cribes?\b|\b[Dd]ictation\w*|\b[Tt]ellers?\b|test_scribe|test_dictation",
    # A step of kind `undo` is `armed` until it is undone, which is another thing.
    "armed wake-ups": r"\b[Aa]rmed (?:call|wake)|\bArmedCall\b|\b[Ss]ubscription\.arm\b|\.disarm\(\)|test_armed",
    # `tenure.hand_over` gives a profile's schema to its owner and is another thing.
    "hand-over": r"\bhandover\w*|\bhand-over\w*|\bis_handed_over\b|\bHandOver\w*|test_hand(?:ed)?_over",
    "offers": r"\bis_offered\b|\boffered\s*[:=]|\boffers\s*[:=]\s*(?:bool|True|False)|(?:worker|sqlite)[./]offers?\b"
    r"|\bclass Offers?\b|test_offers",
    "looped": r"sqlite[./]looped\b|\bclass Looped\b|\blooped\.py\b|test_looped",
    "waiting awake": r"tenure_awake|postgres[./]awake\b|\bclass Awake\b|\bimport awake\b|test_awake",
    "gather": r"postgres[./]gather\b|\bimport gather\b|test_gather",
    "at-once statements": r"sqlite[./]at_once\b|\bat_once\.(?:sql|py)\b|\bAtOnce\b",
    "company": r"\bcompany\b|\bis_shared: bool\b|test_company",
    "fleet turns and worker news": r"\bwants_wake\b|\bled_seconds\b|\bclaim_marked\b",
    "blocking the loop": r"\bmay_block\b",
    "writing into the WAL": r"\bwal\.grow\b|\bwal_grow\b",
    "lanes": r"\b[Ll]anes?\b",
    "ticket": r"\bTicket\b|worker[./]ticket\b",
    # Single flight is the field's word for work that is done once for many.
    "flight": r"(?<!in[-_ ])(?<!ingle )\b[Ff]lights?\b",
    "talk and its drivers": r"\btenure\.door\b|src/tenure/door/|\bTalk\b|\bconverse\b|\ba?[Tt]wins?\b",
    "ear": r"postgres[./]ear\b",
    "keeper": r"\b[Kk]eepers?\b",
    "beneath": r"(?:effects|sandbox)[./]beneath\b|\bimport beneath\b|\bclass Beneath\b|test_beneath",
    "shift and bench": r"\bclass Shift\b|worker[./]shift\b|\bimport shift\b|\bcontext\.bench\b|\bclass Bench\b",
    "special forms of enqueue and grant": r"\bgrant_(?:few|rest)\b|\bclaim_few\b|\benqueue_(?:one|plain|group)\b",
}

OWN = Path(__file__).name


def texts() -> dict[str, str]:
    found: dict[str, str] = {}
    for room in ROOMS:
        top = ROOT / room
        files = sorted(top.rglob("*")) if top.is_dir() else [top]
        for path in files:
            if not path.is_file() or path.suffix not in SUFFIXES or path.name == OWN or DECISIONS in path.parents:
                continue
            found[str(path.relative_to(ROOT))] = path.read_text(encoding="utf-8", errors="replace")
    return found


@pytest.fixture(scope="module")
def house() -> dict[str, str]:
    found = texts()
    assert len(found) > 100, "the rooms are not where this test looks for them"
    return found


@pytest.mark.parametrize("mechanism", REMOVED)
def test_no_name_of_a_removed_mechanism_is_left(house: dict[str, str], mechanism: str) -> None:
    pattern = re.compile(REMOVED[mechanism])

    left = [f"{name}: the file's name" for name in house if pattern.search(name)]
    left += [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in house.items()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]

    assert left == [], f"{len(left)} lines still speak of it:\n" + "\n".join(left[:40])
