"""Budgets: never above the limit, fails closed, wakes exactly those that fit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from tenure.errors import IllegalMove, InvalidArgument, NotFound
from tenure.model.budget import AMOUNT_MAX, Budget, NewBudget
from tenure.model.ids import JobId, WorkerId, new_job_id
from tenure.model.job import Grant
from tenure.model.outcome import Settled, Suspended
from tenure.model.step import NewStep
from tenure.store.budgets import (
    ListBudgets,
    RaiseBudgets,
    RemoveBudgets,
    ReserveBudget,
    Reserved,
    SetBudgets,
    SettleBudget,
)
from tenure.store.contract import Claim, Prune, Wake
from tenure.store.flow import SweepFlow, Swept
from tenure.store.queries import ListAudit
from tests.conformance.acts import (
    NO_BACKOFF,
    Subject,
    cancel,
    claim,
    claim_one,
    complete,
    enqueue,
    fail,
    get,
    make_queue,
    reap,
    settle,
)
from tests.conformance.engines import SteeredClock

DOORS = ("do", "ado")
WORKERS = 50


def set_budget(
    store: Subject, scope: str = "all", unit: str = "usd", limit: int = 100, per: str = "total", on_empty: str = "park"
) -> Budget:
    [made] = store.do(SetBudgets([NewBudget(scope, unit, limit, per, on_empty)], "ops", "the plan"))
    return made


def budget(store: Subject, scope: str = "all") -> Budget:
    [found] = store.do(ListBudgets([scope]))
    return found


def counts(store: Subject, scope: str = "all") -> tuple[int, int]:
    found = budget(store, scope)
    return found.used, found.reserved


def held(store: Subject, *, tenant: str | None = None, kind: str = "work", lease_seconds: float | None = None) -> Grant:
    enqueue(store, kind=kind, tenant=tenant)
    return claim_one(store, lease_seconds=lease_seconds)


def reserve(
    store: Subject, grant: Grant, usd: int = 10, *, key: str = "1", once: bool = False, **other: int
) -> Reserved | None:
    return store.do(ReserveBudget(grant.id, grant.token, key, {"usd": usd, **other}, once))


def has_reserved(store: Subject, grant: Grant, usd: int = 10, **options: object) -> bool:
    answer = reserve(store, grant, usd, **options)  # type: ignore[arg-type]
    assert answer is not None, "the lease is lost"
    return answer.refusal is None


def settle_at(
    store: Subject, grant: Grant, used: Mapping[str, int], *, key: str = "1", is_done: bool = True, unused: bool = False
) -> bool:
    return store.do(SettleBudget(grant.id, grant.token, key, used, unused, is_done))


def park(store: Subject, grant: Grant, usd: int = 10, *, key: str = "1") -> Settled:
    """What a handler does whose reservation is refused: wait for the budget that refuses."""
    answer = reserve(store, grant, usd, key=key)
    assert answer is not None
    assert answer.refusal is not None
    name, value = answer.refusal.name, json.dumps({"key": key, "asked": {"usd": usd}})
    # A worker of another language may say when it would look again: a budget decides that itself.
    step = NewStep(f"$budget/{grant.token}/{key}", "budget", "open", value, None, name, answer.refusal.window_seconds)
    settled = settle(store, Suspended(grant.id, grant.token, name, None, (step,)))
    sweep(store)
    return settled


def waiting(store: Subject, count: int, usd: int = 10, **fields: str) -> list[JobId]:
    """Jobs that wait for a budget, in this order."""
    ids = []
    for _ in range(count):
        enqueue(store, **fields)  # type: ignore[arg-type]
        grant = claim_one(store)
        assert park(store, grant, usd).state == "waiting"
        store.clock.advance(0.001)
        ids.append(grant.id)
    return ids


def sweep(store: Subject) -> None:
    while store.do(SweepFlow()).more:
        pass


def states(store: Subject, ids: Sequence[JobId]) -> list[str]:
    return [str(get(store, one).state) for one in ids]


def raise_by(store: Subject, usd: int, scope: str = "all", per: str = "total", **options: str) -> Budget:
    [raised] = store.do(RaiseBudgets(scope, per, {"usd": usd}, "ops", "more work", **options))
    sweep(store)
    return raised


# --- set, list, raise, remove


def test_a_budget_is_made_changed_and_listed(store: Subject, clock: SteeredClock) -> None:
    made = set_budget(store, "tenant:7", limit=500, per="day", on_empty="fail")

    start = datetime(2026, 1, 1, tzinfo=UTC)
    assert made == Budget("tenant:7", "usd", "day", 500, 0, 0, "fail", start, start + timedelta(days=1), 0, clock.now())
    assert made.name == "budget:tenant:7:usd:day"
    clock.advance(1)
    assert set_budget(store, "tenant:7", limit=200, per="day") == budget(store, "tenant:7")
    assert (budget(store, "tenant:7").limit, budget(store, "tenant:7").on_empty) == (200, "park")


def test_budgets_are_listed_by_scope_in_pages(store: Subject) -> None:
    scopes = ["all", "kind:a", "queue:B", "queue:b", "tenant:é:1"]
    for scope in reversed(scopes):
        set_budget(store, scope)
    set_budget(store, "all", "tokens", per="day")

    first = store.do(ListBudgets(limit=3))
    rest = store.do(ListBudgets(limit=10, after=first[-1].name))

    assert [one.name for one in first + rest] == [
        "budget:all:tokens:day",
        *(f"budget:{scope}:usd:total" for scope in scopes),
    ]


def test_acts_on_budgets_are_audited(store: Subject) -> None:
    set_budget(store, "kind:work", limit=5)
    raise_by(store, 7, "kind:work")
    assert store.do(RemoveBudgets("kind:work", "ops", reason="over")) == ["budget:kind:work:usd:total"]
    assert store.do(RemoveBudgets("kind:work", "ops")) == []

    acts = store.do(ListAudit("budget:kind:work:usd:total"))
    assert [(one.act, one.actor, one.reason) for one in reversed(acts)] == [
        ("set_budget", "ops", "the plan"),
        ("raise_budget", "ops", "more work"),
        ("remove_budget", "ops", "over"),
    ]


def test_a_repeated_raise_adds_nothing(store: Subject) -> None:
    set_budget(store, limit=5)
    again = new_job_id()

    assert raise_by(store, 7, id=again).limit == 12
    assert raise_by(store, 3).limit == 15
    assert raise_by(store, 7, id=again).limit == 15


def test_a_raise_is_known_again_behind_fifteen_others(store: Subject) -> None:
    """SQLite forgot the one before the last as soon as it kept sixteen."""
    set_budget(store, limit=0)
    ids = [new_job_id() for _ in range(40)]
    for nth, raise_id in enumerate(ids):
        raise_by(store, 1, id=raise_id)
        for known in ids[max(0, nth - 15) : nth + 1]:
            assert raise_by(store, 1, id=known).limit == nth + 1


def test_no_raise_makes_more_than_a_budget_holds(store: Subject) -> None:
    set_budget(store, limit=AMOUNT_MAX - 1)
    assert raise_by(store, 1).limit == AMOUNT_MAX

    with pytest.raises(InvalidArgument, match="a budget holds up to"):
        raise_by(store, 1)
    assert budget(store).limit == AMOUNT_MAX


@pytest.mark.parametrize(
    "wrong",
    [
        NewBudget("tenant", "usd", 1),
        NewBudget("person:7", "usd", 1),
        NewBudget("job:7", "usd", 1),
        NewBudget("all", "eur", 1),
        NewBudget("all", "usd", -1),
        NewBudget("all", "usd", 0.5),  # type: ignore[arg-type]
        NewBudget("all", "usd", 2**60),
        NewBudget("all", "usd", 1, "week"),
        NewBudget("all", "usd", 1, "day", "cry"),
    ],
)
def test_a_budget_that_is_none_is_refused(store: Subject, wrong: NewBudget) -> None:
    with pytest.raises(InvalidArgument, match="Nothing was changed"):
        store.do(SetBudgets([NewBudget("all", "tokens", 5), wrong], "ops"))

    assert store.do(ListBudgets()) == []


def test_only_a_budget_that_is_there_can_be_raised(store: Subject) -> None:
    with pytest.raises(NotFound, match="nothing to raise"):
        raise_by(store, 1, "tenant:7")
    with pytest.raises(InvalidArgument):
        raise_by(store, 0)


# --- reserve and settle


def test_what_is_reserved_counts_as_used_and_a_settle_says_what_it_was(store: Subject) -> None:
    set_budget(store, limit=100)
    grant = held(store)

    assert reserve(store, grant, 60) == Reserved(is_limited=True)
    assert counts(store) == (0, 60)
    assert not has_reserved(store, grant, 41, key="2")
    assert has_reserved(store, grant, 40, key="2")
    assert settle_at(store, grant, {"usd": 25})
    assert counts(store) == (25, 40)
    assert settle_at(store, grant, {}, key="2")
    assert counts(store) == (65, 0)


def test_requests_may_be_repeated(store: Subject) -> None:
    set_budget(store, limit=100)
    grant = held(store)
    for _ in range(2):
        assert reserve(store, grant, 60) == Reserved(is_limited=True)
    assert counts(store) == (0, 60)
    for _ in range(2):
        assert settle_at(store, grant, {"usd": 25})
    assert counts(store) == (25, 0)
    with pytest.raises(IllegalMove, match="settled"):
        reserve(store, grant, 60)


def test_a_reservation_fits_in_all_budgets_of_the_job_or_in_none(store: Subject) -> None:
    workflow = new_job_id()
    enqueue(store, kind="work", tenant="7", workflow_id=workflow)
    grant = claim_one(store)
    scopes = ["all", "queue:default", "kind:work", "tenant:7", f"workflow:{workflow}", f"job:{grant.id}"]
    for scope in scopes:
        set_budget(store, scope, limit=50)
    for other in ("queue:other", "kind:other", "tenant:8", f"job:{new_job_id()}"):
        set_budget(store, other, limit=0)

    assert has_reserved(store, grant, 30)
    assert [counts(store, one) for one in scopes] == [(0, 30)] * 6
    for scope in scopes:
        set_budget(store, scope, limit=60)
        set_budget(store, "tenant:7", limit=59)
    answer = reserve(store, grant, 30, key="2")
    assert answer is not None
    assert answer.refusal is not None
    assert (answer.refusal.scope, answer.refusal.asked, answer.refusal.reserved) == ("tenant:7", 30, 30)
    assert [counts(store, one) for one in scopes] == [(0, 30)] * 6


def test_without_a_budget_nothing_is_limited_and_nothing_written(store: Subject) -> None:
    grant = held(store)

    assert reserve(store, grant, 10**9) == Reserved()
    assert not settle_at(store, grant, {"usd": 5})


def reserve_unknown(store: Subject, grant: Grant, *, key: str = "1") -> bool:
    answer = store.do(ReserveBudget(grant.id, grant.token, key, {"calls": 1}))
    assert answer is not None
    return answer.refusal is None


def test_a_cost_that_is_not_known_reserves_all_that_is_left(store: Subject) -> None:
    """Reserving nothing for it, a limit would be passed by all that runs at the same moment."""
    set_budget(store, limit=10)
    one, two = held(store), held(store)
    assert has_reserved(store, one, 4, key="0")

    assert reserve_unknown(store, one)
    assert counts(store) == (0, 10)
    assert reserve_unknown(store, one), "repeating is harmless"
    assert not reserve_unknown(store, two)
    assert not has_reserved(store, two, 1)
    assert has_reserved(store, two, 0, key="2"), "0 says that nothing will be spent"

    settle_at(store, one, {"usd": 2})
    assert counts(store) == (2, 4)
    assert reserve_unknown(store, two)
    settle_at(store, two, {"usd": 15})
    assert counts(store) == (17, 4)
    assert not reserve_unknown(store, one, key="3")
    assert has_reserved(store, one, 0, key="4")


def test_what_is_not_told_of_an_unknown_cost_is_nothing_after_success_and_all_after_failure(store: Subject) -> None:
    set_budget(store, limit=10)
    grant = held(store)
    assert reserve_unknown(store, grant)
    settle_at(store, grant, {"calls": 1})
    assert counts(store) == (0, 0)

    assert reserve_unknown(store, grant, key="2")
    settle_at(store, grant, {}, key="2", is_done=False)
    assert counts(store) == (10, 0)
    settle_at(store, grant, {"usd": 3}, key="2")
    assert counts(store) == (3, 0), "a usage that is known late corrects it"


def test_of_those_who_do_not_know_their_cost_one_is_woken_at_a_time(store: Subject) -> None:
    set_budget(store, limit=0)
    ids = []
    for _ in range(3):
        grant = held(store)
        value = json.dumps({"key": "1", "asked": {"calls": 1}})
        step = NewStep(f"$budget/{grant.token}/1", "budget", "open", value, None, "budget:all:usd:total")
        settle(store, Suspended(grant.id, grant.token, "budget:all:usd:total", None, (step,)))
        store.clock.advance(0.001)
        ids.append(grant.id)

    raise_by(store, 10)
    assert states(store, ids) == ["queued", "waiting", "waiting"]
    assert counts(store) == (0, 10)
    grant = claim_one(store)
    assert reserve_unknown(store, grant), "what was reserved for it is taken over"
    assert counts(store) == (0, 10)
    settle_at(store, grant, {"usd": 4})
    sweep(store)

    assert states(store, ids) == ["running", "queued", "waiting"]
    assert counts(store) == (4, 6)


def test_what_was_not_spent_is_free_again(store: Subject) -> None:
    set_budget(store, limit=10)
    grant = held(store)
    assert has_reserved(store, grant, 10)

    assert settle_at(store, grant, {}, unused=True)
    assert counts(store) == (0, 0)
    assert has_reserved(store, grant, 10, key="2")


def test_only_the_grant_that_holds_the_job_reserves(store: Subject, clock: SteeredClock) -> None:
    set_budget(store)
    grant = held(store, lease_seconds=10)
    clock.advance(11)

    assert reserve(store, grant) is None
    assert counts(store) == (0, 0)


def test_amounts_are_whole_numbers(store: Subject) -> None:
    grant = held(store)
    for wrong in ({"usd": 0.4}, {"usd": -1}, {"eur": 1}, {"usd": True}):
        with pytest.raises(InvalidArgument):
            store.do(ReserveBudget(grant.id, grant.token, "1", wrong))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="key"):
        store.do(ReserveBudget(grant.id, grant.token, " ", {"usd": 1}))


# --- fails closed


def test_the_reservation_of_a_dead_grant_counts_as_used(store: Subject, clock: SteeredClock) -> None:
    set_budget(store, limit=100)
    grant = held(store, lease_seconds=10)
    assert has_reserved(store, grant, 60)
    clock.advance(11)
    reap(store)

    assert counts(store) == (0, 60)  # already counted, before anything noticed
    sweep(store)
    assert counts(store) == (60, 0)


def test_the_next_attempt_counts_what_the_last_one_left(store: Subject, clock: SteeredClock) -> None:
    set_budget(store, limit=100)
    grant = held(store, lease_seconds=10)
    assert has_reserved(store, grant, 60)
    clock.advance(11)
    reap(store)
    again = claim_one(store)

    assert not has_reserved(store, again, 41)
    assert has_reserved(store, again, 40)
    assert counts(store) == (60, 40)


def test_a_usage_that_is_known_late_corrects_the_guess(store: Subject, clock: SteeredClock) -> None:
    set_budget(store, limit=100)
    grant = held(store, lease_seconds=10)
    assert has_reserved(store, grant, 60)
    clock.advance(11)
    reap(store)
    sweep(store)
    assert counts(store) == (60, 0)

    assert settle_at(store, grant, {"usd": 5})
    assert counts(store) == (5, 0)
    assert settle_at(store, grant, {"usd": 50})
    assert counts(store) == (5, 0)


def test_a_paid_key_is_not_paid_again_but_a_broken_one_is(store: Subject) -> None:
    make_queue(store, "default", backoff=NO_BACKOFF)
    set_budget(store, limit=100)
    grant = held(store)
    assert has_reserved(store, grant, 10, key="good", once=True)
    settle_at(store, grant, {"usd": 7}, key="good")
    assert has_reserved(store, grant, 10, key="bad", once=True)
    settle_at(store, grant, {"usd": 6}, key="bad", is_done=False)
    fail(store, grant)
    again = claim_one(store)

    assert reserve(store, again, 10, key="good", once=True) == Reserved(is_paid=True)
    assert has_reserved(store, again, 10, key="bad", once=True)
    assert counts(store) == (13, 10)


# --- windows


def test_a_window_begins_anew_and_what_was_reserved_counts_where_it_was_reserved(
    store: Subject, clock: SteeredClock
) -> None:
    set_budget(store, limit=100, per="day")
    grant = held(store, lease_seconds=86_400)
    assert has_reserved(store, grant, 100)
    clock.advance(23 * 3600)
    assert not has_reserved(store, grant, 1, key="2")
    clock.advance(3600)

    assert counts(store) == (0, 0)
    grant = held(store)
    assert has_reserved(store, grant, 70, key="3")
    found = budget(store)
    assert (found.window_from, found.reserved) == (datetime(2026, 1, 2, tzinfo=UTC), 70)


def test_a_late_settle_does_not_touch_the_new_window(store: Subject, clock: SteeredClock) -> None:
    make_queue(store, "default", lease_seconds=80_000, lease_max_seconds=200_000)
    set_budget(store, limit=100, per="day")
    clock.advance(43_200)
    grant = held(store)
    assert has_reserved(store, grant, 100)
    clock.advance(43_200)
    assert has_reserved(store, grant, 30, key="2")

    assert settle_at(store, grant, {"usd": 90})
    assert counts(store) == (0, 30)


@pytest.mark.parametrize(("per", "seconds"), [("hour", 3600), ("day", 86_400), ("month", 31 * 86_400), ("total", None)])
def test_a_refusal_tells_when_the_window_ends(store: Subject, per: str, seconds: float | None) -> None:
    set_budget(store, limit=10, per=per)
    grant = held(store)

    assert has_reserved(store, grant, 10)
    answer = reserve(store, grant, 1, key="2")
    too_large = reserve(store, grant, 11, key="3")
    assert answer is not None
    assert answer.refusal is not None
    assert answer.refusal.window_seconds == seconds
    assert too_large is not None
    assert too_large.refusal is not None
    assert too_large.refusal.window_seconds is None  # the next window is too small as well


def test_a_parked_job_is_woken_when_the_window_turns(store: Subject, clock: SteeredClock) -> None:
    set_budget(store, limit=10, per="hour")
    first = held(store)
    assert has_reserved(store, first, 10)
    complete(store, first)
    [job_id] = waiting(store, 1)
    job = get(store, job_id)
    assert (job.state, job.waiting_for, job.attempt) == ("waiting", "budget:all:usd:hour", 0)
    assert (budget(store).waiting, budget(store).waiting_since) == (1, get(store, job_id).updated_at)
    clock.advance(3590)
    sweep(store)
    assert claim(store) == []
    clock.advance(10)
    sweep(store)

    grant = claim_one(store)
    assert (grant.id, grant.attempt) == (job_id, 1)
    assert has_reserved(store, grant, 10)
    assert budget(store).waiting_since is None


@pytest.mark.parametrize("turned_by", ["the sweep", "another job", "a read"])
def test_a_new_window_wakes_only_those_that_fit_in_their_order(
    store: Subject, clock: SteeredClock, turned_by: str
) -> None:
    """All of them would run up to their reservation, only to park again."""
    set_budget(store, limit=35, per="hour")
    first = held(store)
    assert has_reserved(store, first, 35)
    complete(store, first)
    ids = waiting(store, 5)
    clock.advance(3600)
    if turned_by == "another job":
        assert has_reserved(store, held(store), 5)
    elif turned_by == "a read":
        budget(store)

    assert claim(store) == [], "the end of a window alone makes nothing due"
    sweep(store)

    assert states(store, ids) == ["queued"] * 3 + ["waiting"] * 2
    assert counts(store) == (0, 35 if turned_by == "another job" else 30)
    assert budget(store).waiting == 2
    clock.advance(3600)
    sweep(store)
    assert states(store, ids) == ["queued"] * 5


def test_a_job_that_asks_for_more_than_a_window_has_is_looked_at_once_per_window(
    store: Subject, clock: SteeredClock
) -> None:
    set_budget(store, limit=10, per="hour")
    ids = waiting(store, 2, usd=11)
    clock.advance(3600)

    sweep(store)

    assert store.do(SweepFlow()) == Swept(0, 0, more=False)
    assert states(store, ids) == ["waiting"] * 2


def test_a_budget_that_escalates_lets_go_by_a_raise_alone_and_is_listed_until_then(
    store: Subject, clock: SteeredClock
) -> None:
    set_budget(store, limit=0, per="hour", on_empty="escalate")
    set_budget(store, "kind:other", limit=0, on_empty="escalate")
    since = clock.now()
    ids = waiting(store, 2)
    clock.advance(7200)
    sweep(store)

    assert states(store, ids) == ["waiting"] * 2
    [listed] = store.do(ListBudgets(is_escalated=True))
    assert (listed.name, listed.waiting, listed.waiting_since) == ("budget:all:usd:hour", 2, since)
    raise_by(store, 10, per="hour")
    [listed] = store.do(ListBudgets(is_escalated=True))
    assert listed.waiting == 1
    raise_by(store, 10, per="hour")
    assert store.do(ListBudgets(is_escalated=True)) == []
    assert states(store, ids) == ["queued"] * 2


# --- who waits, who is woken


def test_a_raise_wakes_exactly_those_that_fit(store: Subject) -> None:
    set_budget(store, limit=0)
    ids = waiting(store, 5, usd=10)
    assert budget(store).waiting == 5

    raise_by(store, 35)

    assert states(store, ids) == ["queued"] * 3 + ["waiting"] * 2
    assert counts(store) == (0, 30)
    raise_by(store, 4)
    assert states(store, ids) == ["queued"] * 3 + ["waiting"] * 2
    raise_by(store, 1)
    assert states(store, ids) == ["queued"] * 4 + ["waiting"]


def test_a_small_one_that_fits_passes_a_large_one_that_does_not(store: Subject) -> None:
    set_budget(store, limit=0)
    [large] = waiting(store, 1, usd=50)
    [small] = waiting(store, 1, usd=5)

    raise_by(store, 20)

    assert states(store, [large, small]) == ["waiting", "queued"]


def test_a_woken_job_finds_its_reservation(store: Subject) -> None:
    set_budget(store, limit=0)
    [job_id] = waiting(store, 1, usd=10)
    raise_by(store, 10)
    grant = claim_one(store)
    assert (grant.id, grant.attempt) == (job_id, 1)

    assert has_reserved(store, grant, 10)
    assert counts(store) == (0, 10)
    settle_at(store, grant, {"usd": 8})
    assert counts(store) == (8, 0)


def test_a_woken_job_that_asks_for_something_else_gives_back_what_it_had(store: Subject) -> None:
    set_budget(store, limit=0)
    waiting(store, 1, usd=10)
    raise_by(store, 10)
    grant = claim_one(store)

    assert has_reserved(store, grant, 4)
    assert counts(store) == (0, 4)


def test_a_settle_below_the_reservation_wakes_those_that_fit_now(store: Subject) -> None:
    set_budget(store, limit=20)
    grant = held(store)
    assert has_reserved(store, grant, 20)
    ids = waiting(store, 3, usd=5)

    settle_at(store, grant, {"usd": 9})
    sweep(store)

    assert states(store, ids) == ["queued", "queued", "waiting"]


def test_a_removed_budget_holds_nothing_back(store: Subject) -> None:
    set_budget(store, limit=0)
    ids = waiting(store, 2)

    store.do(RemoveBudgets("all", "ops"))
    sweep(store)

    assert states(store, ids) == ["queued", "queued"]


def test_a_job_that_another_budget_refuses_now_waits_for_that_one(store: Subject) -> None:
    set_budget(store, limit=0)
    [job_id] = waiting(store, 1, tenant="7")
    set_budget(store, "tenant:7", limit=0, per="day")

    raise_by(store, 100)
    assert (get(store, job_id).state, get(store, job_id).waiting_for) == ("waiting", "budget:tenant:7:usd:day")
    assert counts(store) == (0, 0)
    raise_by(store, 10, "tenant:7", per="day")
    assert states(store, [job_id]) == ["queued"]
    assert counts(store) == (0, 10)


def test_room_made_between_the_refusal_and_the_park_is_seen(store: Subject) -> None:
    set_budget(store, limit=0)
    grant = held(store)
    answer = reserve(store, grant, 10)
    assert answer is not None
    assert answer.refusal is not None
    raise_by(store, 10)
    step = NewStep("$budget/1", "budget", "open", '{"key":"1","asked":{"usd":10}}', None, answer.refusal.name)

    settle(store, Suspended(grant.id, grant.token, answer.refusal.name, None, (step,)))
    sweep(store)

    assert states(store, [grant.id]) == ["queued"]
    assert counts(store) == (0, 10)


def test_what_was_reserved_for_a_job_that_is_cancelled_goes_to_the_next(store: Subject) -> None:
    set_budget(store, limit=0)
    first, second = waiting(store, 2)
    raise_by(store, 10)
    assert states(store, [first, second]) == ["queued", "waiting"]

    cancel(store, first)
    sweep(store)
    sweep(store)

    assert states(store, [first, second]) == ["cancelled", "queued"]
    assert counts(store) == (0, 10)


def test_waiting_for_a_budget_spends_no_attempt_and_forgives_none(store: Subject) -> None:
    make_queue(store, "default", backoff=NO_BACKOFF, max_attempts=2)
    set_budget(store, limit=10)
    grant = held(store)
    assert has_reserved(store, grant, 10)
    fail(store, grant)
    for _ in range(3):
        grant = claim_one(store)
        assert grant.attempt == 2
        assert park(store, grant).state == "waiting"
        store.do(Wake([grant.id]))
    grant = claim_one(store)
    assert grant.attempt == 2
    raise_by(store, 10)
    assert has_reserved(store, grant, 10)
    assert fail(store, grant).state == "dead"


def test_more_jobs_than_one_transaction_wakes_are_all_woken(store: Subject) -> None:
    set_budget(store, limit=0)
    ids = waiting(store, 12)
    raise_by(store, 110)
    assert states(store, ids).count("queued") == 11
    store.do(RaiseBudgets("all", "total", {"usd": 10}, "ops"))
    while store.do(SweepFlow(limit=1)).more:
        pass
    assert states(store, ids).count("queued") == 12


# --- retention


def test_spends_go_with_the_job(store: Subject, clock: SteeredClock) -> None:
    set_budget(store, limit=100)
    grant = held(store)
    assert has_reserved(store, grant)
    settle_at(store, grant, {"usd": 3})
    complete(store, grant)
    clock.advance(10)
    store.do(Prune(older_than_seconds=1))

    assert counts(store) == (3, 0)
    assert not settle_at(store, grant, {"usd": 4})


# --- at once


def test_fifty_workers_never_exceed_a_budget_although_some_die(store: Subject, clock: SteeredClock) -> None:
    """Threads reserve, spend at most what they reserved, and die or settle by chance. What all of them spent, known or
    not, never exceeds the limit, and the budget counts at least as much as was spent."""
    limit, ask = 1000, 7
    make_queue(store, "default", lease_seconds=30, backoff=NO_BACKOFF)
    set_budget(store, limit=limit)
    set_budget(store, "queue:default", limit=limit + 5)
    for _ in range(300):
        enqueue(store)
    spent: list[int] = []

    def work(number: int) -> None:
        chance = Random(number)
        while True:
            grants = store.do(Claim(WorkerId(f"w{number}"), ["default"], 1))
            if not grants:
                return
            answer = reserve(store, grants[0], ask)
            if answer is None or answer.refusal is not None:
                return
            cost = chance.randint(0, ask)
            spent.append(cost)
            if chance.random() < 0.3:
                return  # killed: neither settled nor completed
            settle_at(store, grants[0], {"usd": cost})
            complete(store, grants[0])
            found = store.do(ListBudgets(["all"]))[0]
            assert found.used + found.reserved <= limit

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(work, range(WORKERS)))
    clock.advance(31)
    reap(store)
    sweep(store)

    used, reserved = counts(store)
    assert reserved == 0
    assert sum(spent) <= used <= limit
    assert counts(store, "queue:default") == (used, 0)


def test_no_wake_up_is_lost_between_parks_raises_and_settles(store: Subject) -> None:
    """Jobs park while others make room by raises and by settles. In the end there is room for all, so none waits."""
    jobs, ask = 30, 10
    set_budget(store, limit=100)
    set_budget(store, "queue:default", limit=100 + 10 * jobs)
    holders = [held(store) for _ in range(10)]
    assert all(has_reserved(store, grant, 10) for grant in holders)
    grants = []
    for _ in range(jobs):
        enqueue(store)
        grants.append(claim_one(store))

    def parks(grant: Grant) -> None:
        answer = reserve(store, grant, ask)
        assert answer is not None
        if answer.refusal is not None:
            value = json.dumps({"key": "1", "asked": {"usd": ask}})
            step = NewStep("$budget/1", "budget", "open", value, None, answer.refusal.name)
            settle(store, Suspended(grant.id, grant.token, answer.refusal.name, None, (step,)))
            store.do(SweepFlow())

    def settles(grant: Grant) -> None:
        settle_at(store, grant, {"usd": 0})

    def raises(_: int) -> None:
        store.do(RaiseBudgets("all", "total", {"usd": ask}, "ops"))

    with ThreadPoolExecutor(12) as pool:
        ends = [pool.submit(parks, grant) for grant in grants]
        ends[5:5] = [pool.submit(settles, grant) for grant in holders]
        ends += [pool.submit(raises, number) for number in range(20)]
        for end in ends:
            end.result(timeout=60)
    sweep(store)

    assert counts(store) == (0, ask * jobs)
    assert budget(store).limit == 300
    assert "waiting" not in states(store, [grant.id for grant in grants])


def test_a_plain_job_pays_nothing_for_budgets(store: Subject) -> None:
    """The same number of statements with budgets and without."""

    def taken() -> int:
        before = store.store.stats().statements
        for _ in range(3):
            enqueue(store)
            complete(store, claim_one(store))
        return store.store.stats().statements - before

    taken()
    without = taken()
    set_budget(store, "all", limit=5)
    set_budget(store, "queue:default", "calls", limit=0)
    assert taken() == without
