"""Tables filled in one statement, for tests and benchmarks that ask what size costs."""

from __future__ import annotations

from typing import Any

import psycopg

_ROWS = """
INSERT INTO tenure.job (
    id, rank, run_at, created_at, updated_at, priority, max_attempts, is_due, state, queue, kind, profile, payload,
    finished_at, token, attempt
)
SELECT
    ('01900000-' || lpad(to_hex(n / 65536), 4, '0') || '-7' || lpad(to_hex(n %% 65536 / 16), 3, '0')
        || '-8' || lpad(to_hex(n %% 16), 3, '0') || '-' || lpad(to_hex(hashtext(%(queue)s) & 65535), 4, '0')
        || lpad(to_hex(hashtext(%(state)s || %(later)s) & 65535), 8, '0'))::uuid,
    -(n %% %(priorities)s),
    now() + %(later)s::interval - interval '1 hour' * (%(later)s = '0')::int,
    now(), now(), n %% %(priorities)s, 3,
    %(later)s = '0', %(state)s, %(queue)s, 'work', 'default', '{"text": "some two hundred bytes of payload"}',
    CASE WHEN %(state)s = 'succeeded' THEN now() - interval '1 day' END,
    (%(state)s = 'succeeded')::int, (%(state)s = 'succeeded')::int
FROM generate_series(%(first)s, %(first)s + %(rows)s - 1) AS n
"""


def fill(
    connection: psycopg.Connection[Any],
    rows: int,
    *,
    queue: str = "default",
    state: str = "queued",
    later: str = "0",
    priorities: int = 1,
    first: int = 1,
) -> None:
    """Put `rows` jobs into `queue`, straight into the table. `later` is an interval for jobs that are not due yet,
    `first` the number of the first, for a second lot of the same jobs."""
    connection.execute(
        "INSERT INTO tenure.queue (name, created_at, updated_at) VALUES (%s, now(), now()) ON CONFLICT DO NOTHING",
        [queue],
    )
    parameters = {
        "rows": rows, "first": first, "queue": queue, "state": state, "later": later, "priorities": priorities,
    }  # fmt: skip
    connection.execute(_ROWS, parameters)
