"""Steps: what a durable job has behind it and what it waits for; and groups, the children that it waits for.

The first record of a key stays. A body that runs again reads back what earlier runs recorded, so a step that has ended
is never paid for twice.

What a step waits for is a condition, written as text: `signal:KEY`, `group:ID`, `approval:ID`, `budget:SCOPE:UNIT:PER`,
`memo:SPACE:HASH`. A condition becomes true by a row that is committed, never by a message.
"""

from __future__ import annotations

from dataclasses import field
from datetime import datetime
from typing import Final

from tenure.model.frozen import frozen
from tenure.model.ids import JobId, Token, new_job_id
from tenure.model.job import NewJob

KINDS: Final = ("step", "sleep", "signal", "group", "approval", "undo", "mark", "budget", "memo", "job")
"""A `mark` notes a fact about the job itself, such as the version of the code it began under: it is no progress."""
NO_PROGRESS: Final = frozenset({"mark", "budget"})
"""Kinds whose first record does not make the attempt count as the first: a job that only waits for a budget has not got
any further."""
STATES: Final = ("open", "done", "failed", "armed", "undone")
"""`open` becomes done or failed, `armed` (an undo) becomes undone or failed, each once."""
KEY_CHARS: Final = 300
VALUE_BYTES: Final = 1_048_576
GROUP_PAGE: Final = 1000
"""Children that are created by one transaction at most."""
GRANT_BYTES: Final = 262_144
"""Values of steps that come with a grant. Further steps are read by ListSteps."""
TIMEOUT: Final = "timeout"
"""The error of a step other than a sleep whose time was over before its condition was met."""
DEADLINE: Final = "$deadline"
"""The key of the step that is a job's deadline."""
OVERDUE: Final = "The job was not done within the deadline that its handler declares."
"""The error of a job whose step `$deadline`, an open sleep from its first record on, has come due."""


@frozen
class NewStep:
    """A step to record. `value` is JSON text.

    An `open` step waits: for its condition `awaits`, and for `due_seconds` from its first record. A sleep has only the
    time. When the time comes first, a sleep is `done` and any other step `failed` with the error TIMEOUT.
    """

    key: str
    kind: str = "step"
    state: str = "done"
    value: str | None = None
    error: str | None = None
    awaits: str | None = None
    due_seconds: float | None = None


@frozen
class Step:
    """A step as it is stored. `value` is JSON text."""

    job_id: JobId
    key: str
    ordinal: int
    """The order of first records within the job, from 1."""
    kind: str
    state: str
    token: Token
    """The grant that wrote it last; of an open step the grant that waited for it last."""
    value: str | None
    error: str | None
    awaits: str | None
    due_at: datetime | None
    created_at: datetime
    ended_at: datetime | None


@frozen
class NewGroup:
    """Children to wait for. The step `step_key` of kind `group` is recorded with it and awaits `group:ID`.

    The group is over when all children have ended, or when `need` of them have succeeded; with `fail_fast` also as soon
    as more than `tolerate` have not succeeded (dead, failed or cancelled), or `need` cannot be reached any more. It has
    then `done` well if `need` was reached, or, without one, if no more than `tolerate` have not succeeded; else it has
    `failed`. The parent is woken once, when it is over.
    """

    step_key: str
    jobs: tuple[NewJob, ...]
    need: int | None = None
    """So many successes are enough; `tolerate` does not count then."""
    tolerate: int = 0
    fail_fast: bool = False
    window: int | None = None
    """At most so many of the children are claimable or held at once; the others wait for the ends of these."""
    due_seconds: float | None = None
    """The group's step fails with TIMEOUT if the group is not over by then. Its children go on."""
    cancel_rest: bool = False
    """Cancel the children that are left when the group is over."""
    id: str = field(default_factory=new_job_id)


@frozen
class Group:
    """A group as it stands."""

    id: str
    parent_id: JobId
    step_key: str
    state: str
    """open, done or failed."""
    total: int | None
    """How many children it has; None while pages are still being added."""
    made: int
    """How many children have been created."""
    ended: int
    failed: int
    """Dead or failed."""
    cancelled: int
    need: int | None
    tolerate: int
    fail_fast: bool
    window: int | None
    cancel_rest: bool
    created_at: datetime
    ended_at: datetime | None

    @property
    def succeeded(self) -> int:
        """How many children have succeeded."""
        return self.ended - self.failed - self.cancelled
