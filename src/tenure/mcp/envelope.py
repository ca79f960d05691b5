"""Job data as a model may see it: in one envelope, bounded, with nothing hidden in it.

Whatever a producer or a handler wrote, also the names of queues and kinds, may be written to mislead the reader.
"""

from __future__ import annotations

import json
from typing import Any, Final

from tenure.model.visible import visible

ENVELOPE_BYTES: Final = 2_048
ROOM_FOR_NAMES: Final = 300


def untrusted(**fields: Any) -> dict[str, Any]:
    """`{"untrusted": …}` with the fields that are not None; what does not fit is cut, and named in `cut`."""
    room = ENVELOPE_BYTES - ROOM_FOR_NAMES
    shown: dict[str, Any] = {}
    cut = []
    for name, value in fields.items():
        if value is None:
            continue
        clean = _clean(value)
        text = json.dumps(clean, ensure_ascii=False)
        size = len(text.encode())
        if size > room:
            cut.append(name)
            clean = (clean if isinstance(clean, str) else text).encode()[: room // 2].decode(errors="ignore")
            size = len(json.dumps(clean, ensure_ascii=False).encode())
        shown[name] = clean
        room = max(0, room - size)
    return {"untrusted": shown | ({"cut": cut} if cut else {})}


def one_line(text: str) -> str:
    """A sentence of ours, which may quote data: one line, bounded."""
    return visible(text)[:ENVELOPE_BYTES]


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible(str(key)): _clean(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(one) for one in value]
    return value
