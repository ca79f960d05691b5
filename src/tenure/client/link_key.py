"""The key that signs approval links.

All processes on one database share a random value that the database keeps. With `TENURE_LINK_KEY_FILE` the key is made
from that value and from a file which the database does not hold, so a copy of the database alone signs no link.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from pathlib import Path
from typing import Final

from tenure.errors import ConfigError

VARIABLE: Final = "TENURE_LINK_KEY_FILE"
LEAST: Final = 32
MOST: Final = 4_096


def link_key(shared: str) -> str:
    """The key, from the value that the database keeps. Raises: ConfigError."""
    path = os.environ.get(VARIABLE)
    if not path:
        return shared
    return hmac.new(_read(Path(path)), shared.encode(), hashlib.sha256).hexdigest()


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            secret = file.read(MOST + 1).strip()
    except OSError as exc:
        raise ConfigError(f"{VARIABLE}: {path} cannot be read ({exc.strerror}). No link was made or taken.") from exc
    if not stat.S_ISREG(found.st_mode) or stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigError(f"{VARIABLE}: {path} can be read by others; `chmod 600` it. No link was made or taken.")
    if not LEAST <= len(secret) <= MOST:
        raise ConfigError(
            f"{VARIABLE}: {path} holds {len(secret)} bytes; {LEAST} to {MOST} random ones are needed. Make it with "
            "`openssl rand -hex 32`. No link was made or taken."
        )
    return secret
