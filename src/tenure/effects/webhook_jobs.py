"""`http_request`: a webhook out, signed, with a key that tells repeats apart, and only to where jobs may go.

The body is signed with the moment it is sent (`Tenure-Signature: t=…,v1=…`, HMAC-SHA256), so that a receiver knows who
sent it and when; `tenure.sandbox.ssrf.verify` is the other side. `Idempotency-Key` is the effect's key, the same in
every attempt; `Tenure-Token` rises with each. Secrets stand in payloads by name only.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from dataclasses import field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from tenure.effects.kinds import Host, Terms, register
from tenure.errors import nearest
from tenure.handler.context import Context
from tenure.handler.ledger import EffectCall, NotDone
from tenure.handler.signals import Permanent, RateLimited
from tenure.model.frozen import frozen
from tenure.sandbox.redact import Redactor
from tenure.sandbox.ssrf import (
    AddressBlocked,
    RequestFailed,
    Resolver,
    Response,
    SsrfPolicy,
    request,
    resolve_by_system,
    sign,
)

if TYPE_CHECKING:
    from tenure.effects.payloads import HttpRequest

BUSY_SECONDS = 30.0
BODY_CHARS = 20_000
ERROR_CHARS = 2000
_REFERENCE = "secret://"


@frozen
class Webhooks:
    """The kit of `http_request`."""

    kind: str
    terms: Terms
    policy: SsrfPolicy
    signing: Mapping[str, bytes] = field(repr=False)
    default_sign: str | None
    secrets: Mapping[str, str] = field(repr=False)
    redactor: Redactor = field(repr=False)
    resolver: Resolver

    def install(self, app: Host) -> None:
        """Called by `app.use`."""
        register(app, self.kind, self.send, _payload_type, self.terms)

    def send(self, payload: HttpRequest, ctx: Context) -> Any:
        """Send once, as the ledger has it: in doubt again with the same key, or not without a person."""
        body = b"" if payload.body is None else _body(payload.body)
        headers = self._headers(payload)
        secret = self._secret(payload)

        def do(call: EffectCall) -> dict[str, Any]:
            signed = {} if secret is None else {"Tenure-Signature": sign(secret, body, int(time.time()))}
            ours = {"Idempotency-Key": call.key, "Tenure-Job": call.job_id, "Tenure-Token": str(call.token)}
            try:
                answer = request(
                    payload.method,
                    payload.url,
                    policy=self.policy,
                    headers={**headers, **ours, **signed},
                    body=body,
                    timeout=payload.timeoutSeconds,
                    resolver=self.resolver,
                )
            except (AddressBlocked, ValueError) as exc:
                raise Permanent(str(exc)) from None
            except RequestFailed as exc:
                # A receiver may send a secret back in what should be a status line; no cause may bring it along.
                said = self.redactor.bounded(str(exc), ERROR_CHARS)
                if isinstance(exc.__cause__, ConnectionRefusedError | socket.gaierror):
                    raise NotDone(said) from None  # nobody was there to hear it
                raise RequestFailed(said) from None
            return self._judge(answer)

        args = {"method": payload.method, "url": self.redactor.text(payload.url.partition("?")[0])}
        return ctx.effect("http", args, do=do, keyed=not payload.atMostOnce)

    def _judge(self, answer: Response) -> dict[str, Any]:
        """An answer is a reply, a refusal for good, or a request to come back later."""
        body = answer.body.decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
        text = self.redactor.bounded(body, BODY_CHARS)
        said = f"the receiver answered {answer.status}: {text[:300]}"
        if 200 <= answer.status < 300:
            return {"status": answer.status, "body": text}
        if answer.status == 429 or (answer.status == 503 and "retry-after" in answer.headers):
            raise RateLimited(_retry_after(answer.headers.get("retry-after")), said)
        if answer.status in {408, 425} or answer.status >= 500:
            # It may have been acted upon before it broke; the key, or a person, sorts that out.
            raise RequestFailed(said)
        if 300 <= answer.status < 400:
            said = f"{said} (redirects are not followed)"
        raise Permanent(said)

    def _headers(self, payload: HttpRequest) -> dict[str, str]:
        given = {
            name: self._known(value.removeprefix(_REFERENCE)) if value.startswith(_REFERENCE) else value
            for name, value in payload.headers.items()
        }
        is_typed = any(name.lower() == "content-type" for name in given)
        return given if is_typed or payload.body is None else {"Content-Type": "application/json", **given}

    def _known(self, name: str) -> str:
        if name not in self.secrets:
            raise Permanent(f"There is no secret {name!r} here.{nearest(name, self.secrets)}")
        return self.secrets[name]

    def _secret(self, payload: HttpRequest) -> bytes | None:
        name = payload.sign or self.default_sign
        if name is None:
            return None
        if name not in self.signing:
            raise Permanent(f"There is no signing secret {name!r} here.{nearest(name, self.signing)}")
        return self.signing[name]


def webhooks(
    *,
    policy: SsrfPolicy | None = None,
    signing: Mapping[str, bytes] | None = None,
    default_sign: str | None = None,
    secrets: Mapping[str, str] | None = None,
    queue: str = "webhooks",
    kind: str = "http_request",
    max_attempts: int | None = None,
    resolver: Resolver = resolve_by_system,
) -> Webhooks:
    """The kind `http_request`, for `app.use(webhooks(signing={"crm": key}, default_sign="crm"))`.

    Args:
        policy: Where requests may go; public addresses over http and https if left out.
        signing: Secrets that sign bodies, by name; `default_sign` is used where a payload names none.
        secrets: Values for headers that say `secret://name`.
    """
    known = secrets or {}
    return Webhooks(
        kind,
        Terms(queue, max_attempts=max_attempts),
        policy or SsrfPolicy(),
        signing or {},
        default_sign,
        known,
        Redactor([*known.values(), *(key.decode(errors="replace") for key in (signing or {}).values())]),
        resolver,
    )


def _body(body: Any) -> bytes:
    return (body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, separators=(",", ":"))).encode()


def _retry_after(value: str | None) -> float:
    """Seconds, from a number or a date."""
    if value is None:
        return BUSY_SECONDS
    try:
        return min(max(float(value), 0.0), 3600.0)
    except ValueError:
        pass
    try:
        away = parsedate_to_datetime(value) - datetime.now(UTC)
        return min(max(away.total_seconds(), 0.0), 3600.0)
    except (ValueError, TypeError):
        return BUSY_SECONDS


def _payload_type() -> Any:
    from tenure.effects.payloads import HttpRequest

    return HttpRequest
