"""A heartbeat for many jobs says the same of each as one for that job alone."""

from __future__ import annotations

from tenure.model.ids import Token
from tenure.model.outcome import Completed, Released
from tenure.store.contract import Cancel, Claim, Enqueue, Heartbeat, Hold, Settle
from tenure.store.queries import GetJobs
from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.bed import WORKER, job


def test_of_many_held_jobs_each_is_judged_by_itself(store: SqliteStore) -> None:
    store.do(Enqueue([job() for _ in range(2)]))
    again = store.do(Claim(WORKER, ["default"], 2))
    store.do(Settle([Released(grant.id, grant.token, delay_seconds=0) for grant in again]))
    store.do(Enqueue([job() for _ in range(8)]))
    grants = {grant.id: grant for grant in store.do(Claim(WORKER, ["default"], 20, lease_seconds=30))}
    first, second, ended, asked, told, *rest = sorted(grants.values(), key=lambda grant: -grant.token)
    store.do(Settle([Completed(ended.id, ended.token)]))
    store.do(Cancel([asked.id], "ann", "enough"))
    holds = [Hold(grant.id, grant.token) for grant in grants.values() if grant is not told]
    stale = Hold(second.id, Token(second.token - 1))

    beat = store.do(Heartbeat([*holds, Hold(told.id, told.token, '{"at": 1}'), stale], lease_seconds=600))

    assert (first.token, second.token, rest[0].token) == (2, 2, 1)
    assert beat.lost == {ended.id, second.id}  # the stale hold of a job that is held under a newer token is lost
    assert beat.cancel_requested == {asked.id}
    found = {row.id: row for row in store.do(GetJobs(list(grants))) if row is not None}
    for grant in grants.values():
        until = found[grant.id].lease_until
        assert (until is None) if grant is ended else (until is not None and until > grant.lease_until)
    assert found[told.id].progress == {"at": 1}


def test_a_batch_of_holds_takes_few_statements(store: SqliteStore) -> None:
    store.do(Enqueue([job() for _ in range(100)]))
    grants = store.do(Claim(WORKER, ["default"], 100))
    before = store.stats().statements

    beat = store.do(Heartbeat([Hold(grant.id, grant.token) for grant in grants]))

    assert not beat.lost | beat.cancel_requested
    assert store.stats().statements - before <= 3
