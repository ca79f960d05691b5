"""Mutation testing on a bounded sample: change the product a little, run the tests that should notice, count.

    python -m tests.mutation.run                    the changes that a suite once missed
    python -m tests.mutation.run --sample 20        and so many more, drawn from model/, profiles/, claim and settle
    python -m tests.mutation.run --sample 20 --seed 7 --only model
    python -m tests.mutation.run --sample 60 --minutes 40 --skip-known

Each change is made in a copy of src/, never in the tree. The tests of an area first run on a copy without a change: if
they fail there, nothing could be told from their failing. A change that no test notices is a survivor: it needs a
test, or says that the changed words mean nothing. Not part of `make test`: a change costs as long as its tests take.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "src" / "tenure"
TIMEOUT: Final = 300.0


@dataclass(frozen=True, slots=True)
class Area:
    """Files that are changed, and the tests that should notice."""

    name: str
    files: tuple[str, ...]
    tests: tuple[str, ...]


_MOVES: Final = tuple(
    f"tests/conformance/test_{name}.py"
    for name in (
        "claim",
        "settle",
        "fail_and_backoff",
        "reap_expire",
        "keys",
        "cancel",
        "release_suspend_wake",
        "heartbeat",
        "priority_order",
        "quarantine",
        "delayed",
        "moves",
        "limiters",
        "row_equality",
    )
)

AREAS: Final = (
    Area(
        "model",
        ("model/*.py",),
        (
            *(f"tests/unit/test_{name}.py" for name in ("state", "policy", "ids", "clock", "buckets", "budget")),
            *(f"tests/unit/test_{name}.py" for name in ("fingerprint", "workflow", "steps", "app")),
            *(f"tests/conformance/test_{name}.py" for name in ("budgets", "approvals", "reading")),
            *_MOVES,
            "tests/effects/test_redact.py",
            "tests/worker/test_schedules.py",
            "-k",
            "not postgres",
        ),
    ),
    Area(
        "profiles",
        ("profiles/*.toml", "profiles/*.sqlite.sql"),
        (
            *(f"tests/profiles/test_{name}.py" for name in ("substrate", "substrate_health", "automechanica")),
            *(f"tests/profiles/test_{name}.py" for name in ("orchestrator", "outbox", "agent_queue", "inserted")),
            "-k",
            "sqlite",
        ),
    ),
    Area(
        "sqlite",
        ("store/sqlite/sql/claim.sql", "store/sqlite/sql/settle.sql"),
        (*_MOVES, "tests/sqlite/test_claim.py", "tests/sqlite/test_suspicion.py", "-k", "sqlite"),
    ),
    Area(
        "postgres",
        ("store/postgres/sql/functions/exchange.sql", "store/postgres/sql/functions/transitions.sql"),
        (*_MOVES, "tests/postgres/test_grants.py", "-k", "postgres or 18"),
    ),
)
"""The quick tests of what is changed: not every test that could notice."""

OPERATORS: Final[tuple[tuple[str, str], ...]] = (
    (r" <= ", " < "),
    (r" >= ", " > "),
    (r" < ", " <= "),
    (r" > ", " >= "),
    (r" = true\b", " = false"),
    (r"\bTrue\b", "False"),
    (r"\bAND\b", "OR"),
    (r"(?<=[\w)\]] )and(?= )", "or"),
    (r" = \d+$", " = 7"),
    (r" \+ 1\b", " + 2"),
    (r"\bASC\b", "DESC"),
    (r"\bIS NULL\b", "IS NOT NULL"),
    (r"\bIS NOT NULL\b", "IS NULL"),
    (r"\bgreatest\b", "least"),
    (r"\bmin\(", "max("),
)


@dataclass(frozen=True, slots=True)
class Change:
    """One change to one file, by position."""

    area: Area
    file: str
    start: int
    end: int
    text: str

    def told(self) -> str:
        whole = (SOURCE / self.file).read_text(encoding="utf-8")
        line = whole.count("\n", 0, self.start) + 1
        return f"{self.file}:{line}: {whole[self.start : self.end]!r} -> {self.text!r}"


@dataclass(frozen=True, slots=True)
class Missed:
    """A change that the suite once did not notice: what to replace by what, everywhere in the files named."""

    name: str
    files: tuple[str, ...]
    old: str
    new: str
    tests: tuple[str, ...]


MISSED: Final = (
    Missed(
        "a worker without its database asks again after 300 s at most",
        ("worker/fetcher.py",),
        r"BACKOFF_MAX_SECONDS = 0\.1, 30\.0",
        "BACKOFF_MAX_SECONDS = 0.1, 300.0",
        ("tests/worker/test_away.py", "-k", "twice_as_long"),
    ),
    Missed(
        "a worker without its database asks again at once",
        ("worker/fetcher.py",),
        r"BACKOFF_SECONDS \* 2 \*\* min\(self\._failures, 16\)",
        "BACKOFF_SECONDS",
        ("tests/worker/test_away.py", "-k", "twice_as_long"),
    ),
    Missed(
        "`ssn` is `snn` in the denylist",
        (
            "profiles/substrate.toml",
            "profiles/substrate.postgres.sql",
            "profiles/substrate.sqlite.sql",
            "model/policy.py",
        ),
        r"\bssn\b",
        "snn",
        ("tests/profiles/test_substrate.py", "-k", "sqlite and ten_keys"),
    ),
    Missed(
        "SQLite's view takes priorities up to 30, and so does the profile",
        ("profiles/automechanica.sqlite.sql", "profiles/automechanica.toml"),
        r"NOT BETWEEN 0 AND 3\b|priority_max = 3\b",
        "NOT BETWEEN 0 AND 30",
        ("tests/profiles/test_automechanica.py", "tests/profiles/test_one_validator.py", "-k", "sqlite"),
    ),
    Missed(
        "create_task takes negative priorities",
        ("profiles/automechanica.sqlite.sql", "profiles/automechanica.toml"),
        r"NOT BETWEEN 0 AND 3\b|priority_min = 0\b",
        "NOT BETWEEN -9 AND 3",
        ("tests/profiles/test_automechanica.py", "tests/profiles/test_one_validator.py", "-k", "sqlite"),
    ),
    Missed(
        "`reclaimed` is never logged",
        ("worker/log.py",),
        r'self\.event\("reclaimed".*\)',
        "pass",
        ("tests/client/test_lifecycle_log.py", "-k", "sqlite"),
    ),
    Missed(
        "a worker's id without host and process",
        ("model/ids.py",),
        r"\{os\.uname\(\)\.nodename\}-\{os\.getpid\(\)\}-",
        "",
        ("tests/unit/test_ids.py",),
    ),
    Missed(
        "the heartbeat's delay is always 0 in the list of minutes",
        ("store/sqlite/sql/metrics.sql",),
        r"(?<=\n    )heartbeat_delay_seconds,\n(?=    attempts_failed\n)",
        "0.0,\n",
        ("tests/conformance/test_metrics.py", "-k", "sqlite"),
    ),
    Missed(
        "the heartbeat's delay is always 0 in figures",
        ("store/sqlite/sql/metrics.sql",),
        r"\bm\.heartbeat_delay_seconds\b",
        "0.0",
        ("tests/conformance/test_metric_spans.py", "-k", "sqlite and silence"),
    ),
)


def changes(areas: Sequence[Area]) -> Iterator[Change]:
    """Every change that an operator could make to what is carried out: not to comments, texts and imports."""
    for area in areas:
        for path in sorted(found for pattern in area.files for found in SOURCE.glob(pattern)):
            text = path.read_text(encoding="utf-8")
            silent = set(_words_of_python(text) if path.suffix == ".py" else _words_of_sql(text))
            for pattern, new in OPERATORS:
                for match in re.finditer(pattern, text, re.MULTILINE):
                    if match.start() not in silent and match[0] != new:
                        yield Change(area, path.relative_to(SOURCE).as_posix(), match.start(), match.end(), new)


def _words_of_python(text: str) -> Iterator[int]:
    """Where comments and strings are; an f-string counts as one."""
    starts = [0, *(found.end() for found in re.finditer("\n", text))]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in {tokenize.COMMENT, tokenize.STRING}:
            yield from range(starts[token.start[0] - 1] + token.start[1], starts[token.end[0] - 1] + token.end[1])


def _words_of_sql(text: str) -> Iterator[int]:
    """Where comments and quoted texts are, in SQL and in TOML; a text within dollars is code."""
    for found in re.finditer(r"--.*|^#.*|'[^'\n]*'|\"[^\"\n]*\"", text, re.MULTILINE):
        yield from range(found.start(), found.end())


def is_noticed(edits: Sequence[tuple[str, str]], tests: Sequence[str], timeout: float = TIMEOUT) -> bool:
    """Whether the tests fail on a copy of the source in which these files have these texts."""
    with tempfile.TemporaryDirectory(prefix="tenure-mutation-") as folder:
        copy = Path(folder) / "tenure"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for file, text in edits:
            (copy / file).write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        environment = os.environ | {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            return True
        if done.returncode == 5:
            raise SystemExit(f"No test was run by {' '.join(tests)}.")
        return done.returncode != 0


def missed_edits(missed: Missed) -> list[tuple[str, str]]:
    """The files of a known change as it leaves them."""
    edits = []
    for file in missed.files:
        text = (SOURCE / file).read_text(encoding="utf-8")
        if re.search(missed.old, text):
            edits.append((file, re.sub(missed.old, missed.new, text)))
    if not edits:
        raise SystemExit(f"{missed.name}: the text to change is nowhere any more. Bring tests/mutation up to date.")
    return edits


def main() -> int:
    """Make the changes; 0 if every one was noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=0, help="how many further changes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=[area.name for area in AREAS], help="draw from one area")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="draw no more after so long")
    parser.add_argument("--skip-known", action="store_true", help="leave out the changes that a suite once missed")
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    survivors: list[str] = []
    total = 0

    def tell(noticed: bool, what: str) -> None:
        nonlocal total
        total += 1
        print(f"{'noticed ' if noticed else 'SURVIVED'}  {what}", flush=True)
        if not noticed:
            survivors.append(what)

    for missed in () if options.skip_known else MISSED:
        tell(is_noticed(missed_edits(missed), missed.tests), missed.name)
    every = list(changes([area for area in AREAS if options.only in {None, area.name}]))
    patience: dict[str, float] = {}
    for change in random.Random(options.seed).sample(every, min(options.sample, len(every))):
        if time.monotonic() > until:
            print("The time is over; what follows was not drawn.")
            break
        if change.area.name not in patience:
            patience[change.area.name] = _time_without_a_change(change.area)
        text = (SOURCE / change.file).read_text(encoding="utf-8")
        edited = text[: change.start] + change.text + text[change.end :]
        tell(is_noticed([(change.file, edited)], change.area.tests, patience[change.area.name]), change.told())
    print(f"{total - len(survivors)} of {total} changes were noticed; {len(every):,} could be drawn.")
    return 1 if survivors else 0


def _time_without_a_change(area: Area) -> float:
    """How long the tests of an area may take: several times what they take on the source as it is, where they pass."""
    begun = time.monotonic()
    if is_noticed([], area.tests, 10 * TIMEOUT):
        raise SystemExit(f"The tests of {area.name} fail without a change: {' '.join(area.tests)}.")
    return max(TIMEOUT, 5 * (time.monotonic() - begun))


if __name__ == "__main__":
    raise SystemExit(main())
