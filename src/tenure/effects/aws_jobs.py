"""`sync_aws`: make an AWS resource be as its configuration says, or be gone; read it back and compare.

An attempt always looks first and acts only on the difference, so a reply that got lost costs a look, not a second
resource. Calls that could make one carry the job's id as ClientToken, never the attempt. Credentials come from where
the worker runs, or from a role per type of resource; a payload that holds keys is refused at enqueue.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any

from tenure.effects.aws_resources import (
    Ask,
    Busy,
    Client,
    Config,
    Pending,
    Resource,
    code_of,
    differences,
    resource_of,
    status_of,
)
from tenure.effects.kinds import Finding, Host, Terms, fence, register
from tenure.errors import LeaseLost, MissingExtra
from tenure.handler.context import Context
from tenure.handler.signals import Permanent, RateLimited, Snooze
from tenure.model.frozen import frozen
from tenure.model.job import Job
from tenure.model.outcome import EffectRecord

if TYPE_CHECKING:
    from tenure.effects.payloads import SyncAws

THROTTLED_SECONDS = 10.0
SETTLE_SECONDS = 10.0
"""How long AWS may take until a read shows what was written."""
_THROTTLED = ("Throttl", "TooManyRequests", "RequestLimitExceeded", "SlowDown", "BandwidthLimitExceeded")
_BUSY = {
    "ProvisionedThroughputExceededException": THROTTLED_SECONDS,
    "LimitExceededException": THROTTLED_SECONDS,
    "PriorRequestNotComplete": THROTTLED_SECONDS,
    "EC2ThrottledException": THROTTLED_SECONDS,
    "AWS.SimpleQueueService.QueueDeletedRecently": 61.0,
}
_PASSING = {
    "ConcurrentModificationException",
    "ConcurrentOperationException",
    "ExpiredToken",
    "ExpiredTokenException",
    "NotStabilizedException",
    "OperationAborted",
    "RequestExpired",
    "RequestTimeTooSkewed",
    "RequestTimeout",
    "ResourceConflictException",
    "ResourceInUseException",
}
"""Refusals with a status of 4xx that time heals."""


class AwsTrouble(Exception):
    """AWS could not do it now; the attempt failed and another may go better."""


class NotInSync(Exception):
    """The resource was written, but reads still show something else."""


@frozen
class Aws:
    """The kit of `sync_aws`."""

    kind: str
    terms: Terms
    region: str | None
    endpoint_url: str | None
    roles: Mapping[str, str]
    kinds: tuple[str, ...] = field(init=False)
    _clients: dict[str, Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", (self.kind,))

    def install(self, app: Host) -> None:
        """Called by `app.use`."""
        register(app, self.kind, self.sync, _payload_type, self.terms)
        app.registry.checkers.append(self)

    def sync(self, payload: SyncAws, ctx: Context) -> dict[str, Any]:
        """Look, act on the difference, read back."""
        known = _known(ctx)
        ask = Ask(payload.resourceId, payload.config, ctx.id, lambda kept: _remember(ctx, kept), known)
        with refusals():
            client = self._client(payload.resourceType, ctx.id)
            resource = resource_of(payload.resourceType)
            if payload.operation == "delete":
                action = _delete(resource, client, ask, ctx)
                return _result(payload, action, ask)
            action = _apply(resource, client, ask, ctx, payload.operation)
            ask = Ask(ask.id, ask.config, ask.token, ask.remember, _known(ctx))
            _read_back(resource, client, ask)
            return _result(payload, action, ask)

    @property
    def scope(self) -> str:
        """See Checker."""
        return "aws"

    def subject(self, job: Job) -> str | None:
        """See Checker."""
        if not isinstance(job.payload, dict) or not isinstance(job.result, dict):
            return None
        return f"{job.payload.get('resourceType')} {job.payload.get('resourceId')}"

    def check(self, job: Job) -> Finding | None:
        """See Checker."""
        wanted, subject = job.payload, self.subject(job) or ""
        ask = Ask(wanted["resourceId"], wanted.get("config", {}), job.id, lambda _: None, job.result)
        try:
            found = resource_of(wanted["resourceType"]).read(self._client(wanted["resourceType"], "reconcile"), ask)
        except Exception as exc:  # noqa: BLE001 - one that cannot be looked at must not hide the others
            return Finding("unreadable", subject, "an answer of AWS", f"{type(exc).__name__}: {exc}"[:300])
        if wanted.get("operation") == "delete":
            return None if found is None else Finding("still_there", subject, "nothing", "a resource")
        expected = "a resource as configured"
        if found is None:
            return Finding("missing", subject, expected, "nothing")
        changed = differences(ask.config, found)
        return Finding("changed", subject, expected, f"other {', '.join(changed)}") if changed else None

    def _client(self, resource_type: str, session: str) -> Client:
        role = self.roles.get(resource_type, self.roles.get("*"))
        if role is None:
            return self._shared
        made = _assumed(self._shared("sts"), role, session, self.region)
        return lambda service: self._make(made, service)

    def _shared(self, service: str) -> Any:
        with self._lock:  # making clients is neither quick nor safe in threads; using them is
            if service not in self._clients:
                self._clients[service] = self._make(_boto3().Session(region_name=self.region), service)
            return self._clients[service]

    def _make(self, session: Any, service: str) -> Any:
        from botocore.config import Config as ClientConfig

        # Retries are the queue's: each goes through the same look first.
        once = ClientConfig(retries={"total_max_attempts": 1, "mode": "standard"}, connect_timeout=10, read_timeout=60)
        return session.client(service, endpoint_url=self.endpoint_url, config=once)


def aws(
    *,
    region: str | None = None,
    roles: Mapping[str, str] | None = None,
    endpoint_url: str | None = None,
    queue: str = "aws",
    kind: str = "sync_aws",
    max_attempts: int | None = None,
) -> Aws:
    """The kind `sync_aws`, for `app.use(aws(region="eu-central-1"))`. Needs the extra `aws`.

    Args:
        roles: Type of resource, or `*` → ARN of the role to take on, for a quarter of an hour and tagged with the job.
            Without one, the worker's own credentials are used, wherever boto3 finds them.
        endpoint_url: Another AWS, as for tests.
    """
    return Aws(kind, Terms(queue, max_attempts=max_attempts), region, endpoint_url, roles or {})


@contextmanager
def refusals() -> Iterator[None]:
    """What AWS said becomes how the attempt ends: throttled spends none, 4xx is for good, the rest is tried again."""
    try:
        yield
    except Pending as exc:
        raise Snooze(5.0, str(exc)) from exc
    except Busy as exc:
        raise RateLimited(THROTTLED_SECONDS, str(exc)) from exc
    except Exception as exc:
        code, status = code_of(exc), status_of(exc)
        if not status:
            raise
        said = f"{code or status}: {getattr(exc, 'response', {}).get('Error', {}).get('Message', exc)}"
        if code in _BUSY or status == 429 or any(word in code for word in _THROTTLED):
            raise RateLimited(_retry_after(exc, _BUSY.get(code, THROTTLED_SECONDS)), said) from exc
        if 400 <= status < 500 and code not in _PASSING:
            raise Permanent(f"AWS refused: {said}") from exc
        raise AwsTrouble(said) from exc


def _apply(resource: Resource, client: Client, ask: Ask, ctx: Context, operation: str) -> str:
    found = resource.read(client, ask)
    if found is None:
        if operation == "update":
            raise Permanent(f"There is no {ask.id!r} to update. Create it first, or use the operation apply.")
        fence(ctx)()
        # From here on what is found is ours, also if a part of it is still missing.
        _remember(ctx, {**ask.known, "begun": True})
        resource.create(client, ask)
        return "created"
    if not differences(ask.config, found):
        return "unchanged"
    if operation == "create" and not ask.known.get("begun"):
        raise Permanent(f"There is a {ask.id!r} already, and it is not as configured. Use the operation apply.")
    fence(ctx)()
    resource.update(client, ask, found)
    return "updated"


def _delete(resource: Resource, client: Client, ask: Ask, ctx: Context) -> str:
    if resource.read(client, ask) is None:
        return "absent"
    fence(ctx)()
    try:
        resource.delete(client, ask)
    except Exception as exc:
        if status_of(exc) != 404 and code_of(exc) != "ResourceNotFoundException":
            raise
    return "deleted"


def _read_back(resource: Resource, client: Client, ask: Ask) -> None:
    until = time.monotonic() + SETTLE_SECONDS
    while True:
        found = resource.read(client, ask)
        changed = ["everything"] if found is None else differences(ask.config, found)
        if not changed:
            return
        if time.monotonic() > until:
            raise NotInSync(f"{ask.id!r} was written, but reads still show other {', '.join(changed)}.")
        time.sleep(0.5)


def _result(payload: SyncAws, action: str, ask: Ask) -> dict[str, Any]:
    told = {"resourceType": payload.resourceType, "resourceId": payload.resourceId, "action": action}
    return told | ({"identifier": ask.known["identifier"]} if "identifier" in ask.known else {})


def _known(ctx: Context) -> Config:
    row = _record(ctx, EffectRecord("aws", "intended"))
    return row.result if isinstance(row.result, dict) else {}


def _remember(ctx: Context, kept: Mapping[str, Any]) -> None:
    _record(ctx, EffectRecord("aws", "sent", result=json.dumps({"begun": True, **kept})))


def _record(ctx: Context, record: EffectRecord) -> Any:
    row = None if ctx.services.record is None else ctx.services.record(ctx, record)
    if row is None:
        raise LeaseLost(f"Job {ctx.id}: the resource was left to a newer attempt, because the lease has ended.")
    return row


def _assumed(sts: Any, role: str, session: str, region: str | None) -> Any:
    answer = sts.assume_role(
        RoleArn=role,
        RoleSessionName=f"tenure-{session}",
        DurationSeconds=900,
        Tags=[{"Key": "tenure-job", "Value": session}],
    )["Credentials"]
    return _boto3().Session(
        aws_access_key_id=answer["AccessKeyId"],
        aws_secret_access_key=answer["SecretAccessKey"],
        aws_session_token=answer["SessionToken"],
        region_name=region,
    )


def _retry_after(exc: BaseException, otherwise: float) -> float:
    headers = getattr(exc, "response", {}).get("ResponseMetadata", {}).get("HTTPHeaders", {})
    try:
        return min(3600.0, max(0.0, float(headers.get("retry-after", otherwise))))
    except ValueError:  # a date; they mean a while
        return otherwise


def _boto3() -> Any:
    try:
        import boto3
    except ImportError as exc:
        raise MissingExtra("aws", "The kind `sync_aws`") from exc
    return boto3


def _payload_type() -> Any:
    from tenure.effects.payloads import SyncAws

    return SyncAws
