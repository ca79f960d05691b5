"""Buckets of durations: quantiles within 5 %, and merging is adding."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from tenure.model.buckets import bucket_of, merged, quantile, seconds_of


def test_quantiles_are_at_most_five_percent_off() -> None:
    chance = random.Random(1)
    values = sorted(chance.lognormvariate(-2, 1.5) for _ in range(20_000))
    counts = Counter(bucket_of(value * 1e6) for value in values)

    assert len(counts) < 190
    for share in (0.5, 0.9, 0.95, 0.99, 1.0):
        exact = values[math.ceil(share * len(values)) - 1]
        assert quantile(counts, share) == pytest.approx(exact, rel=0.05)


def test_merging_parts_is_counting_the_whole() -> None:
    chance = random.Random(2)
    values = [chance.expovariate(1) for _ in range(3000)]
    parts = [Counter(bucket_of(value * 1e6) for value in values[n::7]) for n in range(7)]

    assert merged(parts) == Counter(bucket_of(value * 1e6) for value in values)


def test_the_shortest_durations_have_a_bucket_too() -> None:
    assert [bucket_of(us) for us in (-5, 0, 1, 1.05, 1.2)] == [0, 0, 0, 1, 2]
    assert seconds_of(0) == 0.0
    assert quantile({}, 0.5) is None
    assert quantile({0: 3}, 0.99) == 0.0
