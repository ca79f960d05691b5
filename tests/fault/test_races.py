"""Two clients act on one job at once, staged with barriers: both get a true answer and the job ends once."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from tenure.errors import IllegalMove
from tenure.model.ids import JobId, WorkerId, new_job_id
from tenure.model.job import Grant, Job, NewJob
from tenure.model.outcome import Completed, Settled
from tenure.model.policy import QueuePolicy
from tenure.model.state import State
from tenure.store.admin import AcquireLease, ReleaseLease, SetQueues
from tenure.store.contract import (
    Cancel,
    Cancelled,
    Claim,
    EditJob,
    Enqueue,
    Heartbeat,
    Hold,
    Prune,
    Reap,
    Revive,
    Settle,
    Store,
)
from tenure.store.queries import GetJobs, ListAttempts
from tests.conformance.engines import open_store
from tests.fault.conftest import Place
from tests.fault.scale import TIMEOUT, scaled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT)]

T = TypeVar("T")
S = TypeVar("S")


@pytest.fixture
def rival(place: Place) -> Iterator[Store]:
    """A second store on the same database, with connections of its own."""
    store = open_store(place.url)
    yield store
    store.close()


def fill(store: Store, count: int, queue: str = "quick") -> list[JobId]:
    return [
        answer.id
        for answer in store.do(Enqueue([NewJob(id=new_job_id(), kind="work", queue=queue) for _ in range(count)]))
    ]


def both(left: Callable[[], T], right: Callable[[], S]) -> tuple[T, S]:
    """Run both at the same moment."""
    gate = threading.Barrier(2)
    with ThreadPoolExecutor(2, initializer=gate.wait) as pool:  # the gate opens when both threads are there
        one, two = pool.submit(left), pool.submit(right)
        return one.result(), two.result()


def read(store: Store, job_id: JobId) -> Job:
    [job] = store.do(GetJobs([job_id]))
    assert job is not None
    return job


def test_reap_against_complete(place: Place, rival: Store) -> None:
    """The lease runs out while the worker completes: it succeeded, or it was taken back and the worker is told."""
    dice = random.Random(random.randrange(10**9))
    rounds = scaled(25, 500)
    won = 0
    for _ in range(rounds):
        [job_id] = fill(place.store, 1)
        [grant] = place.store.do(Claim(WorkerId("w1"), ["quick"], lease_seconds=0.03))
        offset = dice.uniform(-0.004, 0.004)

        settled, reaped = both(
            lambda: complete_at(place.store, grant, offset),  # noqa: B023 - called before the loop goes on
            lambda: reap_until(rival, grant),  # noqa: B023
        )

        job = read(place.store, job_id)
        if settled.lost:
            assert [one.job_id for one in reaped] == [job_id]
            # Its worker held nothing else, so the crash is its own: the attempt stays spent.
            assert (job.state, job.attempt, job.crashes, job.suspicion) == (State.QUEUED, 1, 1, 1)
            assert [attempt.outcome for attempt in place.store.do(ListAttempts(job_id))] == ["expired"]
            place.store.do(Cancel([job_id], "test", "done with it"))
        else:
            won += 1
            assert reaped == []
            assert (settled.state, job.state, job.crashes) == ("succeeded", State.SUCCEEDED, 0)
            assert place.store.do(ListAttempts(job_id)) == []
    print(f"the worker won {won} of {rounds}")


def complete_at(store: Store, grant: Grant, offset: float) -> Settled:
    """Complete close to the end of the lease."""
    while (grant.lease_until - store.now()).total_seconds() > offset:
        pass
    [settled] = store.do(Settle([Completed(grant.id, grant.token)]))
    return settled


def reap_until(store: Store, grant: Grant) -> list[Settled]:
    """Reap without rest until the lease is surely over or the job has ended."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        is_over = store.now() > grant.lease_until
        reaped = store.do(Reap())
        if reaped or is_over:
            return reaped
    raise AssertionError("the lease never ran out")


def test_cancel_against_start(place: Place, rival: Store) -> None:
    """After `cancelled` a job never starts; after `requested` it never succeeds."""
    ids = fill(place.store, scaled(150, 3000))

    grants, answers = both(lambda: claim_singly(place.store, len(ids)), lambda: cancel_singly(rival, ids))

    granted = {grant.id: grant for grant in grants}
    for answer in answers:
        if answer.answer == "cancelled":
            assert answer.job_id not in granted
        else:
            assert answer.answer == "requested"
            grant = granted[answer.job_id]
            [settled] = place.store.do(Settle([Completed(grant.id, grant.token)]))
            assert settled.state == "cancelled"
        assert read(place.store, answer.job_id).state is State.CANCELLED
    print(f"{len(grants)} started, {len(ids) - len(grants)} cancelled before")


def test_cancel_against_finish(place: Place, rival: Store) -> None:
    """Either the job had succeeded, and the cancel is refused, or the cancel was in time, and the job is cancelled."""
    ids = fill(place.store, scaled(150, 3000))
    grants: list[Grant] = []
    while len(grants) < len(ids):
        grants += place.store.do(Claim(WorkerId("w1"), ["quick"], limit=1000, lease_seconds=600))

    settled, answers = both(lambda: complete_singly(place.store, grants), lambda: cancel_singly(rival, ids))

    told = {one.job_id: one.state for one in settled}
    for answer in answers:
        state = read(place.store, answer.job_id).state
        assert state.value == told[answer.job_id]
        expected = {"refused": State.SUCCEEDED, "requested": State.CANCELLED}
        assert state is expected[answer.answer]
    print(f"{[answer.answer for answer in answers].count('requested')} of {len(ids)} cancelled in time")


def claim_singly(store: Store, count: int) -> list[Grant]:
    grants: list[Grant] = []
    for _ in range(count):
        grants += store.do(Claim(WorkerId("w1"), ["quick"], limit=1, lease_seconds=600))
    return grants


def cancel_singly(store: Store, ids: list[JobId]) -> list[Cancelled]:
    # From the far end, so that the two meet in the middle.
    return [answer for job_id in reversed(ids) for answer in store.do(Cancel([job_id], "ops", "race"))]


def complete_singly(store: Store, grants: list[Grant]) -> list[Settled]:
    return [one for grant in grants for one in store.do(Settle([Completed(grant.id, grant.token)]))]


def test_edit_against_claim(place: Place, rival: Store) -> None:
    """A job is edited and then claimed with its new payload, or claimed with its old one and the editor is told."""
    ids = fill(place.store, scaled(150, 3000))

    edited, grants = both(lambda: edit_singly(place.store, ids), lambda: claim_singly(rival, len(ids)))

    grants += claim_singly(rival, len(ids) - len(grants))  # a row that is being edited is passed over

    assert len(grants) == len(ids)
    for grant in grants:
        assert grant.payload == ({"mended": 1} if grant.id in edited else {})
        assert read(place.store, grant.id).payload == grant.payload
    print(f"{len(edited)} of {len(ids)} edited before they were claimed")


def edit_singly(store: Store, ids: list[JobId]) -> set[JobId]:
    # From the far end, so that the two meet in the middle.
    edited = set()
    for job_id in reversed(ids):
        with contextlib.suppress(IllegalMove):
            store.do(EditJob(job_id, "ops", "race", '{"mended": 1}'))
            edited.add(job_id)
    return edited


def test_revive_against_prune(place: Place, rival: Store) -> None:
    """A job is revived with its payload, or pruned and stays ended: never revived empty, never pruned alive."""
    ids = fill(place.store, scaled(150, 3000))
    place.store.do(Cancel(ids, "ops", "to be revived"))

    revived, _ = both(
        lambda: [one for job_id in reversed(ids) for one in place.store.do(Revive([job_id], "ops", "race"))],
        lambda: prune_all(rival, len(ids)),
    )

    count = 0
    for one in revived:
        job = read(place.store, one.job_id)
        if one.state is None:
            assert (job.state, job.payload) == (State.CANCELLED, None)
            assert job.cleaned_at is not None
        else:
            count += 1
            assert (job.state, job.payload, job.cleaned_at) == (State.QUEUED, {}, None)
    print(f"{count} of {len(ids)} revived, the rest pruned")


def prune_all(store: Store, count: int) -> None:
    for _ in range(count):
        store.do(Prune(limit=1, older_than_seconds=0))


def test_the_limit_of_a_queue_holds_against_claimers_at_once(place: Place) -> None:
    place.store.do(
        SetQueues({"narrow": QueuePolicy(concurrency=3), "keyed": QueuePolicy(concurrency_per_key=1)}, actor="test")
    )
    jobs = [NewJob(id=new_job_id(), kind="work", queue="narrow") for _ in range(60)]
    jobs += [NewJob(id=new_job_id(), kind="work", queue="keyed", concurrency_key=f"k{n % 4}") for n in range(60)]
    place.store.do(Enqueue(jobs))
    stores = [open_store(place.url) for _ in range(6)]
    watch = Watch()

    def work(number: int) -> None:
        for _ in range(scaled(15, 150)):
            for queue in ("narrow", "keyed"):
                grants = stores[number].do(Claim(WorkerId(f"w{number}"), [queue], limit=2, lease_seconds=600))
                watch.entered(grants)
                watch.left(grants)
                stores[number].do(Settle([Completed(grant.id, grant.token) for grant in grants]))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    for store in stores:
        store.close()

    assert watch.most["narrow"] <= 3
    assert all(count <= 1 for name, count in watch.most.items() if name != "narrow")
    assert watch.most["narrow"] > 1


class Watch:
    """Counts who is inside between grant and settle, per limit. It never sees more than there are."""

    def __init__(self) -> None:
        self.most: dict[str, int] = {}
        self._inside: dict[str, int] = {}
        self._lock = threading.Lock()

    def entered(self, grants: list[Grant]) -> None:
        self._count(grants, 1)

    def left(self, grants: list[Grant]) -> None:
        self._count(grants, -1)

    def _count(self, grants: list[Grant], step: int) -> None:
        with self._lock:
            for grant in grants:
                name = grant.extra("concurrency_key") or grant.queue
                self._inside[name] = self._inside.get(name, 0) + step
                self.most[name] = max(self.most.get(name, 0), self._inside[name])


def test_of_many_who_want_to_lead_one_does_and_every_change_is_a_new_term(place: Place) -> None:
    stores = [open_store(place.url) for _ in range(6)]
    leaders: list[tuple[int, str]] = []
    wanted = scaled(5, 50)

    def campaign(number: int) -> None:
        """Lead a few times; each time give the lead back at once."""
        led = 0
        deadline = time.monotonic() + 60
        while led < wanted and time.monotonic() < deadline:
            lease = stores[number].do(AcquireLease("leader", f"w{number}", seconds=30))
            if lease.acquired:
                led += 1
                leaders.append((lease.term, lease.owner))
                assert stores[number].do(ReleaseLease("leader", lease.owner, lease.term))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(campaign, range(6)))
    for store in stores:
        store.close()

    # The term rises with every change of owner, and only then: a winner may win again in its own term.
    assert len(leaders) == 6 * wanted
    for term in {term for term, _ in leaders}:
        assert len({owner for at, owner in leaders if at == term}) == 1
    assert len({term for term, _ in leaders}) >= 6


def test_heartbeat_against_complete(place: Place, rival: Store) -> None:
    """A worker's own heartbeat, on another connection, never costs it the job that it completes at that moment."""
    ids = fill(place.store, scaled(150, 3000))
    grants: list[Grant] = []
    while len(grants) < len(ids):
        grants += place.store.do(Claim(WorkerId("w1"), ["quick"], limit=1000, lease_seconds=600))
    ended = threading.Event()

    def beat() -> int:
        turns = 0
        while not ended.is_set():
            rival.do(Heartbeat([Hold(grant.id, grant.token) for grant in grants[-100:]], lease_seconds=600))
            turns += 1
        return turns

    def finish() -> list[Settled]:
        try:
            return complete_singly(place.store, grants)
        finally:
            ended.set()

    settled, turns = both(finish, beat)

    assert {one.state for one in settled} == {"succeeded"}
    assert turns > 0


def test_two_heartbeats_and_a_request_to_stop_lose_no_lease(place: Place, rival: Store) -> None:
    """Writes to the same rows at once wait for each other; none of them is told that the lease is lost."""
    ids = fill(place.store, 50)
    grants = place.store.do(Claim(WorkerId("w1"), ["quick"], limit=50, lease_seconds=600))
    holds = [Hold(grant.id, grant.token) for grant in grants]
    rounds = scaled(20, 300)

    one, two = both(
        lambda: [place.store.do(Heartbeat(holds, lease_seconds=600)) for _ in range(rounds)],
        lambda: [
            (rival.do(Heartbeat(holds[::-1], lease_seconds=600)), rival.do(Cancel([ids[n % 50]], "ops", "race")))
            for n in range(rounds)
        ],
    )

    assert all(beat.lost == frozenset() for beat in one)
    assert all(beat.lost == frozenset() and answer.answer == "requested" for beat, [answer] in two)
