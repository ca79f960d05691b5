"""Options of plain types without pydantic.

Newer versions of Typer turn every value into its type by pydantic, whose import takes longer than most commands. The
types used here are text, numbers, paths and lists of text, so they are read directly. Where Typer is built otherwise,
nothing is touched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

_PLAIN = {bool, int, float, str, Path, list[str], Any}


def light(command: Any) -> Any:
    """Let the parameters of a command, and of the commands in it, be read directly. Answers the command."""
    try:
        from typer._coercion import RuntimeParam
    except ImportError:
        return command
    # With a context, --help is among them too.
    for param in command.get_params(command.context_class(command)):
        described = getattr(param, "type_descriptor", None)
        if described is None or described.annotation not in _PLAIN:
            continue
        if described.annotation is Any and described.parameter_info.parser is None:
            continue
        param._runtime_param = _reader(RuntimeParam)(described.parameter_info, described.annotation)  # noqa: SLF001
    for inner in getattr(command, "commands", {}).values():
        light(inner)
    return command


def _reader(base: Any) -> Any:
    class Direct(base):  # type: ignore[misc]
        """Reads one value."""

        def _coerce_value(self, value: Any, param: Any, ctx: Any) -> Any:
            try:
                return _read(value, self.annotation, self.parameter_info)
            except typer.BadParameter as exc:
                raise typer.BadParameter(exc.message, ctx=ctx, param=param) from None

    return Direct


def _read(value: Any, kind: Any, info: Any) -> Any:
    """The value as its type has it. Raises: BadParameter."""
    if info.parser is not None:
        return info.parser(value) if isinstance(value, str) else value
    if kind == list[str]:
        return [str(one) for one in value]
    if kind in {int, float}:
        return _number(value, kind, info)
    if kind is bool:
        return bool(value)
    return kind(value)


def _number(value: Any, kind: Any, info: Any) -> Any:
    try:
        number = kind(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not a {'whole ' if kind is int else ''}number.") from None
    for limit, is_beyond, words in (
        (info.min, info.min is not None and number < info.min, "or more"),
        (info.max, info.max is not None and number > info.max, "or less"),
    ):
        if is_beyond:
            raise typer.BadParameter(f"{number} is out of range: it must be {limit} {words}.")
    return number
