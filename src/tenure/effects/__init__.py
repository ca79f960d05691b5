"""Built-in side effects: files, AWS, coding agents, webhooks, reports, the outbox and reconciliation.

Each survives a crash between the act and its record. Nothing here imports an engine or a worker; the caller that holds
the lease passes in `check`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenure.effects.agent_jobs import agents as agents
    from tenure.effects.agent_tools import AgentTool as AgentTool
    from tenure.effects.aws_jobs import aws as aws
    from tenure.effects.bulk_jobs import bulk as bulk
    from tenure.effects.event_hook_jobs import event_hooks as event_hooks
    from tenure.effects.file_jobs import files as files
    from tenure.effects.ledger import EffectCall as EffectCall
    from tenure.effects.ledger import EffectFunction as EffectFunction
    from tenure.effects.ledger import NotDone as NotDone
    from tenure.effects.ledger import Verdict as Verdict
    from tenure.effects.ledger import effect as effect
    from tenure.effects.outbox import Outbox as Outbox
    from tenure.effects.prompts import Extraction as Extraction
    from tenure.effects.report_jobs import reports as reports
    from tenure.effects.webhook_jobs import Secret as Secret
    from tenure.effects.webhook_jobs import SigningKey as SigningKey
    from tenure.effects.webhook_jobs import webhooks as webhooks

__all__ = [
    "AgentTool",
    "EffectCall",
    "EffectFunction",
    "Extraction",
    "NotDone",
    "Outbox",
    "Secret",
    "SigningKey",
    "Verdict",
    "agents",
    "aws",
    "bulk",
    "effect",
    "event_hooks",
    "files",
    "reports",
    "webhooks",
]

_HOME = {
    "AgentTool": "agent_tools",
    "EffectCall": "ledger",
    "EffectFunction": "ledger",
    "Extraction": "prompts",
    "NotDone": "ledger",
    "Outbox": "outbox",
    "Secret": "webhook_jobs",
    "SigningKey": "webhook_jobs",
    "Verdict": "ledger",
    "agents": "agent_jobs",
    "aws": "aws_jobs",
    "bulk": "bulk_jobs",
    "effect": "ledger",
    "event_hooks": "event_hook_jobs",
    "files": "file_jobs",
    "reports": "report_jobs",
    "webhooks": "webhook_jobs",
}


def __getattr__(name: str) -> object:
    """Resolve names on first use, so that importing one effect does not import the libraries of all."""
    if name not in _HOME:
        raise AttributeError(f"module 'tenure.effects' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"tenure.effects.{_HOME[name]}"), name)
