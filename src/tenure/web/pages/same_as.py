"""The line under each heading: the command that shows or does the same. One function per page, checked by a test
against the real parser."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence


def _line(*parts: str) -> str:
    return shlex.join(["tenure", *parts])


def _options(name: str, values: Iterable[str]) -> list[str]:
    return [part for value in values for part in (name, value)]


def overview(window: str = "1h") -> str:
    return _line("stats", "--window", window)


def jobs(
    *,
    states: Sequence[str] = (),
    queues: Sequence[str] = (),
    kinds: Sequence[str] = (),
    key: str | None = None,
    worker: str | None = None,
    workflow: str | None = None,
    parent: str | None = None,
) -> str:
    return _line(
        "jobs",
        "ls",
        *_options("--state", states),
        *_options("--queue", queues),
        *_options("--kind", kinds),
        *_options("--key", [key] if key else []),
        *_options("--worker", [worker] if worker else []),
        *_options("--workflow", [workflow] if workflow else []),
        *_options("--parent", [parent] if parent else []),
    )


def job(job_id: str, tab: str = "attempts") -> str:
    if tab == "output":
        return _line("jobs", "follow", job_id)
    if tab == "logs":
        return _line("jobs", "logs", job_id)
    return _line("jobs", "explain" if tab == "attempts" else "show", job_id)


def cancel(job_id: str, reason: str = "…") -> str:
    return _line("jobs", "cancel", job_id, "--reason", reason)


def revive(job_id: str, reason: str = "…") -> str:
    return _line("jobs", "revive", job_id, "--reason", reason)


def edit(job_id: str, reason: str = "…") -> str:
    return _line("jobs", "edit", job_id, "--reason", reason)


def priority(job_id: str, value: int, reason: str = "…") -> str:
    return _line("jobs", "edit", job_id, "--priority", str(value), "--reason", reason)


def dead_letters() -> str:
    return _line("dlq", "groups")


def dead_letter_group(fingerprint: str) -> str:
    return _line("dlq", "ls", "--fingerprint", fingerprint)


def triage(verb: str, fingerprint: str, note: str = "…") -> str:
    if verb == "assign":
        return _line("dlq", "ack", "--fingerprint", fingerprint, "--owner", "NAME", "--note", note)
    return _line("dlq", verb, "--fingerprint", fingerprint, "--note", note)


def replay(fingerprint: str) -> str:
    return _line("dlq", "replay", "--fingerprint", fingerprint)


def queues(name: str | None = None) -> str:
    return _line("queues", "ls", *([name] if name else []))


def pause(queue: str, reason: str = "…") -> str:
    return _line("queues", "pause", queue, "--reason", reason)


def resume(queue: str, reason: str = "…") -> str:
    return _line("queues", "resume", queue, "--reason", reason)


def set_queue(queue: str) -> str:
    return _line("queues", "set", queue, "max_attempts=5", "lease_seconds=10m")


def workers() -> str:
    return _line("workers", "ls")


def worker_act(act: str, worker_id: str) -> str:
    return _line("workers", act, worker_id, "--reason", "…")


def schedules() -> str:
    return _line("schedules", "ls")


def schedule(name: str) -> str:
    return _line("schedules", "edit", name, "--cron", "0 3 * * *", "--reason", "…")


def gates() -> str:
    return _line("gates", "ls")


def metrics(since: str) -> str:
    return _line("stats", "--since", since, "--p50", "--p95")


def health() -> str:
    return _line("doctor")


def workflows(*, states: Sequence[str] = (), names: Sequence[str] = ()) -> str:
    return _line("workflows", "ls", *_options("--state", states), *_options("--name", names))


def workflow(workflow_id: str) -> str:
    return _line("workflows", "show", workflow_id)


def workflow_act(act: str, workflow_id: str, reason: str = "…") -> str:
    return _line("workflows", act, workflow_id, "--reason", reason)


def inbox() -> str:
    return _line("inbox", "ls")


def approval(approval_id: str) -> str:
    return _line("inbox", "show", approval_id)


def audit(subject: str = "") -> str:
    return _line("audit", "ls", *_options("--subject", [subject] if subject else []))


def verify_audit() -> str:
    return _line("audit", "verify")


def revoke(token_id: str) -> str:
    return _line("token", "revoke", token_id)


def budgets() -> str:
    return _line("budgets", "ls")


def budget(act: str, scope: str, unit: str, per: str) -> str:
    if act == "raise":
        return _line("budgets", "raise", scope, f"--{unit}", "1", "--per", per, "--reason", "…")
    return _line("budgets", "rm", scope, "--unit", unit, "--per", per, "--reason", "…")


def limits() -> str:
    return _line("limits", "ls")


def limit(act: str, key: str) -> str:
    return _line("limits", "clear" if act == "clear" else "rm", key, "--reason", "…")


def agents() -> str:
    return _line("memory", "stats")


def memos(name: str = "", prefix: str = "", tenant: str = "") -> str:
    narrowed = [*_options("--prefix", [prefix] if prefix else []), *_options("--tenant", [tenant] if tenant else [])]
    return _line("memos", "ls", *([name] if name else []), *narrowed)


def memory(text: str) -> str:
    return _line("memory", "search", text)
