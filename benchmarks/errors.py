"""What stops a benchmark, as a sentence for the person who started it."""

from __future__ import annotations


class BenchError(Exception):
    """The run cannot go on as asked: what happened, why, what to do next."""
