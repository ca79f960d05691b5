"""Backoff figures, as the five specifications give them."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.client.settings import QueueSettings
from tenure.model.policy import Backoff, QueuePolicy


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        pytest.param(Backoff("none"), [0, 0, 0], id="agent_queue and outbox: none"),
        pytest.param(Backoff("power", base_seconds=5, power=2), [5, 20, 45], id="automechanica: 5 s, power 2"),
        pytest.param(
            Backoff("exponential", base_seconds=10, factor=2, cap_seconds=10_240),
            [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120, 10_240, 10_240],
            id="substrate: 10 s, factor 2, cap 10,240 s",
        ),
        pytest.param(
            Backoff("exponential", base_seconds=5, factor=2), [5, 10, 20, 40], id="orchestrator: 5 s, factor 2"
        ),
        pytest.param(Backoff(), [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600], id="default"),
        pytest.param(Backoff("constant", base_seconds=7), [7, 7, 7], id="constant"),
        pytest.param(Backoff("linear", base_seconds=3), [3, 6, 9], id="linear"),
    ],
)
def test_the_delay_after_each_attempt_is_that_of_the_specification(backoff: Backoff, delays: list[float]) -> None:
    assert [backoff.delay_seconds(n) for n in range(1, len(delays) + 1)] == delays


@given(
    st.sampled_from(["none", "constant", "linear", "power", "exponential"]),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.integers(1, 10**6),
)
def test_a_delay_is_never_negative_nor_above_its_cap(shape: str, base: float, cap: float, attempt: int) -> None:
    backoff = Backoff(shape, base_seconds=base, cap_seconds=cap)  # type: ignore[arg-type]

    assert 0 <= backoff.delay_seconds(attempt) <= cap
    assert backoff.delay_seconds(attempt) <= backoff.delay_seconds(attempt + 1)


def test_a_policy_has_the_defaults_of_the_design() -> None:
    policy = QueuePolicy()

    assert (policy.max_attempts, policy.lease_seconds, policy.key_scope, policy.key_space) == (3, 60, "active", "kind")
    assert (policy.priority_order, policy.priority_default, policy.start_on_claim) == ("high", 0, True)


def test_the_settings_of_a_queue_are_the_fields_of_its_policy() -> None:
    assert list(QueueSettings.__annotations__) == [field.name for field in dataclasses.fields(QueuePolicy)]
