"""The error that ends a run with a sentence instead of a traceback."""


class BenchError(Exception):
    """The run cannot go on; the message says why and what to do."""
