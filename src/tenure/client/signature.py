"""How a handler's function is read: which parameter takes the payload, which the context, and the payload's type."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from tenure.errors import HandlerError
from tenure.handler.payload import Later
from tenure.model.frozen import frozen

_CONTEXT_NAMES = frozenset({"ctx", "context"})


@frozen
class Signature:
    """What a handler asks for."""

    wants_payload: bool
    wants_context: bool
    payload: Any
    """The payload's annotation, or a Later where names in it are not defined yet."""


def read_signature(function: Callable[..., Any], kind: str, names: Mapping[str, Any]) -> Signature:
    """Read the function's parameters; `names` are those in scope where it was defined.

    Raises: HandlerError, if a worker could not call it as `function(payload, ctx)`, `(payload)`, `(ctx)` or `()`.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise HandlerError(f"Kind {kind!r}: a handler cannot be a generator. Return its result, or use `ctx.progress`.")
    positional = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
    ]
    needed = [p for p in inspect.signature(function).parameters.values() if _is_needed(p)]
    taken = [p for p in positional if p.default is p.empty or _is_context(p)]
    if taken and not _is_context(taken[0]):
        payload, rest = taken[0], taken[1:]
    elif positional and not _is_context(positional[0]):
        payload, rest = positional[0], [p for p in taken if p is not positional[0]]
    else:
        payload, rest = None, taken
    context = rest[0] if rest and _is_context(rest[0]) else None
    called = positional[: (payload is not None) + (context is not None)]
    if any(p not in called for p in needed) or (context is not None and context is not called[-1]):
        raise HandlerError(
            f"Kind {kind!r}: a handler takes a payload, then a context, or one of them, or nothing; "
            f"got {function.__qualname__}{inspect.signature(function)}. "
            "Name the context `ctx` or annotate it with tenure.Context."
        )
    annotation = Any if payload is None else _resolve(function, payload, names)
    return Signature(payload is not None, context is not None, annotation)


def _is_needed(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in {
        parameter.VAR_POSITIONAL,
        parameter.VAR_KEYWORD,
    }


def _is_context(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return parameter.name in _CONTEXT_NAMES
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2] == "Context"
    return getattr(annotation, "__name__", "") == "Context" and annotation.__module__.startswith("tenure.")


def _resolve(function: Callable[..., Any], parameter: inspect.Parameter, names: Mapping[str, Any]) -> Any:
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    try:
        return _evaluate(function, annotation, names)
    except NameError:  # defined further down in the module: look again when the first job comes
        return Later(lambda: _found(function, annotation))


def _found(function: Callable[..., Any], annotation: str) -> Any:
    try:
        return _evaluate(function, annotation, {})
    except NameError as exc:
        raise HandlerError(
            f"The payload of {function.__qualname__} is annotated {annotation!r}, and {exc.args[0]}. "
            "Define the type before the handler, or import it outside of TYPE_CHECKING."
        ) from exc


def _evaluate(function: Callable[..., Any], annotation: str, names: Mapping[str, Any]) -> Any:
    def holder() -> None: ...

    holder.__annotations__ = {"payload": annotation}
    hints = typing.get_type_hints(holder, function.__globals__, dict(names), include_extras=True)
    return hints["payload"]
