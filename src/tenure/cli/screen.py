"""Where a command's answer goes: JSON if asked for, tables on a terminal, tab-separated lines into a pipe.

Only data reaches stdout. Notes, questions, progress and errors go to stderr, so that pipes stay clean.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tenure.cli import text
from tenure.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

MANY = 30
NARROW = 120
GAP = 2
FOLDED = 24
WIDEST = 60

STATE_STYLES = {
    "queued": "cyan",
    "retry_waiting": "yellow",
    "leased": "blue",
    "running": "bold blue",
    "waiting": "magenta",
    "succeeded": "green",
    "failed": "red",
    "dead": "bold red",
    "cancelled": "dim",
    "cleaned": "dim",
    "pending": "yellow",
    "draining": "yellow",
    "ok": "green",
    "open": "green",
    "closed": "bold red",
    "paused": "bold yellow",
    "warn": "yellow",
    "wrong": "bold red",
    "yes": "green",
    "no": "bold red",
}


class Cell(NamedTuple):
    """A value to show. Moments and durations read differently for people and for programs."""

    value: Any
    style: str = ""


class Grid(NamedTuple):
    """Rows under headings. On a terminal, `right` columns hold numbers, one `wide` column is folded to fit, and where
    there is no room, the columns of `drop` are left out one after the other. Pipes always get all of them. Where there
    are no rows, `empty` says on stderr what would make one."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    right: frozenset[str] = frozenset()
    wide: str | None = None
    drop: Sequence[str] = ()
    title: str | None = None
    empty: str | None = None


class Facts(NamedTuple):
    """Names with values, one a line. Those without a value are left out."""

    pairs: Sequence[tuple[str, Any]]
    title: str | None = None


class Passage(NamedTuple):
    """Text of several lines."""

    body: str
    title: str | None = None


Part = Grid | Facts | Passage


def state(value: str) -> Cell:
    """A state, gate or triage in its colour."""
    return Cell(value, STATE_STYLES.get(value, ""))


def each_or_counts(columns: Sequence[str], rows: Sequence[Sequence[Any]], is_terminal: bool) -> Part:
    """What became of each; of many, on a terminal, how many came to which end, by the second column."""
    if not is_terminal or len(rows) <= MANY:
        return Grid(columns, rows)
    counts: dict[str, int] = {}
    for row in rows:
        counts[str(_bare(row[1]))] = counts.get(str(_bare(row[1])), 0) + 1
    return Facts([(name, count) for name, count in sorted(counts.items())])


class Screen:
    """What one command writes to. `now` is the store's clock, from which ages are told."""

    def __init__(self, as_json: bool = False, now: datetime | None = None) -> None:
        self.as_json = as_json
        self.now = now
        self.is_terminal = sys.stdout.isatty()

    @property
    def is_narrow(self) -> bool:
        """Whether it is a terminal on which ids in full leave little room for anything else."""
        return self.is_terminal and console().width < NARROW

    def show(self, answer: Any, *parts: Part) -> None:
        """The answer as JSON, or its parts for people and pipes."""
        if self.as_json:
            self.line(text.to_json(answer, indent=2 if self.is_terminal else None))
            return
        for number, part in enumerate(parts):
            if number:
                self.line("")
            if self.is_terminal:
                self.flush()
                self.draw(self.render(part))
            else:
                for line in _plain_lines(part):
                    self.line(line)
            if isinstance(part, Grid) and not part.rows and part.empty is not None:
                self.flush()
                self.note(part.empty)

    def line(self, line: str) -> None:
        """One line of data, already safe."""
        sys.stdout.write(line + "\n")

    def put(self, words: str) -> None:
        """Data that need not end with a line, already safe."""
        sys.stdout.write(words)

    def flush(self) -> None:
        sys.stdout.flush()

    def note(self, sentence: str, style: str = "dim") -> None:
        """A word to the person, on stderr. Silent with --json, where stderr is for errors."""
        if self.as_json:
            return
        sentence = text.wrapped(text.safe_lines(sentence), sys.stderr)
        if colours_on(sys.stderr) and style:
            from rich.text import Text

            console(stderr=True).print(Text(sentence, style=style), soft_wrap=True)
        else:
            print(sentence, file=sys.stderr)

    def draw(self, *renderables: RenderableType) -> None:
        """Put something of Rich's on stdout."""
        for renderable in renderables:
            console().print(renderable)

    def render(self, part: Part) -> RenderableType:
        """A part as Rich draws it."""
        from rich.console import Group
        from rich.text import Text

        body: RenderableType
        if isinstance(part, Passage):
            body = Text(text.safe_lines(part.body))
        elif isinstance(part, Facts):
            body = self._draw_facts(part)
        else:
            body = self._draw_grid(part)
        return Group(Text(part.title, style="bold"), body) if part.title else body

    def _draw_grid(self, grid: Grid) -> Table:
        from rich.table import Table
        from rich.text import Text

        words = [[self._word(value) for value in row] for row in grid.rows]
        shown = _fitting(grid, words, console().width)
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
        for index in shown:
            name = grid.columns[index]
            is_wide = name == grid.wide
            table.add_column(
                name.replace("_", " "),
                justify="right" if name in grid.right and grid.rows else "left",
                no_wrap=not is_wide,
                overflow="fold" if is_wide else "ellipsis",
                min_width=None if is_wide else _width(grid, words, index) if len(shown) > 1 else None,
            )
        for row, line in zip(grid.rows, words, strict=True):
            table.add_row(*(Text(line[index], style=_style(row[index])) for index in shown))
        if not grid.rows:
            table.add_row(Text("none", style="dim"), *("" for _ in shown[1:]))
        return table

    def _draw_facts(self, facts: Facts) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in facts.pairs:
            if _bare(value) is not None:
                table.add_row(name.replace("_", " "), Text(self._word(value, is_long=True), style=_style(value)))
        return table

    def _word(self, value: Any, *, is_long: bool = False) -> str:
        """A value for people."""
        value = _bare(value)
        if isinstance(value, datetime):
            told = f"{value:%Y-%m-%d %H:%M:%S}"
            if self.now is None:
                return told
            return f"{told} UTC ({text.ago(value, self.now)})" if is_long else text.ago(value, self.now)
        if isinstance(value, float):
            return text.seconds(value)
        if value is None:
            return "–"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, str):
            return text.safe_lines(value) if is_long else text.safe(value)
        return f"{value:,}" if isinstance(value, int) else text.to_json(value)


def _width(grid: Grid, words: Sequence[Sequence[str]], index: int) -> int:
    """How wide a column wants to be. One that is folded, or holds whatever was said, is content with little."""
    natural = max([len(grid.columns[index]), *(len(line[index]) for line in words)])
    return min(natural, FOLDED) if grid.columns[index] == grid.wide else min(natural, WIDEST)


def _fitting(grid: Grid, words: Sequence[Sequence[str]], width: int) -> list[int]:
    """The columns for which there is room."""
    shown = list(range(len(grid.columns)))
    for name in grid.drop:
        if sum(_width(grid, words, index) + GAP for index in shown) - GAP <= width:
            break
        shown.remove(grid.columns.index(name))
    return shown


def _plain_lines(part: Part) -> Iterator[str]:
    """A part for programs: tabs between, moments in full, durations in seconds, nothing cut."""
    if part.title:
        yield f"# {part.title.strip()}"
    if isinstance(part, Passage):
        yield text.safe_lines(part.body)
    elif isinstance(part, Facts):
        for name, value in part.pairs:
            if _bare(value) is not None:
                yield f"{name.replace(' ', '_')}\t{_plain(value)}"
    else:
        yield "\t".join(name.replace(" ", "_") for name in part.columns)
        for row in part.rows:
            yield "\t".join(_plain(value) for value in row)


def _plain(value: Any) -> str:
    value = _bare(value)
    if isinstance(value, datetime):
        return text.iso(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6f}"
    if isinstance(value, str | int):
        return text.safe(str(value))
    return "" if value is None else text.to_json(value)


def _bare(value: Any) -> Any:
    return value.value if isinstance(value, Cell) else value


def _style(value: Any) -> str:
    return value.style if isinstance(value, Cell) else ""


def colours_on(stream: Any) -> bool:
    """Whether a stream is a terminal that shows colours; NO_COLOR and TERM=dumb say no."""
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def console(*, stderr: bool = False) -> Console:
    """Rich's console on a stream, made anew so that it follows the stream and the window's size."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def confirm(act: str, *, yes: bool) -> None:
    """Ask before an act on many things, or insist on --yes where there is no terminal to ask on.

    Raises: UsageError, if there is no terminal to ask on; SystemExit, if the answer is no.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"This would {act}, and there is no one to ask: this is not a terminal. Repeat it with --yes. "
            "Nothing was changed."
        )
    # Before the question is shown: an answer that comes at once must not be dropped.
    _forget_typed_ahead()
    sys.stderr.write(f"This will {text.safe(act)}. Go on? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        sys.stderr.write("Nothing was changed.\n")
        raise SystemExit(1)


def _forget_typed_ahead() -> None:
    """Drop what was typed before the question was there to be read: it cannot be its answer."""
    import termios

    with suppress(OSError, termios.error, ValueError):
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


class Advance(Protocol):
    """Moves a bar on, and says what is being done now if that has changed."""

    def __call__(self, by: int, what: str | None = None) -> None: ...


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Advance]:
    """A bar on stderr while something long is done, on a terminal only. Yields `advance(by)`."""
    if not (sys.stderr.isatty() and (total is None or total > 1)):
        yield lambda by, what=None: None  # noqa: ARG005
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(text.safe(what), total=total)

        def advance(by: int, what: str | None = None) -> None:
            bar.update(task, advance=by, description=None if what is None else text.safe(what))

        yield advance


def batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lists of up to `size`."""
    batch: list[Any] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
