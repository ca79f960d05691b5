"""Every error Tenure raises: one tree, grouped by who must act.

A message says what happened, why, and what to do next. `code` is the stable name that HTTP, MCP and the
command line show beside the same sentence; `exit_code` is what the command line ends with.
Driver errors never leak: each store maps them here, at its edge.
"""

from __future__ import annotations

from collections.abc import Iterable


class TenureError(Exception):
    """The root of all errors that Tenure raises on purpose."""

    code = "error"
    exit_code = 1


# The caller must act.


class UsageError(TenureError):
    """The call cannot be carried out as written."""

    code = "usage"
    exit_code = 2


class StoreClosed(UsageError):
    """The store was closed before this call."""

    code = "store_closed"

    def __init__(self) -> None:
        super().__init__("This store was closed, so nothing was done. Open a new App, or close it later.")


class InvalidArgument(UsageError):
    """An argument is out of its range; the message names it."""

    code = "invalid_argument"


class InvalidPayload(UsageError):
    """A payload does not fit its kind, or is not JSON that every engine can hold."""

    code = "invalid_payload"


class ForbiddenKey(InvalidPayload):
    """A payload carries a key that its queue's payload guard forbids."""

    code = "forbidden_key"


class KeyConflict(UsageError):
    """The same key was used before for a different payload."""

    code = "key_conflict"
    exit_code = 4


class KeyRequired(UsageError):
    """The queue's policy asks for an idempotency key and none was given."""

    code = "key_required"


class UnknownKind(UsageError):
    """No handler of this name is registered in this app."""

    code = "unknown_kind"
    exit_code = 3


class UnknownQueue(UsageError):
    """The queue does not exist in this database."""

    code = "unknown_queue"
    exit_code = 3


class UnknownProfile(UsageError):
    """No profile of this name is known."""

    code = "unknown_profile"
    exit_code = 3


class NotFound(UsageError):
    """No such job, dead letter, worker, gate or lease."""

    code = "not_found"
    exit_code = 3


class IllegalMove(UsageError):
    """The move is not in the table of moves for the state the job is in."""

    code = "illegal_move"
    exit_code = 4


class LeaseLost(UsageError):
    """A worker wrote to a job that it no longer holds. Nothing was changed."""

    code = "lease_lost"
    exit_code = 4


class Forbidden(UsageError):
    """The caller's role or credential does not allow this."""

    code = "forbidden"
    exit_code = 7


# The operator must act.


class OperatorError(TenureError):
    """The installation needs a hand."""

    code = "operator"


class ConfigError(OperatorError):
    """A setting is missing or makes no sense."""

    code = "config"
    exit_code = 2


class GateClosed(OperatorError):
    """A switch in the database refuses this kind of work."""

    code = "gate_closed"
    exit_code = 7

    def __init__(self, gate: str, act: str) -> None:
        super().__init__(
            f"Gate {gate!r} is closed, so {act} is refused and nothing was changed. "
            f"Open it with `tenure gates open {gate}` when the work may go on."
        )
        self.gate = gate


class StoreUnavailable(OperatorError):
    """The database cannot be reached, or went away. The outcome of a write in flight is unknown; repeat it."""

    code = "unavailable"
    exit_code = 5


class StoreBusy(StoreUnavailable):
    """The database is there, but a lock was not to be had in time. Nothing was changed; repeat the call."""

    code = "busy"


class DiskFull(StoreUnavailable):
    """The disk that holds the database is full. Nothing was changed."""

    code = "disk_full"


class ReadOnly(StoreUnavailable):
    """The database cannot be written: file mode, mount, or a standby server."""

    code = "read_only"


class AccessDenied(StoreUnavailable):
    """The database refused the credentials or the role lacks the right."""

    code = "access_denied"


class Corrupt(StoreUnavailable):
    """The database file is damaged or is not a database."""

    code = "corrupt"


class SchemaError(OperatorError):
    """The schema in the database and this version of Tenure do not fit."""

    code = "schema"
    exit_code = 6


class SchemaBehind(SchemaError):
    """The database has not been migrated to what this version needs."""

    code = "schema_behind"


class SchemaAhead(SchemaError):
    """The database was migrated by a newer version of Tenure than this one."""

    code = "schema_ahead"


# The author of a handler must act.


class HandlerError(TenureError):
    """A handler was declared or behaved in a way that cannot work."""

    code = "handler"


class MissingExtra(OperatorError):
    """An optional library is not installed."""

    code = "missing_extra"
    exit_code = 2

    def __init__(self, extra: str, what: str) -> None:
        super().__init__(f"{what} needs the extra {extra!r}. Install it with: pip install 'tenure[{extra}]'")


# We must act.


class InternalError(TenureError):
    """A promise of ours does not hold. Please report it with the message."""

    code = "internal"


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that offers the nearest known name, or lists what is known. Empty when nothing is."""
    from difflib import get_close_matches  # late: seldom needed, and not cheap

    names = sorted(known)
    close = get_close_matches(name, names, n=1)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" Known: {', '.join(names[:12])}." if names else ""
