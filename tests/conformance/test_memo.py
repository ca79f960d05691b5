"""Memos: one job works a value out, others wait for it or read it. See store.memo."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tenure.errors import InvalidArgument
from tenure.model.job import Grant
from tenure.model.memo import Memo, MemoTold, memo_id
from tenure.model.outcome import Suspended
from tenure.model.state import State
from tenure.model.step import NewStep
from tenure.store.contract import Prune
from tenure.store.flow import SweepFlow
from tenure.store.memo import ForgetMemos, KeepMemo, ListMemos, TakeMemo
from tenure.store.queries import ListAudit
from tests.conformance.acts import (
    NO_BACKOFF,
    Subject,
    cancel,
    claim,
    claim_one,
    complete,
    enqueue,
    enqueue_many,
    fail,
    get,
    make_queue,
    reject,
    settle,
    stale,
)
from tests.conformance.engines import SteeredClock

DOORS = ("do", "ado")
ID = memo_id(None, "extract", "k")


def take(store: Subject, grant: Grant, tenant: str | None = None, key: str = "k") -> MemoTold | None:
    return store.do(TakeMemo(grant.id, grant.token, memo_id(tenant, "extract", key), "extract", key, tenant))


def keep(store: Subject, grant: Grant, value: str = '{"n": 1}', ttl: float = 60.0) -> MemoTold | None:
    return store.do(KeepMemo(grant.id, grant.token, ID, value, ttl))


def wait(store: Subject, grant: Grant, turn: int = 1) -> str | None:
    step = NewStep(f"extract/k#{turn}", "memo", "open", awaits=f"memo:{ID}")
    return settle(store, Suspended(grant.id, grant.token, "memo:extract", steps=(step,))).state


def sweep(store: Subject) -> None:
    while store.do(SweepFlow()).more:
        pass


def three(store: Subject) -> list[Grant]:
    enqueue_many(store, 3)
    return claim(store, 3)


def test_the_first_that_comes_works_it_out_and_others_read_it(store: Subject) -> None:
    one, two, three_ = three(store)

    assert take(store, one) == MemoTold("mine")
    assert take(store, one) == MemoTold("mine"), "asked twice, as after a lost reply"
    assert take(store, two) == MemoTold("taken")
    assert keep(store, one) == MemoTold("done", '{"n": 1}')

    for grant in (one, two, three_):
        told = take(store, grant)
        assert told is not None
        assert (told.state, told.value) == ("done", '{"n": 1}')


def test_those_that_wait_are_woken_when_it_is_there(store: Subject) -> None:
    one, two, three_ = three(store)
    take(store, one)
    assert wait(store, two) == "waiting"
    assert wait(store, three_) == "waiting"

    keep(store, one)
    sweep(store)

    assert {grant.id for grant in claim(store, 5)} == {two.id, three_.id}


def test_a_value_that_came_before_the_wait_is_not_missed(store: Subject) -> None:
    one, two, _ = three(store)
    take(store, one)
    assert take(store, two) == MemoTold("taken")
    keep(store, one)

    assert wait(store, two) == "queued"


@pytest.mark.parametrize("end", ["rejected", "completed"])
def test_an_owner_that_ends_without_a_value_passes_the_right_to_one_that_waits(store: Subject, end: str) -> None:
    one, two, three_ = three(store)
    take(store, one)
    wait(store, two)
    wait(store, three_)

    reject(store, one) if end == "rejected" else complete(store, one)
    sweep(store)

    [owner] = claim(store, 5)
    assert owner.id in {two.id, three_.id}
    assert take(store, owner) == MemoTold("mine")
    keep(store, owner, "2")
    sweep(store)
    [last] = claim(store, 5)
    assert take(store, last) == MemoTold("done", "2")


@pytest.mark.parametrize("end", ["rejected", "completed", "cancelled"])
def test_the_end_of_an_owner_hands_the_right_on_by_itself(store: Subject, end: str) -> None:
    """Only a sweep by the leader found it, within seconds."""
    one, two, three_ = three(store)
    take(store, one)
    wait(store, two)
    wait(store, three_)
    if end == "cancelled":
        settle(store, Suspended(one.id, one.token, "nap", delay_seconds=600.0))

    match end:
        case "rejected":
            reject(store, one)
        case "completed":
            complete(store, one)
        case _:
            cancel(store, one.id)

    [owner] = claim(store, 5)
    assert take(store, owner) == MemoTold("mine")


def test_a_failed_attempt_keeps_the_right(store: Subject) -> None:
    make_queue(store, "default", backoff=NO_BACKOFF)
    one, two, _ = three(store)
    take(store, one)
    wait(store, two)

    fail(store, one)
    sweep(store)

    assert get(store, two.id).state is State.WAITING
    again = claim_one(store)
    assert again.id == one.id
    assert take(store, again) == MemoTold("mine")


def test_a_vanished_worker_costs_the_right_only_when_its_job_has_ended(store: Subject, clock: SteeredClock) -> None:
    enqueue(store, max_attempts=1)
    one = claim_one(store, lease_seconds=5)
    take(store, one)
    enqueue(store)
    two = claim_one(store, worker="w2", lease_seconds=60)
    wait(store, two)

    clock.advance(6)
    claim(store, 0, worker="w3")
    sweep(store)

    assert get(store, one.id).state is State.DEAD
    assert claim_one(store).id == two.id


def test_a_value_is_read_until_its_time_is_over(store: Subject, clock: SteeredClock) -> None:
    one, two, _ = three(store)
    take(store, one)
    keep(store, one, ttl=5)

    clock.advance(4)
    assert take(store, two) == MemoTold("done", '{"n": 1}')
    clock.advance(2)
    assert take(store, two) == MemoTold("mine")


def of_tenant(store: Subject, tenant: str | None) -> Grant:
    enqueue(store, tenant=tenant)
    return claim_one(store)


def test_tenants_share_nothing(store: Subject) -> None:
    one, two = of_tenant(store, "acme"), of_tenant(store, "other")

    assert take(store, one, "acme") == MemoTold("mine")
    assert take(store, two, "other") == MemoTold("mine")
    assert memo_id("acme", "a", "b") != memo_id("acme", "ab", "") != memo_id(None, "acme", "ab")


def test_a_job_takes_no_memo_of_another_tenant_whatever_it_calls_itself(store: Subject) -> None:
    """A worker that knew name and key could read what another tenant's job had worked out, and say it in its place."""
    one, stranger, free = of_tenant(store, "acme"), of_tenant(store, "other"), of_tenant(store, None)
    theirs = memo_id("acme", "extract", "k")
    take(store, one, "acme")
    store.do(KeepMemo(one.id, one.token, theirs, '"CANARY"', 60.0))

    for grant in (stranger, free):
        for tenant in ("acme", "other", None):
            with pytest.raises(InvalidArgument, match="may not take this memo"):
                store.do(TakeMemo(grant.id, grant.token, theirs, "extract", "k", tenant))
        own = grant is stranger
        with pytest.raises(InvalidArgument, match="may not take this memo"):
            take(store, grant, None if own else "other", "new")
    told = take(store, of_tenant(store, "acme"), "acme")
    assert told is not None
    assert told.value == '"CANARY"'


def test_a_late_worker_neither_takes_nor_keeps(store: Subject) -> None:
    one, two, _ = three(store)

    assert take(store, stale(one)) is None
    take(store, one)
    assert keep(store, stale(one)) is None
    assert take(store, two) == MemoTold("taken")


@pytest.mark.parametrize("ttl", [0.0, -1.0, math.inf, math.nan, 1e12])
def test_a_time_that_is_none_is_refused(store: Subject, ttl: float) -> None:
    one, *_ = three(store)
    take(store, one)

    with pytest.raises(InvalidArgument, match="kept for"):
        keep(store, one, ttl=ttl)


@pytest.mark.parametrize("value", ["{no", "NaN", '1,"job_id":"x"', ""])
def test_a_value_that_is_no_json_is_refused(store: Subject, value: str) -> None:
    one, *_ = three(store)
    take(store, one)

    with pytest.raises(InvalidArgument, match="no JSON"):
        keep(store, one, value)


def test_a_value_that_is_too_large_is_refused(store: Subject) -> None:
    one, *_ = three(store)
    take(store, one)

    with pytest.raises(InvalidArgument, match="are the limit"):
        keep(store, one, f'"{"x" * 2**20}"')


def test_what_is_out_of_date_is_forgotten(store: Subject, clock: SteeredClock) -> None:
    one, two, _ = three(store)
    take(store, one)
    keep(store, one, ttl=5)
    complete(store, one)
    clock.advance(2 * 86_400)

    store.do(Prune())

    enqueue(store)
    assert take(store, claim_one(store)) == MemoTold("mine")
    assert two.id != one.id


# --- listed and forgotten


def keep_keys(store: Subject, keys: tuple[str, ...], tenant: str | None = None, ttl: float = 60.0) -> Grant:
    """A held job that has kept a value for each of these keys."""
    enqueue(store)
    [grant] = claim(store, 1)
    for key in keys:
        take(store, grant, tenant, key)
        store.do(KeepMemo(grant.id, grant.token, memo_id(tenant, "extract", key), f'"{key}"', ttl))
    return grant


def keys_of(store: Subject, **terms: Any) -> list[str]:
    """The keys of the memos that a list has, page by page."""
    found, after = [], None
    while True:
        page = store.do(ListMemos(**terms, after=after))
        found += [memo.key for memo in page]
        after = page.next
        if after is None:
            return found


def forget(store: Subject, **terms: Any) -> int:
    gone, after = 0, None
    while True:
        told = store.do(ForgetMemos("ops", "wrong model", **terms, after=after))
        gone, after = gone + told.memos, told.next
        if after is None:
            return gone


def test_memos_are_listed_by_name_and_key_in_pages(store: Subject, clock: SteeredClock) -> None:
    grant = keep_keys(store, ("b", "a/2", "a/10", "ä", "a"))
    other = of_tenant(store, "acme")
    store.do(TakeMemo(other.id, other.token, memo_id("acme", "embed", "x"), "embed", "x", "acme"))

    assert keys_of(store, limit=2) == ["x", "a", "a/10", "a/2", "b", "ä"]
    assert keys_of(store, name="extract", limit=1) == ["a", "a/10", "a/2", "b", "ä"]
    assert keys_of(store, name="extract", prefix="a") == ["a", "a/10", "a/2"]
    assert keys_of(store, name="extract", key="a") == ["a"]
    assert keys_of(store, tenant="acme", limit=1) == ["x"]
    assert keys_of(store, name="extrac") == []
    one, *_ = store.do(ListMemos("extract", limit=1)).items
    assert one == Memo(
        memo_id(None, "extract", "a"), "extract", "a", None, "done", grant.id, 3, '"a"', clock.now(), one.expires_at
    )
    [opened] = store.do(ListMemos("embed")).items
    assert (opened.state, opened.size, opened.preview, opened.expires_at, opened.kind) == ("open", 0, "", None, None)


def test_a_list_shows_the_beginning_of_a_value_and_nothing_that_is_out_of_date(
    store: Subject, clock: SteeredClock
) -> None:
    grant = keep_keys(store, ("k",), ttl=5)
    take(store, grant, None, "long")
    store.do(KeepMemo(grant.id, grant.token, memo_id(None, "extract", "long"), f'"{"ä" * 500}"', 60.0))
    clock.advance(6)

    [memo] = store.do(ListMemos()).items

    assert (memo.key, memo.size, memo.preview) == ("long", 1002, '"' + "ä" * 199)


@pytest.mark.parametrize(
    ("terms", "left"),
    [
        ({"name": "extract", "key": "a"}, ["a/1", "a/2", "b"]),
        ({"name": "extract", "prefix": "a/"}, ["a", "b"]),
        ({"name": "extract", "prefix": "a", "limit": 1}, ["b"]),
        ({"name": "extract"}, []),
        ({"ids": [memo_id(None, "extract", "b"), memo_id(None, "extract", "none")]}, ["a", "a/1", "a/2"]),
        ({"name": "extract", "tenant": "acme"}, ["a", "a/1", "a/2", "b"]),
    ],
)
def test_a_memo_that_was_forgotten_is_worked_out_anew(store: Subject, terms: dict[str, Any], left: list[str]) -> None:
    grant = keep_keys(store, ("a", "a/1", "a/2", "b"))

    assert forget(store, **terms) == 4 - len(left)

    assert keys_of(store) == left
    for key in ("a", "a/1", "a/2", "b"):
        assert (take(store, grant, None, key) == MemoTold("mine")) is (key not in left)
    rows = store.do(ListAudit())
    assert [(row.actor, row.reason) for row in rows if row.act == "forget_memos"][:1] == (
        [("ops", "wrong model")] if len(left) < 4 else []
    )


def test_one_that_waits_works_a_forgotten_memo_out_and_its_owner_keeps_its_own_value(store: Subject) -> None:
    one, two, three_ = three(store)
    take(store, one)
    wait(store, two)
    wait(store, three_)

    assert forget(store, name="extract") == 1
    sweep(store)

    woken = claim(store, 5)
    assert {grant.id for grant in woken} == {two.id, three_.id}
    assert take(store, woken[0]) == MemoTold("mine")
    assert take(store, woken[1]) == MemoTold("taken")
    assert keep(store, one, "1") == MemoTold("done", "1"), "no one else reads it"
    assert take(store, woken[1]) == MemoTold("taken")


@pytest.mark.parametrize(
    "request_",
    [
        ListMemos(key="k"),
        ListMemos("extract", key="k", prefix="k"),
        ListMemos(after="no cursor"),
        ListMemos(after='["a", "b"]'),
        ForgetMemos("ops", "so"),
        ForgetMemos("ops", "so", [ID], "extract"),
        ForgetMemos("ops", "so", ["short"]),
    ],
)
def test_a_choice_of_memos_that_says_too_little_or_too_much_is_refused(store: Subject, request_: Any) -> None:
    grant = keep_keys(store, ("k",))

    with pytest.raises(InvalidArgument):
        store.do(request_)

    assert keys_of(store) == ["k"]
    assert take(store, grant) == MemoTold("done", '"k"')


@pytest.mark.parametrize("text", ["", " ", "k" * 301])
def test_a_key_that_no_index_holds_is_refused(store: Subject, text: str) -> None:
    one, *_ = three(store)

    with pytest.raises(InvalidArgument, match="key of a memo"):
        take(store, one, None, text)


def test_names_and_keys_of_the_longest_form_are_held(store: Subject) -> None:
    one, *_ = three(store)
    name, key = "😀" * 300, "🚗" * 300

    store.do(TakeMemo(one.id, one.token, memo_id(None, name, key), name, key))

    assert keys_of(store, name=name) == [key]
