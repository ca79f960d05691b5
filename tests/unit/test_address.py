"""The parameters of a PostgreSQL URL that are Tenure's own."""

from __future__ import annotations

import pytest

from tenure.errors import ConfigError
from tenure.store.postgres.address import read_address


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("postgresql://u@h/d", "postgresql://u@h/d"),
        ("postgresql://u@h/d?sslmode=require", "postgresql://u@h/d?sslmode=require"),
        ("postgresql://u@h/d?tenure_pool=3", "postgresql://u@h/d"),
        ("postgresql://u@h/d?tenure_pool=3&sslmode=require", "postgresql://u@h/d?sslmode=require"),
        ("postgresql://u@h/d?sslmode=require&tenure_pool=3", "postgresql://u@h/d?sslmode=require"),
        ("postgresql://u@h/d?a=1&tenure_pool=3&tenure_pooler=1&b=2", "postgresql://u@h/d?a=1&b=2"),
    ],
)
def test_libpq_is_not_told_what_is_ours(given: str, left: str) -> None:
    address = read_address(given)

    assert address.url == left
    assert address.pool_size == (3 if "tenure_pool=" in given else 10)
    assert address.is_pooled is ("tenure_pooler" in given)


@pytest.mark.parametrize(
    ("parameter", "says"),
    [
        ("tenure_pool=0", "tenure_pool=0; it must be 1 or more"),
        ("tenure_pool=many", "tenure_pool=many; it must be 1 or more"),
        ("tenure_pool=", "tenure_pool=; it must be 1 or more"),
        ("tenure_pooler=no", "tenure_pooler=no; it must be 0 or 1"),
        ("tenure_pooler=2", "tenure_pooler=2; it must be 0 or 1"),
        ("tenure_pol=3", "Did you mean 'tenure_pool'?"),
    ],
)
def test_a_setting_that_makes_no_sense_is_told_without_the_password(parameter: str, says: str) -> None:
    with pytest.raises(ConfigError) as told:
        read_address(f"postgresql://u:s3cret@h/d?{parameter}&sslmode=require")

    assert says in str(told.value)
    assert "s3cret" not in str(told.value)
