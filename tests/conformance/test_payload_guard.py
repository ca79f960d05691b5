"""The payload guard: a queue may forbid keys, at any depth. The value under a key is never looked at."""

from __future__ import annotations

from typing import Final

import pytest

from tenure.errors import ForbiddenKey
from tenure.store.contract import Enqueue
from tests.conformance.acts import (
    Subject,
    claim_one,
    complete,
    enqueue,
    exists,
    fail,
    get,
    letters,
    make_queue,
    new_job,
)

TEN_KEYS: Final = (
    "body",
    "content",
    "raw",
    "vector",
    "embedding",
    "secret",
    "token",
    "password",
    "ssn",
    "personal_data",
)
"""Written out, as the specification has them: imported from the product, no test would notice a changed one."""


@pytest.mark.parametrize("key", TEN_KEYS)
def test_each_of_the_ten_keys_of_002_is_refused(store: Subject, key: str) -> None:
    make_queue(store, forbidden_keys=TEN_KEYS)
    job = new_job(payload={"fine": 1, key: "x"}, queue="q")

    with pytest.raises(ForbiddenKey) as caught:
        store.do(Enqueue([job]))

    assert key in str(caught.value)
    assert not exists(store, job.id)


@pytest.mark.parametrize(
    "payload",
    [
        {"a": {"b": {"password": 1}}},
        {"list": [1, [2, {"password": None}]]},
        [{"password": 1}],
        {"": {"password": 1}},
        {"a": [{"b": [{"c": {"password": []}}]}]},
    ],
)
def test_nested_keys_count_too(store: Subject, payload: object) -> None:
    make_queue(store, forbidden_keys=("password",))

    with pytest.raises(ForbiddenKey):
        store.do(Enqueue([new_job(payload=payload, queue="q")]))


@pytest.mark.parametrize(
    "payload",
    [{"a": "password"}, {"password_hash": 1}, ["password"], '"password"', {"a": {"pass": "word"}}],
)
def test_values_and_other_keys_are_fine(store: Subject, payload: object) -> None:
    make_queue(store, forbidden_keys=("password",))

    job_id = enqueue(store, payload=payload, queue="q")

    assert exists(store, job_id)


@pytest.mark.parametrize(
    "payload",
    ['{"Password": 1}', '{"a": {"PASSWORD": 1}}', '{"a": {"password": 1}, "a": 2}', '{"password": 1, "password": 2}'],
)
def test_neither_case_nor_a_repeated_key_passes_the_guard(store: Subject, payload: str) -> None:
    """V16: of two equal keys a parser keeps the last, and the first one was stored with all that was below it."""
    make_queue(store, forbidden_keys=("password",))
    job = new_job(queue="q")
    job.payload = payload

    with pytest.raises(ForbiddenKey):
        store.do(Enqueue([job]))
    assert not exists(store, job.id)


def test_a_key_that_is_forbidden_in_capitals_is_forbidden_in_any_case(store: Subject) -> None:
    make_queue(store, forbidden_keys=("SSN",))

    with pytest.raises(ForbiddenKey):
        store.do(Enqueue([new_job(payload={"ssn": 1}, queue="q")]))


def test_a_key_spelt_with_escapes_is_the_same_key(store: Subject) -> None:
    make_queue(store, forbidden_keys=("password",))

    with pytest.raises(ForbiddenKey):
        store.do(Enqueue([new_job(payload='{"pass\\u0077ord": 1}', queue="q")]))


def test_one_guarded_job_keeps_the_whole_batch_out(store: Subject) -> None:
    make_queue(store, forbidden_keys=("password",))
    good, bad = new_job(queue="q"), new_job(payload={"password": 1}, queue="q")

    with pytest.raises(ForbiddenKey):
        store.do(Enqueue([good, bad]))

    assert not exists(store, good.id)


def test_queues_without_a_guard_take_anything(store: Subject) -> None:
    assert enqueue(store, payload={"password": 1, "body": "x"})


def test_a_follow_up_is_guarded_like_any_job(store: Subject) -> None:
    make_queue(store, forbidden_keys=("password",))
    enqueue(store)
    grant = claim_one(store)

    with pytest.raises(ForbiddenKey):
        complete(store, grant, jobs=(new_job(payload={"password": 1}, queue="q"),))

    assert get(store, grant.id).state == "running"


def test_a_guarded_job_lives_and_dies_like_any_other(store: Subject) -> None:
    make_queue(store, forbidden_keys=TEN_KEYS, max_attempts=1)
    job_id = enqueue(store, payload={"ref": "doc-1"}, queue="q")

    fail(store, claim_one(store, queue="q"))

    assert [letter.payload for letter in letters(store, job_id)] == [{"ref": "doc-1"}]
