"""Payloads: from a Python value to JSON text that every engine holds exactly, and back to what a handler asked for.

What cannot survive the journey is refused on enqueue, with the path of the field: NUL (PostgreSQL has none in text),
lone surrogates (not UTF-8), NaN and infinities (not JSON), integers beyond 64 bits (rounded by other clients), keys
that are not strings (two of them could become one), and whatever is nested or large beyond the limits.

Pydantic is imported when a kind with a type is used for the first time, its core when a payload is read.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from math import isfinite
from typing import TYPE_CHECKING, Any

from tenure.errors import HandlerError, InvalidPayload
from tenure.handler.typed import adapter_for
from tenure.model.frozen import frozen
from tenure.model.policy import Limits

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

INTEGER_MIN = -(2**63)
INTEGER_MAX = 2**63 - 1
DEFAULT_LIMITS = Limits()

Encode = Callable[[Any], str]
Decode = Callable[[str | bytes], Any]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_FINITE = "{} is not JSON; send a finite number or null"
_ERRORS_SHOWN = 5


_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))


def encode(
    value: Any, limits: Limits = DEFAULT_LIMITS, *, what: str = "The payload", only_objects: bool = False
) -> str:
    """JSON text of plain data, dataclasses, enums and pydantic models: compact, UTF-8, within the limits.

    Raises: InvalidPayload, with the path of the first field that is not fit.
    """
    given = value
    try:
        if not _is_plain(value, limits):
            value = _Plain(limits, what).convert(value, (), 0)
        text = _JSON.encode(value)
    except RecursionError:
        raise InvalidPayload(f"{what} is nested deeper than Python can follow. Flatten it.") from None
    except ValueError:  # NaN or an infinity; the second look names the field
        _Plain(limits, what).convert(value, (), 0)
        raise
    is_ascii = text.isascii()
    if "\\u0000" in text or (not is_ascii and _SURROGATE.search(text)):
        _Plain(limits, what, strings=True).convert(value, (), 0)
    size = len(text) if is_ascii else len(text.encode())
    if size > limits.payload_bytes:
        raise InvalidPayload(
            f"{what} takes {size:,} bytes, and the limit is {limits.payload_bytes:,}. "
            "Store the data elsewhere and enqueue a reference to it (`payload_ref=`)."
        )
    if only_objects and text[0] != "{":
        raise InvalidPayload(f"{what} does not fit. $: expected dict, got {_type_name(given)}.")
    return text


@frozen
class Later:
    """An annotation that can only be found once its module is complete."""

    find: Callable[[], Any]


def payload_codec(annotation: Any, kind: str, limits: Limits = DEFAULT_LIMITS) -> tuple[Encode, Decode]:
    """The two ways of a kind's payload, for the type that its handler's annotation names (or that is found `Later`).

    Types are compiled at the first use and then kept. Both raise InvalidPayload with the path of the field.
    """
    plain = None if isinstance(annotation, Later) else _plain_codec(annotation, _what(kind), limits)
    if plain is not None:
        return plain
    codec = _Codec(annotation, kind, limits, _what(kind))
    return codec.encode, codec.decode


def arguments_codec(annotation: Any, first: str, kind: str, limits: Limits = DEFAULT_LIMITS) -> tuple[Encode, Decode]:
    """The two ways of several arguments, stored as an object by name. Any other payload is the first of them."""
    encode_all, decode_all = payload_codec(annotation, kind, limits)

    def encode_arguments(value: Any) -> str:
        return encode_all(value if isinstance(value, Mapping) else {first: value})

    def decode_arguments(text: str | bytes) -> Any:
        text = text if isinstance(text, str) else text.decode()
        return decode_all(text if text.lstrip()[:1] == "{" else f'{{"{first}":{text}}}')

    return encode_arguments, decode_arguments


def result_decoder(annotation: Any, kind: str) -> Callable[[Any], Any] | None:
    """From a stored result, as parsed JSON, to the type that the handler's annotation names; None if it names none.

    Raises InvalidPayload, with the path of the field.
    """
    if is_untyped(annotation) or annotation is type(None):
        return None
    codec = _Codec(annotation, kind, DEFAULT_LIMITS, f"Kind {kind!r}: the result")
    return lambda value: None if value is None else codec.decode(json.dumps(value))


def json_schema(annotation: Any) -> dict[str, Any]:
    """The JSON Schema of a payload's type; an empty one, which allows everything, where there is no type."""
    found = annotation.find() if isinstance(annotation, Later) else annotation
    if is_untyped(found):
        return {}
    schema: dict[str, Any] = _adapter(found, "?").json_schema()
    return schema


def is_untyped(annotation: Any) -> bool:
    """Whether a payload of this annotation is taken as any JSON value."""
    return annotation is Any or annotation is object or annotation is None


class _Codec:
    """Encodes and decodes the payloads of one kind."""

    __slots__ = ("_annotation", "_decode", "_encode", "kind", "limits", "what")

    def __init__(self, annotation: Any, kind: str, limits: Limits, what: str) -> None:
        self._annotation = annotation
        self.kind = kind
        self.limits = limits
        self.what = what
        self._encode: Encode = self._first_encode
        self._decode: Decode = self._first_decode

    def encode(self, value: Any) -> str:
        return self._encode(value)

    def decode(self, text: str | bytes) -> Any:
        return self._decode(text)

    def _first_encode(self, value: Any) -> str:
        self._compile()
        return self._encode(value)

    def _first_decode(self, text: str | bytes) -> Any:
        self._compile()
        return self._decode(text)

    def _compile(self) -> None:
        annotation = self._annotation
        if isinstance(annotation, Later):
            annotation = annotation.find()
        self._encode, self._decode = _plain_codec(annotation, self.what, self.limits) or _typed_codec(
            _adapter(annotation, self.kind), self.what, self.limits
        )


def _plain_codec(annotation: Any, what: str, limits: Limits) -> tuple[Encode, Decode] | None:
    """The codec of payloads that need no pydantic, or None."""
    is_object = annotation is dict or annotation == dict[str, Any]
    return _json_codec(what, limits, is_object) if is_object or is_untyped(annotation) else None


def _what(kind: str) -> str:
    return f"Kind {kind!r}: the payload"


def _json_codec(what: str, limits: Limits, is_object: bool) -> tuple[Encode, Decode]:
    """The codec of any JSON value, or of JSON objects only."""

    def decode_json(text: str | bytes) -> Any:
        try:
            value = _reader()(text)
        except ValueError:  # no JSON, or something that pydantic does not take: a lone surrogate, a nest of hundreds
            try:
                value = json.loads(text)
            except (ValueError, RecursionError) as exc:
                raise InvalidPayload(f"{what} is not JSON that can be read: {exc}.") from exc
        if is_object and type(value) is not dict:
            raise InvalidPayload(f"{what} does not fit. $: expected dict, got {_type_name(value)}.")
        return value

    return functools.partial(encode, limits=limits, what=what, only_objects=is_object), decode_json


@functools.cache
def _reader() -> Decode:
    """As json.loads, in a quarter of its time for a small payload."""
    from pydantic_core import from_json

    return from_json


def get_ready() -> None:
    """Load what it takes to read payloads: a worker does before its first job."""
    _reader()


def _typed_codec(adapter: TypeAdapter[Any], what: str, limits: Limits) -> tuple[Encode, Decode]:
    from pydantic import ValidationError

    validate, validate_json, dump = adapter.validate_python, adapter.validate_json, adapter.dump_python

    def encode_typed(value: Any) -> str:
        try:
            checked = validate(value)
            # Serialiser warnings are errors: they mean that a model was changed into something it cannot be.
            plain = dump(checked, mode="json", by_alias=True, round_trip=True, warnings="error")
        except ValidationError as exc:
            raise InvalidPayload(f"{what} does not fit. {_explain(exc)}") from exc
        except (ValueError, RecursionError) as exc:
            raise InvalidPayload(f"{what} does not fit. {_second_look(adapter, checked, exc)}") from exc
        text = encode(plain, limits, what=what)
        if "null" in text:  # which is what pydantic makes of NaN and infinities
            refuse_non_finite(dump(checked, round_trip=True, warnings=False), what)
        return text

    def decode_typed(text: str | bytes) -> Any:
        try:
            return validate_json(text)
        except ValidationError as exc:
            raise InvalidPayload(f"{what} does not fit. {_explain(exc)}") from exc

    return encode_typed, decode_typed


def refuse_non_finite(value: Any, what: str) -> None:
    """Raise InvalidPayload if a number in dicts and lists is NaN or infinite."""
    todo: list[tuple[Any, tuple[str | int, ...]]] = [(value, ())]
    while todo:
        item, path = todo.pop()
        if isinstance(item, float) and not isfinite(item):
            raise InvalidPayload(f"{what} does not fit. {show_path(path)}: {_NOT_FINITE.format(item)}.")
        if isinstance(item, Mapping):
            todo.extend((below, (*path, str(key))) for key, below in item.items())
        elif isinstance(item, list | tuple | set | frozenset):
            todo.extend((below, (*path, i)) for i, below in enumerate(item))


def _second_look(adapter: TypeAdapter[Any], value: Any, exc: BaseException) -> str:
    """Which field of a model was changed into something that its type does not allow."""
    from pydantic import ValidationError

    try:
        adapter.validate_python(adapter.dump_python(value, round_trip=True, warnings=False))
    except ValidationError as found:
        return _explain(found)
    except (ValueError, RecursionError) as found:
        return f"It cannot be written as JSON: {_first_line(found)}."
    warned = "serializer warnings" in str(exc)  # the rest of that message would show values
    return f"It cannot be written as JSON: {'a field holds another type than it declares' if warned else exc}."


def _adapter(annotation: Any, kind: str) -> TypeAdapter[Any]:
    from pydantic import PydanticUserError

    try:
        return adapter_for(annotation)
    except (PydanticUserError, NameError, TypeError) as exc:
        raise HandlerError(
            f"Kind {kind!r}: its payload type {_type_text(annotation)} cannot be read as JSON: {_first_line(exc)}. "
            "Use a pydantic model, a dataclass, a TypedDict or plain JSON types."
        ) from exc


def _is_plain(value: Any, limits: Limits) -> bool:
    """Whether `value` is made of exact JSON types within the limits. Level by level, so that no depth can overflow."""
    level, depth, budget = [value], 0, limits.payload_bytes
    while level:
        budget -= len(level)  # each value takes a byte at least: a knot of references ends here
        if depth > limits.payload_depth or budget < 0:
            return False
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is str or kind is bool or item is None or kind is float:
                continue
            if kind is int:
                if not INTEGER_MIN <= item <= INTEGER_MAX:
                    return False
            elif kind is dict:
                for key in item:
                    if type(key) is not str:
                        return False
                below.extend(item.values())
            elif kind is list or kind is tuple:
                below.extend(item)
            else:
                return False
        level, depth = below, depth + 1
    return True


class _Plain:
    """The slow, exact look: turns what can be turned into plain JSON types and names the first field that cannot."""

    def __init__(self, limits: Limits, what: str, *, strings: bool = False) -> None:
        self._limits = limits
        self._what = what
        self._strings = strings
        self._budget = limits.payload_bytes

    def convert(self, value: Any, path: tuple[str | int, ...], depth: int) -> Any:
        """`value` in exact JSON types. Recursion is bounded by the depth limit."""
        self._budget -= 1
        if self._budget < 0:
            raise InvalidPayload(f"{self._what} holds more than {self._limits.payload_bytes:,} values, or itself.")
        if isinstance(value, Enum):
            value = value.value
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._string(str.__str__(value), path)
        if isinstance(value, int):
            return self._integer(int(value), path)
        if isinstance(value, float):
            if not isfinite(value):
                self._refuse(path, _NOT_FINITE.format(float(value)))
            return float(value)
        if depth >= self._limits.payload_depth:
            self._refuse(path, f"nested deeper than {self._limits.payload_depth} levels; flatten it")
        return self._container(value, path, depth)

    def _container(self, value: Any, path: tuple[str | int, ...], depth: int) -> Any:
        if isinstance(value, Mapping):
            return {self._key(k, path): self.convert(v, (*path, k), depth + 1) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.convert(item, (*path, i), depth + 1) for i, item in enumerate(value)]
        if is_dataclass(value) and not isinstance(value, type):
            return {f.name: self.convert(getattr(value, f.name), (*path, f.name), depth + 1) for f in fields(value)}
        dump = getattr(value, "model_dump", None)
        if callable(dump) and not isinstance(value, type):
            return self.convert(dump(mode="json", by_alias=True, round_trip=True), path, depth)
        return self._refuse(path, f"expected a JSON value, got {_type_name(value)}")

    def _key(self, key: Any, path: tuple[str | int, ...]) -> str:
        if not isinstance(key, str):
            self._refuse(path, f"keys must be str, got {_type_name(key)}")
        return self._string(str.__str__(key), (*path, key))

    def _string(self, text: str, path: tuple[str | int, ...]) -> str:
        if self._strings:
            if "\0" in text:
                self._refuse(path, "the text contains NUL (\\u0000), which PostgreSQL cannot hold")
            if _SURROGATE.search(text):
                self._refuse(path, "the text contains a lone surrogate, which is not UTF-8")
        return text

    def _integer(self, number: int, path: tuple[str | int, ...]) -> int:
        if not INTEGER_MIN <= number <= INTEGER_MAX:
            self._refuse(path, "the integer does not fit into 64 bits; send it as a string")
        return number

    def _refuse(self, path: tuple[str | int, ...], why: str) -> Any:
        raise InvalidPayload(f"{self._what} does not fit. {show_path(path)}: {why}.")


def show_path(path: tuple[str | int, ...]) -> str:
    """`$.to[0]`: where in a JSON value a field is."""
    if len(path) > 16:
        return f"{show_path(path[:8])}…{show_path(path[-4:])[1:]}"
    shown = "$"
    for step in path:
        if isinstance(step, int):
            shown += f"[{step}]"
        elif _NAME.fullmatch(step):
            shown += f".{step}"
        else:
            shown += f"[{json.dumps(step[:100])}]"
    return shown


_EXPECTED = {
    "string": "str",
    "int": "int",
    "float": "float",
    "bool": "bool",
    "list": "list",
    "tuple": "list",
    "set": "list",
    "dict": "dict",
    "model": "dict",
    "dataclass": "dict",
    "model_attributes": "dict",
    "none_required": "null",
}


def _explain(exc: ValidationError) -> str:
    """`$.to[0]: expected str, got int`, for the first few fields that do not fit. Values are never shown."""
    errors = exc.errors(include_url=False, include_context=False)
    shown = [f"{show_path(error['loc'])}: {_reason(error)}" for error in errors[:_ERRORS_SHOWN]]
    more = f" ({len(errors) - _ERRORS_SHOWN} more)" if len(errors) > _ERRORS_SHOWN else ""
    return "; ".join(shown) + "." + more


def _reason(error: Mapping[str, Any]) -> str:
    kind: str = error["type"]
    expected = _EXPECTED.get(kind.removesuffix("_type").removesuffix("_parsing"))
    if expected is not None:
        return f"expected {expected}, got {_type_name(error['input'])}"
    if kind == "missing":
        return "the field is missing"
    if kind == "extra_forbidden":
        return "there is no such field"
    message: str = error["msg"]
    return message[:1].lower() + message[1:].rstrip(".")


def _type_name(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _type_text(annotation: Any) -> str:
    return getattr(annotation, "__qualname__", None) or str(annotation)


def _first_line(exc: BaseException) -> str:
    return str(exc).split("\n", 1)[0].rstrip(".")
