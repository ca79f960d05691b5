"""How a handler's function is read: which parameters are the job's arguments, which is the context, and their types.

One parameter beside the context is the payload as a whole. Several are stored as one JSON object by parameter name, and
those that were not given are left out: the function's own defaults count when it runs.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Mapping
from typing import Any

from tenure.errors import HandlerError, InvalidArgument
from tenure.handler import arguments
from tenure.handler.building import JobOptions
from tenure.handler.payload import Decode, Encode, Later, arguments_codec, payload_codec
from tenure.handler.typed import arguments_type
from tenure.model.frozen import frozen
from tenure.model.policy import Limits

_CONTEXT_NAMES = frozenset({"ctx", "context"})
_VARIABLE = frozenset({inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD})


@frozen
class Signature:
    """What a handler asks for."""

    name: str
    shape: inspect.Signature
    """The job's arguments: the function's parameters without the context."""
    context: inspect.Parameter | None
    payload: Any
    """The payload's type: an annotation, or a Later where names in it are not defined yet."""
    returns: Any
    """The annotation of the result, or a Later; Any if there is none."""
    is_whole: bool
    """There is one argument, and it is the payload."""
    is_spread: bool
    """The payload is an object of arguments by name."""
    apply: Callable[[Any, Any], Any] | None
    """Calls the function with payload and context, where `function(payload, context)` is not its shape."""

    @property
    def wants_payload(self) -> bool:
        return bool(self.shape.parameters)

    @property
    def wants_context(self) -> bool:
        return self.context is not None

    @property
    def absent(self) -> Any:
        """The payload of a job that is enqueued without arguments."""
        if self.is_whole:
            (only,) = self.shape.parameters.values()
            if only.default is not only.empty:
                return only.default
        return {}

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The payload for a call with these arguments. Raises: InvalidArgument, with what the function takes."""
        if self.is_whole and len(args) == 1 and not kwargs:
            return args[0]
        try:
            given = self.shape.bind(*args, **kwargs).arguments
        except TypeError as exc:
            options = [name for name in kwargs if name in _OPTIONS and name not in self.shape.parameters]
            hint = f" Options go by `{self.name}.options({options[0]}=…).enqueue(…)`." if options else ""
            raise InvalidArgument(f"{self.name}{self.shape} cannot be enqueued so: {exc}.{hint}") from None
        if self.is_spread:
            return given
        return next(iter(given.values()), self.absent)


_OPTIONS = frozenset({*JobOptions.__annotations__, "connection"})


def read_signature(function: Callable[..., Any], kind: str, names: Mapping[str, Any]) -> Signature:
    """Read the function's parameters; `names` are those in scope where it was defined.

    Raises: HandlerError, if a worker could not call it.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise HandlerError(f"Kind {kind!r}: a handler cannot be a generator. Return its result, or use `ctx.progress`.")
    whole = inspect.signature(function)
    taken = [one for one in whole.parameters.values() if one.kind not in _VARIABLE]
    contexts = [one for one in taken if _is_context(one)]
    own = [one for one in taken if one not in contexts]
    is_spread = len(own) > 1 or any(one.kind is one.KEYWORD_ONLY for one in own)
    if len(contexts) > 1 or (is_spread and any(one.kind is one.POSITIONAL_ONLY for one in taken)):
        raise HandlerError(
            f"Kind {kind!r}: a worker cannot call {function.__qualname__}{whole}. A handler takes arguments that can "
            "be given by name, and at most one context, named `ctx` or annotated with tenure.Context."
        )
    context = contexts[0] if contexts else None
    if is_spread:
        payload = _together(function, own, names)
    else:
        payload = _resolve(function, own[0].annotation, names, own[0].name) if own else Any
    return Signature(
        name=getattr(function, "__name__", kind),
        shape=inspect.Signature(own),
        context=context,
        payload=payload,
        returns=_resolve(function, whole.return_annotation, names, "return"),
        is_whole=bool(own) and not is_spread,
        is_spread=is_spread,
        apply=_caller(function, own, context, is_spread),
    )


def codec_of(
    signature: Signature, kind: str, limits: Limits, upgrade: Callable[[Any], Any] | None = None
) -> tuple[Encode, Decode]:
    """How a handler's arguments become JSON text, and how that becomes arguments again."""
    if signature.is_spread:
        encode, decode = arguments_codec(signature.payload, next(iter(signature.shape.parameters)), kind, limits)
    else:
        encode, decode = payload_codec(signature.payload, kind, limits)
    if upgrade is None:
        return encode, decode

    def decode_upgraded(text: str | bytes) -> Any:
        return decode(json.dumps(upgrade(json.loads(text))))

    return encode, decode_upgraded


def key_maker(
    argument: str, make: Callable[..., str] | None, signature: Signature, decode: Decode
) -> Callable[[str], str] | None:
    """From a payload as JSON text to a key, by a function that takes the handler's arguments, or some of them."""
    if make is None:
        return None
    if not callable(make):
        raise HandlerError(
            f"`{argument}` of a handler is a function of its arguments, as in {argument}=lambda user_id: …, got "
            f"{make!r}. A fixed one goes by `{signature.name}.options({argument}=…)`."
        )
    if not signature.is_spread:
        return lambda text: arguments.text(argument, make(decode(text)) if signature.wants_payload else make())
    defaults = {one.name: one.default for one in signature.shape.parameters.values() if one.default is not one.empty}
    asked = inspect.signature(make).parameters
    takes_all = any(one.kind is one.VAR_KEYWORD for one in asked.values())

    def make_key(text: str) -> str:
        known = {**defaults, **decode(text)}
        return arguments.text(argument, make(**{name: known[name] for name in known if takes_all or name in asked}))

    return make_key


def _caller(
    function: Callable[..., Any],
    own: list[inspect.Parameter],
    context: inspect.Parameter | None,
    is_spread: bool,
) -> Callable[[Any, Any], Any] | None:
    """How to call a function that is not called as `function(payload, context)`."""
    if is_spread:
        if context is None:
            return lambda payload, _: function(**payload)
        ctx = context.name
        return lambda payload, found: function(**payload, **{ctx: found})
    if context is None or not own:
        if context is not None and context.kind is context.KEYWORD_ONLY:
            ctx = context.name
            return lambda _, found: function(**{ctx: found})
        return None
    if context.kind is context.KEYWORD_ONLY:
        ctx = context.name
        return lambda payload, found: function(payload, **{ctx: found})
    is_first = list(inspect.signature(function).parameters).index(context.name) == 0
    return (lambda payload, found: function(found, payload)) if is_first else None


def _is_context(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return parameter.name in _CONTEXT_NAMES
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2] == "Context"
    return getattr(annotation, "__name__", "") == "Context" and annotation.__module__.startswith("tenure.")


def _together(function: Callable[..., Any], own: list[inspect.Parameter], names: Mapping[str, Any]) -> Any:
    """The type of an object of arguments by name."""
    found = {one.name: _resolve(function, one.annotation, names, one.name) for one in own}
    required = frozenset(one.name for one in own if one.default is one.empty)

    def put_together() -> Any:
        complete = {name: hint.find() if isinstance(hint, Later) else hint for name, hint in found.items()}
        return arguments_type(function.__name__, complete, required)

    # Late in any case: the type is made of what pydantic brings, which a program that never enqueues need not load.
    return Later(put_together)


def _resolve(function: Callable[..., Any], annotation: Any, names: Mapping[str, Any], of: str) -> Any:
    if annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    try:
        return _evaluate(function, annotation, names)
    except NameError:  # defined further down in the module: look again when the first job comes
        return Later(lambda: _found(function, annotation, of))


def _found(function: Callable[..., Any], annotation: str, of: str) -> Any:
    try:
        return _evaluate(function, annotation, {})
    except NameError as exc:
        raise HandlerError(
            f"{of!r} of {function.__qualname__} is annotated {annotation!r}, and {exc.args[0]}. "
            "Define the type before the handler, or import it outside of TYPE_CHECKING."
        ) from exc


def _evaluate(function: Callable[..., Any], annotation: str, names: Mapping[str, Any]) -> Any:
    def holder() -> None: ...

    holder.__annotations__ = {"payload": annotation}
    hints = typing.get_type_hints(holder, function.__globals__, dict(names), include_extras=True)
    return hints["payload"]
