"""Tenure: a durable job queue for agents and for side effects that must not get lost.

Names are resolved when they are first used, so that `import tenure` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenure.app import App as App
    from tenure.async_app import AsyncApp as AsyncApp
    from tenure.client.function import JobFunction as JobFunction
    from tenure.client.settings import QueueSettings as QueueSettings
    from tenure.client.work import Held as Held
    from tenure.errors import AccessDenied as AccessDenied
    from tenure.errors import ConfigError as ConfigError
    from tenure.errors import Corrupt as Corrupt
    from tenure.errors import DiskFull as DiskFull
    from tenure.errors import Forbidden as Forbidden
    from tenure.errors import ForbiddenKey as ForbiddenKey
    from tenure.errors import GateClosed as GateClosed
    from tenure.errors import HandlerError as HandlerError
    from tenure.errors import IllegalMove as IllegalMove
    from tenure.errors import InternalError as InternalError
    from tenure.errors import InvalidArgument as InvalidArgument
    from tenure.errors import InvalidPayload as InvalidPayload
    from tenure.errors import KeyConflict as KeyConflict
    from tenure.errors import KeyRequired as KeyRequired
    from tenure.errors import LeaseLost as LeaseLost
    from tenure.errors import MissingExtra as MissingExtra
    from tenure.errors import NotFound as NotFound
    from tenure.errors import OperatorError as OperatorError
    from tenure.errors import ReadOnly as ReadOnly
    from tenure.errors import SchemaAhead as SchemaAhead
    from tenure.errors import SchemaBehind as SchemaBehind
    from tenure.errors import SchemaError as SchemaError
    from tenure.errors import StoreBusy as StoreBusy
    from tenure.errors import StoreClosed as StoreClosed
    from tenure.errors import StoreUnavailable as StoreUnavailable
    from tenure.errors import TenureError as TenureError
    from tenure.errors import UnknownKind as UnknownKind
    from tenure.errors import UnknownProfile as UnknownProfile
    from tenure.errors import UnknownQueue as UnknownQueue
    from tenure.errors import UsageError as UsageError
    from tenure.handler.building import JobOptions as JobOptions
    from tenure.handler.context import Context as Context
    from tenure.handler.ledger import EffectCall as EffectCall
    from tenure.handler.ledger import NotDone as NotDone
    from tenure.handler.ledger import Verdict as Verdict
    from tenure.handler.signals import Permanent as Permanent
    from tenure.handler.signals import RateLimited as RateLimited
    from tenure.handler.signals import RetryAfter as RetryAfter
    from tenure.handler.signals import Snooze as Snooze
    from tenure.handler.signals import Suspend as Suspend
    from tenure.model.event import Event as Event
    from tenure.model.event import EventKind as EventKind
    from tenure.model.event import NewEvent as NewEvent
    from tenure.model.ids import JobId as JobId
    from tenure.model.ids import Token as Token
    from tenure.model.ids import WorkerId as WorkerId
    from tenure.model.job import Attempt as Attempt
    from tenure.model.job import DeadLetter as DeadLetter
    from tenure.model.job import Enqueued as Enqueued
    from tenure.model.job import Grant as Grant
    from tenure.model.job import Job as Job
    from tenure.model.job import NewJob as NewJob
    from tenure.model.outcome import Beat as Beat
    from tenure.model.outcome import Completed as Completed
    from tenure.model.outcome import EffectRecord as EffectRecord
    from tenure.model.outcome import Failed as Failed
    from tenure.model.outcome import FailureClass as FailureClass
    from tenure.model.outcome import Outcome as Outcome
    from tenure.model.outcome import Rejected as Rejected
    from tenure.model.outcome import Released as Released
    from tenure.model.outcome import Settled as Settled
    from tenure.model.outcome import Stopped as Stopped
    from tenure.model.outcome import Suspended as Suspended
    from tenure.model.outcome import Triage as Triage
    from tenure.model.policy import Backoff as Backoff
    from tenure.model.policy import Limits as Limits
    from tenure.model.policy import QueuePolicy as QueuePolicy
    from tenure.model.profile import Profile as Profile
    from tenure.model.state import Move as Move
    from tenure.model.state import State as State
    from tenure.store.admin import InstalledProfile as InstalledProfile
    from tenure.store.admin import NamedLease as NamedLease
    from tenure.store.contract import Cancelled as Cancelled
    from tenure.store.contract import Pruned as Pruned
    from tenure.store.contract import StoreStats as StoreStats
    from tenure.store.contract import WorkerRow as WorkerRow
    from tenure.store.queries import Audit as Audit
    from tenure.store.queries import Count as Count
    from tenure.store.queries import DeadLetterGroup as DeadLetterGroup
    from tenure.store.queries import Effect as Effect
    from tenure.store.queries import Gate as Gate
    from tenure.store.queries import Page as Page
    from tenure.store.queries import ProfileRow as ProfileRow
    from tenure.store.queries import QueueRow as QueueRow
    from tenure.store.queries import WorkerSeen as WorkerSeen

    __version__: str

__all__ = [
    "AccessDenied",
    "App",
    "AsyncApp",
    "Attempt",
    "Audit",
    "Backoff",
    "Beat",
    "Cancelled",
    "Completed",
    "ConfigError",
    "Context",
    "Corrupt",
    "Count",
    "DeadLetter",
    "DeadLetterGroup",
    "DiskFull",
    "Effect",
    "EffectCall",
    "EffectRecord",
    "Enqueued",
    "Event",
    "EventKind",
    "Failed",
    "FailureClass",
    "Forbidden",
    "ForbiddenKey",
    "Gate",
    "GateClosed",
    "Grant",
    "HandlerError",
    "Held",
    "IllegalMove",
    "InstalledProfile",
    "InternalError",
    "InvalidArgument",
    "InvalidPayload",
    "Job",
    "JobFunction",
    "JobId",
    "JobOptions",
    "KeyConflict",
    "KeyRequired",
    "LeaseLost",
    "Limits",
    "MissingExtra",
    "Move",
    "NamedLease",
    "NewEvent",
    "NewJob",
    "NotDone",
    "NotFound",
    "OperatorError",
    "Outcome",
    "Page",
    "Permanent",
    "Profile",
    "ProfileRow",
    "Pruned",
    "QueuePolicy",
    "QueueRow",
    "QueueSettings",
    "RateLimited",
    "ReadOnly",
    "Rejected",
    "Released",
    "RetryAfter",
    "SchemaAhead",
    "SchemaBehind",
    "SchemaError",
    "Settled",
    "Snooze",
    "State",
    "Stopped",
    "StoreBusy",
    "StoreClosed",
    "StoreStats",
    "StoreUnavailable",
    "Suspend",
    "Suspended",
    "TenureError",
    "Token",
    "Triage",
    "UnknownKind",
    "UnknownProfile",
    "UnknownQueue",
    "UsageError",
    "Verdict",
    "WorkerId",
    "WorkerRow",
    "WorkerSeen",
    "__version__",
]

_HOMES: dict[str, tuple[str, ...]] = {
    "tenure.app": ("App",),
    "tenure.async_app": ("AsyncApp",),
    "tenure.client.function": ("JobFunction",),
    "tenure.client.settings": ("QueueSettings",),
    "tenure.client.work": ("Held",),
    "tenure.errors": (
        "AccessDenied",
        "ConfigError",
        "Corrupt",
        "DiskFull",
        "Forbidden",
        "ForbiddenKey",
        "GateClosed",
        "HandlerError",
        "IllegalMove",
        "InternalError",
        "InvalidArgument",
        "InvalidPayload",
        "KeyConflict",
        "KeyRequired",
        "LeaseLost",
        "MissingExtra",
        "NotFound",
        "OperatorError",
        "ReadOnly",
        "SchemaAhead",
        "SchemaBehind",
        "SchemaError",
        "StoreBusy",
        "StoreClosed",
        "StoreUnavailable",
        "TenureError",
        "UnknownKind",
        "UnknownProfile",
        "UnknownQueue",
        "UsageError",
    ),
    "tenure.handler.building": ("JobOptions",),
    "tenure.handler.context": ("Context",),
    "tenure.handler.signals": (
        "Permanent",
        "RateLimited",
        "RetryAfter",
        "Snooze",
        "Suspend",
    ),
    "tenure.handler.ledger": (
        "EffectCall",
        "NotDone",
        "Verdict",
    ),
    "tenure.model.event": (
        "Event",
        "EventKind",
        "NewEvent",
    ),
    "tenure.model.ids": (
        "JobId",
        "Token",
        "WorkerId",
    ),
    "tenure.model.job": (
        "Attempt",
        "DeadLetter",
        "Enqueued",
        "Grant",
        "Job",
        "NewJob",
    ),
    "tenure.model.outcome": (
        "Beat",
        "Completed",
        "EffectRecord",
        "Failed",
        "FailureClass",
        "Outcome",
        "Rejected",
        "Released",
        "Settled",
        "Stopped",
        "Suspended",
        "Triage",
    ),
    "tenure.model.policy": (
        "Backoff",
        "Limits",
        "QueuePolicy",
    ),
    "tenure.model.profile": ("Profile",),
    "tenure.model.state": (
        "Move",
        "State",
    ),
    "tenure.store.contract": (
        "Cancelled",
        "Pruned",
        "StoreStats",
        "WorkerRow",
    ),
    "tenure.store.admin": ("InstalledProfile", "NamedLease"),
    "tenure.store.queries": (
        "Audit",
        "Count",
        "DeadLetterGroup",
        "Effect",
        "Gate",
        "Page",
        "ProfileRow",
        "QueueRow",
        "WorkerSeen",
    ),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        found: object = version("tenure")
    elif name in _HOME:
        from importlib import import_module

        found = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'tenure' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
