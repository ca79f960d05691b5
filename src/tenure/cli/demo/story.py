"""The story of `tenure demo`, act by act. Each act waits for what it shows to happen in the database."""

from __future__ import annotations

import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tenure.cli import text
from tenure.cli.demo import tasks
from tenure.cli.demo.stage import STYLES, Actor, DemoFailed, Stage, until
from tenure.cli.screen import Screen, colours_on, console
from tenure.errors import LeaseLost
from tenure.model.frozen import frozen
from tenure.model.job import Job
from tenure.model.outcome import Triage
from tenure.model.policy import Backoff
from tenure.model.state import ACTIVE, HELD, State

if TYPE_CHECKING:
    from tenure.app import App

LEASE_SECONDS = 3.0
PAGES = 8
THUMBNAILS = 40
DEADLINE_SECONDS = 55.0
READING_SECONDS = 1.5
"""How long people get to read before the next act."""
REPORTS = ("north", "south")


@frozen
class Finding:
    """What the database says about one thing that was shown."""

    name: str
    ok: bool
    says: str


class Narrator:
    """Tells the story on stderr, act by act, with times."""

    def __init__(self, screen: Screen, *, slow: bool) -> None:
        self._screen = screen
        self._slow = slow
        self._began = time.monotonic()
        is_live = colours_on(sys.stderr) and not screen.as_json
        self._console = console(stderr=True) if is_live else None

    def act(self, title: str) -> None:
        """A new act."""
        self._write("")
        self._write(title, "bold")

    def say(self, sentence: str, style: str = "") -> None:
        """Something happened."""
        at = f"  {time.monotonic() - self._began:5.1f} s  "
        width = shutil.get_terminal_size().columns - 1 if self._console else 10_000
        lines = textwrap.wrap(
            sentence, width=max(width, 60), initial_indent=at, subsequent_indent=" " * len(at), break_on_hyphens=False
        )
        for line in lines:
            self._write(line, style)

    def pause(self) -> None:
        """Time to read."""
        if self._slow:
            time.sleep(READING_SECONDS)

    @contextmanager
    def countdown(self) -> Iterator[Any]:
        """A line that changes in place, on a terminal; elsewhere nothing. Yields `show(text)`."""
        if self._console is None:
            yield lambda _: None
            return
        from rich.live import Live
        from rich.text import Text

        with Live(console=self._console, transient=True, refresh_per_second=15) as live:
            yield lambda line: live.update(Text(f"           {line}", style="yellow"))

    def _write(self, line: str, style: str = "") -> None:
        if self._screen.as_json:
            return
        if self._console is None:
            print(text.safe(line), file=sys.stderr)
            return
        from rich.text import Text

        told = Text(text.safe(line), style=style)
        for name, colour in STYLES.items():
            told.highlight_words([name], style=f"bold {colour}")
        self._console.print(told, soft_wrap=True)


class Story:
    """The acts, in order. Each waits for what it shows to happen in the database."""

    def __init__(self, tenure: App, actors: Stage, narrator: Narrator, started: float) -> None:
        self._app = tenure
        self._stage = actors
        self._tell = narrator
        self._deadline = started + DEADLINE_SECONDS
        self._queue = actors.queue
        self._ids: dict[str, str] = {}
        self._victims: dict[str, Actor] = {}
        self._findings: list[Finding] = []

    def tell(self) -> list[Finding]:
        """All of it. Answers what the database says in the end. Raises: DemoFailed."""
        try:
            for act in (self._begin, self._strike, self._take_over, self._refuse_the_late, self._revive, self._end):
                act()
        except DemoFailed as exc:
            raise DemoFailed(f"{exc} {self._stage.last_words()}".rstrip()) from exc
        return self._findings

    def _begin(self) -> None:
        self._tell.act("Two long jobs, two workers")
        self._app.queues.set(
            self._queue,
            lease_seconds=LEASE_SECONDS,
            max_attempts=3,
            backoff=Backoff("constant", base_seconds=0.4, jitter=0.0),
            events=True,
        )
        for name in REPORTS:
            made = self._app.enqueue("report", {"name": name, "pages": PAGES}, queue=self._queue)
            self._ids[name] = made.id
        self._tell.say(f"enqueued reports 'north' and 'south', {PAGES} pages each, in queue {self._queue}")
        for name in ("Ann", "Cid"):
            self._stage.start(name, concurrency=1)
        self._tell.say("started Ann and Cid: two worker processes, one job each")
        holders = {name: until(f"report {name} runs", self._is_running(name), self._deadline) for name in REPORTS}
        # Who took which was a race; the one with 'north' goes by the name of Ann from here on.
        if self._stage.named(holders["north"].lease_owner) == "Cid":
            self._stage.swap("Ann", "Cid")
        self._victims = {"north": self._stage.actors["Ann"], "south": self._stage.actors["Cid"]}
        for name, job in holders.items():
            self._say_held(name, job)
        again = [
            self._app.enqueue("charge", {"customer": "Ada", "amount": 7}, queue=self._queue, key="order-7")
            for _ in range(2)
        ]
        self._ids["charge"] = again[0].id
        self._findings.append(
            Finding(
                "one key, one job",
                again[0].id == again[1].id and again[1].duplicate,
                "the second enqueue of order-7 answered the first job's id",
            )
        )
        self._app.enqueue_many(
            self._app.new_job("thumbnail", {"number": number}, queue=self._queue) for number in range(THUMBNAILS)
        )
        self._tell.say(f"enqueued {THUMBNAILS} thumbnails and a charge; its key was used twice, and made one job")
        self._stage.start("Bea", concurrency=4)
        self._tell.say("started Bea, who has room for four")

    def _strike(self) -> None:
        for name in REPORTS:
            until(f"two pages of {name} are written", self._has_pages(name, 2), self._deadline)
        killed, frozen = self._victims["north"], self._victims["south"]
        killed.signal(signal.SIGKILL)  # at once, before they finish; the telling comes after
        frozen.freeze()
        killed.wait(5)
        self._tell.act("Two accidents")
        self._tell.say(f"SIGKILL to {killed.name} in the middle of 'north'", "red")
        self._tell.say(f"SIGSTOP to {frozen.name} in the middle of 'south': frozen, as when its machine pauses", "red")

    def _take_over(self) -> None:
        self._tell.act("Their leases run out, and Bea takes over")
        waiting = list(REPORTS)
        with self._tell.countdown() as show:

            def look() -> bool:
                now = self._app.now()
                left = []
                for name in tuple(waiting):
                    job = self._job(name)
                    if job.token > 1 and job.state in {*HELD, State.SUCCEEDED}:
                        waiting.remove(name)
                        self._say_held(name, job)
                    elif job.lease_until is not None:
                        seconds = max(0.0, (job.lease_until - now).total_seconds())
                        left.append(f"'{name}' is {self._stage.named(job.lease_owner)}'s for {seconds:.1f} s more")
                show(";  ".join(left))
                return not waiting

            until("Bea takes both jobs over", look, self._deadline)
        for name in REPORTS:
            job = self._wait_for_end(name)
            writer = self._writer(job.result)
            self._tell.say(f"'{name}' succeeded at attempt {job.attempt}, written by {writer}", "green")

    def _refuse_the_late(self) -> None:
        self._tell.pause()
        self._tell.act("Late results are refused")
        killed, frozen = self._victims["north"], self._victims["south"]
        try:
            self._app.complete((self._ids["north"], 1), {"pages": PAGES, "token": 1})
            refused = False
        except LeaseLost as exc:
            refused = True
            self._tell.say(
                f"a completion with {killed.name}'s token is refused [{exc.code}]; nothing was changed", "yellow"
            )
        self._findings.append(
            Finding("an old token is refused", refused, "token 1 of 'north' could not complete it: LeaseLost")
        )
        frozen.signal(signal.SIGCONT)
        self._tell.say(f"SIGCONT to {frozen.name}: it wakes up and believes that it still holds 'south'")
        notice = until(
            f"{frozen.name} is refused", lambda: frozen.said("lease_lost", self._ids["south"]), self._deadline
        )
        self._tell.say(f"{frozen.name} says: {notice.get('message') or notice['event']}", "yellow")
        self._findings.append(
            Finding(
                "a late worker is refused", True, f"{frozen.name} finished 'south' too late; nothing of it was saved"
            )
        )

    def _revive(self) -> None:
        self._tell.pause()
        self._tell.act("A dead letter, and its revival")
        job_id = self._ids["charge"]
        letter = until(
            "the dead letter is there", lambda: self._app.dead_letters.all(job_id=job_id).items, self._deadline
        )[0]
        self._tell.say(
            f"dead letter of 'charge': {letter.attempts} attempts, {text.first_line(letter.final_error, 60)}", "red"
        )
        (tasks.folder() / "payments-are-up").touch()
        self._tell.pause()
        self._tell.say("the payment service is repaired")
        self._app.revive(job_id, reason="the payment service is up again")
        self._tell.say("tenure jobs revive: queued again, with all its attempts")
        job = self._wait_for_end("charge")
        self._tell.say(f"'charge' succeeded: {job.result}", "green")
        until("all thumbnails are made", self._is_drained, self._deadline)

    def _end(self) -> None:
        self._tell.pause()
        leaving = [actor for actor in self._stage.actors.values() if actor.end is None]
        for actor in leaving:
            actor.signal(signal.SIGTERM)
        codes = {actor.name: actor.wait(10) for actor in leaving}
        self._findings[:0] = [
            self._check_report("north", "a killed worker's job is taken over", "crash"),
            self._check_report("south", "a frozen worker's job is taken over", None),
        ]
        self._check_charge()
        self._check_thumbnails()
        self._findings.append(
            Finding(
                "workers stop in order",
                set(codes.values()) == {0},
                f"{', '.join(codes)} ended with exit code 0 on SIGTERM",
            )
        )

    def _check_report(self, name: str, title: str, failure_class: str | None) -> Finding:
        job, attempts = self._job(name), self._app.attempts(self._ids[name])
        victim = self._victims[name]
        lost = attempts[0] if attempts else None
        ok = (
            job.state is State.SUCCEEDED
            and (job.attempt, job.token) == (2, 2)
            and (job.result["pages"], job.result["token"]) == (PAGES, 2)
            and self._writer(job.result) == "Bea"
            and len(attempts) == 1
            and lost is not None
            and lost.outcome == "expired"
            and lost.failure_class in ({failure_class} if failure_class else {"crash", "lease_lost"})
            and self._stage.named(lost.worker) == victim.name
        )
        says = f"'{name}' {job.state} at attempt {job.attempt}, token {job.token}"
        if lost is not None:
            says += f"; attempt 1 of {self._stage.named(lost.worker)} {lost.outcome} ({lost.failure_class})"
        return Finding(title, ok, says)

    def _check_charge(self) -> None:
        job, attempts = self._job("charge"), self._app.attempts(self._ids["charge"])
        letters = self._app.dead_letters.all(job_id=self._ids["charge"]).items
        outcomes = [one.outcome for one in attempts]
        ok = (
            job.state is State.SUCCEEDED
            and outcomes == ["retried", "retried", "dead"]
            and [one.triage for one in letters] == [Triage.MANUAL_REPLAY]
            and tasks.lines("charges") == ["Ada 7"]
        )
        told = f"attempts {', '.join(outcomes)}; letter {', '.join(one.triage for one in letters)}; now {job.state}"
        self._findings.append(Finding("a dead letter is revived", ok, told))

    def _check_thumbnails(self) -> None:
        counts = self._app.queues.counts(queue=self._queue)
        done = sum(one.jobs for one in counts if one.kind == "thumbnail" and one.state == State.SUCCEEDED)
        left = sum(one.jobs for one in counts if one.state in ACTIVE)
        numbers = sorted(int(line.split()[0]) for line in tasks.lines("thumbnails"))
        ok = done == THUMBNAILS and left == 0 and numbers == list(range(THUMBNAILS))
        told = f"{done} of {THUMBNAILS} thumbnails succeeded, each written once; {left} jobs are left"
        self._findings.append(Finding("nothing lost, nothing doubled", ok, told))

    def _job(self, name: str) -> Job:
        return self._app.get(self._ids[name])

    def _is_running(self, name: str) -> Callable[[], Job | None]:
        def look() -> Job | None:
            job = self._job(name)
            return job if job.state is State.RUNNING else None

        return look

    def _has_pages(self, name: str, count: int) -> Callable[[], bool]:
        return lambda: len(tasks.lines(f"pages-{name}")) >= count

    def _wait_for_end(self, name: str) -> Job:
        def look() -> Job | None:
            job = self._job(name)
            return job if job.state is State.SUCCEEDED else None

        job: Job = until(f"{name} succeeds", look, self._deadline)
        return job

    def _is_drained(self) -> bool:
        return not any(one.jobs for one in self._app.queues.counts(queue=self._queue, state=list(ACTIVE)))

    def _say_held(self, name: str, job: Job) -> None:
        holder = self._stage.named(job.lease_owner) if job.lease_owner else self._writer(job.result or {})
        self._tell.say(
            f"'{name}' is held by {holder}: attempt {job.attempt}, token {job.token}, lease {LEASE_SECONDS:g} s"
        )

    def _writer(self, result: dict[str, Any]) -> str:
        return next((one.name for one in self._stage.actors.values() if one.mark == result.get("worker")), "no worker")
