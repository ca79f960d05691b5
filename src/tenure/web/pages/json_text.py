"""JSON as marked-up text: exact numbers, masked values, characters that hide or reorder text by their number.

Made on the server from Python values, whose integers have no limit: 2^53+1 stays what it was, as it would not in a
browser. Everything is escaped here; the result is Markup.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Literal

from markupsafe import Markup, escape

from tenure.errors import InvalidPayload
from tenure.model.redact import process_redactor
from tenure.model.visible import UNSAFE

Mask = Literal["all", "names", "none"]
INDENT: Final = "  "
CHARS_MAX: Final = 200_000
"""Longer documents are cut on the page; the API has all of it."""


def json_html(value: Any, mask: Mask = "names") -> Markup:
    """A JSON value in lines.

    `all` shows its shape and sizes, and no value; `names` hides what goes under the name of a secret; `none` shows it
    whole.
    """
    lines = _Lines(mask)
    lines.write(value, 0)
    if lines.is_cut:
        lines.pieces.append(Markup("\n<mark>cut here, the rest is in the API</mark>"))
    return Markup("").join(lines.pieces)


def read_json(text: str, what: str = "payload") -> Any:
    """JSON that was written into a form. Raises: InvalidPayload, also for what nests deeper than can be read."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:
        raise InvalidPayload(f"The {what} is not JSON: {exc}. Nothing was changed.") from exc


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def json_line(value: Any) -> str:
    """The value in one line of JSON, with unsafe characters by their escapes."""
    text = json.dumps(value, ensure_ascii=False, separators=(", ", ": "), default=str)
    return UNSAFE.sub(lambda found: _escape(ord(found[0])), text)


def masked_line(value: Any) -> str:
    """The same, without what goes under the name of a secret."""
    return json_line(process_redactor().data(value))


def masked_text(text: str | None, width: int = 400) -> str:
    """The same of JSON text, cut: it costs no more where the text is long."""
    return process_redactor().bounded(text or "", width)


def byte_size(value: Any) -> int:
    """How many bytes the value takes as compact JSON."""
    return len(
        json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str).encode("utf-8", "surrogatepass")
    )


class _Lines:
    """Writes a value piece by piece, up to CHARS_MAX characters."""

    def __init__(self, mask: Mask) -> None:
        self.pieces: list[Markup] = []
        self.is_cut = False
        self._mask = mask
        self._left = CHARS_MAX

    def write(self, value: Any, depth: int) -> None:
        if self.is_cut:
            return
        if isinstance(value, Mapping):
            self._object(value, depth)
        elif isinstance(value, list | tuple):
            self._array(value, depth)
        else:
            self._add(self._scalar(value))

    def _add(self, piece: Markup) -> None:
        self._left -= len(piece)
        if self._left < 0:
            self.is_cut = True
        else:
            self.pieces.append(piece)

    def _object(self, value: Mapping[str, Any], depth: int) -> None:
        if not value:
            self._add(_dim("{}"))
            return
        self._add(_dim("{"))
        for place, (key, one) in enumerate(value.items()):
            self._add(Markup('{}<span class="k">{}</span>: ').format("\n" + INDENT * (depth + 1), json_line(str(key))))
            is_named = self._mask == "names" and one is not None and not isinstance(one, bool)
            if is_named and process_redactor().is_secret_key(str(key)):
                self._add(Markup("<mark>masked by its name</mark>"))
            else:
                self.write(one, depth + 1)
            if place + 1 < len(value):
                self._add(Markup(","))
            if self.is_cut:
                return
        self._add(_line(depth) + _dim("}"))

    def _array(self, value: list[Any] | tuple[Any, ...], depth: int) -> None:
        if not value:
            self._add(_dim("[]"))
            return
        if self._mask == "all":
            self._add(Markup("<mark>{} masked</mark>").format(f"{len(value):,} entries"))
            return
        self._add(_dim("["))
        for place, one in enumerate(value):
            self._add(_line(depth + 1))
            self.write(one, depth + 1)
            if place + 1 < len(value):
                self._add(Markup(","))
            if self.is_cut:
                return
        self._add(_line(depth) + _dim("]"))

    def _scalar(self, value: Any) -> Markup:
        if self._mask == "all" and value is not None and not isinstance(value, bool):
            told = f"masked, {len(value):,} characters" if isinstance(value, str) else "masked"
            return Markup("<mark>{}</mark>").format(told)
        text = json_line(value)
        if len(text) > self._left:
            text = text[: max(self._left - 200, 0)] + "…"
        return Markup('<span class="{}">{}</span>').format("v" if isinstance(value, str) else "n", text)


def _line(depth: int) -> Markup:
    return escape("\n" + INDENT * depth)


def _dim(text: str) -> Markup:
    return Markup('<span class="d">{}</span>').format(text)


def _escape(code: int) -> str:
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
