"""Webhooks about jobs: a receiver is told of events, each by a job of its own, signed as Standard Webhooks has it.

    app.use(event_hooks("crm", url="https://crm.example.com/hooks", key="whsec_…", events=["completed", "dead"]))

Queues must keep events (`app.queues.set("mail", events=True)`). One job at a time watches: it reads events behind the
place in its payload and completes with a delivery for each, and with the job that watches from there on, all in one
transaction. So no event is skipped, however late its transaction was committed, and none is delivered by two jobs.
While nothing happens it is snoozed and leaves no rows. A schedule starts it, and starts it again if an operator
cancelled it.

A delivery is tried again until it is answered with 2xx, so a receiver may see it twice: `webhook-id` tells. Its body
names the job and what happened, never payloads or results. A receiver that answers 410 is told nothing more.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
import time
from collections.abc import Sequence
from dataclasses import field, replace
from datetime import timedelta
from typing import Any, Final, TypedDict

from tenure.effects.kinds import Terms, call, register
from tenure.effects.webhook_jobs import retry_after
from tenure.errors import ConfigError, InvalidArgument, TenureError
from tenure.handler import arguments
from tenure.handler.context import Context
from tenure.handler.signals import Permanent, RateLimited, Snooze
from tenure.model.event import EventKind
from tenure.model.frozen import frozen
from tenure.model.policy import Backoff, QueuePolicy
from tenure.model.state import State
from tenure.sandbox.ssrf import AddressBlocked, Resolver, SsrfPolicy, endpoint, request, resolve_by_system
from tenure.store.admin import SetGate
from tenure.store.queries import Followed, FollowEvents, ListJobs

QUEUES: Final = "event_hooks."
PAGE: Final = 200
START_SECONDS: Final = 60.0
KEY_PREFIX: Final = "whsec_"
NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
LIVE: Final = (State.QUEUED, State.LEASED, State.RUNNING, State.WAITING)


class Watch(TypedDict):
    """The payload of the job that watches: events behind this place are new. `after` is the number of the last one,
    from which it goes on where the place means nothing: in a database that was restored on another server."""

    place: str
    after: int


class Delivery(TypedDict):
    """The payload of a delivery."""

    seq: int
    type: str
    at: str
    job_id: str | None
    queue: str | None


@frozen
class EventHooks:
    """The kit of one receiver."""

    name: str
    url: str
    key: bytes = field(repr=False)
    events: tuple[str, ...]
    queues: tuple[str, ...]
    every_seconds: float
    policy: SsrfPolicy
    resolver: Resolver
    timeout_seconds: float

    def install(self, app: Any) -> None:
        """Called by `app.use`, with the app, whose schedules it joins."""
        policy = QueuePolicy(max_attempts=12, backoff=Backoff(base_seconds=5.0, cap_seconds=3_600.0))
        terms = Terms(self.queue, policy)
        register(app, self.watch_kind, self.watch, lambda: Watch, terms)
        # A receiver that says 429 means all deliveries to it.
        register(app, self.deliver_kind, self.deliver, lambda: Delivery, replace(terms, limiter=self.queue))
        register(app, self.start_kind, self.start, lambda: dict, terms)
        app.schedule(self.start_kind, None, self.start_kind, {}, every=START_SECONDS, missed="one")

    @property
    def queue(self) -> str:
        """Where the jobs of this receiver wait."""
        return f"{QUEUES}{self.name}"

    @property
    def watch_kind(self) -> str:
        return f"event_hook.{self.name}.watch"

    @property
    def deliver_kind(self) -> str:
        return f"event_hook.{self.name}.deliver"

    @property
    def start_kind(self) -> str:
        return f"event_hook.{self.name}.start"

    def start(self, payload: dict[str, Any], ctx: Context) -> str:  # noqa: ARG002 - the payload is empty
        """Make sure that one job watches."""
        live = call(ctx, ListJobs(states=LIVE, queues=[self.queue], kinds=[self.watch_kind], limit=1))
        if live.items:
            return "a job watches already"
        ended = call(ctx, ListJobs(queues=[self.queue], kinds=[self.watch_kind], limit=1))
        now = call(ctx, FollowEvents())
        begin = ended.items[0].payload if ended.items else None
        begin = begin or Watch(place=now.place, after=now.newest)
        ctx.enqueue(self.watch_kind, begin, key=f"{self.watch_kind}:start")
        return f"watches behind event {begin['after']}"

    def watch(self, payload: Watch, ctx: Context) -> int:
        """Make a delivery for each new event. Answers the number of the last one."""
        wanted = FollowEvents(payload["place"], queues=self.queues, kinds=self.events, limit=PAGE)
        found: Followed
        try:
            found = call(ctx, wanted)
        except InvalidArgument:
            found = call(ctx, replace(wanted, place=None, after=payload["after"]))
        if not found.events:
            raise Snooze(self.every_seconds, "no new events")
        for event in found.events:
            if (event.queue or "").startswith(QUEUES):
                continue  # deliveries about deliveries would never end
            told = Delivery(
                seq=event.seq,
                type=f"job.{event.kind}",
                at=event.at.isoformat(),
                job_id=event.job_id,
                queue=event.queue,
            )
            ctx.enqueue(self.deliver_kind, told, key=f"{self.name}:{event.seq}")
        last = found.events[-1].seq
        ctx.enqueue(self.watch_kind, Watch(place=found.place, after=last), key=f"{self.watch_kind}:{last}")
        return last

    def deliver(self, payload: Delivery, ctx: Context) -> dict[str, Any]:
        """Tell the receiver of one event."""
        data = {name: payload[name] for name in ("job_id", "queue", "seq")}
        body = json.dumps({"type": payload["type"], "timestamp": payload["at"], "data": data}).encode()
        number = f"evt_{self.name}_{payload['seq']}"
        moment = str(int(time.time()))
        headers = {
            "Content-Type": "application/json",
            "webhook-id": number,
            "webhook-timestamp": moment,
            "webhook-signature": standard_signature(self.key, number, moment, body),
        }
        try:
            answer = request(
                "POST",
                self.url,
                policy=self.policy,
                headers=headers,
                body=body,
                timeout=self.timeout_seconds,
                resolver=self.resolver,
            )
        except AddressBlocked as exc:
            raise Permanent(str(exc)) from None
        if 200 <= answer.status < 300:
            return {"status": answer.status}
        if answer.status == 410:
            raise Permanent(f"The receiver answered 410: it wants nothing more. {self._stop(ctx)}")
        if answer.status in {429, 503}:
            raise RateLimited(retry_after(answer.headers.get("retry-after")), f"the receiver answered {answer.status}")
        raise ReceiverFailed(f"The receiver answered {answer.status}.")

    def _stop(self, ctx: Context) -> str:
        gate = f"queue:{self.queue}"
        try:
            call(ctx, SetGate(gate, False, ctx.job.worker, "the receiver answered 410 Gone"))
        except TenureError as exc:
            return f"Its gate could not be closed ({exc}); close it with `tenure gates close {gate}`."
        return f"`tenure gates open {gate}` goes on from where it stopped."


class ReceiverFailed(Exception):
    """The receiver did not take a delivery. It is tried again."""


def event_hooks(
    name: str,
    *,
    url: str,
    key: str,
    events: Sequence[str] = ("completed", "failed", "dead", "cancelled"),
    queues: Sequence[str] = (),
    every: float | timedelta = 5.0,
    policy: SsrfPolicy | None = None,
    timeout: float | timedelta = 15.0,
    resolver: Resolver = resolve_by_system,
) -> EventHooks:
    """Tell a receiver of events of jobs, for `app.use(event_hooks(…))`.

    Args:
        name: Of the receiver; part of the names of its queue and kinds.
        key: The shared secret in Standard Webhooks' form: `whsec_` and base64, of 24 to 64 bytes.
        events: Which kinds of events, as `tenure tail` names them.
        queues: Only jobs of these queues; of all that keep events if left out.
        every: How often a watch that found nothing looks again.
        policy: Where requests may go; public addresses over https if left out.

    Raises: ConfigError.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(f"event_hooks: the name {name!r} is not letters, digits, '-' and '_', 40 at most.")
    strange = sorted(set(events) - {kind.value for kind in EventKind})
    if strange or not events:
        raise ConfigError(f"event_hooks: there are no events {', '.join(strange)!r}. Known: {', '.join(EventKind)}.")
    allowed = policy or SsrfPolicy()
    try:
        endpoint(url, allowed)
    except AddressBlocked as exc:
        raise ConfigError(f"event_hooks: {exc}") from None
    return EventHooks(
        name,
        url,
        read_key(key),
        tuple(events),
        tuple(queues),
        arguments.seconds("every", every, positive=True),
        allowed,
        resolver,
        arguments.seconds("timeout", timeout, positive=True),
    )


def read_key(text: str) -> bytes:
    """The bytes of a `whsec_` secret. Raises: ConfigError, which does not show it."""
    try:
        found = base64.b64decode(text.removeprefix(KEY_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if not text.startswith(KEY_PREFIX) or not 24 <= len(found) <= 64:
        raise ConfigError(
            "event_hooks: the key is not a secret of Standard Webhooks: `whsec_` and the base64 of 24 to 64 random "
            "bytes. Make one with: python -c \"import base64, os; print('whsec_' + "
            'base64.b64encode(os.urandom(32)).decode())"'
        )
    return found


def standard_signature(key: bytes, number: str, moment: str, body: bytes) -> str:
    """The header `webhook-signature` of Standard Webhooks: over id, moment and body."""
    signed = hmac.new(key, f"{number}.{moment}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(signed).decode()}"
