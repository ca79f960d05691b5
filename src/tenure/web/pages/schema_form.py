"""A form from a kind's JSON Schema: one field for each property of an object of plain values.

What it cannot show as plain fields (nested objects, unions, arrays of objects) stays a JSON field, per property; a
payload that is no object stays one JSON field as a whole. The server checks what is sent by the handler's own type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from tenure.errors import InvalidPayload, TenureError
from tenure.handler.payload import json_schema
from tenure.handler.registry import Handler
from tenure.model.frozen import frozen
from tenure.web.pages.json_text import read_json

FIELDS_MOST: Final = 40
PREFIX: Final = "p."
"""Names of the form's fields begin with it."""
CHECKED: Final = "on"


@frozen
class Field:
    """One property as a field of a form."""

    name: str
    title: str
    sort: Literal["text", "number", "integer", "boolean", "choice", "json"]
    is_required: bool
    help: str
    value: str
    """What stands in it: what was given, else the default."""
    choices: Sequence[str] = ()


def fields_of(handler: Handler | None, given: Mapping[str, str]) -> list[Field]:
    """The fields of a kind's payload; none where one JSON field has to do."""
    if handler is None:
        return []
    try:
        schema = json_schema(handler.payload)
    except TenureError:
        return []
    properties = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(properties, dict) or not 0 < len(properties) <= FIELDS_MOST:
        return []
    required = set(schema.get("required", ()))
    definitions = schema.get("$defs", {})
    return [
        _field(name, _resolved(told, definitions), name in required, given.get(PREFIX + name))
        for name, told in properties.items()
    ]


def payload_of(fields: Sequence[Field], given: Mapping[str, str]) -> dict[str, Any]:
    """The payload that the fields say. An empty field that is not required is left out. Raises: InvalidPayload."""
    payload: dict[str, Any] = {}
    for field in fields:
        text = given.get(PREFIX + field.name, "")
        if field.sort == "boolean":
            payload[field.name] = text == CHECKED
        elif text.strip() or (field.sort == "text" and field.is_required):
            payload[field.name] = _value(field, text)
    return payload


def _value(field: Field, text: str) -> Any:
    if field.sort in {"text", "choice"}:
        return text
    try:
        found = int(text) if field.sort == "integer" else read_json(text, f"field {field.name}")
    except (ValueError, InvalidPayload) as exc:
        word = {"integer": "a whole number", "number": "a number"}.get(field.sort, "JSON")
        raise InvalidPayload(f"$.{field.name}: {word} was expected. {exc}") from exc
    if field.sort == "number" and (isinstance(found, bool) or not isinstance(found, int | float)):
        raise InvalidPayload(f"$.{field.name}: a number was expected.")
    return found


def _field(name: str, told: Mapping[str, Any], is_required: bool, given: str | None) -> Field:
    sort = _sort(told)
    default = told.get("default")
    shown = "" if default is None else default if isinstance(default, str) else json.dumps(default)
    if sort == "boolean":
        shown = CHECKED if default is True else ""
    return Field(
        name=name,
        title=str(told.get("title") or name)[:100],
        sort=sort,
        is_required=is_required,
        help=_help(told, sort),
        value=shown if given is None else given,
        choices=[str(one) for one in told["enum"]] if sort == "choice" else (),
    )


def _sort(told: Mapping[str, Any]) -> Literal["text", "number", "integer", "boolean", "choice", "json"]:
    choices = told.get("enum")
    if isinstance(choices, list) and choices and all(isinstance(one, str) for one in choices):
        return "choice"
    plain: Mapping[Any, Literal["text", "number", "integer", "boolean"]] = {
        "string": "text",
        "number": "number",
        "integer": "integer",
        "boolean": "boolean",
    }
    kind = told.get("type")
    return plain.get(kind, "json") if isinstance(kind, str) and "enum" not in told else "json"


def _help(told: Mapping[str, Any], sort: str) -> str:
    said = [str(told["description"])[:200]] if told.get("description") else []
    bounds = [
        f"{word} {told[name]}"
        for name, word in (
            ("minimum", "from"),
            ("maximum", "up to"),
            ("exclusiveMinimum", "above"),
            ("exclusiveMaximum", "below"),
            ("maxLength", "characters up to"),
        )
        if name in told
    ]
    if told.get("format"):
        said.append(str(told["format"])[:60])
    if sort == "json":
        said.append("JSON")
    return ". ".join([*said, *([", ".join(bounds)] if bounds else [])])


def _resolved(told: Any, definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """A property with its reference looked up, and `or null` left out: an empty field says that."""
    if not isinstance(told, dict):
        return {}
    some = [one for one in told.get("anyOf", ()) if one != {"type": "null"}]
    if len(some) == 1:
        told = {**{key: value for key, value in told.items() if key != "anyOf"}, **some[0]}
    name = str(told.get("$ref", "")).rpartition("/")[2]
    found = definitions.get(name) if name else None
    return (
        {**found, **{key: value for key, value in told.items() if key != "$ref"}} if isinstance(found, dict) else told
    )
