"""Take secrets out of what is stored and shown: by their value, by the key they stand under, and by their shape.

By value is the strong one: whatever form a known secret takes (as it is, in JSON, in a URL, in hex, in base64 at any
offset of a longer text), it is found. By key and by shape catch those nobody told us about. Pure functions over text
and JSON-like data; one compiled pattern, so the cost is one pass.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote, quote_plus

REDACTED = "[redacted]"
DEFAULT_KEYS = frozenset(
    {
        "access_key",
        "api_key",
        "apikey",
        "auth",
        "authorization",
        "bearer",
        "client_secret",
        "cookie",
        "credential",
        "credentials",
        "dsn",
        "passphrase",
        "passwd",
        "password",
        "private_key",
        "pwd",
        "secret",
        "secrets",
        "set_cookie",
        "signature",
        "signing_key",
        "token",
    }
)
ERROR_CHARACTERS = 16 * 1024
MIN_VALUE = 4  # a shorter value would take half of every text along

_MIN_BASE64 = 8
_MAX_DEPTH = 64
_PLAIN = {"null", "none", "true", "false", REDACTED, REDACTED[:-1]}  # what stands after a key and says nothing
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SHAPES = tuple(  # each begins with plain characters, which is what makes the search fast
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"(?P<keep>://[^\s/:@]{0,256}:)[^\s/@]{1,1024}(?=@)",  # the password in a URL
        r"sk-[A-Za-z0-9_-]{20,}",
        r"gh[pousr]_[A-Za-z0-9]{20,}",
        r"github_pat_\w{20,}",
        r"glpat-[\w-]{20,}",
        r"xox[a-z]-[\w-]{10,}",
        r"AKIA[A-Z0-9]{16}",
        r"ASIA[A-Z0-9]{16}",
        r"eyJ[\w-]{10,512}\.eyJ[\w-]{10,}\.[\w-]*",  # a JSON web token
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
    )
)


class Redactor:
    """Knows what must not be shown. Make one per job or worker; it is immutable and may be shared by threads.

    Args:
        values: Secrets as they are. Those under four characters are ignored.
        keys: Names under which a value is secret, in any spelling: api_key also means apiKey, API-KEY, x_api_key.
        shapes: Whether things that look like keys, tokens and passwords in URLs go too.
    """

    def __init__(self, values: Iterable[str] = (), keys: Iterable[str] = DEFAULT_KEYS, *, shapes: bool = True) -> None:
        forms = {form for value in values for part in _parts(value) for form in _forms(part)}
        self.longest = max(map(len, forms), default=0)
        ordered = sorted(forms, key=lambda form: (-len(form), form))
        self._values = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._keys = frozenset(tuple(_words(key)) for key in keys)
        self._assignments = _assignments(keys)
        self._shapes = shapes

    def text(self, text: str) -> str:
        """The text without its secrets."""
        if self._values:
            text = self._values.sub(REDACTED, text)
        if self._shapes:
            for shape in _SHAPES:
                text = shape.sub(_hide_shape, text)
        if self._assignments:
            text = self._assignments.sub(_hide_assigned, text)
        return text

    def data(self, value: object) -> object:
        """A copy of JSON-like data without its secrets: in strings, under keys, and in the keys themselves."""
        return self._data(value, 0)

    def bounded(self, text: str, limit: int = ERROR_CHARACTERS) -> str:
        """The text without its secrets and no longer than `limit`: the start and, mostly, the end are kept.

        Costs no more for a text of a hundred megabytes: what is cut is not looked at, and no half of a secret
        stays at the cut.
        """
        margin = max(self.longest, 512)
        if len(text) <= limit + 2 * margin:
            shown = self.text(text)
            return shown if len(shown) <= limit else _cut(shown, shown, limit, len(shown))
        head = self.text(text[: limit + 2 * margin])
        tail = self.text(text[-(limit + 2 * margin) :])
        # Only the last (first) `margin` characters can hold a part of a secret that the slice itself cut in two.
        return _cut(head[:-margin], tail[margin:], limit, len(text))

    def is_secret_key(self, key: str) -> bool:
        """Whether what stands under this key is to be hidden."""
        words = _words(key)
        return any(
            tuple(words[start:end]) in self._keys
            for start in range(len(words))
            for end in range(start + 1, len(words) + 1)
        )

    def _data(self, value: object, depth: int) -> object:
        if depth > _MAX_DEPTH:
            return REDACTED
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bytes | bytearray):
            return self.text(bytes(value).decode(errors="replace"))
        if isinstance(value, Mapping):
            return {self._key(key): self._entry(key, entry, depth) for key, entry in value.items()}
        if isinstance(value, Sequence | set | frozenset):
            return [self._data(entry, depth + 1) for entry in value]
        return value

    def _key(self, key: object) -> object:
        return self.text(key) if isinstance(key, str) else key

    def _entry(self, key: object, entry: object, depth: int) -> object:
        """Flags stay, and so does a number under «token», which counts or is our fence; whatever else is hidden."""
        if not isinstance(key, str) or not self.is_secret_key(key) or entry is None or isinstance(entry, bool):
            return self._data(entry, depth + 1)
        if isinstance(entry, int | float) and "token" in _words(key):
            return entry
        return REDACTED


class RedactedStream:
    """Redacts text that comes in pieces, such as a child's output, although a secret may be cut by a piece's end."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""

    def feed(self, piece: str) -> str:
        """What may be shown by now: whole lines, and of a very long line all but what could be half a secret."""
        self._held += piece
        end = self._held.rfind("\n") + 1
        longest = max(self._redactor.longest, 4096)
        if end == 0 and len(self._held) > 4 * longest:
            shown = self._redactor.text(self._held)
            self._held = shown[-longest:]
            return shown[:-longest]
        shown, self._held = self._held[:end], self._held[end:]
        return self._redactor.text(shown) if shown else ""

    def flush(self) -> str:
        """The rest."""
        rest, self._held = self._held, ""
        return self._redactor.text(rest)


def _parts(value: str) -> list[str]:
    """The value, and the lines of one that has several: logs show a private key line by line."""
    lines = [line.strip() for line in value.splitlines()]
    return [part for part in (value, *(line for line in lines if len(line) >= _MIN_BASE64)) if len(part) >= MIN_VALUE]


def _forms(value: str) -> set[str]:
    raw = value.encode(errors="surrogateescape")
    forms = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    forms |= {quote(raw, safe=""), quote(raw), quote_plus(raw), raw.hex(), raw.hex().upper()}
    for offset in range(3):
        forms |= _base64_at(raw, offset)
    return {form for form in forms if len(form) >= MIN_VALUE}


def _base64_at(raw: bytes, offset: int) -> set[str]:
    """What base64 makes of the value when `offset` (mod 3) other bytes stand before it, whatever they are.

    The first and last characters also depend on the neighbours, so they are left out.
    """
    encoded = base64.b64encode(b"\0" * offset + raw)
    start = (offset * 8 + 5) // 6
    end = (offset + len(raw)) * 8 // 6
    core = encoded[start:end].decode()
    if len(core) < _MIN_BASE64:
        return set()
    return {core, core.replace("+", "-").replace("/", "_")}


def _words(key: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(key)]


def _assignments(keys: Iterable[str]) -> re.Pattern[str] | None:
    """`password=…`, `"api_key": "…"`, `Authorization: Bearer …` in running text."""
    names = sorted(("[_-]?".join(_words(key)) for key in keys if _words(key)), key=lambda name: (-len(name), name))
    if not names:
        return None
    first = "".join(sorted({name[0] for name in names}))
    value = r"""(?P<quote>\\?["']?)(?P<value>(?<=")(?:[^"\\]|\\.)+?|(?<=')(?:[^'\\]|\\.)+?|[^\s"',;&})\]]+)(?P=quote)"""
    return re.compile(
        rf"(?P<head>(?=[{first}])(?:{'|'.join(names)})(?:[_-]?(?:key|value|string))?"
        rf"""[\\]?["']?\s{{0,3}}[:=]\s{{0,3}}(?:(?:bearer|basic)\s+)?){value}""",
        re.IGNORECASE,
    )


def _hide_assigned(found: re.Match[str]) -> str:
    head, value = found["head"], found["value"]
    if value.lower() in _PLAIN or (value.isdigit() and "token" in head.lower()):
        return found[0]
    return head + found["quote"] + REDACTED + found["quote"]


def _hide_shape(found: re.Match[str]) -> str:
    """Hide it, unless it is the end of a longer word, as in «task-…»."""
    before = found.string[found.start() - 1 : found.start()]
    if before.isalnum() and not found[0].startswith("://"):
        return found[0]
    return found.groupdict().get("keep", "") + REDACTED


def _cut(head: str, tail: str, limit: int, total: int) -> str:
    note = f"\n… [{total - limit} characters left out] …\n"
    room = max(0, limit - len(note))
    first = room // 4
    return head[:first] + note[: limit - room] + (tail[-(room - first) :] if room > first else "")
