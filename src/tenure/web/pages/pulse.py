"""The state of the whole database, looked at once for all viewers.

Every page shows a health sentence and counts in its navigation, and the overview shows more of the same. They are
asked of the store by one look that all requests of this process share: it is renewed when it is older than
FRESH_SECONDS and than SHARE times what it cost, so that a slow database is not made slower by its own console. Pages
say how old the look is when that is worth knowing.

What else a page reads, and other viewers read too at that moment, is read once for all of them, and is good for
SHARED_SECONDS: the newest jobs of one filter, the board of deaths, counted minutes.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tenure.effects.bulk_jobs import QUEUE
from tenure.errors import AccessDenied, TenureError
from tenure.model.frozen import frozen
from tenure.observe.browse import Board, board, inspect
from tenure.observe.doctor import Check, examine
from tenure.observe.liveness import alive
from tenure.web.pages.words import asks

if TYPE_CHECKING:
    from tenure import WorkerSeen
    from tenure.app import App

FRESH_SECONDS: Final = 2.0
SHARE: Final = 20.0
STALE: Final = 3.0
"""A look that is so many times as old as it may be is not shown where a new one comes soon."""
COSTS: Final = 5
"""How many looks are remembered to tell what one costs."""
SPEAKING: Final = frozenset({"unserved", "unknown kind", "lag", "paused", "quarantine", "upkeep", "stuck"})
"""Checks whose findings are whole sentences, which need no name before them."""
FIRST_WAIT_SECONDS: Final = 2.0
ASKED: Final = 100
"""How many entries of one kind in the inbox are counted."""
SHARED_SECONDS: Final = 1.0
SHARED_MOST: Final = 200
"""How many different reads are kept."""
WINDOW_SECONDS: Final = 3600.0


T = TypeVar("T")


@frozen
class Health:
    """The sentence in the top bar: the verdict, then what."""

    verdict: str
    says: str
    tone: str
    icon: str


@frozen
class Look:
    """What one look found."""

    at: datetime
    seen: Board
    engine: str
    checks: Sequence[Check]
    health: Health
    cost_seconds: float
    taken: float
    """time.monotonic() when it was taken."""
    marker: str
    """Changes when counts, deaths, gates, queues, workers or open questions do; not with every heartbeat."""
    asked: Mapping[str, int] = field(default_factory=dict)
    """How many entries the inbox has, by kind. Of one kind ASKED stands for as many or more, of approvals 1,000."""

    @property
    def live_workers(self) -> int:
        policies = {one.name: one.policy for one in self.seen.queues}
        return len(alive(self.seen.workers, policies, self.at))

    @property
    def asking(self) -> int:
        return sum(self.asked.values())

    @property
    def outstanding(self) -> int:
        return sum(one.due + one.delayed + one.held + one.waiting for one in self.seen.summary.backlog)

    @property
    def pending_groups(self) -> int:
        return len(self.seen.groups)

    @property
    def shut_gates(self) -> int:
        return sum(1 for one in self.seen.gates if not one.is_open)


class _Shared:
    """One read and what came of it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.began = self.ended = float("-inf")
        self.value: Any = None
        self.error: TenureError | None = None


class Pulse:
    """Holds the last look, and renews it in a thread of its own. Thread-safe."""

    def __init__(self, app: App, looks: Callable[[App], Look] | None = None) -> None:
        self._app = app
        self._looks = looks or take
        self._lock = threading.Lock()
        self._last: Look | None = None
        self._renewing: threading.Thread | None = None
        self._error: TenureError | None = None
        self._costs: deque[float] = deque(maxlen=COSTS)
        self._forgotten = 0
        self._shared: dict[Hashable, _Shared] = {}

    def now(self) -> Look | None:
        """The last look. Waits for the first one, and for a new one where the last is STALE times as old as it may be
        because no viewer was there, for FIRST_WAIT_SECONDS at most. Raises what the one that it waited for raised."""
        with self._lock:
            last, thread = self._last, self._renewing
            if thread is None and (last is None or self._is_old(last)):
                thread = self._renewing = threading.Thread(target=self._renew, name="tenure-pulse", daemon=True)
                thread.start()
        if thread is not None and (last is None or self._is_old(last, STALE)):
            thread.join(FIRST_WAIT_SECONDS)
            with self._lock:
                if self._last is None and self._error is not None:
                    raise self._error
                last = self._last or last
        return last

    def forget(self) -> None:
        """Look again at the next request: something was changed by hand."""
        with self._lock:
            self._last = None
            self._forgotten += 1
            self._shared.clear()

    def shared(self, key: Hashable, look: Look | None, read: Callable[[], T]) -> T:
        """What `read` answers to all that ask for the same within SHARED_SECONDS, or while it is read: one of them
        reads, the others wait.

        It is never older than `look`, from which the caller's page takes its marker. An error is shared likewise, so
        that a read that takes too long is not tried again by each that waits for it.
        """
        with self._lock:
            if len(self._shared) >= SHARED_MOST:
                self._shared.clear()
            kept = self._shared.setdefault(key, _Shared())
        asked = time.monotonic()
        with kept.lock:
            now = time.monotonic()
            is_fresh = kept.ended >= asked or kept.began >= now - SHARED_SECONDS
            if not is_fresh or (look is not None and kept.began < look.taken):
                kept.began, kept.value, kept.error = now, None, None
                try:
                    kept.value = read()
                except TenureError as exc:
                    kept.error = exc
                kept.ended = time.monotonic()
            if kept.error is not None:
                raise kept.error
            found: T = kept.value
            return found

    def forget_reads(self) -> None:
        """Read again at the next request what is shared: something may have been changed."""
        with self._lock:
            self._shared.clear()

    def _is_old(self, last: Look, times: float = 1.0) -> bool:
        age = time.monotonic() - last.taken
        # The least of the last costs: a look that waited for a busy machine must not make the console blind.
        return age > times * max(FRESH_SECONDS, SHARE * min(self._costs, default=last.cost_seconds))

    def _renew(self) -> None:
        while True:
            forgotten = self._forgotten
            try:
                found = self._looks(self._app)
            except TenureError as exc:
                with self._lock:
                    self._error, self._last, self._renewing = exc, None, None
                return
            with self._lock:
                self._costs.append(found.cost_seconds)
                if forgotten == self._forgotten:  # else: it may have looked before the change
                    self._last, self._error, self._renewing = found, None, None
                    return


class OneLook:
    """The pulse as one request sees it: the look that stood when the request came, for all that the page shows.

    It is asked before anything else is read. So the marker that a page carries, which is made from it, is never newer
    than what the page shows, and a change in between is told by the page's stream.
    """

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self._found: list[Look | None] = []

    def now(self) -> Look | None:
        """The look; the same at every call. Raises what Pulse.now raised."""
        if not self._found:
            self._found.append(self._pulse.now())
        return self._found[0]

    def shared(self, key: Hashable, read: Callable[[], T]) -> T:
        """What `read` answers, asked once for all requests that want it now. See Pulse.shared."""
        try:
            look = self.now()
        except TenureError:
            look = None
        return self._pulse.shared(key, look, read)

    def forget(self) -> None:
        """Look again at the next request."""
        self._pulse.forget()

    def forget_reads(self) -> None:
        """Read again at the next request what is shared."""
        self._pulse.forget_reads()


def take(app: App) -> Look:
    """Look once."""
    began = time.monotonic()
    store = app.store
    seen = board(store, window_seconds=WINDOW_SECONDS)
    found = inspect(store)
    checks = list(_examined(app, seen))
    asked = _asked(app)
    ended = time.monotonic()
    engine, told = f"{found.engine} {found.version}", health(checks, seen, asked)
    marker = _marker(seen, told, asked)
    return Look(seen.summary.at, seen, engine, checks, told, ended - began, ended, marker, asked)


def _asked(app: App) -> Mapping[str, int]:
    """What App.inbox lists, counted; of approvals all."""
    waiting = Counter(entry.kind for entry in app.inbox(limit=ASKED))
    return {"approval": app.approvals.count()} | {kind: waiting[kind] for kind in ("escalation", "effect", "budget")}


def _marker(seen: Board, told: Health, asked: Mapping[str, int]) -> str:
    return digest(
        seen.summary.backlog,
        [(one.kind, one.succeeded, one.dead, one.failed, one.cancelled) for one in seen.summary.ran],
        seen.groups,
        seen.gates,
        [(one.name, one.paused_at, one.updated_at) for one in seen.queues],
        sorted((one.row.id, one.held, one.is_leader) for one in seen.workers),
        told,
        asked,
    )


def digest(*told: object) -> str:
    """A short text that changes when what it is made from does."""
    return hashlib.sha256(repr(told).encode("utf-8", "replace")).hexdigest()[:16]


def _examined(app: App, seen: Board) -> Iterator[Check]:
    """What the doctor finds, as far as this login may look."""
    try:
        yield from examine(app.store, "…", seen)
    except AccessDenied as exc:
        yield Check("access", "warn", str(exc))


def finding(check: Check) -> str:
    """What a check found, as a sentence."""
    says = check.says.rstrip(".")
    name = "SQLite" if check.name == "sqlite" else check.name
    speaks = check.name in SPEAKING or says.startswith(f"{check.name} ")
    told = says if speaks else f"{name}: {says}"
    return f"{told[0].upper()}{told[1:]}."


def health(checks: Sequence[Check], seen: Board, asked: Mapping[str, int]) -> Health:
    """One sentence: the verdict first, then the gravest finding. The same findings as `tenure doctor`, and behind them
    what the inbox holds."""
    wrong = [one for one in checks if one.status == "wrong"]
    warns = [one for one in checks if one.status == "warn" and one.name != "sqlite"]
    if wrong:
        many = "one thing needs" if len(wrong) == 1 else f"{len(wrong)} things need"
        return Health(f"{many[0].upper()}{many[1:]} you.", finding(wrong[0]), "dead", "warn")
    if warns:
        many = "one thing is" if len(warns) == 1 else f"{len(warns)} things are"
        return Health(f"Working; {many} worth knowing.", finding(warns[0]), "retry", "warn")
    workers = next((one.says for one in checks if one.name == "workers"), "")
    if not handling(seen):
        return Health("Ready.", "No worker takes jobs yet.", "queued", "queued")
    if told := asks(asked):
        return Health("Working.", f"Workers: {workers}; {told} for a person.", "waiting", "waiting")
    return Health("All is well.", f"Workers: {workers}; nothing waits for a person.", "succeeded", "succeeded")


def handling(seen: Board) -> list[WorkerSeen]:
    """Workers that take users' jobs: not the one that a server runs for acts on all that match."""
    return [one for one in seen.workers if list(one.row.queues) != [QUEUE]]
