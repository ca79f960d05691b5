"""Stores with a bug planted in them, to test the tests. Each breaks one rule and keeps the rest."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from tenure.model.clock import ManualClock
from tenure.model.ids import JobId, WorkerId, new_job_id
from tenure.model.job import Grant
from tenure.model.outcome import Completed, Outcome, Settled
from tenure.model.state import HELD
from tenure.store.admin import AcquireLease
from tenure.store.contract import Claim, Enqueue, Heartbeat, Reap, Request, Settle
from tenure.store.queries import GetJobs
from tenure.store.sqlite.store import SqliteStore
from tests.conformance.engines import sqlite_url

T = TypeVar("T")


class Planted(SqliteStore):
    """A store whose requests pass through a hand that may spoil them."""

    def do(self, request: Request[T]) -> T:
        return cast(T, self.spoil(request))

    def spoil(self, request: Any) -> Any:
        return self.right(request)

    def right(self, request: Any) -> Any:
        """What the store does without the bug."""
        return super().do(request)

    def newest_token(self, outcome: Outcome) -> Outcome:
        [job] = self.right(GetJobs([outcome.job_id]))
        return outcome if job is None or job.state not in HELD else replace(outcome, token=job.token)

    @contextmanager
    def behind_its_back(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None, timeout=30)
        try:
            yield connection
        finally:
            connection.close()


class NoTokenInComplete(Planted):
    """A success is taken from anybody, as long as the job is held."""

    def spoil(self, request: Any) -> Any:
        if isinstance(request, Settle):
            outcomes = [self.newest_token(one) if isinstance(one, Completed) else one for one in request.outcomes]
            settled = self.right(Settle(outcomes))
            return [replace(one, token=own.token) for one, own in zip(settled, request.outcomes, strict=True)]
        return self.right(request)


class GuardByStateOnly(Planted):
    """Every end is taken from anybody, as long as the job is held."""

    def spoil(self, request: Any) -> Any:
        if isinstance(request, Settle):
            settled = self.right(Settle([self.newest_token(one) for one in request.outcomes]))
            return [replace(one, token=own.token) for one, own in zip(settled, request.outcomes, strict=True)]
        return self.right(request)


class FinishFromQueued(Planted):
    """A success is taken even if the job was queued again meanwhile."""

    def spoil(self, request: Any) -> Any:
        answer = self.right(request)
        if isinstance(request, Settle):
            return [self._finish(one) if one.lost else one for one in answer]
        return answer

    def _finish(self, lost: Settled) -> Settled:
        with self.behind_its_back() as connection:
            done = connection.execute(
                "UPDATE tenure_job SET state = 'succeeded', finished_at = updated_at WHERE id = ? AND state = 'queued'",
                [lost.job_id],
            )
            return replace(lost, state="succeeded") if done.rowcount else lost


class ReapByIdAlone(Planted):
    """The reaper takes back what it saw held, whether the lease has run out or not."""

    def spoil(self, request: Any) -> Any:
        if isinstance(request, Reap):
            with self.behind_its_back() as connection:
                connection.execute("UPDATE tenure_job SET lease_until = 1 WHERE state IN ('leased', 'running')")
        return self.right(request)


class AttemptsCountedOnFailureOnly(Planted):
    """A claim does not count, so a job that kills its worker never dies of it."""

    def spoil(self, request: Any) -> Any:
        answer = self.right(request)
        if isinstance(request, Claim):
            grants: Sequence[Grant] = answer
            with self.behind_its_back() as connection:
                connection.executemany(
                    "UPDATE tenure_job SET attempt = attempt - 1 WHERE id = ?", [[grant.id] for grant in grants]
                )
        return answer


class DeleteBeforeRun(Planted):
    """A claim takes the job out of the database; if its worker dies, so does the job."""

    def spoil(self, request: Any) -> Any:
        answer = self.right(request)
        if isinstance(request, Claim):
            with self.behind_its_back() as connection:
                connection.executemany("DELETE FROM tenure_job WHERE id = ?", [[grant.id] for grant in answer])
        return answer


class BlindRetryOfCommit(Planted):
    """An enqueue whose reply is believed lost is sent again under new ids."""

    def spoil(self, request: Any) -> Any:
        if isinstance(request, Enqueue):
            self.right(Enqueue([replace(job, id=new_job_id()) for job in request.jobs if job.key is None]))
        return self.right(request)


class HeartbeatRevives(Planted):
    """A heartbeat extends whatever bears its token, run out or not."""

    def spoil(self, request: Any) -> Any:
        if isinstance(request, Heartbeat):
            with self.behind_its_back() as connection:
                connection.executemany(
                    "UPDATE tenure_job SET lease_until = lease_until + 3600000000"
                    " WHERE id = ? AND token = ? AND state IN ('leased', 'running')",
                    [[hold.job_id, hold.token] for hold in request.holds],
                )
        return self.right(request)


class WorkerIdIsHostName(Planted):
    """Every worker of a machine claims under the machine's name, so one is given what another holds."""

    def spoil(self, request: Any) -> Any:
        if isinstance(request, Claim):
            return self.right(replace(request, worker=WorkerId("host")))
        return self.right(request)


class ClientClockJudges(Planted):
    """Whether a lease has run out is judged by the clock of the worker that asks, and that of w2 is a minute ahead."""

    def __init__(self, url: str, clock: ManualClock) -> None:
        self._own = _AheadClock(clock)
        super().__init__(url, clock=self._own)

    def spoil(self, request: Any) -> Any:
        if isinstance(request, Claim) and request.worker == "w2":
            self._own.ahead = 60_000_000
            self.right(Reap())
            self._own.ahead = 0
        return self.right(request)


class _AheadClock:
    def __init__(self, clock: ManualClock) -> None:
        self.ahead = 0
        self._clock = clock

    def now_us(self) -> int:
        return self._clock.now_us() + self.ahead


class LeaderKeptOnRollback(Planted):
    """A worker believes to lead although the transaction that made it leader was rolled back."""

    def spoil(self, request: Any) -> Any:
        if not isinstance(request, AcquireLease):
            return self.right(request)
        with self.behind_its_back() as connection:
            before = connection.execute("SELECT * FROM tenure_lease WHERE name = ?", [request.name]).fetchall()
            answer = self.right(request)
            connection.execute("DELETE FROM tenure_lease WHERE name = ?", [request.name])
            connection.executemany("INSERT INTO tenure_lease VALUES (?, ?, ?, ?, ?)", before)
        return answer


class SynchronousNormal(Planted):
    """A commit is acknowledged while it is in the machine's memory only."""

    def spoil(self, request: Any) -> Any:
        connection = self._database.writer.writing.connection
        assert connection is not None
        connection.execute("PRAGMA synchronous = NORMAL")
        return self.right(request)


class LookThenInsert(Planted):
    """A key is looked up before the insert, and no index decides. `looked` lets a test stand between the two."""

    def looked(self) -> None:
        """Between the look and the insert."""

    def spoil(self, request: Any) -> Any:
        if not isinstance(request, Enqueue) or not any(job.key for job in request.jobs):
            return self.right(request)
        with self.behind_its_back() as connection:
            held = connection.execute(
                "SELECT id FROM tenure_job WHERE idempotency_key = ? AND finished_at IS NULL", [request.jobs[0].key]
            ).fetchone()
            self.looked()
            if held is not None:
                return [replace(one, id=JobId(held[0]), duplicate=True) for one in self.right(request)]
            keys = {job.id: job.key for job in request.jobs}
            answer = self.right(Enqueue([replace(job, key=None) for job in request.jobs]))
            connection.executemany(
                "UPDATE tenure_job SET idempotency_key = ? WHERE id = ?",
                [[key, job_id] for job_id, key in keys.items()],
            )
            return answer


def opener(kind: type[Planted]) -> Any:
    def opened(path: Path, clock: ManualClock) -> Planted:
        store = kind(sqlite_url(path), clock=clock)
        store.migrate()
        return store

    return opened
