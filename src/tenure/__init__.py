"""Tenure: a durable job queue for agents and for side effects that must not get lost.

Names are resolved when they are first used, so that `import tenure` costs next to nothing.
"""

# Nothing is imported here: for `python -m tenure` the current folder still comes first. See __main__.py.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from tenure.app import App as App
    from tenure.async_app import AsyncApp as AsyncApp
    from tenure.client.access import SessionOpened as SessionOpened
    from tenure.client.access import TokenMade as TokenMade
    from tenure.client.access import Verified as Verified
    from tenure.client.agents import Agent as Agent
    from tenure.client.approvals import InboxEntry as InboxEntry
    from tenure.client.function import JobFunction as JobFunction
    from tenure.client.handle import JobHandle as JobHandle
    from tenure.client.memory import Reindexed as Reindexed
    from tenure.client.settings import QueueSettings as QueueSettings
    from tenure.client.work import Held as Held
    from tenure.client.worker import WorkerSettings as WorkerSettings
    from tenure.errors import AccessDenied as AccessDenied
    from tenure.errors import AppNotLoaded as AppNotLoaded
    from tenure.errors import ConfigError as ConfigError
    from tenure.errors import ConfirmationRequired as ConfirmationRequired
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
    from tenure.errors import JobFailed as JobFailed
    from tenure.errors import KeyConflict as KeyConflict
    from tenure.errors import KeyRequired as KeyRequired
    from tenure.errors import LeaseLost as LeaseLost
    from tenure.errors import MissingExtra as MissingExtra
    from tenure.errors import MissingPackage as MissingPackage
    from tenure.errors import NotFound as NotFound
    from tenure.errors import OperatorError as OperatorError
    from tenure.errors import Outdated as Outdated
    from tenure.errors import ReadOnly as ReadOnly
    from tenure.errors import ResultTimeout as ResultTimeout
    from tenure.errors import SchemaAhead as SchemaAhead
    from tenure.errors import SchemaBehind as SchemaBehind
    from tenure.errors import SchemaError as SchemaError
    from tenure.errors import StoreBusy as StoreBusy
    from tenure.errors import StoreClosed as StoreClosed
    from tenure.errors import StoreMoved as StoreMoved
    from tenure.errors import StoreUnavailable as StoreUnavailable
    from tenure.errors import TenureError as TenureError
    from tenure.errors import TooManyCalls as TooManyCalls
    from tenure.errors import TooWide as TooWide
    from tenure.errors import UnknownKind as UnknownKind
    from tenure.errors import UnknownProfile as UnknownProfile
    from tenure.errors import UnknownQueue as UnknownQueue
    from tenure.errors import UsageError as UsageError
    from tenure.flow.analytics import Threshold as Threshold
    from tenure.flow.analytics import analytics as analytics
    from tenure.flow.compensation import compensation as compensation
    from tenure.flow.embedding_jobs import embeddings as embeddings
    from tenure.flow.memory import Hit as Hit
    from tenure.flow.metrics import Figures as Figures
    from tenure.handler.approvals import Decision as Decision
    from tenure.handler.budgets import BudgetEmpty as BudgetEmpty
    from tenure.handler.budgets import Reservation as Reservation
    from tenure.handler.building import JobOptions as JobOptions
    from tenure.handler.children import Child as Child
    from tenure.handler.children import ChildFailed as ChildFailed
    from tenure.handler.children import Children as Children
    from tenure.handler.children import ChildResult as ChildResult
    from tenure.handler.context import Context as Context
    from tenure.handler.ledger import EffectCall as EffectCall
    from tenure.handler.ledger import NotDone as NotDone
    from tenure.handler.ledger import Verdict as Verdict
    from tenure.handler.middleware import AsyncCallNext as AsyncCallNext
    from tenure.handler.middleware import CallNext as CallNext
    from tenure.handler.signals import NotApproved as NotApproved
    from tenure.handler.signals import Permanent as Permanent
    from tenure.handler.signals import RateLimited as RateLimited
    from tenure.handler.signals import RetryAfter as RetryAfter
    from tenure.handler.signals import Snooze as Snooze
    from tenure.handler.steps import RepeatedStep as RepeatedStep
    from tenure.handler.steps import StaleStep as StaleStep
    from tenure.handler.steps import StepTimeout as StepTimeout
    from tenure.handler.waits import Received as Received
    from tenure.handler.waits import WaitTimeout as WaitTimeout
    from tenure.model.approval import Approval as Approval
    from tenure.model.approval import Vote as Vote
    from tenure.model.budget import Budget as Budget
    from tenure.model.budget import Refusal as Refusal
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
    from tenure.model.limiter import Limiter as Limiter
    from tenure.model.log_event import Emit as Emit
    from tenure.model.log_event import LogEvent as LogEvent
    from tenure.model.memo import Memo as Memo
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
    from tenure.model.step import NewStep as NewStep
    from tenure.model.step import Step as Step
    from tenure.model.stream import Chunk as Chunk
    from tenure.model.stream import StreamInfo as StreamInfo
    from tenure.model.stream import StreamPage as StreamPage
    from tenure.model.usage import Usage as Usage
    from tenure.model.usage import UsageRow as UsageRow
    from tenure.model.workflow import Answer as Answer
    from tenure.model.workflow import Escalation as Escalation
    from tenure.model.workflow import FailureThreshold as FailureThreshold
    from tenure.model.workflow import Graph as Graph
    from tenure.model.workflow import Workflow as Workflow
    from tenure.store.access import ApiToken as ApiToken
    from tenure.store.access import Remembered as Remembered
    from tenure.store.access import Sealed as Sealed
    from tenure.store.access import Session as Session
    from tenure.store.admin import InstalledProfile as InstalledProfile
    from tenure.store.admin import NamedLease as NamedLease
    from tenure.store.contract import Cancelled as Cancelled
    from tenure.store.contract import Pruned as Pruned
    from tenure.store.contract import StoreStats as StoreStats
    from tenure.store.contract import WorkerRow as WorkerRow
    from tenure.store.flow import Sent as Sent
    from tenure.store.limits import LimitedJobs as LimitedJobs
    from tenure.store.memory import AgentEvent as AgentEvent
    from tenure.store.memory import Memory as Memory
    from tenure.store.memory import MemoryCount as MemoryCount
    from tenure.store.memory import MemoryStats as MemoryStats
    from tenure.store.queries import Audit as Audit
    from tenure.store.queries import Count as Count
    from tenure.store.queries import DeadLetterGroup as DeadLetterGroup
    from tenure.store.queries import Effect as Effect
    from tenure.store.queries import Gate as Gate
    from tenure.store.queries import Page as Page
    from tenure.store.queries import ProfileRow as ProfileRow
    from tenure.store.queries import QueueRow as QueueRow
    from tenure.store.queries import WorkerSeen as WorkerSeen
    from tenure.store.schedules import ScheduleRow as ScheduleRow
    from tenure.store.workflows import EscalationRow as EscalationRow
    from tenure.store.workflows import Started as Started
    from tenure.store.workflows import TaskRow as TaskRow
    from tenure.store.workflows import WorkflowRow as WorkflowRow
    from tenure.worker.worker import Worker as Worker
    from tenure.worker.worker import WorkerStats as WorkerStats

    __version__: str

__all__ = [
    "AccessDenied",
    "Agent",
    "AgentEvent",
    "Answer",
    "ApiToken",
    "App",
    "AppNotLoaded",
    "Approval",
    "AsyncApp",
    "AsyncCallNext",
    "Attempt",
    "Audit",
    "Backoff",
    "Beat",
    "Budget",
    "BudgetEmpty",
    "CallNext",
    "Cancelled",
    "Child",
    "ChildFailed",
    "ChildResult",
    "Children",
    "Chunk",
    "Completed",
    "ConfigError",
    "ConfirmationRequired",
    "Context",
    "Corrupt",
    "Count",
    "DeadLetter",
    "DeadLetterGroup",
    "Decision",
    "DiskFull",
    "Effect",
    "EffectCall",
    "EffectRecord",
    "Emit",
    "Enqueued",
    "Escalation",
    "EscalationRow",
    "Event",
    "EventKind",
    "Failed",
    "FailureClass",
    "FailureThreshold",
    "Figures",
    "Forbidden",
    "ForbiddenKey",
    "Gate",
    "GateClosed",
    "Grant",
    "Graph",
    "HandlerError",
    "Held",
    "Hit",
    "IllegalMove",
    "InboxEntry",
    "InstalledProfile",
    "InternalError",
    "InvalidArgument",
    "InvalidPayload",
    "Job",
    "JobFailed",
    "JobFunction",
    "JobHandle",
    "JobId",
    "JobOptions",
    "KeyConflict",
    "KeyRequired",
    "LeaseLost",
    "LimitedJobs",
    "Limiter",
    "Limits",
    "LogEvent",
    "Memo",
    "Memory",
    "MemoryCount",
    "MemoryStats",
    "MissingExtra",
    "MissingPackage",
    "Move",
    "NamedLease",
    "NewEvent",
    "NewJob",
    "NewStep",
    "NotApproved",
    "NotDone",
    "NotFound",
    "OperatorError",
    "Outcome",
    "Outdated",
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
    "Received",
    "Refusal",
    "Reindexed",
    "Rejected",
    "Released",
    "Remembered",
    "RepeatedStep",
    "Reservation",
    "ResultTimeout",
    "RetryAfter",
    "ScheduleRow",
    "SchemaAhead",
    "SchemaBehind",
    "SchemaError",
    "Sealed",
    "Sent",
    "Session",
    "SessionOpened",
    "Settled",
    "Snooze",
    "StaleStep",
    "Started",
    "State",
    "Step",
    "StepTimeout",
    "Stopped",
    "StoreBusy",
    "StoreClosed",
    "StoreMoved",
    "StoreStats",
    "StoreUnavailable",
    "StreamInfo",
    "StreamPage",
    "Suspended",
    "TaskRow",
    "TenureError",
    "Threshold",
    "Token",
    "TokenMade",
    "TooManyCalls",
    "TooWide",
    "Triage",
    "UnknownKind",
    "UnknownProfile",
    "UnknownQueue",
    "Usage",
    "UsageError",
    "UsageRow",
    "Verdict",
    "Verified",
    "Vote",
    "WaitTimeout",
    "Worker",
    "WorkerId",
    "WorkerRow",
    "WorkerSeen",
    "WorkerSettings",
    "WorkerStats",
    "Workflow",
    "WorkflowRow",
    "__version__",
    "analytics",
    "compensation",
    "embeddings",
]

_HOMES: dict[str, tuple[str, ...]] = {
    "tenure.app": ("App",),
    "tenure.async_app": ("AsyncApp",),
    "tenure.client.function": ("JobFunction",),
    "tenure.client.handle": ("JobHandle",),
    "tenure.client.settings": ("QueueSettings",),
    "tenure.client.worker": ("WorkerSettings",),
    "tenure.worker.worker": ("Worker", "WorkerStats"),
    "tenure.client.work": ("Held",),
    "tenure.errors": (
        "AccessDenied",
        "AppNotLoaded",
        "ConfigError",
        "ConfirmationRequired",
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
        "JobFailed",
        "KeyConflict",
        "KeyRequired",
        "LeaseLost",
        "MissingExtra",
        "MissingPackage",
        "NotFound",
        "OperatorError",
        "Outdated",
        "ReadOnly",
        "ResultTimeout",
        "SchemaAhead",
        "SchemaBehind",
        "SchemaError",
        "StoreBusy",
        "StoreClosed",
        "StoreMoved",
        "StoreUnavailable",
        "TenureError",
        "TooManyCalls",
        "TooWide",
        "UnknownKind",
        "UnknownProfile",
        "UnknownQueue",
        "UsageError",
    ),
    "tenure.client.approvals": ("InboxEntry",),
    "tenure.model.approval": ("Approval", "Vote"),
    "tenure.handler.approvals": ("Decision",),
    "tenure.handler.budgets": ("BudgetEmpty", "Reservation"),
    "tenure.handler.building": ("JobOptions",),
    "tenure.handler.children": (
        "Child",
        "ChildFailed",
        "ChildResult",
        "Children",
    ),
    "tenure.handler.context": ("Context",),
    "tenure.handler.middleware": ("AsyncCallNext", "CallNext"),
    "tenure.handler.steps": (
        "RepeatedStep",
        "StaleStep",
        "StepTimeout",
    ),
    "tenure.handler.waits": ("Received", "WaitTimeout"),
    "tenure.handler.signals": (
        "NotApproved",
        "Permanent",
        "RateLimited",
        "RetryAfter",
        "Snooze",
    ),
    "tenure.handler.ledger": (
        "EffectCall",
        "NotDone",
        "Verdict",
    ),
    "tenure.model.budget": ("Budget", "Refusal"),
    "tenure.model.usage": ("Usage", "UsageRow"),
    "tenure.model.event": (
        "Event",
        "EventKind",
        "NewEvent",
    ),
    "tenure.model.log_event": ("Emit", "LogEvent"),
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
    "tenure.model.limiter": ("Limiter",),
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
    "tenure.model.memo": ("Memo",),
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
    "tenure.model.step": (
        "NewStep",
        "Step",
    ),
    "tenure.model.stream": ("Chunk", "StreamInfo", "StreamPage"),
    "tenure.model.workflow": ("Answer", "Escalation", "FailureThreshold", "Graph", "Workflow"),
    "tenure.store.contract": (
        "Cancelled",
        "Pruned",
        "StoreStats",
        "WorkerRow",
    ),
    "tenure.client.access": ("SessionOpened", "TokenMade", "Verified"),
    "tenure.store.access": ("ApiToken", "Remembered", "Sealed", "Session"),
    "tenure.client.agents": ("Agent",),
    "tenure.store.workflows": ("EscalationRow", "Started", "TaskRow", "WorkflowRow"),
    "tenure.store.admin": ("InstalledProfile", "NamedLease"),
    "tenure.client.memory": ("Reindexed",),
    "tenure.flow.analytics": ("Threshold", "analytics"),
    "tenure.flow.compensation": ("compensation",),
    "tenure.flow.embedding_jobs": ("embeddings",),
    "tenure.flow.memory": ("Hit",),
    "tenure.flow.metrics": ("Figures",),
    "tenure.store.memory": ("AgentEvent", "Memory", "MemoryCount", "MemoryStats"),
    "tenure.store.flow": ("Sent",),
    "tenure.store.limits": ("LimitedJobs",),
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
    "tenure.store.schedules": ("ScheduleRow",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

_PACKAGES = frozenset({"effects", "mcp", "testing", "web"})
"""Found by `import tenure` alone, as in `tenure.web.asgi(app)`."""


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        found: object = version("tenure")
    elif name in _HOME:
        from importlib import import_module

        found = getattr(import_module(_HOME[name]), name)
    elif name in _PACKAGES:
        from importlib import import_module

        return import_module(f"tenure.{name}")
    else:
        raise AttributeError(f"module 'tenure' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
