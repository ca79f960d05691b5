"""Every page and every act of the console, with the scope that it needs and the word that the audit keeps."""

from __future__ import annotations

from typing import Final

from tenure.errors import NotFound
from tenure.web.pages import (
    access,
    agents,
    approvals,
    audit,
    bulk,
    connect,
    dead_letters,
    gates,
    health,
    job,
    jobs,
    memory,
    metrics,
    overview,
    preferences,
    queues,
    schedules,
    workers,
    workflows,
)
from tenure.web.pages.visit import Answer, PageRoute, Visit


def _nothing(visit: Visit) -> Answer:
    raise NotFound(f"There is no page {visit.path!r} in this console.")


ROUTES: Final = (
    PageRoute("GET", "/", overview.overview),
    PageRoute("POST", "/preferences", preferences.change),
    PageRoute("GET", "/find", jobs.find),
    PageRoute("GET", "/jobs", jobs.jobs),
    PageRoute("GET", "/jobs/export", jobs.export),
    PageRoute("POST", "/jobs/picked", jobs.act_on_picked, "operate"),
    PageRoute("POST", "/jobs/picked/do", jobs.do_to_picked, "operate", "act_on_jobs"),
    PageRoute("GET", "/enqueue", jobs.enqueue_form, "enqueue"),
    PageRoute("POST", "/enqueue", jobs.enqueue, "enqueue", "enqueue"),
    PageRoute("GET", "/jobs/{job_id}", job.job),
    PageRoute("POST", "/jobs/{job_id}/unmask", job.unmasked, "read:payload", "unmask"),
    PageRoute("POST", "/jobs/{job_id}/resolve", job.resolve, "operate", "resolve_effect"),
    PageRoute("GET", "/jobs/{job_id}/{act}", job.confirm, "operate"),
    PageRoute("POST", "/jobs/{job_id}/{act}", job.act, "operate", "act_on_job"),
    PageRoute("GET", "/bulk", bulk.acts, "operate"),
    PageRoute("GET", "/bulk/new", bulk.confirm, "operate"),
    PageRoute("POST", "/bulk/new", bulk.start, "operate", "bulk"),
    PageRoute("GET", "/bulk/{act_id}", bulk.one, "operate"),
    PageRoute("POST", "/bulk/{act_id}/{act}", bulk.change, "operate", "change_bulk"),
    PageRoute("GET", "/dead-letters", dead_letters.board),
    PageRoute("GET", "/dead-letters/{fingerprint}", dead_letters.group),
    PageRoute("GET", "/dead-letters/{fingerprint}/{act}", dead_letters.confirm, "operate"),
    PageRoute("POST", "/dead-letters/{fingerprint}/{act}", dead_letters.act, "operate", "triage"),
    PageRoute("GET", "/queues", queues.queues),
    PageRoute("GET", "/queues/{name}", queues.queue),
    PageRoute("POST", "/queues/{name}/{act}", queues.act, "operate", "pause_queue"),
    PageRoute("GET", "/workers", workers.workers),
    PageRoute("POST", "/workers/forget", workers.forget, "operate", "forget_worker"),
    PageRoute("GET", "/schedules", schedules.schedules),
    PageRoute("POST", "/schedules/{name}/{act}", schedules.act, "operate", "act_on_schedule"),
    PageRoute("GET", "/workflows", workflows.workflows),
    PageRoute("GET", "/workflows/{workflow_id}", workflows.workflow),
    PageRoute("GET", "/workflows/{workflow_id}/{act}", workflows.confirm, "operate"),
    PageRoute("POST", "/workflows/{workflow_id}/{act}", workflows.act, "operate", "act_on_workflow"),
    PageRoute("GET", "/approvals", approvals.approvals),
    PageRoute("GET", "/approvals/{approval_id}", approvals.approvals),
    PageRoute("POST", "/approvals/{approval_id}/answer", approvals.answer, "approve", "decide_approval"),
    PageRoute("GET", "/agents", agents.agents),
    PageRoute("GET", "/memory", memory.memory),
    PageRoute("POST", "/memory/forget", memory.forget, "operate", "forget_memories"),
    PageRoute("GET", "/metrics", metrics.metrics),
    PageRoute("GET", "/health", health.health),
    PageRoute("GET", "/gates", gates.gates),
    PageRoute("POST", "/gates/{act}", gates.act, "admin", "set_gate"),
    PageRoute("GET", "/audit", audit.audit, "operate"),
    PageRoute("GET", "/access", access.access, "admin"),
    PageRoute("POST", "/access/tokens", access.mint, "admin", "mint_token"),
    PageRoute("POST", "/access/revoke", access.revoke, "admin", "revoke"),
    PageRoute("GET", "/connect", connect.connect),
    PageRoute("GET", "/{rest:path}", _nothing),
)
