"""`tenure.bulk`: an operator's act on all jobs that match a filter, as a job of its own.

The filter is frozen when the act is asked for: jobs that were created later are left alone. The act goes look by look
at a bounded pace, shows how far it is, and stops when its job is cancelled. How far it is is stored with the job after
each part, so an act that was stopped and revived goes on where it was; after a crash, the part that was under way is
gone through again, finds what is left of it, and may count it short. Every part is one transaction.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from tenure.effects.bulk_looks import looks, mark
from tenure.effects.kinds import Host, Terms, call, fence, register
from tenure.handler.context import Context
from tenure.handler.signals import Permanent
from tenure.model.frozen import frozen
from tenure.model.ids import JobId
from tenure.model.policy import QueuePolicy
from tenure.store.contract import Cancel, Revive
from tenure.store.queries import ListAudit

if TYPE_CHECKING:
    from tenure.effects.bulk_payload import BulkAct

KIND: Final = "tenure.bulk"
QUEUE: Final = "bulk"
SUBJECT: Final = "bulk"
"""Act and subject of the audit rows by which acts are asked for; each names its job."""
AUDIT_PAGE: Final = 1000
PART: Final = 500
"""Jobs of one transaction."""
PACE: Final = 1000.0
"""Jobs per second, unless the act says otherwise."""
PART_SECONDS: Final = 1.0
"""A slow act takes as many jobs at a time as its pace allows in this time, so that it stays even."""


@frozen
class Bulk:
    """The kit of `tenure.bulk`."""

    terms: Terms

    def install(self, app: Host) -> None:
        """Called by `app.use`."""
        register(app, KIND, act_on_all, _payload_type, self.terms)


def bulk(*, queue: str = QUEUE) -> Bulk:
    """Acts on all that match: `app.use(bulk())`. `tenure serve` runs them itself."""
    return Bulk(Terms(queue=queue, policy=QueuePolicy(max_attempts=5), max_attempts=5))


def _payload_type() -> Any:
    from tenure.effects.bulk_payload import BulkAct

    return BulkAct


def act_on_all(payload: BulkAct, ctx: Context) -> dict[str, int]:
    """Go through the filter, look by look."""
    _check_is_asked_for(ctx)
    check = fence(ctx)
    kept = _kept(ctx)
    done, failed, after = int(kept.get("done", 0)), int(kept.get("failed", 0)), kept.get("after")
    began, before = time.monotonic(), done + failed
    pace = payload.pace or PACE
    size = max(1, min(PART, int(pace * PART_SECONDS)))
    reason = mark(payload.reason, ctx.id)
    check()
    for look in looks(lambda request: call(ctx, request), payload, after, own=ctx.id):
        for first in range(0, len(look.ids), size):
            part = look.ids[first : first + size]
            good = _act(ctx, payload.act, part, payload.actor, reason)
            done, failed = done + good, failed + len(part) - good
            check(_progress(done, failed, payload.total, after))
            _wait(ctx, began + (done + failed - before) / pace - time.monotonic())
        after = look.next
        if after is not None:
            check(_progress(done, failed, payload.total, after))
    ctx.set_result_summary(f"{payload.act}: {done} done, {failed} refused")
    return {"done": done, "failed": failed, "total": payload.total}


def _check_is_asked_for(ctx: Context) -> None:
    """Who asks for an act may operate, and the door notes that in the audit before it enqueues the job. A job of this
    kind that was merely enqueued has no such row: the right to enqueue is not the right to cancel what others
    enqueued."""
    before: int | None = None
    while rows := call(ctx, ListAudit(SUBJECT, AUDIT_PAGE, before)):
        if any(row.act == SUBJECT and row.detail == {"job": ctx.id} for row in rows):
            return
        before = rows[-1].seq
    raise Permanent(
        "No audit row asks for this act, so nothing was done. Acts on all that match are asked for on the page bulk of "
        "the console, or by POST /api/v1/bulk."
    )


def _kept(ctx: Context) -> dict[str, Any]:
    """How far an earlier attempt came."""
    text = (ctx.job.extras or {}).get("progress")
    kept = json.loads(text) if isinstance(text, str) else text
    return kept if isinstance(kept, dict) else {}


def _progress(done: int, failed: int, total: int, after: str | None) -> str:
    return json.dumps({"done": done, "failed": failed, "total": total, "after": after})


def _act(ctx: Context, act: Literal["cancel", "revive"], ids: Sequence[JobId], actor: str, reason: str) -> int:
    """How many of them it did."""
    if act == "cancel":
        return sum(answer.answer != "refused" for answer in call(ctx, Cancel(ids, actor, reason)))
    return sum(not answer.lost for answer in call(ctx, Revive(ids, actor, reason)))


def _wait(ctx: Context, seconds: float) -> None:
    """Keep the pace. Ends early, by an exception, if the job is cancelled or the worker stops."""
    until = time.monotonic() + seconds
    ctx.check()
    while (left := until - time.monotonic()) > 0:
        ctx.stopping.wait(min(left, 0.5))
        ctx.check()
