"""What is wrong with an installation, each with the command that fixes it.

`wrong` needs a person to act; `warn` is worth knowing. A check that cannot be made on this engine is left out.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from tenure.errors import SchemaError
from tenure.model.budget import raise_command, show_amount, shown_name
from tenure.model.frozen import frozen
from tenure.model.plural import counted
from tenure.observe import audited
from tenure.observe.browse import DEATHS, Board, board
from tenure.observe.liveness import is_alive
from tenure.store.browsing import Death
from tenure.store.budgets import ListBudgets
from tenure.store.contract import Store
from tenure.store.limits import ListLimiters
from tenure.store.queries import (
    Count,
    CountJobs,
    Gate,
    QueueRow,
    WorkerSeen,
)
from tenure.store.summary import Inspect, Inspection, LastMove, Summed

Status = Literal["ok", "warn", "wrong"]

SAFE_SQLITE = (3, 51, 3)
"""Before this, connections that write and checkpoint at once can, rarely, corrupt a WAL file. Of ours only one does."""
SILENT_SECONDS = 300.0
WAL_BYTES = 64 * 1024 * 1024
"""The bound that the checkpointer keeps the -wal file under."""
FREE_BYTES = 512 * 1024 * 1024
CLOCK_SECONDS = 5.0
STUCK_SECONDS = 60.0
LAG_SECONDS = 60.0
LONG_TRANSACTION_SECONDS = 600.0
NAMED = 5
"""How many jobs and kinds are named before the rest is only counted."""
ROLES = ("tenure_producer", "tenure_worker", "tenure_reader", "tenure_operator", "tenure_admin")


@frozen
class Check:
    """What one look found."""

    name: str
    status: Status
    says: str
    fix: str | None = None


@frozen
class Diagnosis:
    """All that was found. `status` is that of the worst."""

    status: Status
    checks: list[Check]


def diagnosis(checks: Sequence[Check]) -> Diagnosis:
    """Put findings together."""
    worst: Status = "ok"
    for status in ("warn", "wrong"):
        if any(check.status == status for check in checks):
            worst = status
    return Diagnosis(worst, list(checks))


def examine(store: Store, url: str, seen: Board | None = None) -> Iterator[Check]:
    """Look at the database behind `url`, which is shown in the fixes. Stops early where the schema does not fit.
    `seen` comes from a caller that has looked already."""
    inspection = store.do(Inspect())
    yield Check("database", "ok", f"{inspection.engine} {inspection.version}" + _size(inspection))
    yield from (_sqlite(inspection) if inspection.engine == "sqlite" else _postgres(inspection, url))
    yield from _clock(inspection)
    yield from _schema(store, inspection, url)
    yield from _moved(inspection.last_move, url)
    if inspection.schema_version < inspection.schema_wanted:
        return
    if seen is None:
        seen = board(store, scan=1)  # of what ended nothing is told
    yield from _workers(seen.workers, seen.queues, seen.summary)
    yield from _unknown_kinds(store.do(CountJobs(states=["queued"])), seen.workers, seen.queues, seen.summary)
    yield from _denied(seen.workers)
    yield from _stuck(seen.summary)
    yield from _switches(store, seen.gates, seen.queues)
    yield from _empty_budgets(store)
    yield from _limiters(store, seen.summary)
    yield from _dead_letters(seen.deaths)


def _schema(store: Store, found: Inspection, url: str) -> Iterator[Check]:
    has, wants = found.schema_version, found.schema_wanted
    try:
        store.schema_version()
    except SchemaError as exc:  # the right number, and another text behind it
        yield Check("schema", "wrong", str(exc), f"tenure migrate --check --url {url}")
        return
    if has == wants:
        yield Check("schema", "ok", f"version {has}, as this Tenure wants it")
    elif has < wants:
        yield Check("schema", "wrong", f"version {has}, and this Tenure wants {wants}", f"tenure migrate --url {url}")
    else:
        yield Check("schema", "ok", f"version {has}, newer than this Tenure's {wants} and compatible with it")


def _moved(last: LastMove | None, url: str) -> Iterator[Check]:
    """A move that is under way or was cut, or that took everything away from here."""
    if last is None or last.phase in {"reopened", "done"}:
        return
    if last.phase == "moved":
        yield Check(
            "moved",
            "wrong",
            f"everything was moved to {last.other}, and no more writes are taken here",
            f"point workers and producers at {last.other}",
        )
    elif last.role == "source":
        halts = "no new job starts" if last.phase == "draining" else "no writes are taken"
        yield Check(
            "moved",
            "warn",
            f"a move to {last.other} is under way or was cut, and until its end {halts} here",
            f"if it was cut: tenure move {url} {last.other}, or to give it up: tenure move --reopen {url}",
        )
    else:
        yield Check(
            "moved",
            "warn",
            f"a move from {last.other} fills this database or was cut, and no other writes are taken until its end",
            f"if it was cut: tenure move {last.other} {url}",
        )


def _sqlite(found: Inspection) -> Iterator[Check]:
    version = tuple(int(part) for part in found.version.split(".")[:3])
    if version < SAFE_SQLITE:
        safe = ".".join(map(str, SAFE_SQLITE))
        yield Check(
            "sqlite",
            "warn",
            f"{found.version} has a rare race between checkpoints of several connections, fixed in {safe}. Tenure "
            "lets only one connection checkpoint; let no other program write to this file.",
            f"make the environment anew with a Python whose sqlite3 is {safe} or newer: those of python.org, uv and "
            "conda are; `python -c 'import sqlite3; print(sqlite3.sqlite_version)'` says which one has",
        )
    else:
        yield Check("sqlite", "ok", f"{found.version}")
    if found.journal_mode is not None and found.journal_mode.lower() != "wal":
        yield Check("journal", "wrong", f"journal mode is {found.journal_mode}, not WAL", "restart all workers")
    elif found.synchronous is not None and found.synchronous.upper() not in {"FULL", "EXTRA"}:
        yield Check("journal", "wrong", f"synchronous is {found.synchronous}: a power cut may lose jobs")
    else:
        yield Check("journal", "ok", "WAL, synchronous FULL: accepted means committed")
    if found.path is not None:
        yield from _file(Path(found.path))
    if found.wal_bytes is not None:
        is_large = found.wal_bytes > WAL_BYTES
        yield Check(
            "wal",
            "warn" if is_large else "ok",
            f"{found.wal_bytes / 1048576:.1f} MiB"
            + (f", over the bound of {WAL_BYTES / 1048576:.0f} MiB: a checkpoint is overdue" if is_large else ""),
            "end readers that stay open, such as a sqlite3 shell, and keep a worker running, which checkpoints"
            if is_large
            else None,
        )


def _file(path: Path) -> Iterator[Check]:
    there = [one for one in (path, Path(f"{path}-wal"), Path(f"{path}-shm")) if one.exists()]
    loose = [one for one in there if stat.S_IMODE(one.stat().st_mode) & 0o077]
    if loose:
        modes = ", ".join(f"{one.name} {stat.S_IMODE(one.stat().st_mode):04o}" for one in loose)
        fix = f"chmod 600 {' '.join(shlex.quote(str(one)) for one in loose)}"
        yield Check("file", "wrong", f"others on this machine may open it: {modes}", fix)
    elif there and there[0].stat().st_uid != os.geteuid():
        yield Check("file", "warn", f"{path.name} belongs to uid {there[0].stat().st_uid}, and you are {os.geteuid()}")
    else:
        yield Check("file", "ok", f"{path.name} is yours alone (0600)")
    free = shutil.disk_usage(path.parent).free
    reserve = Path(f"{path}-reserve")
    if reserve.exists() and not reserve.stat().st_size:
        yield Check(
            "disk",
            "wrong",
            f"full: {free / 1048576:.0f} MiB are left for the outcomes of running jobs, and nothing new is taken on",
            "make 20 MiB free",
        )
        return
    is_little = free < FREE_BYTES
    yield Check(
        "disk",
        "warn" if is_little else "ok",
        f"{free / 1073741824:.1f} GiB free",
        "make room, or run: tenure prune" if is_little else None,
    )


def _postgres(found: Inspection, url: str) -> Iterator[Check]:
    if found.is_standby:
        yield Check("server", "wrong", "this server is a standby and takes no writes", "point the URL at the primary")
    if found.fsync is False:
        yield Check("fsync", "wrong", "fsync is off: a crash may lose or corrupt jobs", "ALTER SYSTEM SET fsync = on")
    if found.synchronous == "off":
        yield Check(
            "commit", "wrong", "synchronous_commit is off: accepted is not committed", "SET synchronous_commit = on"
        )
    elif found.fsync:
        yield Check("commit", "ok", f"fsync on, synchronous_commit {found.synchronous}: accepted means committed")
    missing = [role for role in ROLES if role not in found.roles]
    mine = sorted(role for role, has in found.roles.items() if has)
    if missing:
        yield Check("roles", "warn", f"not there: {', '.join(missing)}", f"tenure migrate --url {url}")
    else:
        yield Check("roles", "ok", f"{found.role} may act as {', '.join(mine) or 'none of them'}")
    if found.connections is not None and found.max_connections:
        is_tight = found.connections > 0.8 * found.max_connections
        yield Check(
            "connections",
            "warn" if is_tight else "ok",
            f"{found.connections} of {found.max_connections} in use",
            "use a pooler, or raise max_connections" if is_tight else None,
        )
    yield from _bloat(found)


def _bloat(found: Inspection) -> Iterator[Check]:
    oldest = found.oldest_transaction_seconds
    if oldest is not None and oldest > LONG_TRANSACTION_SECONDS:
        yield Check(
            "transactions",
            "warn",
            f"one has been open for {oldest:.0f} s and keeps vacuum from cleaning up",
            "SELECT pid, query FROM pg_stat_activity ORDER BY xact_start LIMIT 1",
        )
    if found.live_rows is not None and found.dead_rows is not None:
        is_bloated = found.dead_rows > 20_000 and found.dead_rows > found.live_rows // 2
        yield Check(
            "bloat",
            "warn" if is_bloated else "ok",
            f"{found.dead_rows:,} dead rows beside {found.live_rows:,} live ones in tenure.job",
            "VACUUM tenure.job" if is_bloated else None,
        )


def _clock(found: Inspection) -> Iterator[Check]:
    apart = round((found.at - datetime.now(UTC)).total_seconds(), 1) + 0.0  # no minus before a zero
    ahead = (found.newest_created_at - found.at).total_seconds() if found.newest_created_at is not None else 0.0
    if ahead > CLOCK_SECONDS:
        yield Check(
            "clock",
            "wrong",
            f"the newest job was made {ahead:.0f} s in the future: the clock was set back, and leases last longer",
            "chronyc makestep, or wait",
        )
    elif abs(apart) > CLOCK_SECONDS:
        yield Check(
            "clock",
            "warn",
            f"the database's clock is {apart:+.0f} s from this machine's. The database's judges; logs will not match.",
            "set up NTP on both",
        )
    else:
        yield Check("clock", "ok", f"the database's is {apart:+.1f} s from this machine's")


def _workers(workers: list[WorkerSeen], queues: list[QueueRow], summed: Summed) -> Iterator[Check]:
    policies = {one.name: one.policy for one in queues}
    silent = [one for one in workers if not is_alive(one, policies, summed.at)]
    live = [one for one in workers if is_alive(one, policies, summed.at)]
    holding = [one for one in silent if one.held]
    if holding:
        held = sum(one.held for one in holding)
        yield Check(
            "workers",
            "wrong",
            f"{len(holding)} not heard of any more, holding {counted(held, 'job')}, which come back as leases run out",
            "tenure prune --workers-after 5m --yes",
        )
    elif silent:
        yield Check(
            "workers",
            "warn",
            f"{len(live)} alive; {len(silent)} gone without a goodbye",
            "tenure prune --workers-after 5m --yes",
        )
    else:
        yield Check("workers", "ok", f"{len(live)} alive")
    served = {name for one in live for name in one.row.queues}
    paused = {one.name for one in queues if one.paused_at is not None}
    for backlog in summed.backlog:
        if backlog.due and backlog.queue not in served | paused:
            yield Check(
                "unserved",
                "wrong",
                f"{counted(backlog.due, 'job', 'due')} in queue {backlog.queue!r}, and no live worker serves it",
                f"tenure worker MODULE:APP --queue {shlex.quote(backlog.queue)}",
            )
        elif backlog.oldest_due_at is not None:
            lag = (summed.at - backlog.oldest_due_at).total_seconds()
            if lag > LAG_SECONDS and backlog.queue not in paused:
                yield Check(
                    "lag",
                    "warn",
                    f"queue {backlog.queue!r} lags {lag:.0f} s behind with {counted(backlog.due, 'due job')}",
                    "start more workers, or raise --concurrency",
                )


def _unknown_kinds(
    counts: list[Count], workers: list[WorkerSeen], queues: list[QueueRow], summed: Summed
) -> Iterator[Check]:
    """Kinds that wait in a queue that is served, by workers of which none has a handler for them."""
    policies = {one.name: one.policy for one in queues}
    live = [one for one in workers if is_alive(one, policies, summed.at)]
    unknown = []
    for count in counts:
        serving = [one for one in live if count.queue in one.row.queues]
        if serving and not any(not one.row.kinds or count.kind in one.row.kinds for one in serving):
            unknown.append((count, len(serving)))
    for count, serving_count in unknown[:NAMED]:
        queue, kind = shlex.quote(count.queue), shlex.quote(count.kind)
        yield Check(
            "unknown kind",
            "wrong",
            f"{counted(count.jobs, 'job')} of kind {count.kind!r} in queue {count.queue!r}, and of its "
            f"{counted(serving_count, 'live worker')} none has a handler for it",
            f"tenure worker MODULE:APP --queue {queue}  (an app that has it), "
            f"or: tenure jobs cancel --queue {queue} --kind {kind}",
        )
    if len(unknown) > NAMED:
        yield Check("unknown kind", "wrong", f"{counted(len(unknown) - NAMED, 'more kind')} of that sort")


def _denied(workers: list[WorkerSeen]) -> Iterator[Check]:
    """Duties of a leader that its login may not do. The worker says so in its row."""
    undone = {"prune": "prune", "remove_workers": "remove dead workers", "roll_up": "count minutes"}
    for one in workers:
        duties = [duty for duty in one.row.denied if duty in undone]
        if one.is_leader and duties:
            yield Check(
                "upkeep",
                "wrong",
                f"the leader {one.row.id} may not {' or '.join(undone[duty] for duty in duties)}: its login lacks the "
                + ("role tenure_operator, so payloads outlive their retention" if "prune" in duties else "right"),
                "GRANT tenure_operator TO the worker's login, or daily: tenure prune --yes"
                if "prune" in duties
                else "GRANT tenure_worker TO the worker's login, then: tenure migrate",
            )


def _stuck(summed: Summed) -> Iterator[Check]:
    oldest = max(((summed.at - one.lease_until).total_seconds() for one in summed.stuck), default=0.0)
    if not summed.stuck_count:
        yield Check("stuck", "ok", "no lease has run out unnoticed")
    elif oldest > STUCK_SECONDS:
        named = [str(one.job_id) for one in summed.stuck[:NAMED]]
        more = f" and {summed.stuck_count - len(named):,} more" if summed.stuck_count > len(named) else ""
        yield Check(
            "stuck",
            "wrong",
            f"{counted(summed.stuck_count, 'lease')} ran out up to {oldest:.0f} s ago, and no claim has taken back "
            f"{', '.join(named)}{more}",
            "tenure worker MODULE:APP  (any claim takes them back). One that stays has a row that cannot be changed; "
            f"the worker's log says why: tenure jobs show {named[0]}",
        )
    else:
        yield Check(
            "stuck",
            "warn",
            f"{counted(summed.stuck_count, 'lease')} ran out just now; the next claim takes back what was held",
        )


def _switches(store: Store, gates: list[Gate], queues: list[QueueRow]) -> Iterator[Check]:
    for gate in gates:
        fix = f"tenure gates open {shlex.quote(gate.name)}"
        if not gate.is_open and gate.name.startswith("kind:") and gate.actor == "tenure":
            kind = gate.name.removeprefix("kind:")
            says = f"jobs of kind {kind!r} keep crashing their workers, so it was closed by itself and they wait"
            yield Check("quarantine", "wrong", says, f"tenure audit ls --subject {shlex.quote(gate.name)}, then: {fix}")
        elif not gate.is_open:
            says = f"{gate.name!r} is closed, by {gate.actor}{_why(store, gate.name, 'close_gate')}"
            yield Check("gate", "warn", says, fix)
    for queue in queues:
        if queue.paused_at is not None:
            yield Check(
                "paused",
                "warn",
                f"queue {queue.name!r} is paused, by {queue.paused_by}{_why(store, queue.name, 'pause_queue')}",
                f"tenure queues resume {shlex.quote(queue.name)}",
            )


def _why(store: Store, subject: str, act: str) -> str:
    given = audited.reason(store, subject, act)
    return f": {given}" if given else ""


def _empty_budgets(store: Store) -> Iterator[Check]:
    """Budgets that hold jobs back, or have nothing left."""
    budgets = store.do(ListBudgets(limit=1000))
    short = [one for one in budgets if one.waiting or not one.left]
    for one in sorted(short, key=lambda one: -one.waiting)[:NAMED]:
        waits = f"{counted(one.waiting, 'job')} {'waits' if one.waiting == 1 else 'wait'} for it"
        needs = ", and only a raise lets them go on" if one.waiting and one.on_empty == "escalate" else ""
        yield Check(
            "budget",
            "wrong" if needs else "warn",
            f"{shown_name(one.scope, one.unit, one.per)} has {show_amount(one.unit, one.left)} left of "
            f"{show_amount(one.unit, one.limit)}; {waits}{needs}",
            raise_command(one.scope, one.unit, one.per),
        )
    if len(short) > NAMED:
        yield Check("budget", "warn", f"{counted(len(short) - NAMED, 'more budget')} of that sort", "tenure budgets ls")
    if budgets and not short:
        yield Check("budget", "ok", f"{counted(len(budgets), 'budget')}, and none is used up")


def _limiters(store: Store, summed: Summed) -> Iterator[Check]:
    for limiter in store.do(ListLimiters()):
        said = f" ({limiter.reason.splitlines()[0][:100]})" if limiter.reason else ""
        fix = f"tenure limits clear {shlex.quote(limiter.key)}"
        refusals = counted(limiter.strikes, "refusal")
        if limiter.blocked_until is not None and limiter.blocked_until > summed.at:
            until = f"{limiter.blocked_until:%Y-%m-%d %H:%M:%S} UTC"
            yield Check("limiter", "warn", f"{limiter.key!r} is blocked until {until}, after {refusals}{said}", fix)
        elif limiter.strikes:
            yield Check("limiter", "warn", f"{limiter.key!r} reopens slowly after {refusals}{said}", fix)


def _dead_letters(deaths: list[Death]) -> Iterator[Check]:
    groups = {one.fingerprint for one in deaths}
    if deaths:
        least = "at least " if len(deaths) == DEATHS else ""
        many = f"{least}{counted(len(deaths), 'dead letter')} in {least}{counted(len(groups), 'group')}"
        says = f"{many} to be looked at by a person"
        yield Check("dead letters", "warn", says, "tenure dlq groups")
    else:
        yield Check("dead letters", "ok", "none wait for a person")


def _size(found: Inspection) -> str:
    return "" if found.database_bytes is None else f", {found.database_bytes / 1048576:.1f} MiB"
