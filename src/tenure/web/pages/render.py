"""Templates: jinja2 with autoescape, no undefined names, and every value made visible before it is shown."""

from __future__ import annotations

import base64
import functools
import hashlib
import mimetypes
import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup, escape

from tenure.errors import MissingExtra
from tenure.model.frozen import frozen
from tenure.model.visible import visible, visible_lines
from tenure.web.pages import words
from tenure.web.pages.filter_words import token
from tenure.web.pages.json_text import byte_size, json_html, masked_line, masked_text

if TYPE_CHECKING:
    from jinja2 import Environment

HERE: Final = Path(__file__).parents[1]
STATIC: Final = HERE / "static"


@frozen
class Asset:
    """A file of `static/` under a name that carries its hash, so that browsers may keep it for ever."""

    name: str
    body: bytes
    media_type: str
    integrity: str


@functools.cache
def assets() -> dict[str, Asset]:
    """Every file that pages use, by its plain name."""
    found = {}
    for path in sorted(STATIC.rglob("*")):
        if path.suffix not in {".css", ".js", ".svg"}:
            continue
        body = path.read_bytes()
        plain = path.relative_to(STATIC).as_posix()
        mark = hashlib.sha256(body).hexdigest()[:12]
        hashed = f"{plain[: -len(path.suffix)]}.{mark}{path.suffix}"
        integrity = "sha384-" + base64.b64encode(hashlib.sha384(body).digest()).decode()
        kind = mimetypes.types_map.get(path.suffix, "application/octet-stream")
        found[plain] = Asset(hashed, body, f"{kind}; charset=utf-8", integrity)
    return found


@functools.cache
def asset_by_hashed_name() -> dict[str, Asset]:
    """The same by the name in addresses."""
    return {asset.name: asset for asset in assets().values()}


@functools.cache
def environment() -> Environment:
    """The templates. Raises: MissingExtra."""
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as exc:
        raise MissingExtra("web", "The console") from exc
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    made.filters.update(
        ago=words.ago,
        bytes=words.size,
        clock=words.clock,
        exact=words.exact,
        first_line=words.first_line,
        humps=humps,
        iso=words.iso,
        json_html=json_html,
        json_size=byte_size,
        last_line=words.last_line,
        masked_line=masked_line,
        masked_text=masked_text,
        number=words.number,
        prose=prose,
        segment=words.segment,
        short_id=words.short_id,
        short_span=words.short_span,
        span=words.span,
        text_lines=text_lines,
        traceback=traceback_html,
        up_to=words.up_to,
    )
    made.tests.update(command=words.is_command)
    made.globals.update(token=token, look=words.look, counted=words.counted, asset=assets().__getitem__)
    return made


def render(template: str, context: dict[str, Any]) -> str:
    """A page as HTML."""
    return environment().get_template(template).render(context)


def text_lines(text: str | None) -> Markup:
    """Text of several lines, its line feeds kept."""
    return escape(visible_lines(text or ""))


_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[_.])")


def humps(name: str) -> Markup:
    """A name that may be broken between its words: `SMTPRecipientsRefused` has three."""
    return Markup("<wbr>").join(escape(part) for part in _HUMP.split(visible(name)))


_QUOTED: Final = re.compile(r"(?<!\w)'([^'\s][^'\n]{0,200}?)'(?!\w)|`([^`\n]{1,200})`")


def prose(sentence: str) -> Markup:
    """A sentence in which what stands in quotes or backticks is shown as code."""
    pieces: list[Markup] = []
    last = 0
    for found in _QUOTED.finditer(sentence):
        pieces.append(escape(visible(sentence[last : found.start()])))
        pieces.append(Markup("<code>{}</code>").format(visible(found[1] or found[2])))
        last = found.end()
    pieces.append(escape(visible(sentence[last:])))
    return Markup("").join(pieces)


def traceback_html(text: str | None) -> Markup:
    """An error of several lines: class and message, which stand first, or last in a bare traceback, stand out."""
    lines = visible_lines((text or "").strip()).split("\n")
    loud = len(lines) - 1 if lines[0].startswith("Traceback") else 0
    marked = [
        Markup('<span class="x">{}</span>').format(line) if place == loud else escape(line)
        for place, line in enumerate(lines)
    ]
    return Markup("\n").join(marked)


def _finalize(value: Any) -> Any:
    """What `{{ … }}` shows: text by `visible`, so that no field can hide or reorder what stands beside it."""
    if isinstance(value, Markup):
        return value
    if value is None:
        return ""
    if isinstance(value, datetime):
        return words.exact(value)
    if isinstance(value, str):
        return visible(str(value))
    return value
