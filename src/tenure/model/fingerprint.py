"""An error's fingerprint: the same for failures that differ only in numbers, ids and addresses.

PostgreSQL computes it in `tenure.fingerprint`, by the same rule; a test holds the two together.
"""

from __future__ import annotations

import hashlib
import re
import string

_VARYING = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|0x[0-9a-f]+|[0-9]+")

_LOWER = {ord(letter): letter.lower() for letter in string.ascii_uppercase}
"""ASCII only: what other letters become depends on a database's locale."""


def fingerprint(failure_class: str, error: str | None) -> str:
    """Sixteen hex digits made of the class and the first line of the error, with what varies taken out."""
    line = (error or "").split("\n", 1)[0].translate(_LOWER)[:500]
    text = f"{failure_class}|{_VARYING.sub('#', line)}"
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:16]
