"""What operators, leaders and handlers ask of a store beside the path of a job. Each leaves a trace of who did it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from tenure.model.event import NewEvent
from tenure.model.frozen import frozen
from tenure.model.ids import JobId, Token, WorkerId
from tenure.model.outcome import EffectRecord, Triage
from tenure.model.policy import QueuePolicy
from tenure.model.profile import Profile
from tenure.store.contract import Request
from tenure.store.queries import Effect, Gate, QueueRow


@frozen
class TriageDeadLetters(Request[list[str]]):
    """Set what was decided about dead letters, with note, who and when. Answers the ids that were changed;
    leaves an audit row."""

    ids: Sequence[str]
    triage: Triage
    actor: str
    note: str | None = None


@frozen
class SetQueues(Request[list[QueueRow]]):
    """Create queues or replace their policies. Jobs already there keep the rank and max_attempts they were given.

    A queue belongs to one profile for as long as it has live jobs: IllegalMove otherwise. `only_new` leaves existing
    ones as they are.
    """

    policies: Mapping[str, QueuePolicy]
    actor: str
    only_new: bool = False


@frozen
class PauseQueues(Request[list[str]]):
    """Pause (claims give nothing from them) or resume queues. Enqueue goes on. Answers the changed names.
    Raises UnknownQueue."""

    names: Sequence[str]
    paused: bool
    actor: str
    reason: str | None = None


@frozen
class SetGate(Request[Gate]):
    """Open or close a gate: master, worker, notify, heartbeat, `PROFILE.GATE`, or `queue:NAME`.
    InvalidArgument for other names."""

    name: str
    is_open: bool
    actor: str
    reason: str | None = None


@frozen
class NamedLease:
    """Who leads, until when, and in which term. The term rises with every change of owner, never otherwise."""

    name: str
    owner: str
    term: int
    until: datetime
    acquired: bool
    """Whether the asker is the owner now."""


@frozen
class AcquireLease(Request[NamedLease]):
    """Take a named lease if it is free or run out, or extend it if it is the asker's own. One row decides;
    never two owners in a term."""

    name: str
    owner: str
    seconds: float = 30.0


@frozen
class ReleaseLease(Request[bool]):
    """Give a named lease back, if it is still the asker's in that term."""

    name: str
    owner: str
    term: int


@frozen
class RemoveWorkers(Request[list[WorkerId]]):
    """Remove the rows of workers, taking back first what they hold (as Reap does, class `crash`).

    By id (a clean goodbye, which holds nothing), or all not seen for `unseen_seconds`. Answers who was removed.
    """

    ids: Sequence[WorkerId] = ()
    unseen_seconds: float | None = None


@frozen
class AppendEvents(Request[bool]):
    """Append events to a held job. Fenced: False and nothing written if the lease is lost."""

    job_id: JobId
    token: Token
    events: Sequence[NewEvent]


@frozen
class RecordEffect(Request[Effect | None]):
    """Write an effect's row, fenced by the token; None if the lease is lost.

    The first record of a place fixes `args` and `key`; later ones move the state and add result or error. Recording
    `intended` where a row already stands changes nothing and answers that row: the caller learns how far an earlier
    attempt got.
    """

    job_id: JobId
    token: Token
    effect: EffectRecord


@frozen
class ResolveEffect(Request[Effect]):
    """Write down what a person found out about an effect of unknown outcome, and wake the job that waits for it.

    `confirmed` says it happened, with `result`; `retry` says that it did not and may be tried again (the row is
    `intended` anew); `failed` says that it is given up, and the job with it. Leaves an audit row. Repeating an answer
    that stands is harmless.

    Raises: NotFound; IllegalMove, if the effect is confirmed, or a worker holds the job.
    """

    job_id: JobId
    name: str
    outcome: str
    actor: str
    note: str | None = None
    step: str = ""
    result: str | None = None
    """JSON text."""


@frozen
class InstalledProfile:
    """What installing a profile added. Nothing, if it was there."""

    is_new: bool
    queues: Sequence[str]
    gates: Sequence[str]


@frozen
class InstallProfile:
    """Make a profile's views and functions, its queues and its closed gates. Not a Request: it changes the schema.

    `script` is SQL in the engine's own dialect and runs in the same transaction as the rest. Repeatable: views and
    functions are brought up to date; queues, gates and settings stay as operators have set them.
    """

    profile: Profile
    script: str
    checksum: str
    actor: str
