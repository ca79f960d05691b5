"""The bare server beside which Tenure is measured, and taking away what the measuring left."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from tenure.errors import AccessDenied, IllegalMove
from tenure.store.measuring import DropQueue, Measure
from tenure.store.postgres.errors import driver_errors

_SQL: Final = Path(__file__).parent / "sql" / "measure"


def measure(url: str, request: Measure) -> float:
    """See store.measuring.Measure."""
    import psycopg

    statement = (_SQL / f"{request.what}.sql").read_bytes()
    with driver_errors(url), psycopg.connect(url, autocommit=True, application_name="tenure bench") as connection:
        connection.execute(statement, prepare=False)
        done, begun = 0, time.perf_counter()
        while done < request.times and time.perf_counter() - begun < request.seconds:
            connection.execute(statement, prepare=False)
            done += 1
        return (time.perf_counter() - begun) / max(1, done)


def drop_queue(url: str, request: DropQueue) -> int:
    """See store.measuring.DropQueue."""
    import psycopg

    asked = {"name": request.name, "kind": request.kind}
    with driver_errors(url), psycopg.connect(url, application_name="tenure bench") as connection:
        if not _value(connection.execute((_SQL / "may_drop.sql").read_bytes())):
            raise AccessDenied(
                f"This login may not delete rows of Tenure's tables, so queue {request.name!r} could not be taken away "
                "again. Use the login that runs `tenure migrate`."
            )
        others = _value(connection.execute((_SQL / "others.sql").read_bytes(), asked))
        if others:
            raise IllegalMove(
                f"Queue {request.name!r} holds {others:,} jobs of other kinds than {request.kind!r}, so it stays."
            )
        if request.is_trial:
            return 0
        return int(_value(connection.execute((_SQL / "drop_queue.sql").read_bytes(), asked)))


def _value(cursor: Any) -> Any:
    row = cursor.fetchone()
    assert row is not None
    return row[0]
