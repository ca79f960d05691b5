"""`tenure bench`: how fast Tenure is on your own database, beside the bare engine."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.bench.rounds import FULL, KIND, PARTS, QUEUE, QUICK, SPREAD, Benched, Figure, figures, one_round
from tenure.cli.group import verbs
from tenure.cli.options import Json, Url, opened
from tenure.cli.screen import Facts, Grid, Screen, progress
from tenure.errors import ConfigError, GateClosed, TenureError

if TYPE_CHECKING:
    from tenure.app import App

app = verbs()

HOLD_SECONDS = 86_400.0
"""The job that holds the queue is due only tomorrow, so that no worker takes it."""


@app.command()
def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer jobs and rounds: half a minute.")] = False,
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", metavar="N", min=1, max=100, show_default=False, help="Instead of 5, or 3."),
    ] = None,
    clean: Annotated[
        bool, typer.Option("--clean", help=f"Only take away the queue {QUEUE} that a killed bench has left.")
    ] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Measure this database: enqueue one at a time, 50 at once and in bulk, drain, and wake a worker.

    It works in a queue of its own, which is gone afterwards. Other queues are not touched, but their workers feel the
    load. On PostgreSQL it takes the login that runs `tenure migrate`.
    """
    screen = Screen(as_json)
    size = QUICK if quick else FULL
    number = 0 if clean else rounds or size.rounds
    found: list[dict[str, float]] = []
    with opened(url) as tenure:
        engine = _engine(tenure)
        before = drop_bench(tenure) if clean else 0
        queue = _Queue(tenure, screen)
        if not clean:
            with queue, progress("measuring", number * PARTS) as advance:
                found.extend(one_round(tenure, size, lambda: advance(1)) for _ in range(number))
    answer = Benched(*engine, number, quick, figures(found), before + queue.removed)
    screen.show(answer, Facts([("removed", answer.removed)]) if clean else _grid(answer))
    if not all(one.is_trusted for one in answer.figures):
        screen.note(
            f"~ marks figures that are not to be trusted: the rounds differ by more than {SPREAD:.0%}, or there was "
            "only one. Run it again when the machine is calm."
        )


def _grid(answer: Benched) -> Grid:
    return Grid(
        ("what", "figure", "unit", "spread", "of_commits"),
        [(one.title, _shown(one), one.unit, _percent(one), _share(one)) for one in answer.figures],
        right=frozenset({"figure", "spread", "of_commits"}),
        drop=("of_commits", "spread"),
        title=f"{answer.engine} {answer.version}, median of {answer.rounds} rounds",
    )


def drop_bench(tenure: App) -> int:
    """Take the bench's queue away. Answers how many jobs went with it."""
    from tenure.observe.timing import drop_queue

    return drop_queue(tenure.store, QUEUE, KIND)


class _Queue:
    """The queue while it is measured in. It is taken away however that ends; a second signal waits for it."""

    def __init__(self, tenure: App, screen: Screen) -> None:
        self.removed = 0
        self._tenure = tenure
        self._screen = screen

    def __enter__(self) -> None:
        from tenure.observe.timing import check_droppable

        tenure = self._tenure
        _refuse_closed_gates(tenure)
        check_droppable(tenure.store, QUEUE, KIND)
        if any(one.jobs for one in tenure.queues.counts(queue=QUEUE)):
            raise _taken()
        tenure.queue(QUEUE)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the queue is taken away then too
        try:
            # The key decides between two that begin at the same moment.
            held = tenure.enqueue(KIND, {"i": -1}, queue=QUEUE, key=KIND, delay=HOLD_SECONDS)
        except KeyboardInterrupt:
            self._take_away()  # it is not known whether it was still put there
            raise
        if held.duplicate:
            raise _taken()

    def __exit__(self, *_: object) -> None:
        self._take_away()

    def _take_away(self) -> None:
        heard = [(number, signal.signal(number, signal.SIG_IGN)) for number in (signal.SIGINT, signal.SIGTERM)]
        try:
            self.removed = drop_bench(self._tenure)
        except TenureError:
            note = f"Queue {QUEUE!r} is still there; take it away with `tenure bench --clean`."
            self._screen.note(note, "yellow")
            raise
        finally:
            for number, handler in heard:
                signal.signal(number, handler)


def _refuse_closed_gates(tenure: App) -> None:
    for gate in tenure.gates.all():
        name = gate.name.removeprefix("default.")
        if not gate.is_open and name in {"master", "worker", f"queue:{QUEUE}"}:
            raise GateClosed(gate.name, "bench")


def _taken() -> ConfigError:
    return ConfigError(
        f"Queue {QUEUE!r} has jobs in it: another bench runs here, or one was killed. Wait for it, or take its queue "
        "away with `tenure bench --clean`."
    )


def _engine(tenure: App) -> tuple[str, str]:
    from tenure.observe.timing import engine

    return engine(tenure.store)


def _shown(one: Figure) -> str:
    return ("" if one.is_trusted else "~") + (f"{one.median:,.0f}" if one.unit == "/s" else f"{one.median:.3f}")


def _percent(one: Figure) -> str:
    return f"{one.spread:.0%}" if len(one.samples) > 1 else ""


def _share(one: Figure) -> str:
    return "" if one.of_bare is None else f"{one.of_bare:.2f}"
