"""What pydantic is asked for: one adapter per payload type.

Before Python 3.12 pydantic refuses `typing.TypedDict`, because that class did not keep all it knows about its fields.
What it does keep is enough for a payload, so such a type is told anew in the words that pydantic takes.
"""

from __future__ import annotations

import functools
import operator
import sys
import types
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import TypeAdapter


def adapter_for(annotation: Any) -> TypeAdapter[Any]:
    """A validator and serialiser for the type."""
    from pydantic import TypeAdapter

    if sys.version_info < (3, 12):
        annotation = _retold(annotation)
    return TypeAdapter(annotation)


def arguments_type(name: str, annotations: Mapping[str, Any], required: frozenset[str]) -> Any:
    """The type of an object that holds a function's arguments by name, and nothing else."""
    import typing_extensions

    told = {
        argument: hint if argument in required else typing_extensions.NotRequired[hint]
        for argument, hint in annotations.items()
    }
    make: Any = typing_extensions.TypedDict
    made = make(name, told)
    made.__pydantic_config__ = {"extra": "forbid"}
    return made


def _retold(annotation: Any) -> Any:
    if typing.is_typeddict(annotation) and type(annotation).__module__ == "typing":
        return _retold_class(annotation)
    arguments = typing.get_args(annotation)
    retold = tuple(_retold(argument) for argument in arguments)
    if retold == arguments:
        return annotation
    origin = typing.get_origin(annotation)
    if origin is typing.Union or origin is types.UnionType:
        return functools.reduce(operator.or_, retold)
    return annotation.copy_with(retold) if hasattr(annotation, "copy_with") else origin[retold]


@functools.cache
def _retold_class(annotation: Any) -> Any:
    import typing_extensions

    told = {}
    for name, hint in typing.get_type_hints(annotation, include_extras=True).items():
        # The marker decides where there is one: under `from __future__ import annotations` the class did not see it.
        marker, required = typing.get_origin(hint), name in annotation.__required_keys__
        if marker is typing.Required or marker is typing.NotRequired:
            hint, required = typing.get_args(hint)[0], marker is typing.Required  # noqa: PLW2901
        told[name] = _retold(hint) if required else typing_extensions.NotRequired[_retold(hint)]
    return typing_extensions.TypedDict(annotation.__name__, told)  # type: ignore[operator]
