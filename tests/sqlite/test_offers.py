"""Offers: only a worker that is there is handed a job, and the pipe in which its offer stands."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from tenure.model.clock import ManualClock, steady_now
from tenure.store.contract import Claim
from tenure.store.queries import ListAttempts
from tenure.store.sqlite import armed as arming
from tenure.store.sqlite import offers
from tenure.store.sqlite.armed import ArmedClaim
from tenure.store.sqlite.sockets import Mailbox, Postman
from tenure.store.sqlite.store import SqliteStore
from tests.sqlite.bed import WORKER, in_fork, put
from tests.sqlite.forked import put_as_before
from tests.sqlite.lines import LOOK, Line, pipes, run, sockets, stands
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("only_datagrams", "looked")


# --- a worker that is not there
# ---------------------------------------------------------------------------------------------------------


def test_an_offer_that_is_too_old_is_not_good(store: SqliteStore, path: Path) -> None:
    def two_seconds_later() -> None:
        now = steady_now() + offers.FRESH_SECONDS
        pytest.MonkeyPatch().setattr(offers, "steady_now", lambda: now)  # in a child, which ends with it

    async def work(line: Line) -> None:
        armed = line.arm()

        job_id = in_fork(lambda: put_as_before(store, before=two_seconds_later))

        assert line.state(job_id) == "queued"
        await line.woken()
        (grant,) = (await armed.answer()).grants
        assert (grant.id, grant.token) == (job_id, 1), "the worker is there after all, and asks"

    run(store, path, work)


def test_an_offer_from_the_future_is_not_good(store: SqliteStore, path: Path) -> None:
    def a_second_before() -> None:
        now = steady_now() - 1
        pytest.MonkeyPatch().setattr(offers, "steady_now", lambda: now)  # in a child, which ends with it

    async def work(line: Line) -> None:
        line.arm()

        assert line.state(in_fork(lambda: put_as_before(store, before=a_second_before))) == "queued"

    run(store, path, work)


def test_a_worker_that_comes_late_to_the_word_asks_what_still_holds(
    store: SqliteStore, path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(line: Line) -> None:
        armed = line.arm()
        job_id = in_fork(lambda: put_as_before(store))
        late = steady_now() + 3600  # it was stopped for so long
        monkeypatch.setattr(arming, "steady_now", lambda: late)
        clock.advance(3600)
        await line.woken()

        exchanged = await armed.answer()

        assert not exchanged.is_handed_over
        assert [(grant.id, grant.token) for grant in exchanged.grants] == [(job_id, 2)], "the lease had run out"

    run(store, path, work)


def test_a_worker_whose_buffer_is_full_is_not_left_with_the_job(store: SqliteStore, path: Path) -> None:
    async def work(line: Line) -> None:
        armed = line.arm()
        postman = Postman(path)
        (name,) = sockets(path)
        while postman.deliver(name, b"s"):
            pass

        job_id = in_fork(lambda: put_as_before(store))

        found = line.job(job_id)
        assert (found.state, found.token, found.attempt, found.lease_owner) == ("queued", 1, 0, None)
        (attempt,) = store.do(ListAttempts(job_id))
        assert attempt.outcome == "released"
        assert not armed.disarm()
        assert [(grant.id, grant.token) for grant in (await armed.answer()).grants] == [(job_id, 2)]
        postman.close()

    run(store, path, work)


def test_what_a_worker_has_asked_for_meanwhile_is_not_given_back(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    async def work(line: Line) -> None:
        armed, database = line.arm(), store._database
        job_id = in_fork(lambda: put_as_before(store))
        await line.woken()
        (grant,) = (await armed.answer()).grants
        granted_at = clock.now_us()
        clock.advance(0.001)
        store.do(replace(LOOK, claim=Claim(WORKER, ["default"], limit=10, held=())))

        connection = database.writer.handle.ready()
        database.handover._give_back(connection, database.writer.handle.known, grant, granted_at)

        assert (line.state(job_id), line.job(job_id).attempt) == ("running", 1)

    run(store, path, work)


# --- the pipe
# ---------------------------------------------------------------------------------------------------------


def test_an_offer_is_made_anew_before_it_is_too_old(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arming, "RENEW_SECONDS", 0.001)

    async def work(line: Line) -> None:
        armed = line.arm()
        assert isinstance(armed, ArmedClaim)
        first = armed.nonce
        await until(lambda: armed.nonce != first)

        assert stands(armed)
        assert armed.disarm()
        assert line.told == []

    run(store, path, work)


def test_no_offer_is_made_once_too_much_of_the_lease_would_have_passed(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arming, "RENEW_SECONDS", 0.001)

    async def work(line: Line) -> None:
        armed = line.arm()
        later = steady_now() + 60.0 / offers.LEASE_SHARE
        monkeypatch.setattr(arming, "steady_now", lambda: later)
        await until(lambda: not stands(armed))

        assert armed.disarm()

    run(store, path, work)


def test_arming_again_withdraws_what_was_offered_before(store: SqliteStore, path: Path) -> None:
    async def work(line: Line) -> None:
        first, second = line.arm(), line.arm()

        assert (stands(first), stands(second)) == (False, True)
        assert first.disarm()
        assert second.disarm()

    run(store, path, work)


def test_the_pipe_is_made_once_and_goes_with_the_subscription(store: SqliteStore, path: Path) -> None:
    async def work(line: Line) -> None:
        for _ in range(3):
            line.arm().disarm()
        (pipe,) = pipes(path)

        assert pipe.is_fifo()
        assert pipe.stat().st_mode & 0o777 == 0o600

    run(store, path, work)

    assert pipes(path) == []


def test_the_pipe_goes_with_the_store(store: SqliteStore, path: Path) -> None:
    async def work(line: Line) -> None:
        armed = line.arm()
        await store.aclose()

        assert pipes(path) == []
        assert armed.disarm()

    run(store, path, work)


def test_a_forked_child_keeps_no_pipe_open(store: SqliteStore, path: Path) -> None:
    def held() -> list[str]:
        return [
            found for each in Path("/proc/self/fd").iterdir() if (found := os.path.realpath(each)).endswith(".offer")
        ]

    async def work(line: Line) -> None:
        line.arm()

        assert len(held()) == 1
        assert in_fork(held) == []
        assert len(pipes(path)) == 1

    run(store, path, work)


def test_the_pipe_of_a_dead_worker_is_removed_and_its_offer_not_good(store: SqliteStore, path: Path) -> None:
    mailbox = Mailbox(path)
    assert mailbox.path is not None
    offering = offers.Offering(mailbox.path, "default")
    offering.make(Claim(WORKER, ("default",)))
    postman = Postman(path)
    found = offers.Offers(postman)
    assert postman.has_mailboxes()
    name = found.standing("default")
    assert name is not None
    offering.forget()  # as if killed
    mailbox.forget()

    taken = found.take(name, "default")

    assert taken is not None
    assert not taken.is_good
    assert pipes(path) == []
    found.close()
    postman.close()


def test_whoever_removes_a_dead_workers_socket_removes_its_pipes(store: SqliteStore, path: Path) -> None:
    mailbox = Mailbox(path)
    assert mailbox.path is not None
    offering = offers.Offering(mailbox.path, "default")
    offering.forget()
    mailbox.forget()

    job_id = put(store)

    assert sockets(path) == []
    assert pipes(path) == []
    assert store.do(LOOK).grants[0].id == job_id


@pytest.mark.parametrize("plant", ["a link to a pipe", "a link to a file", "a file", "a pipe that others may read"])
def test_what_somebody_else_has_put_there_is_left_alone(
    store: SqliteStore, path: Path, tmp_path: Path, plant: str
) -> None:
    mailbox = Mailbox(path)
    assert mailbox.path is not None
    offering = offers.Offering(mailbox.path, "default")
    offering.make(Claim(WORKER, ("default",)))
    (real,) = pipes(path)
    elsewhere = tmp_path / "elsewhere"
    real.rename(elsewhere)
    if plant == "a link to a pipe":
        real.symlink_to(elsewhere)
    elif plant == "a link to a file":
        (tmp_path / "file").write_text("precious")
        real.symlink_to(tmp_path / "file")
    elif plant == "a file":
        real.write_text("precious")
    else:
        elsewhere.rename(real)
        real.chmod(0o644)

    put(store)
    job_id = put(store)

    assert store.do(LOOK).grants[1].id == job_id
    assert real.exists()
    assert offering.withdraw(), "nobody has taken what stands there"
    offering.forget()
    mailbox.close()


def test_without_workers_an_enqueue_does_not_look_for_offers(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store)
    monkeypatch.setattr(offers.Offers, "standing", None)

    put(store)


def test_a_socket_of_another_kind_of_process_needs_no_pipe(store: SqliteStore, path: Path) -> None:
    """A process of an older version listens, and makes no offers."""
    mailbox = Mailbox(path)
    put(store)
    put(store)

    assert isinstance(mailbox.socket, socket.socket)
    assert b"qdefault" in mailbox.receive()
    mailbox.close()
