"""Races between processes, for real: many claimers, one key, a stopped worker, killed clients, a crashed server."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from pathlib import Path

import pytest

from tenure.model.ids import JobId, WorkerId, new_job_id
from tenure.model.job import NewJob
from tenure.model.outcome import Completed
from tenure.store.contract import Claim, Enqueue, Reap, Settle, Store
from tenure.store.queries import CountJobs, GetJobs, ListEffects, ListEvents, ListJobs
from tests.conformance.engines import migrated_database, open_store
from tests.fault.checker import check, snapshot
from tests.fault.conftest import Place, make_queues
from tests.fault.crew import Actor, crew
from tests.fault.journal import Record, read_journal
from tests.fault.scale import PATIENCE, TIMEOUT, scaled
from tests.servers import PostgresServer, wheel_bin_path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT)]


def fill(store: Store, count: int) -> list[JobId]:
    jobs = [NewJob(id=new_job_id(), kind="work", payload='{"n": 1}') for _ in range(count)]
    for start in range(0, count, 1000):
        store.do(Enqueue(jobs[start : start + 1000]))
    return [job.id for job in jobs]


def finish_all(store: Store, queue: str) -> None:
    """Heal and drain: wait for leases of the dead to run out, and complete what is left."""
    deadline = time.monotonic() + PATIENCE
    while store.do(CountJobs(queues=[queue], states=["queued", "leased", "running", "waiting"])):
        assert time.monotonic() < deadline, "jobs were left unfinished"
        grants = store.do(Claim(WorkerId("healer"), [queue], limit=500, lease_seconds=600))
        store.do(Settle([Completed(grant.id, grant.token) for grant in grants]))


def test_many_processes_claim_all_jobs_and_none_twice(place: Place) -> None:
    processes, jobs, limit = scaled(8, 50), scaled(2_000, 20_000), scaled(20, 20)
    ids = fill(place.store, jobs)

    with crew(processes, "drain", url=place.url, journal=str(place.journal), limit=limit) as actors:
        for actor in actors:
            actor.expect("ready")
        for actor in actors:
            actor.tell()
        for actor in actors:
            actor.finish()

    records = read_journal(place.journal)
    grants = Counter(record.job for record in records if record.op == "grant")
    assert sorted(grants) == sorted(ids)
    assert set(grants.values()) == {1}
    [count] = place.store.do(CountJobs())
    assert (count.state, count.jobs) == ("succeeded", jobs)
    busy = {record.worker for record in records}
    print(f"{len(busy)} of {processes} processes took part in {jobs} jobs")
    assert len(busy) > 1


def test_a_hundred_clients_with_one_key_make_one_job_and_all_get_its_id(place: Place) -> None:
    processes = scaled(4, 20)

    with crew(processes, "storm", url=place.url, key="the one", threads=100 // processes) as actors:
        for actor in actors:
            actor.expect("ready")
        for actor in actors:
            actor.tell()
        answers = [answer for actor in actors for answer in json.loads(actor.listen())]

    assert len(answers) == 100
    assert len({job_id for job_id, _ in answers}) == 1
    assert [duplicate for _, duplicate in answers].count(False) == 1
    [job] = place.store.do(ListJobs()).items
    assert job.id == answers[0][0]


@pytest.mark.parametrize("is_taken", [False, True], ids=["queued again", "held by another worker"])
def test_a_worker_stopped_past_its_lease_and_resumed_can_change_nothing(place: Place, is_taken: bool) -> None:
    lease = 0.5
    [job_id] = fill(place.store, 1)
    with crew(1, "zombie", url=place.url, lease_seconds=lease) as [actor]:
        held, token = json.loads(actor.listen())
        assert held == job_id
        os.kill(actor.pid, signal.SIGSTOP)
        actor.tell()  # it will act on this the moment it wakes
        wait_until_expired(place, job_id)
        if is_taken:
            [grant] = place.store.do(Claim(WorkerId("heir"), ["default"], lease_seconds=600))
            assert (grant.id, grant.token) == (job_id, token + 1)
        before = place.store.do(GetJobs([job_id]))

        os.kill(actor.pid, signal.SIGCONT)
        answers = json.loads(actor.listen())
        actor.finish()

    assert answers == dict.fromkeys(answers, True), "each of these must be told that the lease is lost"
    assert len(answers) == 11
    assert place.store.do(GetJobs([job_id])) == before
    assert place.store.do(ListEvents(job_id=job_id, kinds=["log"])) == []
    assert place.store.do(ListEffects(job_id=job_id)).items == []
    assert [job.id for job in place.store.do(ListJobs()).items] == [job_id]


def wait_until_expired(place: Place, job_id: JobId) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        [job] = place.store.do(ListJobs()).items
        assert job.id == job_id
        assert job.lease_until is not None
        if place.store.now() > job.lease_until:
            return
        time.sleep(0.01)
    raise AssertionError("the store's clock does not move")


def test_clients_killed_at_any_moment_lose_nothing_that_was_acknowledged(place: Place) -> None:
    kills = scaled(20, 200)
    seed = random.randrange(10**9)
    dice = random.Random(seed)
    print(f"seed {seed}")

    with (
        crew(1, "nursery", url=place.url, journal=str(place.journal)) as [nursery],
        crew(1, "churn", url=place.url, journal=str(place.journal)) as [bystander],
    ):
        for _ in range(kills):
            kill_one(nursery, dice)
            bystander.listen()
        bystander.finish()

    finish_all(place.store, "churn")
    records = read_journal(place.journal)
    acknowledged = {record.job for record in records if record.op == "enqueue" and record.type == "ok"}
    print(f"{kills} kills, {len(acknowledged)} acknowledged jobs")
    assert check(without_repeated_grants(records), snapshot(place.store)) == []
    if place.engine == "sqlite":
        with sqlite3.connect(place.path) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.close()


def kill_one(nursery: Actor, dice: random.Random) -> None:
    nursery.tell("fork")
    word, pid = nursery.listen().split()
    assert word == "child"
    for _ in range(dice.randrange(4)):
        nursery.expect(".")
    moment = time.perf_counter() + dice.random() * 0.02
    while time.perf_counter() < moment:
        pass
    os.kill(int(pid), signal.SIGKILL)
    while nursery.listen() != "gone":
        pass


@pytest.mark.postgres
def test_a_server_stopped_at_once_under_load_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    server = PostgresServer(wheel_bin_path(18))
    try:
        server.start()
        with migrated_database(server, has_grace=False) as url:
            store = open_store(url)
            make_queues(store)
            store.close()
            with crew(scaled(2, 6), "churn", url=url, journal=str(journal), lease_seconds=5.0) as actors:
                for turn in range(scaled(2, 10)):
                    for actor in actors:
                        for _ in range(3):
                            actor.listen()
                    server.restart("immediate" if turn % 2 == 0 else "kill")
                for actor in actors:
                    actor.listen()
                    actor.finish()
            store = open_store(url)
            finish_all(store, "churn")
            assert check(without_repeated_grants(read_journal(journal)), snapshot(store)) == []
            assert store.do(Reap()) == []
            store.close()
    finally:
        server.close()


def without_repeated_grants(records: list[Record]) -> list[Record]:
    """A client whose claim lost its reply is handed the same grant again, and writes it down once more."""
    seen: set[tuple[str, str, int]] = set()
    kept = []
    for record in records:
        if record.op == "grant":
            grant = (record.worker, record.job, record.token)
            if grant in seen:
                continue
            seen.add(grant)
        kept.append(record)
    return kept
