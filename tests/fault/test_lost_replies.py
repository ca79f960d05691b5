"""The reply is lost between COMMIT and its arrival: repeating the call gives one job, one grant, one end.

On PostgreSQL a proxy cuts the connection when the server has committed; on SQLite, where no wire lies between, the
store's own point `after_commit_before_reply` breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from tenure.errors import StoreUnavailable
from tenure.model import failpoints
from tenure.model.event import NewEvent
from tenure.model.ids import JobId, WorkerId, new_job_id
from tenure.model.job import Grant, Job, NewJob
from tenure.model.outcome import Completed, EffectRecord, Failed, Outcome, Rejected, Released, Stopped, Suspended
from tenure.store.contract import (
    Cancel,
    Claim,
    Clone,
    EditJob,
    Enqueue,
    Exchange,
    Heartbeat,
    Hold,
    Request,
    Revive,
    Settle,
    Store,
)
from tenure.store.queries import CountJobs, GetJobs, ListAttempts, ListDeadLetters, ListEffects, ListEvents
from tests.conformance.engines import migrated_database, open_sqlite, open_store
from tests.fault.proxy import Proxy
from tests.servers import PostgresServer

T = TypeVar("T")


@dataclass(frozen=True)
class Line:
    """A store on a line that can lose a reply."""

    store: Store
    lose_next_reply: Callable[[], None]
    count_lost: Callable[[], int]

    def insist(self, request: Request[T]) -> T:
        """Send, lose the reply, send again."""
        before = self.count_lost()
        self.lose_next_reply()
        try:
            answer = self.store.do(request)
        except StoreUnavailable:
            answer = self.store.do(request)
        assert self.count_lost() == before + 1, "no reply was lost, so nothing was shown"
        return answer


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def line(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Line]:
    if request.param == "sqlite":
        store = open_sqlite(tmp_path / "jobs.db")
        point = BrokenPoint()
        yield Line(store, point.arm, lambda: point.broken)
        failpoints.disarm(point.name)
        store.close()
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    with migrated_database(server, has_grace=False) as url:
        proxy = Proxy(server.port)
        address = url.replace(f":{server.port}/", f":{proxy.port}/")
        store = open_store(f"{address}?sslmode=disable&gssencmode=disable")
        store.do(CountJobs())
        yield Line(store, proxy.lose_next_reply, lambda: proxy.lost)
        store.close()
        proxy.close()


class BrokenPoint:
    """Breaks once, after the commit."""

    name = "after_commit_before_reply"

    def __init__(self) -> None:
        self.broken = 0

    def arm(self) -> None:
        failpoints.arm(self.name, self._break)

    def _break(self) -> None:
        failpoints.disarm(self.name)
        self.broken += 1
        raise StoreUnavailable("The reply was lost on purpose.")


def a_job(key: str | None = None) -> NewJob:
    return NewJob(id=new_job_id(), kind="work", key=key, max_attempts=2)


def a_grant(line: Line) -> Grant:
    line.store.do(Enqueue([a_job()]))
    [grant] = line.store.do(Claim(WorkerId("w1"), ["default"], lease_seconds=600))
    return grant


def read(line: Line, job_id: JobId) -> Job:
    [job] = line.store.do(GetJobs([job_id]))
    assert job is not None
    return job


def count(line: Line) -> int:
    return sum(group.jobs for group in line.store.do(CountJobs()))


def test_an_enqueue_makes_one_job(line: Line) -> None:
    job = a_job()

    [answer] = line.insist(Enqueue([job]))

    assert (answer.id, answer.duplicate, count(line)) == (job.id, False, 1)


def test_an_enqueue_with_a_key_makes_one_job_and_is_no_duplicate_of_itself(line: Line) -> None:
    jobs = [a_job("k"), a_job("k"), a_job()]

    answers = line.insist(Enqueue(jobs))

    assert [(answer.id, answer.duplicate) for answer in answers] == [
        (jobs[0].id, False),
        (jobs[0].id, True),
        (jobs[2].id, False),
    ]
    assert count(line) == 2


def test_a_claim_hands_out_the_same_grants_once_more(line: Line) -> None:
    line.store.do(Enqueue([a_job() for _ in range(4)]))

    grants = line.insist(Claim(WorkerId("w1"), ["default"], limit=2, lease_seconds=600, held=[]))

    assert [(grant.token, grant.attempt) for grant in grants] == [(1, 1), (1, 1)]
    held = [group for group in line.store.do(CountJobs(states=["running"])) if group.jobs]
    assert [group.jobs for group in held] == [2]


ENDS: dict[str, tuple[Callable[[Grant], Outcome], str]] = {
    "complete": (lambda grant: Completed(grant.id, grant.token, result="1"), "succeeded"),
    "fail": (lambda grant: Failed(grant.id, grant.token, "boom"), "queued"),
    "reject": (lambda grant: Rejected(grant.id, grant.token, "never"), "failed"),
    "release": (lambda grant: Released(grant.id, grant.token), "queued"),
    "give back": (lambda grant: Released(grant.id, grant.token, failure_class=None), "queued"),
    "suspend": (lambda grant: Suspended(grant.id, grant.token, "event"), "waiting"),
    "stop": (lambda grant: Stopped(grant.id, grant.token), "cancelled"),
}
WITHOUT_A_ROW = frozenset({"complete", "give back", "suspend"})
"""Ends that leave no attempt row; their repeats are answered from the job's own row."""


@pytest.mark.parametrize("name", ENDS)
def test_an_end_counts_once_and_is_answered_as_the_first_time(line: Line, name: str) -> None:
    outcome, state = ENDS[name]
    grant = a_grant(line)

    [settled] = line.insist(Settle([outcome(grant)]))

    assert settled.state == state
    assert read(line, grant.id).state == state
    assert len(line.store.do(ListAttempts(grant.id))) == (0 if name in WITHOUT_A_ROW else 1)
    assert len(line.store.do(ListDeadLetters(job_id=grant.id)).items) == (1 if name == "reject" else 0)


def test_what_a_completion_carries_is_there_once(line: Line) -> None:
    grant = a_grant(line)
    outcome = Completed(
        grant.id,
        grant.token,
        jobs=(a_job(),),
        events=(NewEvent("custom", "{}", grant.id),),
        effects=(EffectRecord("mail", "confirmed"),),
    )

    [settled] = line.insist(Settle([outcome]))

    assert (settled.state, count(line)) == ("succeeded", 2)
    assert len(line.store.do(ListEvents(kinds=["custom"]))) == 1
    assert len(line.store.do(ListEffects(job_id=grant.id)).items) == 1


def test_an_exchange_settles_once_and_grants_the_same(line: Line) -> None:
    grant = a_grant(line)
    line.store.do(Enqueue([a_job(), a_job()]))
    claim = Claim(WorkerId("w1"), ["default"], limit=1, lease_seconds=600, held=[])

    answer = line.insist(Exchange([Completed(grant.id, grant.token)], claim))

    assert answer.settled == {}
    assert [(one.token, one.attempt) for one in answer.grants] == [(1, 1)]
    assert sum(group.jobs for group in line.store.do(CountJobs(states=["running"]))) == 1


def test_a_heartbeat_is_answered_as_the_first_time(line: Line) -> None:
    grant = a_grant(line)

    beat = line.insist(Heartbeat([Hold(grant.id, grant.token, progress="[1]")]))

    assert beat.lost == frozenset()
    assert read(line, grant.id).progress == [1]


def test_a_cancel_a_revive_and_a_clone_happen_once(line: Line) -> None:
    job = a_job()
    line.store.do(Enqueue([job]))

    line.insist(Cancel([job.id], "ops", "why"))
    assert read(line, job.id).state == "cancelled"

    new_id = new_job_id()
    [cloned] = line.insist(Clone({job.id: new_id}, "ops", "why"))
    assert (cloned.id, cloned.duplicate, count(line)) == (new_id, False, 2)

    line.insist(Revive([job.id], "ops", "why"))
    assert (read(line, job.id).state, count(line)) == ("queued", 2)


def test_an_edit_is_answered_as_the_first_time_and_the_enqueue_before_it_too(line: Line) -> None:
    job = a_job()
    line.store.do(Enqueue([job]))
    read_before = read(line, job.id)

    edited = line.insist(EditJob(job.id, "ops", "why", '{"mended": 1}', 4, read_before.version))

    assert (edited.payload, edited.priority) == ({"mended": 1}, 4)
    line.insist(Enqueue([job]))
    assert (read(line, job.id), count(line)) == (edited, 1)
