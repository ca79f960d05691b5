"""Groups of commands: a noun with its verbs, or verbs that stand at the top; and how a command's help is laid out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from tenure.errors import UsageError

OTHER_VERBS = {
    "get": ("show", "ls"),
    "list": ("ls",),
    "add": ("set", "new"),
    "create": ("set", "new"),
    "update": ("set", "edit"),
    "delete": ("rm", "cancel", "revoke", "forget"),
    "remove": ("rm", "cancel", "revoke", "forget"),
    "rm": ("cancel", "revoke", "forget"),
    "requeue": ("revive", "replay"),
    "retry": ("revive", "replay"),
    "revive": ("replay",),
    "stop": ("pause", "drain", "cancel"),
    "start": ("resume", "run"),
    "unpause": ("resume",),
}
"""What other programs call a verb: the first of these that a noun has."""


class Command(TyperCommand):
    """A command whose help shows what is typed: arguments in capitals, then options, then examples. Python's names of
    types are left out."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        for one in self.params:
            if one.param_type_name == "argument" and one.metavar is None:
                one.metavar = str(one.name).upper()

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002
        words = [_usage(one) for one in self.params if one.param_type_name == "argument"]
        return [*words, "[OPTIONS]"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments: list[tuple[str, str]] = []
        options: list[tuple[str, str]] = []
        for one in self.get_params(ctx):
            record = one.get_help_record(ctx)
            if record is None:
                continue
            if one.param_type_name == "argument":
                arguments.append((_argument(one), _plain(record[1])))
            else:
                options.append((record[0], _plain(record[1])))
        for title, rows in (("Arguments", arguments), ("Options", options)):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from tenure.cli.examples import EXAMPLES

        if lines := EXAMPLES.get(ctx.command_path):
            with formatter.section("Examples"):
                for line in lines:
                    formatter.write(f"  {line}\n")


class Noun(TyperGroup):
    """A noun with its verbs. Alone it shows its help; a verb that is not there is answered by the nearest one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            meant = next((one for one in OTHER_VERBS.get(args[0], ()) if one in self.commands), None)
            hint = f" Did you mean `{meant}`?" if meant else nearest(args[0], self.commands)
            raise UsageError(f"There is no command `{ctx.command_path} {args[0]}`.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_sentence(one.help or "")) for name, one in self.commands.items()])


class Commands(typer.Typer):
    """Makes every function a Command."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        return super().command(name, **{"cls": Command, **settings})


def noun(name: str, about: str, cls: type[Noun] = Noun) -> Commands:
    """A group of verbs under a noun."""
    group = Commands(name=name, cls=cls, help=about, rich_markup_mode=None, add_completion=False)
    group.callback()(_nothing)  # with a callback, a noun with a single verb stays a noun
    return group


def verbs() -> Commands:
    """A bag for commands that stand at the top."""
    bag = Commands(rich_markup_mode=None, add_completion=False)
    bag.callback()(_nothing)
    return bag


def nearest(word: str, known: Iterable[str]) -> str:
    """A sentence that offers the nearest command, or lists what there is."""
    names = list(known)
    close = get_close_matches(word, names, n=1, cutoff=0.5)
    return f" Did you mean `{close[0]}`?" if close else f" There are: {', '.join(names)}."


def _first_sentence(text: str) -> str:
    told = " ".join(text.partition("\n\n")[0].split())
    return told.partition(". ")[0].removesuffix(".") + "."


def _argument(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _usage(parameter: Any) -> str:
    name = _argument(parameter) + ("..." if parameter.nargs != 1 else "")
    return name if parameter.required else f"[{name}]"


def _plain(text: str) -> str:
    """A parameter's help, with what Typer adds at its end in words."""
    found = re.fullmatch(r"(.*?) *\[([^\[\]]*)\]", text, re.DOTALL)
    if found is None:
        return text
    notes = [_note(one) for one in found[2].split("; ")]
    told = "; ".join(one for one in notes if one)
    return f"{found[1]}  [{told}]" if told else found[1]


def _note(note: str) -> str:
    if note == "required":  # the line of usage says so
        return ""
    least = re.fullmatch(r"x>=(\S+)", note)
    both = re.fullmatch(r"(\S+)<=x<=(\S+)", note)
    if least is not None or both is not None:
        return f"{both[1]} to {both[2]}" if both is not None else f"{least[1]} or more" if least is not None else ""
    return re.sub(r"^default: \((.*)\)$", r"default: \1", note)


def _nothing() -> None: ...
