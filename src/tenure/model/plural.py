"""A count with its noun, in the singular or the plural."""

from __future__ import annotations


def counted(count: int, noun: str, verb: str = "") -> str:
    """`1 job is due`, `2,000 jobs are due`: the count with its noun, and `are` where a verb is wanted."""
    said = f"{count:,} {noun}{'' if count == 1 else 's'}"
    return f"{said} {'is' if count == 1 else 'are'} {verb}" if verb else said
