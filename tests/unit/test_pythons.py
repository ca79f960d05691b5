"""U13: `make test-pythons` finds the Pythons that are at hand."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.pythons import Python, newest, pythons


def test_the_python_that_runs_this_is_found_and_one_of_each_minor_version_is_taken() -> None:
    """U13: one Python was tested though the classifiers name four."""
    found = list(pythons())

    assert sys.version_info[:2] in {python.version[:2] for python in found}
    assert [python.version[1] for python in newest(iter(found))] == sorted({python.version[1] for python in found})
    old, new = Python((3, 12, 1), Path("a")), Python((3, 12, 10), Path("b"))
    assert newest(iter([new, old])) == [new]
