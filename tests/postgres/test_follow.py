"""Followers of events, where a low number may be committed long after a higher one."""

from __future__ import annotations

import random
from collections.abc import Iterator

import psycopg
import pytest

import tenure
from tenure.observe.follow import Follower
from tenure.store.queries import FollowEvents

pytestmark = pytest.mark.postgres


@pytest.fixture
def app(url: str) -> Iterator[tenure.App]:
    with tenure.App(url) as app:
        app.queues.set("default", events=True)
        yield app


def seen(follower: Follower) -> list[str | None]:
    return [event.job_id for event in follower.poll().events]


def test_an_event_of_a_transaction_that_stays_open_over_many_looks_is_seen_when_it_is_committed(
    app: tenure.App, url: str
) -> None:
    """A follower took an event that was older than two seconds for one without an unseen predecessor, so what a
    transaction wrote that stayed open for longer was never seen."""
    follower = Follower(app.store)
    follower.poll()

    with psycopg.connect(url) as late:
        slow = app.enqueue("slow", connection=late).id  # takes the lowest number
        late.execute("UPDATE tenure.event SET at = at - interval '1 hour' WHERE job_id = %s", [slow])
        quick = []
        for _ in range(3):
            quick.append(app.enqueue("quick").id)
            with psycopg.connect(url) as other:  # time goes by: what is there is an hour old
                other.execute("UPDATE tenure.event SET at = at - interval '1 hour'")
            assert seen(follower) == [quick[-1]]
    after = app.enqueue("after").id

    assert seen(follower) == [slow, after]
    assert seen(follower) == []


def test_a_transaction_that_is_rolled_back_tells_nothing_and_holds_up_nothing(app: tenure.App, url: str) -> None:
    follower = Follower(app.store)
    follower.poll()

    with psycopg.connect(url) as late:
        app.enqueue("never", connection=late)
        one = app.enqueue("one").id
        assert seen(follower) == [one]
        late.rollback()
    two = app.enqueue("two").id

    assert seen(follower) == [two]


def test_what_a_transaction_wrote_is_not_seen_by_a_look_of_its_own(app: tenure.App, url: str) -> None:
    """It would be seen again after the commit."""
    follower = Follower(app.store)
    follower.poll()

    with psycopg.connect(url) as mine:
        job_id = app.enqueue("mine", connection=mine).id
        row = mine.execute("SELECT tenure.follow_events(%s)", [f'{{"place": "{follower.place}"}}']).fetchone()
        assert row is not None
        assert row[0]["events"] == []

    assert seen(follower) == [job_id]


@pytest.mark.parametrize("seed", range(5))
def test_whatever_the_order_of_commits_every_follower_sees_each_event_once(
    app: tenure.App, url: str, seed: int
) -> None:
    """Transactions of one to four events begin, write and end in any order; followers look in pages of any size, and
    go on from where another follower was."""
    chance = random.Random(seed)
    places = [app.store.do(FollowEvents()).place for _ in range(4)]
    found: list[list[str | None]] = [[] for _ in places]
    wrote: list[str | None] = []
    connections = [psycopg.connect(url) for _ in range(5)]
    held: list[list[str | None]] = [[] for _ in connections]

    def look(number: int, limit: int) -> bool:
        answer = app.store.do(FollowEvents(places[number], limit=limit))
        again = app.store.do(FollowEvents(places[number], answer.place))
        assert again.events == answer.events
        assert (again.place, again.more) == (answer.place, False)
        places[number] = answer.place
        found[number] += [event.job_id for event in answer.events]
        return answer.more

    for _ in range(120):
        number = chance.randrange(len(connections))
        match chance.choice(("write", "write", "end", "look", "look")):
            case "write":
                held[number].append(app.enqueue("k", connection=connections[number]).id)
            case "end" if chance.random() < 0.8:
                connections[number].commit()
                wrote += held[number]
                held[number] = []
            case "end":
                connections[number].rollback()
                held[number] = []
            case "look":
                look(chance.randrange(len(places)), chance.choice((1, 2, 3, 50)))
    for connection, left in zip(connections, held, strict=True):
        connection.commit()
        connection.close()
        wrote += left
    for number in range(len(places)):
        while look(number, 2):
            pass

    assert [sorted(one, key=str) for one in found] == [sorted(wrote, key=str)] * len(places)


def test_in_a_database_that_was_restored_on_another_server_old_events_are_not_new(app: tenure.App, url: str) -> None:
    """A dump carries the numbers of transactions that the new server has not begun yet."""
    old = [app.enqueue("old").id for _ in range(3)]
    place = app.store.do(FollowEvents()).place
    with psycopg.connect(url) as restored:
        restored.execute("UPDATE tenure.event SET xid = (xid::text::bigint + 1000 + seq)::text::xid8")
    follower = Follower(app.store)
    follower.poll()
    from_start = app.store.do(FollowEvents(after=0, limit=2))

    for _ in range(3):
        job_id = app.enqueue("new").id
        assert seen(follower) == [job_id]

    rest = app.store.do(FollowEvents(from_start.place))
    assert [event.job_id for event in [*from_start.events, *rest.events]] == old
    assert place != follower.place


def test_a_look_reads_what_is_new_and_not_what_was_written_since_the_oldest_open_transaction(
    app: tenure.App, url: str
) -> None:
    with psycopg.connect(url) as late:
        app.enqueue("slow", connection=late)
        app.enqueue_many([("k", {}) for _ in range(3000)])
        place = app.store.do(FollowEvents()).place
        app.enqueue("one")
        with psycopg.connect(url, autocommit=True) as reader:
            reader.execute("ANALYZE tenure.event")
            before = reads(reader)
            assert len(app.store.do(FollowEvents(place)).events) == 1
            assert reads(reader) - before <= 10


def reads(connection: psycopg.Connection) -> int:
    """Rows of the table of events that all sessions have fetched so far."""
    connection.execute("SELECT pg_stat_force_next_flush()")
    connection.execute("SELECT pg_stat_clear_snapshot()")
    row = connection.execute(
        "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE schemaname = 'tenure' AND relname = 'event'"
    ).fetchone()
    assert row is not None
    return int(row[0])
