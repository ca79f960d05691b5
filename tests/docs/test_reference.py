"""The reference is complete and fresh: what the code has, the pages name; what they were made from has not changed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import pytest

import tenure
import tenure.testing
from docs.generate import DOCS, PARTS, README, error_classes, filled, log_event_names
from tenure.handler.building import JobOptions
from tenure.model.event import EventKind
from tenure.model.policy import Backoff, Limits, QueuePolicy
from tenure.model.state import State
from tenure.store.postgres.address import SETTINGS
from tenure.web.site import Limits as WebLimits
from tenure.worker.config import WorkerConfig

PAGES = [README, *sorted(DOCS.rglob("*.md"))]
GENERATED = [page for page in PAGES if "<!-- generated: " in page.read_text()]
REFERENCE = DOCS / "reference"


def names(page: Path) -> set[str]:
    """Every name that stands in a page as code: `name`, `app.name`, ### name, or the call at the head of a block."""
    text = page.read_text()
    inline = re.findall(r"`(?:\w+\.)?(\w+)(?:\(.*?\))?`", text)
    called = re.findall(r"^(?:\w+\.)?(\w+)\(", text, re.MULTILINE)
    return {*inline, *called, *re.findall(r"^##+ (\w+)$", text, re.MULTILINE)}


def missing(page: str, wanted: Iterable[str]) -> set[str]:
    return set(wanted) - names(REFERENCE / page)


@pytest.mark.parametrize("page", GENERATED, ids=[str(page.relative_to(DOCS.parent)) for page in GENERATED])
def test_a_generated_table_is_what_the_code_says(page: Path) -> None:
    assert page.read_text() == filled(page.read_text()), "Run: python -m docs.generate"


def test_every_part_that_can_be_generated_stands_in_a_page() -> None:
    used = {name for page in GENERATED for name in re.findall(r"<!-- generated: ([a-z-]+) -->", page.read_text())}

    assert used == set(PARTS)


def test_every_error_code_is_documented() -> None:
    codes = {error.code for error in error_classes()}

    assert {"lease_lost", "busy", "internal"} <= codes
    assert not missing("errors.md", codes | {error.__name__ for error in error_classes()})


def test_every_public_name_is_documented() -> None:
    assert not missing("api.md", tenure.__all__)
    assert not missing("api.md", tenure.testing.__all__)


def test_every_act_of_the_app_is_documented() -> None:
    inward = {"do", "store"}
    attributes = {"limits", "registry", "declared", "checkers", "verifiers", "url"}
    acts = {name for name in dir(tenure.App) if not name.startswith("_")} - inward - attributes

    assert {"enqueue", "aio", "claim", "revive"} <= acts
    assert not missing("api.md", acts)


def test_every_setting_is_documented() -> None:
    for record in (QueuePolicy, WorkerConfig, Backoff, Limits):
        assert not missing("settings.md", (field.name for field in fields(record))), record
    assert not missing("settings.md", JobOptions.__annotations__)
    assert not missing("settings.md", SETTINGS)


def test_every_event_and_log_event_is_documented() -> None:
    assert {"store_away", "fenced", "completed"} <= log_event_names()
    assert not missing("events.md", [kind.value for kind in EventKind])
    assert not missing("events.md", log_event_names())


def test_every_state_is_in_the_lifecycle() -> None:
    assert not {state.value for state in State} - names(DOCS / "concepts" / "lifecycle.md")


def test_no_meaning_is_kept_for_what_is_gone() -> None:
    with (DOCS / "meanings.toml").open("rb") as file:
        kept = tomllib.load(file)
    known = {
        "queue": {field.name for field in fields(QueuePolicy)},
        "backoff": {field.name for field in fields(Backoff)},
        "worker": {field.name for field in fields(WorkerConfig)},
        "limits": {field.name for field in fields(Limits)},
        "job": set(JobOptions.__annotations__),
        "context": {name for name in dir(tenure.Context) if not name.startswith("_")},
        "event": {kind.value for kind in EventKind},
        "log_event": log_event_names(),
        "web_limits": {field.name for field in fields(WebLimits)},
    }

    assert set(kept) == set(known)
    for section, meanings in kept.items():
        assert set(meanings) <= known[section], section


def test_a_name_that_is_not_there_is_missed() -> None:
    assert missing("errors.md", ["lease_lost", "no_such_code"]) == {"no_such_code"}
