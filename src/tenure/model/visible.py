"""Text that cannot hide or reorder what it shows. Job data comes from strangers.

Control characters, escape sequences, line separators and the marks that reorder or hide text are shown by their
number: a terminal would obey them, and on a page they would deceive the reader.
"""

from __future__ import annotations

import re
from typing import Final

UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)


def by_number(found: re.Match[str]) -> str:
    """One such character as its number: `\\x1b`, `\\u202e`."""
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def visible(text: str) -> str:
    """One line, harmless wherever it is shown."""
    return UNSAFE.sub(by_number, text)


def visible_lines(text: str) -> str:
    """The same for text of several lines, such as a traceback: its line feeds stay."""
    return "\n".join(visible(line.replace("\t", "    ")) for line in text.splitlines())
