"""Effect: what jobs do to the world outside the database, done so that a crash, a late worker or a hostile
child cannot leave it torn. Files beneath a root, child processes in a sandbox, guarded HTTP, redaction.
Nothing here knows an engine or a worker; whoever holds the lease hands in `check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenure.effect.agent import agents as agents
    from tenure.effect.agent_tools import AgentTool as AgentTool
    from tenure.effect.cloud import aws as aws
    from tenure.effect.file import files as files
    from tenure.effect.ledger import EffectCall as EffectCall
    from tenure.effect.ledger import EffectFunction as EffectFunction
    from tenure.effect.ledger import NotDone as NotDone
    from tenure.effect.ledger import Verdict as Verdict
    from tenure.effect.ledger import effect as effect
    from tenure.effect.outbox import Outbox as Outbox
    from tenure.effect.report import reports as reports
    from tenure.effect.webhook import webhooks as webhooks

__all__ = [
    "AgentTool",
    "EffectCall",
    "EffectFunction",
    "NotDone",
    "Outbox",
    "Verdict",
    "agents",
    "aws",
    "effect",
    "files",
    "reports",
    "webhooks",
]

_HOME = {
    "AgentTool": "agent_tools",
    "EffectCall": "ledger",
    "EffectFunction": "ledger",
    "NotDone": "ledger",
    "Outbox": "outbox",
    "Verdict": "ledger",
    "agents": "agent",
    "aws": "cloud",
    "effect": "ledger",
    "files": "file",
    "reports": "report",
    "webhooks": "webhook",
}


def __getattr__(name: str) -> object:
    """Names are resolved when they are first used: a sandbox's keeper imports this package too, and wants none."""
    if name not in _HOME:
        raise AttributeError(f"module 'tenure.effect' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"tenure.effect.{_HOME[name]}"), name)
