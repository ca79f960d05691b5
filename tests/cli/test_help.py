"""The help: every command's has one form, words instead of Python's types, and examples that can be typed."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from tenure.cli.examples import EXAMPLES
from tenure.cli.main import command_line, find_command
from tenure.cli.reference import commands
from tests.cli.conftest import Cli

COMMANDS: dict[str, Any] = dict(commands())


def help_of(path: str) -> str:
    command = COMMANDS[path]
    context = command.context_class(command, info_name=f"tenure {path}", terminal_width=80)
    return str(command.get_help(context))


@pytest.mark.parametrize("path", COMMANDS)
def test_a_help_is_in_words(path: str) -> None:
    shown = help_of(path)

    assert not re.search(r"<\w+|list\[|x>=|<=x|\[default: \(|\[required\]|\{\w+\}", shown), shown
    assert max(map(len, shown.partition("Examples:")[0].splitlines())) <= 80
    usage = " ".join(shown.partition("\n\n")[0].split())
    assert re.fullmatch(rf"Usage: tenure {path}(?: \[?[A-Z][A-Z:=-]*(?:\.\.\.)?\]?)* \[OPTIONS\]", usage), usage


@pytest.mark.parametrize("path", COMMANDS)
def test_a_command_with_arguments_shows_how_it_is_typed(path: str) -> None:
    has_arguments = any(one.param_type_name == "argument" for one in COMMANDS[path].params)

    assert not has_arguments or f"\nExamples:\n  tenure {path.removesuffix(' write')}" in help_of(path)


@pytest.mark.parametrize(("path", "line"), [(path, line) for path, lines in EXAMPLES.items() for line in lines])
def test_an_example_is_a_command_that_can_be_carried_out(path: str, line: str) -> None:
    """Its arguments and options are read as the command reads them; nothing is run."""
    words = shlex.split(re.split(r" [<>|] ", line)[0])
    verbs = path.removeprefix("tenure ").split()
    command = find_command(verbs[0])
    rest = words[2:]
    if len(verbs) == 2:
        is_short = path == "tenure bundle write"  # `tenure bundle JOB`
        assert is_short or words[:3] == path.split()
        command, rest = command.commands[verbs[1]], words[2:] if is_short else words[3:]

    with command.make_context(path, rest, parent=command_line().context_class(command_line())) as context:
        assert not context.args


@pytest.mark.parametrize("noun", ["jobs", "dlq", "bundle", "queues"])
def test_a_noun_alone_shows_its_verbs(cli: Cli, noun: str) -> None:
    shown = cli(noun)

    assert shown.code == 0
    assert shown.out == cli(noun, "--help").out
    assert "..." not in shown.out.partition("Commands:")[2]  # sentences are not cut
