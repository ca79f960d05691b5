"""URLs of databases, as they may be shown."""

from __future__ import annotations

import re

_PASSWORD = re.compile(r"(?<=://)([^/@]*?):([^/]*)@|(?<=[?&]password=)[^&]*", re.IGNORECASE)


def shown_url(url: str) -> str:
    """The URL without a password."""
    return _PASSWORD.sub(lambda found: f"{found[1]}:***@" if found[1] is not None else "***", url)
