"""Every error Tenure raises: one tree, grouped by who must act.

A message says what happened, why, and what to do next. `code` is the stable name that HTTP, MCP and the
command line show beside the same sentence; `exit_code` is what the command line ends with, `http_status` what HTTP
answers with.
Driver errors never leak: each store maps them here, at its edge.
"""

from __future__ import annotations

from collections.abc import Iterable


class TenureError(Exception):
    """The root of all errors that Tenure raises on purpose."""

    code = "error"
    exit_code = 1
    http_status = 500


# The caller must act.


class UsageError(TenureError):
    """The call cannot be carried out as written."""

    code = "usage"
    exit_code = 2
    http_status = 400


class StoreClosed(UsageError):
    """The store was closed before this call."""

    code = "store_closed"
    http_status = 503

    def __init__(self) -> None:
        super().__init__("This store was closed, so nothing was done. Open a new App, or close it later.")


class InvalidArgument(UsageError):
    """An argument is out of its range; the message names it."""

    code = "invalid_argument"


class InvalidPayload(UsageError):
    """A payload does not fit its kind, or is not JSON that every engine can hold."""

    code = "invalid_payload"
    http_status = 422


class ForbiddenKey(InvalidPayload):
    """A payload carries a key that its queue's payload guard forbids."""

    code = "forbidden_key"


class KeyConflict(UsageError):
    """The same key was used before for a different payload."""

    code = "key_conflict"
    exit_code = 4
    http_status = 409


class KeyRequired(UsageError):
    """The queue's policy asks for an idempotency key and none was given."""

    code = "key_required"
    http_status = 422


class UnknownKind(UsageError):
    """No handler of this name is registered in this app."""

    code = "unknown_kind"
    exit_code = 3
    http_status = 404


class UnknownQueue(UsageError):
    """The queue does not exist in this database."""

    code = "unknown_queue"
    exit_code = 3
    http_status = 404


class UnknownProfile(UsageError):
    """No profile of this name is known."""

    code = "unknown_profile"
    exit_code = 3
    http_status = 404


class NotFound(UsageError):
    """No such job, dead letter, worker, gate or lease."""

    code = "not_found"
    exit_code = 3
    http_status = 404


class IllegalMove(UsageError):
    """The move is not in the table of moves for the state the job is in."""

    code = "illegal_move"
    exit_code = 4
    http_status = 409


class Outdated(UsageError):
    """What was to be changed has changed since the caller read it. Nothing was changed."""

    code = "outdated"
    exit_code = 4
    http_status = 412


class LeaseLost(UsageError):
    """A worker wrote to a job that it no longer holds. Nothing was changed."""

    code = "lease_lost"
    exit_code = 4
    http_status = 409


class ResultTimeout(UsageError, TimeoutError):
    """A job had not ended when the time to wait for its result was over. It goes on."""

    code = "result_timeout"
    exit_code = 124


class TooWide(UsageError):
    """A look at the database took longer than it may and was stopped. Nothing was changed; ask for less."""

    code = "too_wide"
    http_status = 422

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"This look at the database took longer than {seconds:g} s and was stopped, so that it slows nothing else "
            "down. Nothing was changed. Ask for less: name a worker, a workflow or a parent, or a shorter time."
        )


class Forbidden(UsageError):
    """The caller's role or credential does not allow this."""

    code = "forbidden"
    exit_code = 7
    http_status = 403


class ConfirmationRequired(Forbidden):
    """A person must agree to this first. Nothing was changed."""

    code = "confirmation_required"


class TooManyCalls(UsageError):
    """The caller's quota is used up for now. Nothing was changed; wait and repeat the call."""

    code = "too_many_calls"
    http_status = 429


# The operator must act.


class OperatorError(TenureError):
    """The installation needs a hand."""

    code = "operator"


class ConfigError(OperatorError):
    """A setting is missing or makes no sense."""

    code = "config"
    exit_code = 2


class AppNotLoaded(ConfigError):
    """The module that holds the app raised when it was imported. The message ends with its own traceback."""

    code = "app_not_loaded"

    def __init__(self, target: str, headline: str, trace: str) -> None:
        super().__init__(f"{target!r} could not be loaded, because its own code raises {headline}\n\n{trace}")


class GateClosed(OperatorError):
    """A switch in the database refuses this kind of work."""

    code = "gate_closed"
    exit_code = 7
    http_status = 503

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
    http_status = 503


class StoreBusy(StoreUnavailable):
    """The database is there, but a lock was not to be had in time. Nothing was changed; repeat the call."""

    code = "busy"


class DiskFull(StoreUnavailable):
    """The disk that holds the database is full. Nothing was changed."""

    code = "disk_full"
    http_status = 507


class ReadOnly(StoreUnavailable):
    """The database cannot be written: file mode, mount, or a standby server."""

    code = "read_only"


class AccessDenied(StoreUnavailable):
    """The database refused the credentials or the role lacks the right."""

    code = "access_denied"


class Corrupt(StoreUnavailable):
    """The database file is damaged or is not a database."""

    code = "corrupt"


class StoreMoved(StoreUnavailable):
    """The database is being moved, or was moved, and takes no writes. Nothing was changed."""

    code = "moved"


class SchemaError(OperatorError):
    """The schema in the database and this version of Tenure do not fit."""

    code = "schema"
    exit_code = 6
    http_status = 503


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


class JobFailed(HandlerError):
    """The job whose result was asked for ended without one: it failed, died or was cancelled."""

    code = "job_failed"

    def __init__(self, job_id: str, kind: str, state: str, error: str | None) -> None:
        said = f": {error.strip().splitlines()[0]}" if error and error.strip() else ""
        super().__init__(
            f"Job {job_id} of kind {kind!r} ended as {state}, so it has no result{said}. "
            f"See `tenure jobs show {job_id}`."
        )
        self.job_id = job_id
        self.kind = kind
        self.state = state
        self.error = error
        """The job's last error, with its traceback."""


class MissingExtra(OperatorError):
    """An optional library is not installed."""

    code = "missing_extra"
    exit_code = 2
    http_status = 501

    def __init__(self, extra: str, what: str) -> None:
        super().__init__(f"{what} needs the extra {extra!r}. Install it with: pip install 'tenure[{extra}]'")


class MissingPackage(OperatorError):
    """A framework that an integration joins is not installed."""

    code = "missing_package"
    exit_code = 2
    http_status = 501

    def __init__(self, package: str, what: str) -> None:
        super().__init__(f"{what} needs {package!r}, which is not installed. Install it with: pip install {package}")


# We must act.


class InternalError(TenureError):
    """A promise of ours does not hold. Please report it with the message."""

    code = "internal"


KNOWN_SHOWN = 30


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that offers the nearest known name, or lists what is known. Empty when nothing is."""
    from difflib import get_close_matches  # late: seldom needed, and not cheap

    names = sorted(known)
    close = get_close_matches(name, names, n=1)
    if close:
        return f" Did you mean {close[0]!r}?"
    more = f" and {len(names) - KNOWN_SHOWN:,} more" if len(names) > KNOWN_SHOWN else ""
    return f" Known: {', '.join(names[:KNOWN_SHOWN])}{more}." if names else ""
