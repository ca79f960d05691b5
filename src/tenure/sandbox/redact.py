"""Redaction of a child's output as it comes. The rules are in `tenure.model.redact`, the one redactor."""

from __future__ import annotations

from tenure.model.redact import (
    ENDS_PRIVATE_KEY,
    ERROR_CHARACTERS,
    REDACTED,
    STARTS_PRIVATE_KEY,
    Redactor,
    secrets_in_environment,
)

__all__ = ["ERROR_CHARACTERS", "REDACTED", "RedactedStream", "Redactor", "secrets_in_environment"]


class RedactedStream:
    """Redacts text that comes in pieces: a secret may be cut by the end of a piece, a private key by many."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""
        self._is_inside_key = False

    def feed(self, piece: str) -> str:
        """The text that can be shown now: whole lines, and of a very long line all but a possible half of a secret."""
        self._held += piece
        end = self._held.rfind("\n") + 1
        longest = max(self._redactor.longest, 4096)
        if end == 0 and len(self._held) > 4 * longest:
            shown = self._text(self._held)
            self._held = shown[-longest:]
            return shown[:-longest]
        shown, self._held = self._held[:end], self._held[end:]
        return self._text(shown) if shown else ""

    def flush(self) -> str:
        """The rest."""
        rest, self._held = self._held, ""
        return self._text(rest)

    def _text(self, text: str) -> str:
        """Redact; drop the lines of a private key that an earlier piece began."""
        if self._redactor.shapes:
            if self._is_inside_key:
                end = ENDS_PRIVATE_KEY.search(text)
                if end is None:
                    return ""
                text = text[end.end() :]
            starts = [found.end() for found in STARTS_PRIVATE_KEY.finditer(text)]
            self._is_inside_key = bool(starts) and ENDS_PRIVATE_KEY.search(text, starts[-1]) is None
        return self._redactor.text(text)
