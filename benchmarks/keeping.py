"""What outlives a run that is cut short: its samples in a file, and a lock that keeps a second run away.

The file is the JSON of the report, written anew after every measurement. `--resume` goes on from it: what has a figure
is not measured again, and samples of other workloads stay, so that one page can come from several runs.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import FrameType

from benchmarks.errors import BenchError
from benchmarks.run import TIMES_UP, Sample

LOCK = Path(tempfile.gettempdir()) / f"tenure-bench-{os.getuid()}.lock"


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an earlier run left."""

    samples: Sequence[Sample] = ()
    command: str = ""
    servers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Stop:
    """Whether somebody asked the run to end. The first signal is enough; what has been measured becomes the page."""

    is_asked: bool = False

    def __call__(self) -> bool:
        return self.is_asked

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take SIGINT and SIGTERM as a wish to end, instead of ending in the middle of a measurement."""
        before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a signal handler's signature
        self.is_asked = True


@contextmanager
def only_run(path: Path = LOCK) -> Iterator[None]:
    """Hold the lock of this machine's user while the run lasts; the system lets go of it if we are killed.

    Raises:
        BenchError: another run holds it.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 20).decode(errors="replace").strip() or "unknown"
            raise BenchError(
                f"Another run measures on this machine (process {holder}), and two would spoil each other's figures. "
                "Wait for it, or end it: it writes down what it has."
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def write(path: Path, text: str) -> None:
    """Replace a file at once: whoever is killed meanwhile leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def read(path: Path, *, is_quick: bool, scale: float) -> Earlier:
    """Read what an earlier run measured; what it had no time for is left out, so that it is measured now.

    Raises:
        BenchError: there is no such file, it is none of ours, or its jobs were of another number.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        known = {f.name for f in fields(Sample)}
        samples = [Sample(**{k: v for k, v in one.items() if k in known}) for one in content["samples"]]
        sizes = content["quick"], content.get("scale", 1.0)
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise BenchError(f"There is no earlier run to go on from in {path}: {exc}. Run without --resume.") from exc
    if sizes != (is_quick, scale):
        raise BenchError(
            f"The run in {path} used other numbers of jobs (quick: {sizes[0]}, scale: {sizes[1]:g}), so its figures do "
            "not belong beside these. Give the same --quick and --scale, or run without --resume."
        )
    return Earlier(
        [sample for sample in samples if sample.problem != TIMES_UP], str(content["command"]), content["servers"]
    )
