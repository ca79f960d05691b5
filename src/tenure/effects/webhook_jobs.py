"""`http_request`: a webhook out, signed, with an idempotency key, and only to allowed addresses.

The moment, the receiver's host and path, and the body are signed (`Tenure-Signature: t=…,v1=…`, HMAC-SHA256), so that
a receiver knows who sent it, when, and that it was meant for this receiver; `tenure.sandbox.ssrf.verify` is the other
side. `Idempotency-Key` is the effect's key, the same in every attempt; `Tenure-Token` rises with each.

A payload names secrets, and its producer also chose the URL. So each secret and each signing key is bound by the
operator to the hosts, and a secret also to the headers, that it is for.
"""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Mapping
from dataclasses import field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from tenure.effects.kinds import Host, Terms, register
from tenure.errors import ConfigError, nearest
from tenure.handler.arguments import Names
from tenure.handler.building import limiter_keys
from tenure.handler.context import Context
from tenure.handler.ledger import EffectCall, NotDone
from tenure.handler.signals import Permanent, RateLimited
from tenure.model.frozen import frozen
from tenure.sandbox.redact import Redactor
from tenure.sandbox.ssrf import (
    AddressBlocked,
    Endpoint,
    RequestFailed,
    Resolver,
    Response,
    SsrfPolicy,
    endpoint,
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
class Secret:
    """A header's value that only the worker knows, and where it may be sent.

    Attributes:
        hosts: Names as in `SsrfPolicy.allow_hosts`: "api.example.com", "*.example.com", or with a port.
        headers: Headers that it may be put in.
    """

    value: str = field(repr=False)
    hosts: frozenset[str]
    headers: frozenset[str] = frozenset({"authorization"})


@frozen
class SigningKey:
    """A key that signs requests, and the hosts that it signs for."""

    key: bytes = field(repr=False)
    hosts: frozenset[str]


@frozen
class Webhooks:
    """The kit of `http_request`."""

    kind: str
    terms: Terms
    policy: SsrfPolicy
    signing: Mapping[str, SigningKey] = field(repr=False)
    default_sign: str | None
    secrets: Mapping[str, Secret] = field(repr=False)
    redactor: Redactor = field(repr=False)
    resolver: Resolver

    def install(self, app: Host) -> None:
        """Called by `app.use`."""
        register(app, self.kind, self.send, _payload_type, self.terms)

    def send(self, payload: HttpRequest, ctx: Context) -> Any:
        """Send once, as the ledger has it: in doubt again with the same key, or not without a person."""
        body = b"" if payload.body is None else _body(payload.body)
        try:
            to = endpoint(payload.url, self.policy)
        except AddressBlocked as exc:
            raise Permanent(str(exc)) from None
        headers = self._headers(payload, to)
        key = self._signing_key(payload, to)

        def do(call: EffectCall) -> dict[str, Any]:
            now = int(time.time())
            signed = {} if key is None else {"Tenure-Signature": sign(key, body, now, host=to.authority, path=to.path)}
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
                    raise NotDone(said) from None  # no server was there to take it
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
            raise RateLimited(retry_after(answer.headers.get("retry-after")), said)
        if answer.status in {408, 425} or answer.status >= 500:
            # It may have been acted upon before it broke; the key, or a person, sorts that out.
            raise RequestFailed(said)
        if 300 <= answer.status < 400:
            said = f"{said} (redirects are not followed)"
        raise Permanent(said)

    def _headers(self, payload: HttpRequest, to: Endpoint) -> dict[str, str]:
        given = {
            name: self._value(value.removeprefix(_REFERENCE), name, to) if value.startswith(_REFERENCE) else value
            for name, value in payload.headers.items()
        }
        is_typed = any(name.lower() == "content-type" for name in given)
        return given if is_typed or payload.body is None else {"Content-Type": "application/json", **given}

    def _value(self, name: str, header: str, to: Endpoint) -> str:
        if name not in self.secrets:
            raise Permanent(f"There is no secret {name!r} here.{nearest(name, self.secrets)}")
        secret = self.secrets[name]
        if not to.is_among(secret.hosts):
            raise Permanent(f"Secret {name!r} may not be sent to host {to.host!r}. Nothing was sent.")
        if header.lower() not in {allowed.lower() for allowed in secret.headers}:
            raise Permanent(f"Secret {name!r} may not be sent in header {header!r}. Nothing was sent.")
        return secret.value

    def _signing_key(self, payload: HttpRequest, to: Endpoint) -> bytes | None:
        """The key that the payload names; else the default one, where it is for this host."""
        name = payload.sign or self.default_sign
        if name is None:
            return None
        if name not in self.signing:
            raise Permanent(f"There is no signing key {name!r} here.{nearest(name, self.signing)}")
        if to.is_among(self.signing[name].hosts):
            return self.signing[name].key
        if payload.sign is None:
            return None
        raise Permanent(f"Signing key {name!r} may not sign requests to host {to.host!r}. Nothing was sent.")


def webhooks(
    *,
    policy: SsrfPolicy | None = None,
    signing: Mapping[str, SigningKey] | None = None,
    default_sign: str | None = None,
    secrets: Mapping[str, Secret] | None = None,
    queue: str = "webhooks",
    kind: str = "http_request",
    max_attempts: int | None = None,
    limits: Names = (),
    resolver: Resolver = resolve_by_system,
) -> Webhooks:
    """The kind `http_request`, for `app.use(webhooks(…))`.

        webhooks(
            signing={"crm": SigningKey(key, hosts=frozenset({"crm.example.com"}))},
            default_sign="crm",
            secrets={"github": Secret(token, hosts=frozenset({"api.github.com"}))},
        )

    Args:
        policy: Where requests may go; public addresses over https if left out.
        signing: Keys that sign requests, by name. `default_sign` signs where a payload names none and the host is
            one of the key's own.
        secrets: Values for headers that say `secret://name`.
        limits: Limiters that the jobs carry: with exactly one, a 429 holds back all of them. Jobs for several receivers
            name their own as they are enqueued: `app.enqueue("http_request", …, limits=["crm"])`.

    Raises:
        ConfigError: A secret or a key is not bound to hosts, or `default_sign` names no key.
    """
    known, keys = secrets or {}, signing or {}
    for name, secret in known.items():
        _check_bound("Secret", name, secret, Secret, 'Secret(value, hosts=frozenset({"api.example.com"}))')
    for name, key in keys.items():
        _check_bound("Signing key", name, key, SigningKey, 'SigningKey(key, hosts=frozenset({"api.example.com"}))')
    if default_sign is not None and default_sign not in keys:
        raise ConfigError(f"default_sign: there is no signing key {default_sign!r}.{nearest(default_sign, keys)}")
    return Webhooks(
        kind,
        Terms(queue, max_attempts=max_attempts, limiter=limiter_keys("limits", limits)),
        policy or SsrfPolicy(),
        keys,
        default_sign,
        known,
        Redactor(
            [*(one.value for one in known.values()), *(one.key.decode(errors="replace") for one in keys.values())]
        ),
        resolver,
    )


def _check_bound(what: str, name: str, given: Any, wanted: type[Secret | SigningKey], example: str) -> None:
    """Refuse what could be sent to any host, and what cannot be sent at all. The value is not shown."""
    kept, sort = (getattr(given, "value", ""), str) if wanted is Secret else (getattr(given, "key", b""), bytes)
    if not isinstance(kept, sort):
        raise ConfigError(
            f"{what} {name!r} holds {type(kept).__name__} where {sort.__name__} is needed. "
            + ("Turn text into bytes first, as by text.encode()." if sort is bytes else "Decode it first.")
        )
    hosts: Any = given.hosts if isinstance(given, wanted) else ()
    is_list = isinstance(hosts, frozenset | set | list | tuple) and bool(hosts)
    if is_list and all(isinstance(one, str) and one.strip() not in {"", "*", "*."} for one in hosts):
        return
    raise ConfigError(
        f"{what} {name!r} is bound to no host, so a job could send it anywhere. Name the hosts that it is for: "
        f"{name!r}: {example}."
    )


def _body(body: Any) -> bytes:
    return (body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, separators=(",", ":"))).encode()


def retry_after(value: str | None) -> float:
    """Seconds, from a number or a date."""
    if value is None:
        return BUSY_SECONDS
    try:
        seconds = float(value)
        return BUSY_SECONDS if math.isnan(seconds) else min(max(seconds, 0.0), 3600.0)
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
