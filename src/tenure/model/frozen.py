"""Values that never change: frozen dataclasses with slots that are quick to make.

For each class `@dataclass(frozen=True, slots=True)` compiles six functions, and before Python 3.13 that is most of what
importing a package full of requests and answers takes. Only `__init__` has to be written for a class; how a value is
shown, compared, hashed, copied and kept from changing is shared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from types import FunctionType
from typing import Any, TypeVar, dataclass_transform

V = TypeVar("V")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[V]) -> type[V]:
    """Make a class a frozen dataclass with slots; `replace`, `fields` and `asdict` work with it.

    Examples:
        >>> @frozen
        ... class Point:
        ...     x: int
        ...     y: int = 0
        >>> Point(3)
        Point(x=3, y=0)
        >>> Point(3) == Point(3, 0)
        True
        >>> Point(3).x = 4
        Traceback (most recent call last):
        dataclasses.FrozenInstanceError: cannot assign to field 'x'
    """
    for name in SHARED:
        if name not in vars(cls):
            setattr(cls, name, vars(_Value)[name])
    made = dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    setattr(made, "__init__", _init_of(made))  # noqa: B010  a plain assignment is not for type checkers
    return made


def _init_of(cls: type[Any]) -> Callable[..., None]:
    """Write and compile what makes an instance: arguments in the order of the fields, then `__post_init__`."""
    scope: dict[str, Any] = {"MISSING": MISSING}
    arguments, lines = ["self"], []
    for each in fields(cls):
        value = each.name
        if each.default_factory is not MISSING:
            scope[f"make_{value}"] = each.default_factory
            value = f"make_{value}() if {value} is MISSING else {value}" if each.init else f"make_{value}()"
            arguments += [f"{each.name}=MISSING"] if each.init else []
        elif not each.init:
            continue
        elif each.default is not MISSING:
            scope[f"default_{value}"] = each.default
            arguments.append(f"{value}=default_{value}")
        else:
            arguments.append(value)
        scope[f"set_{each.name}"] = getattr(cls, each.name).__set__  # its slot, past the class's own __setattr__
        lines.append(f"set_{each.name}(self, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    exec(f"def __init__({', '.join(arguments)}):\n " + "\n ".join(lines or ["pass"]), scope)  # noqa: S102  our own names only
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    return init


class _Value:
    """What all frozen classes share."""

    def __repr__(self: Any) -> str:
        shown = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
        return f"{type(self).__qualname__}({shown})"

    def __eq__(self: Any, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return _compared(self) == _compared(other)

    def __hash__(self: Any) -> int:
        return hash(_compared(self))

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __getstate__(self: Any) -> list[Any]:
        return [getattr(self, each.name) for each in fields(self)]

    def __setstate__(self: Any, state: list[Any]) -> None:
        for each, value in zip(fields(self), state, strict=True):
            object.__setattr__(self, each.name, value)


SHARED = tuple(name for name, value in vars(_Value).items() if isinstance(value, FunctionType))


def _compared(value: Any) -> tuple[Any, ...]:
    """Give the fields that make two values equal."""
    return tuple(getattr(value, each.name) for each in fields(value) if each.compare)
