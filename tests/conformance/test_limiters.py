"""Limiters: a refusal by a service holds back all jobs that share its key, and nothing else. See store.limits."""

from __future__ import annotations

import math
from datetime import timedelta
from random import Random

import pytest

from tenure.errors import InvalidArgument, NotFound
from tenure.model.ids import JobId, WorkerId
from tenure.model.job import Grant
from tenure.model.limiter import BLOCK_SECONDS_MAX, RATE_MAX, Limiter
from tenure.model.outcome import FailureClass, Released, Settled
from tenure.model.state import State
from tenure.store.contract import Claim, Exchange, Prune
from tenure.store.limits import (
    BlockLimiter,
    ClearLimiter,
    LimitedJobs,
    ListLimited,
    ListLimiters,
    RemoveLimiter,
    SetLimiter,
    UseTokens,
)
from tenure.store.queries import ListAudit
from tests.conformance.acts import (
    Subject,
    attempts,
    cancel,
    claim,
    claim_one,
    complete,
    enqueue,
    enqueue_many,
    fail,
    get,
    make_queue,
    settle,
    suspend,
)
from tests.conformance.engines import SteeredClock

DOORS = ("do", "ado")


def refuse(store: Subject, grant: Grant, seconds: float = 30.0, key: str = "llm") -> Settled:
    """The service said 429."""
    return settle(store, Released(grant.id, grant.token, seconds, FailureClass.RATE_LIMITED, "429 busy", limiter=key))


def limiter(store: Subject, key: str = "llm") -> Limiter:
    [found] = store.do(ListLimiters((key,)))
    return found


def due_in(store: Subject, limit: int = 10) -> float | None:
    return store.do(Exchange((), Claim(WorkerId("w1"), ["default"], limit))).due_in_seconds


# --- blocks -----------------------------------------------------------------------------------------------------------


def test_one_refusal_holds_back_every_job_of_the_key_until_its_time(store: Subject, clock: SteeredClock) -> None:
    ids = enqueue_many(store, 50, limiter="llm")
    plain = enqueue(store)
    first = claim_one(store)
    assert first.id == ids[0]

    answer = refuse(store, first)

    assert answer.state == "queued"
    assert [grant.id for grant in claim(store, 100)] == [plain]
    clock.advance(29.9)
    assert claim(store, 100) == []
    clock.advance(0.1)
    assert [grant.id for grant in claim(store, 100)] == [ids[0]], "the refused job has kept its place"


def test_one_refusal_holds_ten_thousand_jobs_back_and_they_come_back_slowly(
    store: Subject, clock: SteeredClock
) -> None:
    enqueue_many(store, 10_000, limiter="llm")
    other = enqueue_many(store, 20, limiter="other")
    first = claim_one(store)

    refuse(store, first, 30.0)

    assert [grant.id for grant in claim(store, limit=500)] == other, "another key is not slowed"
    clock.advance(29.9)
    assert claim(store, limit=500) == []
    assert get(store, first.id).attempt == 0
    started = []
    for _ in range(5):
        clock.advance(1.0)
        started.append(len(claim(store, limit=500)))
    assert started == [1, 2, 4, 8, 16]


def test_a_refusal_spends_no_attempt_and_says_why(store: Subject) -> None:
    job_id = enqueue(store, limiter="llm", max_attempts=1)

    refuse(store, claim_one(store))

    job = get(store, job_id)
    assert (job.state, job.attempt, job.limiter) == (State.QUEUED, 0, "llm")
    [row] = attempts(store, job_id)
    assert (row.outcome, row.failure_class, row.error) == ("released", "rate_limited", "429 busy")
    assert limiter(store).reason == "429 busy"


def test_a_job_that_does_not_carry_the_key_waits_by_its_own_time(store: Subject, clock: SteeredClock) -> None:
    enqueue(store, kind="other")
    limited = enqueue(store, limiter="llm")
    grant = claim_one(store)

    refuse(store, grant, 10)

    assert claim(store, 10) == []
    clock.advance(10)
    assert {one.id for one in claim(store, 10)} == {grant.id, limited}


def test_other_keys_and_other_queues_go_on(store: Subject) -> None:
    make_queue(store, "q")
    enqueue_many(store, 3, limiter="llm")
    other = enqueue_many(store, 3, limiter="mail")
    elsewhere = enqueue(store, queue="q", limiter="llm")
    free = enqueue(store, queue="q")

    refuse(store, claim_one(store))

    assert [grant.id for grant in claim(store, 10)] == other
    assert [grant.id for grant in claim(store, 10, queues=["q"])] == [free]
    assert get(store, elsewhere).state is State.QUEUED


def test_reopening_lets_one_two_four_through_in_a_second_each(store: Subject, clock: SteeredClock) -> None:
    enqueue_many(store, 40, limiter="llm")
    refuse(store, claim_one(store), 30)
    clock.advance(30)

    let_through = []
    for _ in range(5):
        let_through.append(len(claim(store, 40)))
        assert claim(store, 40) == [], "nothing more within the same second"
        clock.advance(1)

    assert let_through == [1, 2, 4, 8, 16]


def test_a_pause_without_work_does_not_open_a_key_wider(store: Subject, clock: SteeredClock) -> None:
    enqueue_many(store, 10, limiter="llm")
    refuse(store, claim_one(store), 30)

    clock.advance(3600)

    assert len(claim(store, 40)) == 1


def test_a_success_behind_the_block_opens_the_key_wholly(store: Subject, clock: SteeredClock) -> None:
    enqueue_many(store, 20, limiter="llm")
    refuse(store, claim_one(store), 30)
    clock.advance(30)
    [probe] = claim(store, 20)

    complete(store, probe)

    assert limiter(store).strikes == 0
    assert len(claim(store, 40)) == 19


def test_a_success_of_a_job_from_before_the_block_proves_nothing(store: Subject, clock: SteeredClock) -> None:
    enqueue_many(store, 20, limiter="llm")
    early, refused = claim(store, 2)
    refuse(store, refused, 20)
    clock.advance(20)

    complete(store, early)

    assert limiter(store).strikes == 1
    assert len(claim(store, 40)) == 1


def test_a_probe_that_is_refused_blocks_again(store: Subject, clock: SteeredClock) -> None:
    enqueue_many(store, 20, limiter="llm")
    refuse(store, claim_one(store), 30)
    clock.advance(30)
    refuse(store, claim_one(store), 10)

    assert claim(store, 20) == []
    assert limiter(store).strikes == 2
    clock.advance(10)
    assert len(claim(store, 20)) == 1


def test_a_shorter_refusal_does_not_shorten_a_block(store: Subject, clock: SteeredClock) -> None:
    enqueue_many(store, 5, limiter="llm")
    one, two = claim(store, 2)
    refuse(store, one, 60)

    refuse(store, two, 1)

    clock.advance(59)
    assert claim(store, 10) == []


def test_a_job_with_several_keys_starts_when_all_are_open(store: Subject, clock: SteeredClock) -> None:
    store.do(BlockLimiter("llm", 10, "ops"))
    store.do(BlockLimiter("mail", 20, "ops"))
    both = enqueue(store, limiter="llm,mail")
    one = enqueue(store, limiter="llm")

    clock.advance(10)
    assert [grant.id for grant in claim(store, 10)] == [one]
    clock.advance(10)
    assert [grant.id for grant in claim(store, 10)] == [both]


def test_several_keys_are_counted_together(store: Subject) -> None:
    """A key that has room for one lets one through, whatever other keys its jobs carry."""
    store.do(SetLimiter("llm", "ops", per_minute=10))
    enqueue_many(store, 3, limiter="llm,mail")
    enqueue_many(store, 3, limiter="llm")

    assert len(claim(store, 10)) == 1


def test_a_refused_job_that_was_asked_to_stop_still_blocks_the_key(store: Subject) -> None:
    enqueue_many(store, 2, limiter="llm")
    grant = claim_one(store)
    cancel(store, grant.id)

    assert refuse(store, grant).state == "cancelled"

    assert claim(store, 10) == []


def test_a_refusal_that_comes_too_late_blocks_nothing(store: Subject, clock: SteeredClock) -> None:
    enqueue(store, limiter="llm")
    grant = claim_one(store)
    clock.advance(3600)

    assert refuse(store, grant).lost

    assert store.do(ListLimiters()) == []


def test_a_refusal_sent_twice_counts_once(store: Subject) -> None:
    enqueue(store, limiter="llm")
    grant = claim_one(store)

    assert refuse(store, grant) == refuse(store, grant)

    assert limiter(store).strikes == 1


def test_what_was_suspended_or_failed_is_held_back_too(store: Subject, clock: SteeredClock) -> None:
    enqueue_many(store, 3, limiter="llm")
    one, two, three = claim(store, 3)
    suspend(store, one, delay_seconds=5)
    fail(store, two, retry_after_seconds=5)
    refuse(store, three, 30)

    clock.advance(10)
    assert claim(store, 10) == []


def test_jobs_that_must_run_alone_are_held_back_too(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store, limiter="llm", max_attempts=9)
    for _ in range(2):
        claim_one(store, lease_seconds=5)
        clock.advance(6)
    store.do(BlockLimiter("llm", 30, "ops"))

    assert claim(store, 10) == []
    assert get(store, job_id).suspicion == 2
    clock.advance(30)
    assert [grant.id for grant in claim(store, 10)] == [job_id]


def test_priorities_hold_across_lists(store: Subject) -> None:
    wanted = [
        enqueue(store, limiter=limiter_, priority=priority)
        for priority, limiter_ in ((9, "llm"), (8, None), (7, "mail"), (6, None), (5, "llm"))
    ]

    assert [grant.id for grant in claim(store, 3)] == wanted[:3]
    assert [grant.id for grant in claim(store, 10)] == wanted[3:]


def test_priorities_hold_across_more_lists_than_a_claim_looks_into(store: Subject) -> None:
    """PostgreSQL looks into the lists that begin first. Closed ones, and jobs of other kinds, do not count as such."""
    chance = Random(7)
    made: dict[JobId, tuple[int, str, bool]] = {}
    for number in range(400):
        priority, kind, is_closed = chance.randrange(50), chance.choice(("a", "b")), number % 3 == 0
        key = f"{'closed' if is_closed else 'open'}{number}"
        made[enqueue(store, kind=kind, priority=priority, limiter=key)] = (priority, kind, is_closed)
        if is_closed and number % 2:
            store.do(BlockLimiter(key, 30, "ops"))
    blocked = {one.key for one in store.do(ListLimiters())}
    free = [one for number, one in enumerate(made) if f"closed{number}" not in blocked]
    wanted = sorted(free, key=lambda one: -made[one][0])  # of one priority the older first
    of_b = [one for one in wanted if made[one][1] == "b"]

    assert [grant.id for grant in claim(store, 5, kinds=["b"])] == of_b[:5]
    left = [one for one in wanted if one not in of_b[:5]]
    for start in range(0, len(left), 90):
        assert [grant.id for grant in claim(store, 90)] == left[start : start + 90]
    assert claim(store, 10) == []


@pytest.mark.parametrize("jobs", [10, 500])
def test_a_claim_takes_as_many_statements_whatever_number_of_keys_there_are(store: Subject, jobs: int) -> None:
    """SQLite read a page of each key's list: a producer with ten thousand keys of its own held everyone up."""
    for number in range(jobs):
        enqueue(store, limiter=f"customer {number}")
    claim_one(store)
    before = store.store.stats().statements

    claim_one(store)

    assert store.store.stats().statements - before <= 12


def test_a_strict_claim_serves_queues_in_order_and_lists_by_rank(store: Subject) -> None:
    for name in ("a", "b"):
        make_queue(store, name)
    b1 = enqueue(store, queue="b", priority=9)
    a1 = enqueue(store, queue="a", priority=1)
    a2 = enqueue(store, queue="a", priority=5, limiter="llm")

    assert [grant.id for grant in claim(store, 10, queues=["a", "b"], strict=True)] == [a2, a1, b1]


def test_a_limit_of_the_queue_holds_across_its_lists(store: Subject) -> None:
    make_queue(store, "q", concurrency=2)
    first = enqueue(store, queue="q", limiter="llm", priority=1)
    second = enqueue(store, queue="q", priority=9)
    third = enqueue(store, queue="q", limiter="mail", priority=5)

    assert [grant.id for grant in claim(store, 10, queues=["q"])] == [second, third]
    assert get(store, first).state is State.QUEUED


def test_a_claim_that_was_held_back_says_when_to_come_again(store: Subject, clock: SteeredClock) -> None:
    enqueue_many(store, 5, limiter="llm")
    refuse(store, claim_one(store), 30)
    assert due_in(store) is None, "not soon"

    clock.advance(27)
    assert due_in(store) == pytest.approx(3.0)
    clock.advance(3)
    assert due_in(store) == pytest.approx(1.0), "one was let through, the next in a second"


# --- rates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_minute", [1, 7, 60, 600])
def test_no_sixty_seconds_see_more_than_the_rate(store: Subject, clock: SteeredClock, per_minute: int) -> None:
    store.do(SetLimiter("llm", "ops", per_minute=per_minute))
    enqueue_many(store, 5 * per_minute, limiter="llm")
    started: list[tuple[float, int]] = []

    for tenth in range(180):
        started.append((tenth / 1.0, len(claim(store, 1000, lease_seconds=600))))
        clock.advance(1)

    for at, _ in started:
        within = sum(count for moment, count in started if at <= moment < at + 60)
        assert within <= per_minute
    total = sum(count for _, count in started)
    assert total >= 3 * per_minute * 0.9, "and little of it is wasted"


def test_a_rate_that_is_raised_counts_at_once(store: Subject, clock: SteeredClock) -> None:
    store.do(SetLimiter("llm", "ops", per_minute=1))
    enqueue_many(store, 100, limiter="llm")
    assert len(claim(store, 100)) == 1

    store.do(SetLimiter("llm", "ops", per_minute=60))

    clock.advance(2)
    assert len(claim(store, 100)) == 1
    store.do(SetLimiter("llm", "ops"))
    assert len(claim(store, 200)) == 98


def test_a_job_that_never_started_gives_back_what_it_took(store: Subject) -> None:
    store.do(SetLimiter("llm", "ops", per_minute=1))
    enqueue_many(store, 2, limiter="llm")
    grant = claim_one(store)
    assert claim(store) == []

    settle(store, Released(grant.id, grant.token, 0.0, None))

    assert claim_one(store).id == grant.id


def test_tokens_are_reserved_by_the_average_and_corrected_by_what_was_used(store: Subject, clock: SteeredClock) -> None:
    store.do(SetLimiter("llm", "ops", tokens_per_minute=6000, tokens_per_job=500))
    enqueue_many(store, 20, limiter="llm")
    assert len(claim(store, 20)) == 2, "ten seconds of tokens are there: 1,000"

    assert store.do(UseTokens("llm", 2500))  # 2,000 more than was reserved

    assert limiter(store).tokens_per_job == pytest.approx(750)
    clock.advance(19)  # 1,900 tokens
    assert claim(store, 20) == []
    clock.advance(2)
    assert len(claim(store, 20)) == 1


@pytest.mark.parametrize("report", [1e6, RATE_MAX])
def test_what_was_overdrawn_holds_a_key_back_for_a_day_at_most(
    store: Subject, clock: SteeredClock, report: float
) -> None:
    """One wrong report closed the key for years, and clearing it did not help."""
    store.do(SetLimiter("llm", "ops", tokens_per_minute=60))
    enqueue_many(store, 3, limiter="llm")
    claim_one(store)

    store.do(UseTokens("llm", report))
    store.do(UseTokens("llm", report))

    assert claim(store, 5) == []
    opens_at = limiter(store).opens_at
    assert opens_at is not None
    assert (opens_at - clock.now()).total_seconds() <= BLOCK_SECONDS_MAX + 1
    clock.advance(BLOCK_SECONDS_MAX + 2)
    assert len(claim(store, 5)) == 1, "and then one starts"
    store.do(UseTokens("llm", 1))
    clock.advance(BLOCK_SECONDS_MAX + 2)
    assert claim(store, 5)


def test_tokens_of_a_key_without_such_a_limit_are_not_counted(store: Subject) -> None:
    store.do(SetLimiter("llm", "ops", per_minute=5))

    assert not store.do(UseTokens("llm", 100))
    assert not store.do(UseTokens("unknown", 100))
    assert [one.key for one in store.do(ListLimiters())] == ["llm"]


# --- operators --------------------------------------------------------------------------------------------------------


def test_an_operator_ends_a_block(store: Subject) -> None:
    enqueue_many(store, 5, limiter="llm")
    refuse(store, claim_one(store), 3600)

    cleared = store.do(ClearLimiter("llm", "ops", "they raised our quota"))

    assert (cleared.blocked_until, cleared.strikes, cleared.room) == (None, 0, None)
    assert len(claim(store, 10)) == 5
    [row] = store.do(ListAudit("limiter:llm"))
    assert (row.act, row.actor, row.reason) == ("clear_limiter", "ops", "they raised our quota")


def test_clearing_keeps_the_rates_and_removing_forgets_them(store: Subject) -> None:
    store.do(SetLimiter("llm", "ops", per_minute=1))
    enqueue_many(store, 5, limiter="llm")
    refuse(store, claim_one(store), 3600)

    assert store.do(ClearLimiter("llm", "ops")).per_minute == 1
    assert claim(store, 10) == []
    assert store.do(RemoveLimiter("llm", "ops"))

    assert len(claim(store, 10)) == 5
    assert not store.do(RemoveLimiter("llm", "ops"))


def test_a_limiter_that_is_not_there_cannot_be_cleared(store: Subject) -> None:
    with pytest.raises(NotFound, match="no limiter 'llm'"):
        store.do(ClearLimiter("llm", "ops"))


@pytest.mark.parametrize("seconds", [BLOCK_SECONDS_MAX + 1, math.inf, math.nan, -1.0])
def test_a_block_that_never_ends_is_refused_and_nothing_is_lost(store: Subject, seconds: float) -> None:
    enqueue(store, limiter="llm")
    grant = claim_one(store)

    with pytest.raises(InvalidArgument, match="ends within 86,400 s"):
        refuse(store, grant, seconds)
    with pytest.raises(InvalidArgument, match="ends within 86,400 s"):
        store.do(BlockLimiter("llm", seconds, "ops"))

    assert store.do(ListLimiters()) == []
    assert complete(store, grant).state == "succeeded"


@pytest.mark.parametrize("per_minute", [0, -1, math.inf, math.nan, 0.0001])
def test_a_rate_that_lets_nothing_through_is_refused(store: Subject, per_minute: float) -> None:
    with pytest.raises(InvalidArgument, match="never let a job through"):
        store.do(SetLimiter("llm", "ops", per_minute=per_minute))
    assert store.do(ListLimiters()) == []


@pytest.mark.parametrize("key", ["", " ", "a,b", "x" * 101, "a\0b", "line\nbreak"])
def test_a_key_that_no_limiter_can_have_is_refused(store: Subject, key: str) -> None:
    with pytest.raises(InvalidArgument, match="key of a limiter"):
        store.do(SetLimiter(key, "ops", per_minute=5))
    with pytest.raises(InvalidArgument, match="key of a limiter"):
        store.do(UseTokens(key, 5))


def test_old_blocks_are_forgotten_and_rates_are_not(store: Subject, clock: SteeredClock) -> None:
    store.do(SetLimiter("kept", "ops", per_minute=5))
    store.do(BlockLimiter("old", 10, "ops"))
    clock.advance(2 * 86_400)
    store.do(BlockLimiter("new", 10, "ops"))

    store.do(Prune())

    assert [one.key for one in store.do(ListLimiters())] == ["kept", "new"]


# --- what waits -------------------------------------------------------------------------------------------------------


def test_due_jobs_are_told_by_queue_and_limiters_up_to_a_cap(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, "other")
    since = clock.now()
    ids = enqueue_many(store, 5, limiter="llm")
    clock.advance(5)
    both = enqueue(store, queue="other", limiter="llm,mail")
    enqueue(store)
    enqueue(store, limiter="llm", run_at=clock.now() + timedelta(seconds=60))

    found = store.do(ListLimited(cap=4, sample=2))

    assert found == [
        LimitedJobs("default", "llm", 4, since, ids[:2]),
        LimitedJobs("other", "llm,mail", 1, clock.now(), [both]),
    ]
    assert store.do(ListLimited(limit=1)) == [LimitedJobs("default", "llm", 5, since, ids[:3])]


def test_jobs_that_start_do_not_wait_for_a_limiter_any_more(store: Subject) -> None:
    enqueue(store, limiter="llm")
    claim_one(store)

    assert store.do(ListLimited()) == []
