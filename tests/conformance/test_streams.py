"""Streams: every chunk once and in order, whoever reads, whatever dies; bounded, fenced, gone with the job."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from tenure.errors import InvalidArgument
from tenure.model.ids import JobId, new_job_id
from tenure.model.job import Grant
from tenure.model.stream import CHUNK_BYTES, CHUNK_COST, JOB_BYTES, STREAMS_MAX, Chunk, NewChunk, StreamInfo
from tenure.store.contract import Prune
from tenure.store.streams import Appended, AppendStreams, ListStreams, ReadStream
from tests.conformance.acts import (
    NO_BACKOFF,
    Subject,
    cancel,
    claim_one,
    complete,
    enqueue,
    fail,
    make_queue,
    reap,
)
from tests.conformance.engines import SteeredClock

DOORS = ("do", "ado")
READERS = 100
ATTEMPTS = 5
PARTS = 12


def held(store: Subject) -> Grant:
    enqueue(store)
    return claim_one(store)


def write(store: Subject, grant: Grant, *texts: str, name: str = "output", part: int = 1) -> Appended:
    chunks = [NewChunk(grant.id, grant.token, name, part + nth, text) for nth, text in enumerate(texts)]
    return store.do(AppendStreams(chunks))


def read(store: Subject, job_id: JobId, name: str = "output", after: int = 0) -> list[Chunk]:
    page = store.do(ReadStream(job_id, name, after))
    assert page is not None
    return page.chunks


def is_ended(store: Subject, job_id: JobId, after: int = 0) -> bool:
    page = store.do(ReadStream(job_id, "output", after))
    assert page is not None
    return page.is_ended


def test_chunks_are_numbered_in_each_stream_and_read_behind_an_offset(store: Subject, clock: SteeredClock) -> None:
    grant = held(store)

    assert write(store, grant, "Hel", "lo\n") == Appended()
    clock.advance(1)
    assert write(store, grant, "é", name="thoughts") == Appended()

    first, second = read(store, grant.id)
    assert (first.offset, first.kind, first.text, first.token) == (1, "text", "Hel", grant.token)
    assert second == Chunk(2, "text", "lo\n", grant.token, first.at)
    assert read(store, grant.id, after=1) == [second]
    assert read(store, grant.id, "thoughts") == [Chunk(1, "text", "é", grant.token, clock.now())]
    assert read(store, grant.id, "nothing") == []
    assert store.do(ListStreams(grant.id)) == [
        StreamInfo("output", 2, 6 + 2 * CHUNK_COST, False),
        StreamInfo("thoughts", 1, 2 + CHUNK_COST, False),
    ]


def test_a_repeated_request_adds_nothing(store: Subject) -> None:
    grant = held(store)
    write(store, grant, "a", "b")

    write(store, grant, "a", "b")
    write(store, grant, "b", "c", part=2)

    assert [chunk.text for chunk in read(store, grant.id)] == ["a", "b", "c"]


def test_a_grant_that_lost_its_lease_writes_nothing_and_stops_no_other(store: Subject, clock: SteeredClock) -> None:
    stale, fresh = held(store), held(store)
    clock.advance(stale_after := 61)
    assert stale_after > 60
    reap(store)
    again = claim_one(store)
    other = claim_one(store)
    by_id = {again.id: again, other.id: other}
    chunks = [
        NewChunk(stale.id, stale.token, "output", 1, "late"),
        NewChunk(fresh.id, by_id[fresh.id].token, "output", 1, "in time"),
        NewChunk(new_job_id(), fresh.token, "output", 1, "of no job"),
    ]

    answer = store.do(AppendStreams(chunks))

    assert set(answer.lost) == {stale.id, chunks[2].job_id}
    assert read(store, stale.id) == []
    assert [chunk.text for chunk in read(store, fresh.id)] == ["in time"]


def test_a_new_attempt_resets_every_stream_of_the_job(store: Subject) -> None:
    make_queue(store, "default", backoff=NO_BACKOFF)
    grant = held(store)
    write(store, grant, "one")
    write(store, grant, "two", name="other")
    fail(store, grant, "broken")
    again = claim_one(store)
    assert len(read(store, grant.id)) == 1, "the reset comes with the first chunk of the new attempt"

    write(store, again, "three")

    assert [(one.offset, one.kind, one.text, one.token) for one in read(store, grant.id)] == [
        (1, "text", "one", grant.token),
        (2, "reset", "", again.token),
        (3, "text", "three", again.token),
    ]
    assert [one.kind for one in read(store, grant.id, "other")] == ["text", "reset"]


@pytest.mark.parametrize("how", ["complete", "fail", "cancel", "dies"])
def test_the_end_of_the_job_is_the_end_of_its_streams(store: Subject, clock: SteeredClock, how: str) -> None:
    job_id = enqueue(store, max_attempts=1)
    assert not is_ended(store, job_id)
    grant = claim_one(store)
    write(store, grant, "a")
    assert not is_ended(store, job_id)

    if how == "complete":
        complete(store, grant)
    elif how == "fail":
        fail(store, grant, "broken")
    elif how == "cancel":
        cancel(store, job_id)
        complete(store, grant)
    else:
        clock.advance(3600)
        reap(store)

    assert is_ended(store, job_id)
    assert is_ended(store, job_id, after=1)
    assert write(store, grant, "b", part=2).lost == (job_id,)
    assert store.do(ReadStream(new_job_id(), "output")) is None


def test_a_job_that_gives_out_too_much_is_cut_with_a_marker(store: Subject) -> None:
    make_queue(store, "default", backoff=NO_BACKOFF)
    grant = held(store)
    size = CHUNK_BYTES + CHUNK_COST
    fitting = JOB_BYTES // size
    answers = [write(store, grant, "x" * CHUNK_BYTES, part=nth + 1) for nth in range(fitting)]
    assert answers == [Appended()] * fitting

    answer = write(store, grant, "x" * CHUNK_BYTES, "y", part=fitting + 1)

    assert answer.full == (grant.id,)
    assert write(store, grant, "z", name="other").full == ()
    last = read(store, grant.id, after=fitting)
    assert [(chunk.offset, chunk.kind, chunk.text) for chunk in last] == [(fitting + 1, "truncated", "")]
    [output, _] = sorted(store.do(ListStreams(grant.id)), key=lambda one: one.name != "output")
    assert output.is_full
    assert output.bytes <= JOB_BYTES

    # The next attempt finds more than half used up: what the first one wrote goes, and it has room.
    fail(store, grant, "broken")
    again = claim_one(store)
    assert write(store, again, "anew") == Appended()
    assert [(chunk.kind, chunk.text) for chunk in read(store, grant.id)] == [("reset", ""), ("text", "anew")]
    assert read(store, grant.id)[0].offset == fitting + 2, "offsets go on"


def test_a_page_is_bounded_in_bytes_and_says_that_there_is_more(store: Subject) -> None:
    grant = held(store)
    write(store, grant, *["x" * CHUNK_BYTES] * 10)
    complete(store, grant)

    page = store.do(ReadStream(grant.id, "output"))
    assert page is not None
    assert len(page.chunks) == 5
    assert not page.is_ended
    rest = store.do(ReadStream(grant.id, "output", after=5))
    assert rest is not None
    assert [chunk.offset for chunk in rest.chunks] == [6, 7, 8, 9, 10]
    assert rest.is_ended
    two = store.do(ReadStream(grant.id, "output", limit=2))
    assert two is not None
    assert (len(two.chunks), two.is_ended) == (2, False)


def test_a_job_has_so_many_streams_and_no_more(store: Subject) -> None:
    grant = held(store)
    chunks = [NewChunk(grant.id, grant.token, f"s{nth}", 1, "x") for nth in range(STREAMS_MAX)]
    assert store.do(AppendStreams(chunks)) == Appended()

    assert write(store, grant, "x", name="one more").full == (grant.id,)

    assert len(store.do(ListStreams(grant.id))) == STREAMS_MAX


@pytest.mark.parametrize(
    "chunk",
    [{"name": " "}, {"name": "a\nb"}, {"name": "n" * 256}, {"part": 0}, {"text": "a\0b"}, {"text": "é" * CHUNK_BYTES}],
)
def test_what_no_stream_takes_is_refused_and_nothing_is_written(store: Subject, chunk: dict[str, object]) -> None:
    grant = held(store)
    good = NewChunk(grant.id, grant.token, "output", 1, "x")
    bad = NewChunk(**({"job_id": grant.id, "token": grant.token, "name": "a", "part": 1, "text": "x"} | chunk))  # type: ignore[arg-type]

    with pytest.raises(InvalidArgument):
        store.do(AppendStreams([good, bad]))

    assert store.do(ListStreams(grant.id)) == []


def test_streams_go_with_what_the_job_held_by_pages(store: Subject, clock: SteeredClock) -> None:
    grant = held(store)
    write(store, grant, *"abcde")
    complete(store, grant)
    other = held(store)
    write(store, other, "kept")
    clock.advance(8 * 86_400)

    first = store.do(Prune(limit=3))
    assert (first.cleaned, first.more) == (1, True)
    assert read(store, grant.id) == [], "at once, for readers"
    assert is_ended(store, grant.id)
    assert store.do(ListStreams(grant.id)) == []
    while store.do(Prune(limit=3)).more:
        pass

    assert not store.do(Prune(limit=3, delete_after_seconds=0)).more
    assert store.do(ReadStream(grant.id, "output")) is None
    assert [chunk.text for chunk in read(store, other.id)] == ["kept"]


def test_a_hundred_readers_that_come_and_go_see_every_chunk_once_over_five_attempts(store: Subject) -> None:
    """Each reader drops its connection when it likes and goes on from the last offset that it saw."""
    make_queue(store, "default", backoff=NO_BACKOFF)
    job_id = enqueue(store, max_attempts=ATTEMPTS)

    def produce() -> list[int]:
        tokens: list[int] = []
        for attempt in range(1, ATTEMPTS + 1):
            grant = claim_one(store)
            tokens.append(grant.token)
            for part in range(1, PARTS + 1):
                write(store, grant, f"{attempt}.{part} ", part=part)
                if part % 5 == 0:
                    write(store, grant, f"{attempt}.{part} ", part=part)  # as after a lost reply
            if attempt < ATTEMPTS:
                fail(store, grant, "broken")
            else:
                complete(store, grant)
        return tokens

    def consume(seed: int) -> list[Chunk]:
        random, seen, after = Random(seed), [], 0
        while True:
            page = store.store.do(ReadStream(job_id, "output", after, random.randint(1, 7)))
            assert page is not None
            kept = page.chunks[: random.randint(0, len(page.chunks))]  # the connection dropped before the rest came
            seen += kept
            after = kept[-1].offset if kept else after
            if page.is_ended and len(kept) == len(page.chunks):
                return seen

    with ThreadPoolExecutor(READERS) as pool:
        readers = [pool.submit(consume, seed) for seed in range(READERS)]
        tokens = produce()
        seen = [reader.result(timeout=120) for reader in readers]

    expected = [
        (kind, text, token)
        for attempt, token in enumerate(tokens, 1)
        for kind, text in [
            *([("reset", "")] if attempt > 1 else []),
            *[("text", f"{attempt}.{part} ") for part in range(1, PARTS + 1)],
        ]
    ]
    for chunks in seen:
        assert [chunk.offset for chunk in chunks] == list(range(1, len(expected) + 1))
        assert [(chunk.kind, chunk.text, chunk.token) for chunk in chunks] == expected
