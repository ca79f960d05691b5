"""Bar charts as SVG, written by hand: one bar a contender, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT = 760, 190, 150
TOP, BAR, GAP = 54, 18, 8
STYLE = """
text{font:13px system-ui,sans-serif;fill:#24292f}.title{font-weight:600}.note{fill:#656d76}
.tenure,.own{fill:#0969da}.own{fill-opacity:.45}
.peer{fill:#8c959f}.bare{fill:none;stroke:#8c959f;stroke-dasharray:4 3}
.tick{stroke:#cf222e;stroke-width:2}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.note{fill:#8d96a0}.tenure,.own{fill:#4493f8}.peer{fill:#6e7681}}
""".strip()


@dataclass(frozen=True, slots=True)
class Bar:
    """One contender's figure; `mark` is a second one on the same scale (a p99), `role` chooses the colour."""

    label: str
    value: float
    text: str
    role: str
    mark: float | None = None


def bars(title: str, unit: str, rows: Sequence[Bar]) -> str:
    """Draw the bars in the order given."""
    height = TOP + len(rows) * (BAR + GAP) + 10
    longest = max((max(row.value, row.mark or 0.0) for row in rows), default=1.0) or 1.0
    scale = (WIDTH - LEFT - RIGHT) / longest
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="8" y="20">{escape(title)}</text>',
        f'<text class="note" x="8" y="40">{escape(unit)}</text>',
    ]
    for number, row in enumerate(rows):
        parts.extend(_row(row, TOP + number * (BAR + GAP), scale))
    parts.append("</svg>\n")
    return "\n".join(parts)


def _row(row: Bar, y: int, scale: float) -> list[str]:
    width = max(1.0, row.value * scale)
    end = LEFT + max(width, (row.mark or 0.0) * scale)
    parts = [
        f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(row.label)}</text>',
        f'<rect class="{row.role}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>',
    ]
    if row.mark is not None:
        at = LEFT + row.mark * scale
        parts.append(f'<line class="tick" x1="{at:.1f}" x2="{at:.1f}" y1="{y}" y2="{y + BAR}"/>')
    parts.append(f'<text x="{end + 6:.1f}" y="{y + 14}">{escape(row.text)}</text>')
    return parts
