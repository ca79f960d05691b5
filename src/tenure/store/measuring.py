"""What `tenure bench` asks of a store: how fast the engine is without us, and to take away what the bench has left.

On PostgreSQL both use a connection of their own, with the rights of the role that opened the store.
"""

from __future__ import annotations

from typing import Literal

from tenure.model.frozen import frozen
from tenure.store.contract import Request


@frozen
class Measure(Request[float]):
    """Do one thing over and over, as bare as the engine allows; answers the seconds that one took.

    `round_trip`: a statement that reads nothing. `commit`: a write of some 200 bytes and its synced commit. On
    PostgreSQL that is a message in the write-ahead log, on SQLite a row in a file beside the database; neither leaves
    anything behind. Ends after `times` of them or after `seconds`, whichever comes first.
    """

    what: Literal["round_trip", "commit"]
    times: int
    seconds: float


@frozen
class DropQueue(Request[int]):
    """Delete a queue with its jobs and all that hangs on them, in one transaction; answers how many jobs went.

    Harmless to repeat. Only for queues that hold nothing but jobs of `kind`: any other job in it makes it refuse.
    `is_trial` changes nothing, and tells whether it would be refused.
    Workers that served nothing else are forgotten too. Raises: IllegalMove (a job of another kind), AccessDenied.
    """

    name: str
    kind: str
    is_trial: bool = False
