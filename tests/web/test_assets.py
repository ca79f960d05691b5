"""Files that browsers get: as pinned, same-origin, named by their hash; and the lines that say which command does the
same, read by the real parser."""

from __future__ import annotations

import base64
import hashlib
import inspect
import re
import shlex
import tomllib

import click
import pytest

from tenure.cli.main import command_line
from tenure.web.pages import same_as
from tenure.web.pages.render import HERE, STATIC, assets

VENDOR = STATIC / "vendor"


def test_vendored_files_are_the_pinned_ones_with_their_licences() -> None:
    told = tomllib.loads((VENDOR / "vendor.toml").read_text())
    pinned = {file["name"]: file["sha384"] for package in told["package"] for file in package["file"]}
    there = {
        path.name: base64.b64encode(hashlib.sha384(path.read_bytes()).digest()).decode()
        for path in VENDOR.iterdir()
        if path.suffix in {".js", ".css"}
    }

    assert there == pinned
    assert all((VENDOR / package["licence_file"]).read_text().strip() for package in told["package"])


def test_the_name_of_an_asset_carries_its_hash() -> None:
    for plain, asset in assets().items():
        mark = hashlib.sha256((STATIC / plain).read_bytes()).hexdigest()[:12]
        assert f".{mark}." in asset.name
        assert asset.integrity.startswith("sha384-")


def test_no_template_and_no_file_of_ours_names_another_host() -> None:
    ours = [*(HERE / "templates").glob("*.html"), STATIC / "console.css", STATIC / "console.js"]
    found = [path.name for path in ours if re.search(r"https?://(?!www\.w3\.org/)", path.read_text())]

    assert found == []


def test_templates_hold_no_inline_script_style_or_handler() -> None:
    for path in (HERE / "templates").glob("*.html"):
        text = path.read_text()
        assert not re.search(r"<script(?![^>]*\ssrc=)", text), path.name
        assert "<style" not in text, path.name
        assert not re.search(r"<[a-z][^>]*\s(?:style|on\w+)\s*=", text), path.name
        assert "| safe" not in text, path.name
        assert "hx-on" not in text, path.name


def test_every_icon_that_is_used_is_in_the_sprite() -> None:
    from tenure.web.pages.words import LOOKS

    sprite = set(re.findall(r'id="i-(\w+)"', (STATIC / "icons.svg").read_text()))
    used = {look.icon for look in LOOKS.values()}
    for path in (HERE / "templates").glob("*.html"):
        used |= set(re.findall(r"icon\('(\w+)'", path.read_text()))

    assert used <= sprite


LINES = {
    "overview": same_as.overview(),
    "jobs": same_as.jobs(
        states=["dead", "failed"], queues=["a b"], kinds=["x"], key="k'", worker="w", workflow="1", parent="2"
    ),
    "job": same_as.job("1", "logs"),
    "job_attempts": same_as.job("1"),
    "job_data": same_as.job("1", "data"),
    "job_output": same_as.job("1", "output"),
    "cancel": same_as.cancel("1"),
    "revive": same_as.revive("1"),
    "edit": same_as.edit("1"),
    "priority": same_as.priority("1", -5),
    "dead_letters": same_as.dead_letters(),
    "dead_letter_group": same_as.dead_letter_group("ab12"),
    **{f"triage_{verb}": same_as.triage(verb, "ab12") for verb in ("ack", "escalate", "close", "assign")},
    "replay": same_as.replay("ab12"),
    "queues": same_as.queues(),
    "queues_one": same_as.queues("a b"),
    "revoke": same_as.revoke("abc"),
    "pause": same_as.pause("mail"),
    "resume": same_as.resume("mail"),
    "set_queue": same_as.set_queue("mail"),
    "workers": same_as.workers(),
    **{f"worker_act_{act}": same_as.worker_act(act, "w-1") for act in ("drain", "resume")},
    "schedules": same_as.schedules(),
    "schedule": same_as.schedule("nightly"),
    "gates": same_as.gates(),
    "metrics": same_as.metrics("7d"),
    "health": same_as.health(),
    "workflows": same_as.workflows(states=["failed"], names=["a b"]),
    "workflow": same_as.workflow("1"),
    "inbox": same_as.inbox(),
    "approval": same_as.approval("1"),
    "audit": same_as.audit("a b"),
    "verify_audit": same_as.verify_audit(),
    "budgets": same_as.budgets(),
    **{f"budget_{act}": same_as.budget(act, "tenant:a b", "usd", "day") for act in ("raise", "remove")},
    "limits": same_as.limits(),
    **{f"limit_{act}": same_as.limit(act, "openai") for act in ("clear", "remove")},
    "agents": same_as.agents(),
    "memos": same_as.memos("price", "BP-", "acme"),
    "memory": same_as.memory("late brake pads"),
    **{f"workflow_act_{act}": same_as.workflow_act(act, "1") for act in ("cancel", "retry")},
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_the_real_parser_takes_the_line(line: str) -> None:
    program, *words = shlex.split(line)
    command, context = command_line(), None
    assert program == "tenure"
    while isinstance(command, click.Group):
        context = click.Context(command, parent=context, info_name=words[0])
        found = command.get_command(context, words.pop(0))
        assert found is not None, line
        command = found

    command.make_context(line, words, parent=context, resilient_parsing=False)


def test_every_line_is_tried() -> None:
    made = {name for name, one in inspect.getmembers(same_as, inspect.isfunction) if not name.startswith("_")}

    assert {name for name in made if not any(known.startswith(name) for known in LINES)} == set()
