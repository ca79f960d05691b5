"""The protocol of workers in any language: claims, heartbeats, settlements, and all three at once.

Over HTTP a grant's token is a text that binds the store's token to the API token that claimed: another program that
learns or guesses a job's id and number can neither keep nor end it. Worker names are kept apart by token likewise, so
that no program is granted what another one holds. A claim whose client has gone is given back at once, before an
answer is sent.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from fastapi import Request, Response
from pydantic import Field

from tenure.errors import InvalidArgument, TenureError
from tenure.handler import arguments
from tenure.handler.payload import encode
from tenure.model.clock import from_us
from tenure.model.event import NewEvent
from tenure.model.ids import JobId, Token, WorkerId
from tenure.model.job import Grant
from tenure.model.limiter import check_block
from tenure.model.outcome import (
    Completed,
    Failed,
    FailureClass,
    Outcome,
    Rejected,
    Released,
    Stopped,
    Suspended,
)
from tenure.model.policy import Limits
from tenure.web.api.shapes import Answer, Here, JsonAnswer, Name, Strict, Who, plain
from tenure.web.auth import Principal
from tenure.web.places import waiting
from tenure.web.problems import Problem, to_problem
from tenure.web.routes import Route
from tenure.web.site import Site

POLL_SECONDS: Final = 1.0
"""Behind the wake-ups, as for workers."""
DISCONNECT_SECONDS: Final = 0.25
LEASE_SECONDS: Final = 60.0
"""What a worker that holds nothing is told to go by."""

GrantText = Annotated[str, Field(min_length=1, max_length=500)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Delay = Annotated[float, Field(ge=0, le=3e8)]
Words = Annotated[str, Field(max_length=100_000)]


class ClaimBody(Strict):
    """What to claim. `wait`: so many seconds, until there is something."""

    worker: Name
    queues: Annotated[list[Name], Field(min_length=1, max_length=50)]
    kinds: Annotated[list[Name], Field(min_length=1, max_length=200)] | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 1
    lease_seconds: Seconds | None = None
    wait: Annotated[float, Field(ge=0, le=25)] = 0


class HeldBody(Strict):
    """A job that is held, with what is to be said of it."""

    id: Annotated[str, Field(max_length=100)]
    token: GrantText
    progress: Any = None
    logs: Annotated[list[Words], Field(max_length=100)] = Field(default_factory=list)


class HeartbeatBody(Strict):
    """All that a worker holds. An empty list says that the worker is there. Without `lease_seconds` leases are extended
    by what the claims gave: the shortest of them."""

    worker: Name
    grants: Annotated[list[HeldBody], Field(max_length=1000)]
    lease_seconds: Seconds | None = None
    queues: Annotated[list[Name], Field(max_length=50)] = Field(default_factory=list)
    kinds: Annotated[list[Name], Field(max_length=200)] = Field(default_factory=list)
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 1
    version: Annotated[str, Field(max_length=100)] = ""


class ResultBody(Strict):
    """How an attempt ended.

    complete: `result`, `summary`. fail: `error`, `retry_after`. reject: `error`; never retried. release: `delay`,
    `reason`; the attempt is refunded; with `limiter` all jobs that carry this key are held back for `delay`. suspend:
    `waiting_for`, `delay`. stop: `reason`; after a cancel. `failure_class`, of fail and reject: what it is counted as.
    """

    id: Annotated[str, Field(max_length=100)]
    token: GrantText
    outcome: Literal["complete", "fail", "reject", "release", "suspend", "stop"]
    result: Any = None
    summary: Annotated[str, Field(max_length=2000)] | None = None
    error: Words | None = None
    failure_class: FailureClass | None = None
    retry_after: Delay | None = None
    delay: Delay | None = None
    reason: Annotated[str, Field(max_length=2000)] | None = None
    waiting_for: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    limiter: Annotated[str, Field(min_length=1, max_length=100)] | None = None


class SettleBody(Strict):
    """Ends of attempts, each with an answer of its own."""

    results: Annotated[list[ResultBody], Field(min_length=1, max_length=1000)]


class ExchangeBody(Strict):
    """Settle, then claim."""

    worker: Name
    settle: Annotated[list[ResultBody], Field(max_length=1000)] = Field(default_factory=list)
    claim: ClaimBody | None = None


class Granted(Answer):
    """A job held under a lease. `token` proves it, and belongs to every later call about it. A worker whose clock
    differs from the store's goes by `lease_seconds`, which begin now."""

    job: dict[str, Any]
    token: str
    lease_until: datetime
    lease_seconds: float


class Grants(Answer):
    """What was granted, and the store's clock. `poll_after`: when to ask again if nothing was."""

    grants: list[Granted]
    poll_after: float
    now: datetime


class NotKept(Answer):
    """A progress that was not kept, and why."""

    id: str
    code: str
    detail: str


class Beaten(Answer):
    """`lost`: stop, and settle nothing. `cancel`: stop, and settle with `stop`. `overdue`: its deadline has
    passed; stop, and settle with `reject` and the class `deadline`. `invalid`: the lease was extended, and the progress
    was not kept. `drain`: claim nothing more for now."""

    held: list[str]
    lost: list[str]
    cancel: list[str]
    overdue: list[str]
    invalid: list[NotKept]
    drain: bool
    next_in: float


class SettledOne(Answer):
    """`settled`, `lost` (nothing was changed) or `invalid` with the reason."""

    id: str
    status: str
    state: str | None
    run_at: datetime | None
    code: str | None
    detail: str | None


class Settlements(Answer):
    """One answer per result, in order."""

    results: list[SettledOne]


class Refused(Answer):
    """Why nothing was claimed."""

    code: str
    detail: str


class Exchanged(Answer):
    """What was settled and what was granted. `refused`: why nothing could be claimed, although there were results."""

    results: list[SettledOne]
    grants: list[Granted]
    refused: Refused | None = None
    poll_after: float
    now: datetime


async def claim(request: Request, who: Who, site: Here, body: ClaimBody) -> Response:
    """Take due jobs under a lease; with `wait`, as soon as there are some. 204 if there are none."""
    _check_places(who, body)
    grants = await _claim(request, site, who, body)
    if not grants:
        return Response(status_code=204, headers={"Retry-After": "1"})
    return await _deliver(request, site, who, grants, {})


async def heartbeat(who: Who, site: Here, body: HeartbeatBody) -> Response:
    """Extend the leases of held jobs, and learn what is lost, what is to stop, and whether to go on."""
    held: list[tuple[HeldBody, Token]] = []
    gone: set[str] = set()
    leases: list[float] = []
    for one in body.grants:
        known = await _known(site, who, one.id, one.token)
        if known is None:
            gone.add(one.id)
        else:
            held.append((one, known[0]))
            leases.append(known[1])
    lease = body.lease_seconds or min(leases, default=None)
    worker = _worker_row(who, body)
    progress, invalid = _progress(who, [one for one, _ in held])
    beat = await who.app.aio.heartbeat(
        [(one.id, token) for one, token in held],
        lease_seconds=lease,
        progress=progress,
        worker=worker,
        events={one.id: [_log(line) for line in one.logs] for one, _ in held if one.logs},
    )
    gone |= set(beat.lost)
    gates = await who.app.aio.gates.all()
    answer = {
        "held": [one.id for one, _ in held if one.id not in gone],
        "lost": [one.id for one in body.grants if one.id in gone],
        "cancel": sorted(set(beat.cancel_requested) - gone),
        "overdue": sorted(set(beat.overdue) - gone),
        "invalid": [one for one in invalid if one["id"] not in gone],
        "drain": any(not gate.is_open for gate in gates if gate.name in {"master", "worker", f"worker:{worker.id}"}),
        "next_in": (lease or LEASE_SECONDS) / 3,
    }
    return JsonAnswer(answer)


def _progress(who: Principal, held: Iterable[HeldBody]) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """What can be kept of it, and what cannot. One bad progress must not cost the other jobs their leases."""
    kept: dict[str, Any] = {}
    invalid: list[dict[str, str]] = []
    for one in held:
        if one.progress is not None:
            try:
                encode(one.progress, who.app.registry.limits, what="The progress")
                kept[one.id] = one.progress
            except TenureError as exc:
                invalid.append({"id": one.id, "code": exc.code, "detail": str(exc)})
    return kept, invalid


async def settle(who: Who, site: Here, body: SettleBody) -> Response:
    """End attempts. A single result whose lease is lost is answered 409; in a batch each has its own status."""
    results = await _settle(site, who, body.results)
    if len(results) == 1 and results[0]["status"] == "lost":
        raise Problem(409, "lease_lost", results[0]["detail"])
    return JsonAnswer({"results": results})


async def exchange(request: Request, who: Who, site: Here, body: ExchangeBody) -> Response:
    """Settle what ended, and claim for the free slots, in one request. What was settled stands although the claim is
    refused; `refused` says why."""
    wanted = None if body.claim is None else body.claim.model_copy(update={"worker": body.worker})
    if wanted is not None:
        _check_places(who, wanted)
    results = await _settle(site, who, body.settle) if body.settle else []
    grants: list[Grant] = []
    refused = None
    try:
        grants = [] if wanted is None else await _claim(request, site, who, wanted)
    except (TenureError, Problem) as exc:
        if not results:
            raise
        problem = to_problem(exc)
        refused = {"code": problem.code, "detail": problem.detail}
    return await _deliver(request, site, who, grants, {"results": results, "refused": refused})


def _check_places(who: Principal, body: ClaimBody) -> None:
    """Raises: Problem 403."""
    for queue in body.queues:
        kinds: list[str | None] = [*body.kinds] if body.kinds else [None]
        for kind in kinds:
            if not who.may("worker", queue=queue, kind=kind):
                what = f"queue={queue}" + ("" if kind is None else f",kind={kind}")
                raise Problem(403, "forbidden", f"{who.name!r} may not work there: it needs the scope 'worker:{what}'.")


async def _claim(request: Request, site: Site, who: Principal, body: ClaimBody) -> list[Grant]:
    async def ask() -> list[Grant]:
        return await who.app.aio.claim(
            worker=_worker_id(who, body.worker),
            queues=body.queues,
            kinds=body.kinds,
            limit=body.limit,
            lease_seconds=body.lease_seconds,
        )

    grants = await ask()
    if grants or body.wait <= 0:
        return grants
    with waiting(site, who):
        return await _wait_for_grants(request, who, body, ask)


async def _wait_for_grants(request: Request, who: Principal, body: ClaimBody, ask: Any) -> list[Grant]:
    """Look again at each wake-up, and each second; end when the time is over or the client is gone."""
    until = time.monotonic() + body.wait
    loop, woken = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        loop.call_soon_threadsafe(woken.set)

    subscription = await asyncio.to_thread(who.app.store.subscribe, body.queues, wake)
    try:
        looked = time.monotonic()
        while (now := time.monotonic()) < until and await request.state.site.may_wait(request):
            if woken.is_set() or now - looked >= POLL_SECONDS:
                woken.clear()
                looked = now
                grants: list[Grant] = await ask()
                if grants:
                    return grants
            try:
                async with asyncio.timeout(min(DISCONNECT_SECONDS, max(0.01, until - now))):
                    await woken.wait()
            except TimeoutError:
                continue
        return []
    finally:
        # Not awaited: a cancel here would lose what was granted.
        loop.run_in_executor(None, subscription.close)


async def _deliver(
    request: Request, site: Site, who: Principal, grants: list[Grant], answer: dict[str, Any]
) -> Response:
    """The answer. If it cannot be made, or its client is gone, what was granted goes back at once, unspent."""
    delivered: Response | None = None
    try:
        now = await asyncio.to_thread(who.app.now)
        shown = await _shown(site, who, grants, now)
        told = JsonAnswer({**answer, "grants": shown, "poll_after": 0.0 if grants else 1.0, "now": now})
        if not grants or not await request.is_disconnected():
            delivered = told
    finally:
        if delivered is None:
            await who.app.aio.settle([Released(grant.id, grant.token, failure_class=None) for grant in grants])
    return delivered or Response(status_code=204)


async def _settle(site: Site, who: Principal, results: list[ResultBody]) -> list[dict[str, Any]]:
    answers: list[dict[str, Any] | None] = []
    outcomes: list[Outcome] = []
    for one in results:
        known = await _known(site, who, one.id, one.token)
        if known is None:
            answers.append(_lost(one.id))
            continue
        try:
            outcomes.append(_outcome(who, one, known[0]))
            answers.append(None)
        except TenureError as exc:
            answers.append(_answer(one.id, "invalid", code=exc.code, detail=str(exc)))
    settled = iter(await who.app.aio.settle(outcomes) if outcomes else [])
    for place, answer in enumerate(answers):
        if answer is None:
            done = next(settled)
            when = None if done.run_at_us is None else from_us(done.run_at_us)
            answers[place] = (
                _lost(done.job_id) if done.lost else _answer(done.job_id, "settled", state=done.state, run_at=when)
            )
    return [answer for answer in answers if answer is not None]


def _outcome(who: Principal, one: ResultBody, token: Token) -> Outcome:
    job_id = JobId(one.id)
    limits = who.app.registry.limits
    why = None if one.reason is None else arguments.error_text(one.reason, limits.error_chars)
    match one.outcome:
        case "complete":
            text = encode(one.result, limits, what=f"Job {job_id}: the result")
            summary = arguments.text("summary", one.summary, limits.error_chars) if one.summary else None
            return Completed(job_id, token, result=text, result_summary=summary)
        case "fail":
            kind = one.failure_class or FailureClass.ERROR
            return Failed(job_id, token, _said(one.error, limits), kind, one.retry_after)
        case "reject":
            return Rejected(job_id, token, _said(one.error, limits), one.failure_class or FailureClass.PERMANENT)
        case "release":
            kind = FailureClass.SHUTDOWN if one.limiter is None else FailureClass.RATE_LIMITED
            if one.limiter is not None:
                check_block(one.limiter, one.delay or 0.0)
            return Released(job_id, token, one.delay or 0.0, kind, why, one.limiter)
        case "suspend":
            if one.waiting_for is None:
                raise InvalidArgument("waiting_for: a suspended job must say what it waits for.")
            return Suspended(job_id, token, arguments.text("waiting_for", one.waiting_for), one.delay)
        case "stop":
            return Stopped(job_id, token, why)


def _said(error: str | None, limits: Limits) -> str:
    if not error or not error.strip():
        raise InvalidArgument("error: it must say what went wrong.")
    return arguments.error_text(error, limits.error_chars)


def _answer(
    job_id: str,
    status: str,
    *,
    state: str | None = None,
    run_at: datetime | None = None,
    code: str | None = None,
    detail: str | None = None,
) -> dict[str, Any]:
    return {"id": job_id, "status": status, "state": state, "run_at": run_at, "code": code, "detail": detail}


def _lost(job_id: str) -> dict[str, Any]:
    detail = (
        f"Job {job_id[:36]}: this token does not hold it, because its lease has ended, it was handed on, or another "
        "program claimed it. Nothing was changed. Ask for a longer lease, or send a heartbeat while it works."
    )
    return _answer(job_id, "lost", code="lease_lost", detail=detail)


async def _shown(site: Site, who: Principal, grants: Iterable[Grant], now: datetime) -> list[dict[str, Any]]:
    """Grants with all that a worker needs: the holder of a job sees its payload, and the text is the producer's."""
    answers = []
    for grant in grants:
        job = {
            "id": grant.id,
            "queue": grant.queue,
            "kind": grant.kind,
            "payload": json.loads(grant.payload_text),
            "attempt": grant.attempt,
            "max_attempts": grant.max_attempts,
            "priority": grant.priority,
            **plain(grant.extras or {}),
        }
        lease = round((grant.lease_until - now).total_seconds(), 3)
        token = await site.sign(who.tenant, "grant", [grant.id, grant.token, who.token_id, lease])
        answers.append({"job": job, "token": token, "lease_until": grant.lease_until, "lease_seconds": lease})
    return answers


async def _known(site: Site, who: Principal, job_id: str, text: str) -> tuple[Token, float] | None:
    """The store's token and the lease that the claim gave, if this text was given to this program for this job."""
    try:
        known_id, token, holder, lease = await site.unsign(who.tenant, "grant", text)
    except InvalidArgument:
        return None
    return (Token(token), max(lease, 1.0)) if known_id == job_id and holder == who.token_id else None


def _worker_id(who: Principal, name: str) -> WorkerId:
    # The name is cut, never the id behind it, by which the one that asks for an approval is known.
    return WorkerId(f"{name[:180]}@{who.token_id}")


def _worker_row(who: Principal, body: HeartbeatBody) -> Any:
    from tenure import WorkerRow

    return WorkerRow(
        id=_worker_id(who, body.worker),
        hostname=who.address,
        pid=0,
        queues=body.queues,
        kinds=body.kinds,
        concurrency=body.concurrency,
        version=body.version,
        info=json.dumps({"token": who.token_id, "by": "http"}),
    )


def _log(line: str) -> NewEvent:
    return NewEvent("log", json.dumps({"message": line.replace("\x00", "\\x00")}))


ROUTES: Final = (
    Route("POST", "/api/v1/claims", "worker", None, claim, "workers", answers=Grants, others=(204, 404, 409, 503)),
    Route("POST", "/api/v1/heartbeats", "worker", None, heartbeat, "workers", answers=Beaten, others=(409, 503)),
    Route("POST", "/api/v1/settlements", "worker", None, settle, "workers", answers=Settlements, others=(409, 503)),
    Route("POST", "/api/v1/exchange", "worker", None, exchange, "workers", answers=Exchanged, others=(404, 409, 503)),
)
