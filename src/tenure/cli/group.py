"""Groups of commands: a noun with its verbs, or verbs that stand at the top."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import typer
from typer.core import TyperGroup

from tenure.errors import UsageError


def noun(name: str, about: str) -> typer.Typer:
    """A group that offers the nearest of its verbs for one that is not there."""

    class Noun(TyperGroup):
        def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]
            if args and not args[0].startswith("-") and args[0] not in self.commands:
                raise UsageError(f"There is no command `tenure {name} {args[0]}`.{nearest(args[0], self.commands)}")
            return super().resolve_command(ctx, args)

    group = typer.Typer(name=name, cls=Noun, help=about, rich_markup_mode=None, add_completion=False)
    group.callback()(_nothing)  # with a callback, a noun with a single verb stays a noun
    return group


def verbs() -> typer.Typer:
    """A bag for commands that stand at the top."""
    bag = typer.Typer(rich_markup_mode=None, add_completion=False)
    bag.callback()(_nothing)
    return bag


def nearest(word: str, known: Iterable[str]) -> str:
    """A sentence that offers the nearest command, or lists what there is."""
    names = list(known)
    close = get_close_matches(word, names, n=1, cutoff=0.5)
    return f" Did you mean `{close[0]}`?" if close else f" There are: {', '.join(names)}."


def _nothing() -> None: ...
