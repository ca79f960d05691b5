"""Stand in front of every call that changes or opens a file, in this process: the crash points and pause points."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from tenure.sandbox import linux

P = ParamSpec("P")
T = TypeVar("T")

_WATCHED: list[tuple[Any, str]] = [
    (os, name) for name in ("open", "write", "fsync", "rename", "link", "unlink", "mkdir", "rmdir")
]
_WATCHED += [(linux, name) for name in ("openat2", "rename_noreplace")]


@contextmanager
def watch(hook: Callable[[str], None]) -> Iterator[None]:
    """Call `hook("before <call>")` and `hook("after <call>")` around each of them."""
    kept = [(module, name, getattr(module, name)) for module, name in _WATCHED]
    for module, name, real in kept:
        setattr(module, name, _around(real, name, hook))
    try:
        yield
    finally:
        for module, name, real in kept:
            setattr(module, name, real)


def _around(real: Callable[P, T], name: str, hook: Callable[[str], None]) -> Callable[P, T]:
    @functools.wraps(real)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        hook(f"before {name}")
        result = real(*args, **kwargs)
        hook(f"after {name}")
        return result

    return call
