"""Webhooks go out signed, with a stable key, to allowed addresses only; a doubt is for the key, or for a person."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

import tenure
from tenure.effects import Secret, SigningKey, webhooks
from tenure.sandbox.ssrf import SsrfPolicy, endpoint, verify
from tenure.testing import drain, temporary_app
from tests.effects.conftest import app_at, on_both_engines
from tests.effects.proxies import CuttingProxy, Reply, Rule

KEY = b"a signing secret of some length"
TOKEN = "bearer-canary-99"
FROM_A_FILE = "canary-with-an-end\n"
HERE = frozenset({"127.0.0.1"})


@dataclass
class Bed:
    app: tenure.App
    server: CuttingProxy
    answers: list[Reply | None] = field(default_factory=list)

    def send(self, path: str = "/hook", **payload: Any) -> tenure.Job:
        given = {"url": f"{self.server.url}{path}", "body": {"n": 7}, **payload}
        job_id = self.app.enqueue("http_request", given).id
        drain(self.app, raise_errors=False)
        return self.app.get(job_id)

    def answer(self, *replies: Reply | None) -> None:
        """What the next requests are answered; None: nothing, although they arrived."""
        self.server.rules = [Rule(lambda _: True, reply) for reply in replies]


@pytest.fixture
def bed(store_url: str) -> Iterator[Bed]:
    kit = webhooks(
        policy=SsrfPolicy(allow_private=True, allow_http=True),
        signing={"crm": SigningKey(KEY, HERE), "erp": SigningKey(b"another key", frozenset({"erp.example.com"}))},
        default_sign="crm",
        secrets={
            "github": Secret(TOKEN, HERE),
            "file": Secret(FROM_A_FILE, HERE, frozenset({"X-Token"})),
            "elsewhere": Secret(TOKEN, frozenset({"api.example.com", "*.example.org"})),
        },
    )
    with CuttingProxy(None) as server, app_at(tenure.App().use(kit), store_url) as app:
        app.queues.set("webhooks", backoff=tenure.Backoff(shape="none"))
        bed = Bed(app, server)
        bed.answer(*[Reply(200, b'{"ok": true}')] * 5)
        yield bed


def _silent_port() -> int:
    """A port at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@on_both_engines
def test_a_request_is_signed_and_bears_its_key_and_token(bed: Bed) -> None:
    job = bed.send(headers={"Authorization": "secret://github", "X-Kind": "test"})

    (seen,) = bed.server.seen
    assert json.loads(seen.body) == {"n": 7}
    to: Any = {"host": seen.headers["host"], "path": "/hook"}
    assert verify(seen.headers["tenure-signature"], [KEY], seen.body, **to, now=time.time())
    assert not verify(seen.headers["tenure-signature"], [KEY], seen.body + b" ", **to, now=time.time())
    assert not verify(seen.headers["tenure-signature"], [KEY], seen.body, **{**to, "path": "/other"}, now=time.time())
    (row,) = bed.app.effects.all(job_id=job.id)
    assert (seen.headers["idempotency-key"], seen.headers["tenure-token"]) == (row.key, "1")
    assert (seen.headers["authorization"], seen.headers["x-kind"]) == (TOKEN, "test")
    assert job.result == {"status": 200, "body": '{"ok": true}'}


@on_both_engines
@pytest.mark.parametrize("lost", [Reply(500, b""), None], ids=["broken", "cut"])
def test_a_lost_reply_is_sent_again_with_the_same_key(bed: Bed, lost: Reply | None) -> None:
    bed.answer(lost, Reply(200, b""))

    job = bed.send()

    first, second = bed.server.seen
    assert (job.state, job.attempt) == ("succeeded", 2)
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert (first.headers["tenure-token"], second.headers["tenure-token"]) == ("1", "2")


@on_both_engines
def test_at_most_once_leaves_a_doubt_to_a_person(bed: Bed) -> None:
    bed.answer(Reply(502, b""))

    job = bed.send(atMostOnce=True)

    assert (job.state, job.waiting_for, len(bed.server.seen)) == ("waiting", f"effect:{job.id}:http", 1)


def test_nobody_there_to_hear_is_no_doubt(bed: Bed) -> None:
    url = f"http://127.0.0.1:{_silent_port()}/"
    job_id = bed.app.enqueue("http_request", {"url": url, "atMostOnce": True}, max_attempts=2).id
    drain(bed.app, raise_errors=False)

    job = bed.app.get(job_id)
    assert (job.state, job.attempt) == ("dead", 2)


@on_both_engines
@pytest.mark.parametrize(
    ("reply", "seconds"),
    [
        (Reply(429, b"", {"Retry-After": "90"}), 90),
        (Reply(503, b"", {"Retry-After": "12"}), 12),
        (Reply(429, b""), 30),
        (Reply(429, b"", {"Retry-After": "soon"}), 30),
    ],
)
def test_a_busy_receiver_spends_no_attempt(bed: Bed, reply: Reply, seconds: int) -> None:
    bed.answer(reply)

    job = bed.send()

    assert (job.state, job.attempt) == ("queued", 0)
    assert seconds - 5 < (job.run_at - bed.app.now()).total_seconds() <= seconds
    assert bed.app.attempts(job.id)[0].failure_class == "rate_limited"


@on_both_engines
@pytest.mark.parametrize("status", [400, 404, 410, 302])
def test_a_refusal_is_for_good(bed: Bed, status: int) -> None:
    bed.answer(Reply(status, f"no {TOKEN}".encode(), {"Location": "http://169.254.169.254/"}))

    job = bed.send(headers={"Authorization": "secret://github"})

    assert (job.state, job.attempt, len(bed.server.seen)) == ("failed", 1, 1)
    assert TOKEN not in (job.last_error or "")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/",
        "http://169.254.169.254/latest/meta-data",
        "http://[::ffff:127.0.0.1]/",
        "file:///etc/passwd",
    ],
)
def test_private_addresses_are_shut_unless_the_operator_opens_them(url: str) -> None:
    with temporary_app(tenure.App().use(webhooks())) as app:
        job_id = app.enqueue("http_request", {"url": url}).id
        drain(app, raise_errors=False)

        job = app.get(job_id)
        assert (job.state, job.attempt) == ("failed", 1)
        assert "Nothing was sent" in (job.last_error or "")


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil"},
        {"Idempotency-Key": "x"},
        {"a\nb": "x"},
        {"A": "x\r\nB: y"},
        {"A": "\u20ac"},
        {"Tenure-Token": "9"},
        {"Expect": "100-continue"},
        {"upgrade": "h2c"},
        {"X-A": "1", "x-a": "2"},
    ],
)
def test_headers_that_would_be_ours_or_two_are_refused_at_enqueue(bed: Bed, headers: dict[str, str]) -> None:
    with pytest.raises(tenure.InvalidPayload, match="headers"):
        bed.app.enqueue("http_request", {"url": "http://example.com/", "headers": headers})


def test_secrets_that_are_not_known_are_refused(bed: Bed) -> None:
    missing = bed.send(headers={"Authorization": "secret://gitlab"})
    unsigned = bed.send(sign="crn")

    assert "Did you mean 'github'?" in (missing.last_error or "")
    assert "Did you mean 'crm'?" in (unsigned.last_error or "")
    assert bed.server.seen == []


def test_a_secret_that_cannot_be_sent_is_told_by_its_header_only(bed: Bed) -> None:
    job = bed.send(headers={"X-Token": "secret://file"})

    assert (job.state, job.attempt, bed.server.seen) == ("failed", 1, [])
    assert "X-Token" in (job.last_error or "")
    assert "canary" not in (job.last_error or "") + repr(bed.app.effects.all(job_id=job.id).items)


@on_both_engines
def test_what_a_receiver_sends_back_shows_no_secret_and_breaks_no_store(bed: Bed) -> None:
    bed.answer(Reply(200, b"a\0b " + TOKEN.encode()))

    job = bed.send(headers={"Authorization": "secret://github"})

    assert job.result == {"status": 200, "body": "a\ufffdb [redacted]"}


@on_both_engines
def test_a_secret_in_what_should_be_a_status_line_is_not_told(bed: Bed) -> None:
    with socket.create_server(("127.0.0.1", 0)) as echo:
        threading.Thread(target=_echo_authorization, args=(echo,), daemon=True).start()
        url = f"http://127.0.0.1:{echo.getsockname()[1]}/"
        payload = {"url": url, "headers": {"Authorization": "secret://github"}}
        job_id = bed.app.enqueue("http_request", payload, max_attempts=1).id
        drain(bed.app, raise_errors=False)

    job = bed.app.get(job_id)
    assert job.state == "dead"
    assert "BadStatusLine: [redacted]" in (job.last_error or "")
    told = (job.last_error or "") + repr(bed.app.attempts(job_id)) + repr(bed.app.effects.all(job_id=job_id).items)
    assert TOKEN not in told


def _echo_authorization(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(65536)
        line = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"authorization:"))
        connection.sendall(line.partition(b": ")[2] + b"\r\n\r\n")


def test_a_type_of_its_own_stands_alone(bed: Bed) -> None:
    bed.send(headers={"content-type": "text/plain"}, body="hello")

    (seen,) = bed.server.seen
    assert (seen.headers["content-type"], seen.body) == ("text/plain", b"hello")
    assert seen.raw_names.count("content-type") == 1


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({"headers": {"Authorization": "secret://elsewhere"}}, "may not be sent to host '127.0.0.1'"),
        ({"headers": {"X-Other": "secret://github"}}, "may not be sent in header 'X-Other'"),
        ({"sign": "erp"}, "may not sign requests to host '127.0.0.1'"),
    ],
)
def test_v1_a_secret_goes_to_its_own_hosts_and_headers_only(bed: Bed, payload: dict[str, Any], why: str) -> None:
    """V1: a producer named both URL and secret, so any secret of the worker went to any host."""
    job = bed.send(**payload)

    assert (job.state, job.attempt, bed.server.seen) == ("failed", 1, [])
    assert why in (job.last_error or "")
    assert TOKEN not in (job.last_error or "")


def test_v1_the_default_key_signs_for_its_own_hosts_only() -> None:
    """V1: any body was signed for any URL."""
    keys = {"erp": SigningKey(KEY, frozenset({"erp.example.com"}))}
    kit = webhooks(policy=SsrfPolicy(allow_private=True, allow_http=True), signing=keys, default_sign="erp")
    with CuttingProxy(None) as server, temporary_app(tenure.App().use(kit)) as app:
        server.rules = [Rule(lambda _: True, Reply(200, b""))]
        app.enqueue("http_request", {"url": f"{server.url}/", "body": {}})
        drain(app, raise_errors=False)

        (seen,) = server.seen
        assert "tenure-signature" not in seen.headers


@pytest.mark.parametrize(
    "options",
    [
        {"secrets": {"github": TOKEN}},
        {"secrets": {"github": Secret(TOKEN, frozenset())}},
        {"secrets": {"github": Secret(TOKEN, frozenset({"*"}))}},
        {"secrets": {"github": Secret(TOKEN, "api.github.com")}},  # type: ignore[arg-type]
        {"signing": {"github": KEY}},
        {"signing": {"github": SigningKey(KEY, frozenset({""}))}},
    ],
)
def test_v1_a_secret_without_hosts_is_a_configuration_error(options: dict[str, Any]) -> None:
    """V1: a bare value could be sent anywhere. The error says what to write, and does not show the value."""
    with pytest.raises(tenure.ConfigError, match=r"'github' is bound to no host.*hosts=") as raised:
        webhooks(**options)

    assert TOKEN not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"signing": {"crm": SigningKey(TOKEN, HERE)}}, "Signing key 'crm' holds str where bytes is needed"),  # type: ignore[arg-type]
        ({"secrets": {"crm": Secret(KEY, HERE)}}, "Secret 'crm' holds bytes where str is needed"),  # type: ignore[arg-type]
    ],
)
def test_a_secret_of_another_type_is_a_configuration_error(options: dict[str, Any], sentence: str) -> None:
    """A key as text was an AttributeError deep inside."""
    with pytest.raises(tenure.ConfigError, match=sentence) as raised:
        webhooks(**options)

    assert TOKEN not in str(raised.value)
    assert repr(KEY) not in str(raised.value)


def test_v1_requests_are_encrypted_unless_the_operator_allows_otherwise() -> None:
    """V1: plain http was allowed by default."""
    with temporary_app(tenure.App().use(webhooks(resolver=lambda *_: ["93.184.216.34"]))) as app:
        job_id = app.enqueue("http_request", {"url": "http://crm.example.com/"}).id
        drain(app, raise_errors=False)

        assert "scheme 'http' is not allowed" in (app.get(job_id).last_error or "")


@pytest.mark.parametrize(
    ("url", "hosts", "fits"),
    [
        ("https://api.example.com/", {"api.example.com"}, True),
        ("https://API.example.com./", {"Api.Example.com"}, True),
        ("https://api.example.com:8443/", {"api.example.com:8443"}, True),
        ("https://api.example.com/", {"api.example.com:8443"}, False),
        ("https://api.example.com.evil.test/", {"api.example.com"}, False),
        ("https://evilexample.com/", {"*.example.com"}, False),
        ("https://example.com/", {"*.example.com"}, False),
        ("https://a.b.example.com/", {"*.example.com"}, True),
        ("https://[2606:4700::1111]/", {"[2606:4700::1111]"}, True),
        ("https://[2606:4700::1111]/", {"2606:4700::1111"}, True),
    ],
)
def test_v1_hosts_are_compared_whole(url: str, hosts: set[str], fits: bool) -> None:
    """V1: a host that only contains an allowed name is another host."""
    assert endpoint(url, SsrfPolicy()).is_among(hosts) is fits
