"""Filters at the claim: kinds, queues and affinity."""

from __future__ import annotations

from tests.conformance.acts import Subject, claim, enqueue, enqueue_many, get, make_queue


def test_kinds_filter(store: Subject) -> None:
    mail, _, pdf = enqueue(store, "mail"), enqueue(store, "print"), enqueue(store, "pdf")

    assert [grant.id for grant in claim(store, 10, kinds=["mail", "pdf"])] == [mail, pdf]


def test_an_unknown_kind_finds_nothing(store: Subject) -> None:
    enqueue(store, "mail")

    assert claim(store, 10, kinds=["nobody-knows-it"]) == []


def test_no_kinds_at_all_find_nothing(store: Subject) -> None:
    enqueue(store, "mail")

    assert claim(store, 10, kinds=[]) == []


def test_a_wanted_kind_is_found_behind_many_others(store: Subject) -> None:
    enqueue_many(store, 300, "print", priority=9)
    wanted = enqueue(store, "mail")

    assert [grant.id for grant in claim(store, 5, kinds=["mail"])] == [wanted]


def test_affinity_lists_the_keys_that_are_wanted(store: Subject) -> None:
    gpu = enqueue(store, affinity_key="gpu")
    enqueue(store, affinity_key="tpu")
    enqueue(store)

    assert [grant.id for grant in claim(store, 10, affinity=["gpu"])] == [gpu]


def test_none_in_affinity_stands_for_jobs_without_a_key(store: Subject) -> None:
    gpu = enqueue(store, affinity_key="gpu")
    enqueue(store, affinity_key="tpu")
    free = enqueue(store)

    assert [grant.id for grant in claim(store, 10, affinity=["gpu", None])] == [gpu, free]


def test_none_alone_finds_only_jobs_without_a_key(store: Subject) -> None:
    enqueue(store, affinity_key="gpu")
    free = enqueue(store)

    assert [grant.id for grant in claim(store, 10, affinity=[None])] == [free]


def test_without_affinity_every_job_is_eligible(store: Subject) -> None:
    ids = [enqueue(store, affinity_key="gpu"), enqueue(store)]

    assert [grant.id for grant in claim(store, 10)] == ids


def test_filters_work_together(store: Subject) -> None:
    make_queue(store, "a")
    make_queue(store, "b")
    wanted = enqueue(store, "mail", queue="a", affinity_key="x")
    enqueue(store, "print", queue="a", affinity_key="x")
    enqueue(store, "mail", queue="a", affinity_key="y")
    enqueue(store, "mail", queue="b", affinity_key="x")

    assert [grant.id for grant in claim(store, 10, queues=["a"], kinds=["mail"], affinity=["x"])] == [wanted]


def test_what_a_filter_leaves_out_is_untouched(store: Subject) -> None:
    other = enqueue(store, "print")
    before = get(store, other)

    claim(store, 10, kinds=["mail"])

    assert get(store, other) == before


def test_a_queue_named_twice_gives_each_job_once(store: Subject) -> None:
    ids = enqueue_many(store, 3)

    assert [grant.id for grant in claim(store, 10, queues=["default", "default"])] == ids
