"""The types of the client: mypy takes what is right and refuses what is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

HERE = Path(__file__).parent


def errors_of(path: Path) -> dict[int, str]:
    """Line → message, for every error that `mypy --strict` finds in the file."""
    report, trouble, _ = api.run(["--strict", "--no-error-summary", "--hide-error-context", str(path)])
    assert not trouble
    found = re.findall(rf"^.*{re.escape(path.name)}:(\d+): error: (.*)$", report, re.MULTILINE)
    assert len(found) == report.count(": error: "), report
    return {int(line): message for line, message in found}


@pytest.mark.slow
def test_what_users_write_has_the_types_it_should() -> None:
    assert errors_of(HERE / "accepted.py") == {}


@pytest.mark.slow
def test_what_cannot_work_is_refused_line_by_line() -> None:
    path = HERE / "refused" / "misuse.py"
    marked = {number for number, line in enumerate(path.read_text().splitlines(), 1) if line.endswith("# E")}

    found = errors_of(path)

    assert set(found) == marked, found
