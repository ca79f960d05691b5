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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import TypeAdapter


def adapter_for(annotation: Any) -> TypeAdapter[Any]:
    """A validator and serialiser for the type."""
    from pydantic import TypeAdapter

    if sys.version_info < (3, 12):
        annotation = _retold(annotation)
    return TypeAdapter(annotation)


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

    hints = typing.get_type_hints(annotation, include_extras=True)
    required = annotation.__required_keys__
    told = {}
    for name, hint in hints.items():
        if typing.get_origin(hint) in {typing.Required, typing.NotRequired}:
            hint = typing.get_args(hint)[0]  # noqa: PLW2901 - the marker is told again below
        told[name] = _retold(hint) if name in required else typing_extensions.NotRequired[_retold(hint)]
    return typing_extensions.TypedDict(annotation.__name__, told)  # type: ignore[operator]
