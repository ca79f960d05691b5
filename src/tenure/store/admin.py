"""What operators, leaders and handlers ask of a store beside the path of a job. Each leaves a trace of who did it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

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
    leaves an audit row.

    `owner` is who takes care of them from now on; None leaves that as it was.
    """

    ids: Sequence[str]
    triage: Triage
    actor: str
    note: str | None = None
    owner: str | None = None


@frozen
class SetQueues(Request[list[QueueRow]]):
    """Create queues or replace their policies. Jobs already there keep the rank and max_attempts they were given.

    A queue belongs to one profile for as long as it has live jobs: IllegalMove otherwise. `only_new` leaves existing
    ones as they are, with one exception: an unused queue (profile and policy `default`, never a job), as a worker's
    start makes it, passes to the profile that the policy names.
    """

    policies: Mapping[str, QueuePolicy]
    actor: str
    only_new: bool = False
    reason: str | None = None
    """Why; kept in the audit row of each queue."""


@frozen
class PauseQueues(Request[list[str]]):
    """Pause (claims give nothing from them) or resume queues. Enqueue goes on. Answers the changed names.
    Raises UnknownQueue."""

    names: Sequence[str]
    paused: bool
    actor: str
    reason: str | None = None


@frozen
class RemoveQueues(Request[list[str]]):
    """Remove queues that hold no job, neither live nor ended. Answers the names that were there; audited.

    IllegalMove for a queue that still has jobs, and for `default`, which every database has. All or none.
    """

    names: Sequence[str]
    actor: str
    reason: str | None = None


WORKER_GATE: Final = "worker:"
"""How the gate of one worker begins; its id follows."""


@frozen
class SetGate(Request[Gate]):
    """Open or close a gate: master, worker, notify, heartbeat, `PROFILE.GATE`, `queue:NAME`, `kind:NAME`, which lets
    jobs of the kind wait and refuses nothing, or `worker:ID`, which refuses the claims of one worker: it ends what it
    holds and takes nothing more. InvalidArgument for other names."""

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
    """Remove the rows of workers. Answers which were removed. The gate `worker:ID` of each goes with its row: a worker
    that comes back under the same name is not drained.

    By id: what they hold is taken back first (as Reap does, class `crash`); a clean goodbye holds nothing.

    By age: a worker that was not seen for `unseen_seconds` is silent. Its row goes once it holds nothing. Silence takes
    no lease that has not run out, except in a profile whose settings have `worker_timeout_seconds` (specification 003):
    there the shorter of the two times counts, and what the worker holds of that profile is taken back. A worker that
    serves a profile whose heartbeat gate is closed never counts as silent.
    """

    ids: Sequence[WorkerId] = ()
    unseen_seconds: float | None = None


@frozen
class AppendEvents(Request[bool]):
    """Append events to a held job. Fenced: False and nothing written if the lease is lost.

    Raises: Forbidden (an event names another job).
    """

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
    adopted: Sequence[str] = ()
    """Queues of profile `default` without live jobs that were there: they have the profile's policy now."""


@frozen
class InstallProfile:
    """Make a profile's views and functions, its queues and its closed gates. Not a Request: it changes the schema.

    `script` is SQL in the engine's own dialect and runs in the same transaction as the rest. Repeatable: views and
    functions are brought up to date; queues, gates and settings stay as operators have set them. A queue that is there
    in profile `default`, without live jobs, is adopted with the profile's whole policy.
    """

    profile: Profile
    script: str
    checksum: str
    actor: str
