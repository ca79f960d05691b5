"""Webhooks go out signed, with a stable key, to allowed addresses only; a doubt is for the key, or for a person."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

import tenure
from tenure.effect import webhooks
from tenure.effect.ssrf import SsrfPolicy, verify
from tenure.testing import drain, temporary_app
from tests.effect.proxies import CuttingProxy, Reply, Rule

KEY = b"a signing secret of some length"
TOKEN = "bearer-canary-99"


@dataclass
class Bed:
    app: tenure.App
    server: CuttingProxy
    answers: list[Reply | None] = field(default_factory=list)

    def send(self, path: str = "/hook", **payload: Any) -> tenure.Job:
        given = {"url": f"{self.server.url}{path}", "body": {"n": 7}, **payload}
        job_id = self.app.enqueue("http_request", given).id
        drain(self.app)
        return self.app.get(job_id)

    def answer(self, *replies: Reply | None) -> None:
        """What the next requests are answered; None: nothing, although they arrived."""
        self.server.rules = [Rule(lambda _: True, reply) for reply in replies]


@pytest.fixture
def bed() -> Iterator[Bed]:
    kit = webhooks(
        policy=SsrfPolicy(allow_private=True),
        signing={"crm": KEY},
        default_sign="crm",
        secrets={"github": TOKEN},
    )
    with CuttingProxy(_silent_port()) as server, temporary_app(tenure.App().use(kit)) as app:
        app.set_queue("webhooks", backoff=tenure.Backoff(shape="none"))
        bed = Bed(app, server)
        bed.answer(*[Reply(200, b'{"ok": true}')] * 5)
        yield bed


def _silent_port() -> int:
    """A port at which nobody listens; the proxy's own answers are all that is needed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_request_is_signed_and_bears_its_key_and_token(bed: Bed) -> None:
    job = bed.send(headers={"Authorization": "secret://github", "X-Kind": "test"})

    (seen,) = bed.server.seen
    assert json.loads(seen.body) == {"n": 7}
    assert verify(seen.headers["tenure-signature"], [KEY], seen.body, now=time.time())
    assert not verify(seen.headers["tenure-signature"], [KEY], seen.body + b" ", now=time.time())
    (row,) = bed.app.effects(job_id=job.id)
    assert (seen.headers["idempotency-key"], seen.headers["tenure-token"]) == (row.key, "1")
    assert (seen.headers["authorization"], seen.headers["x-kind"]) == (TOKEN, "test")
    assert job.result == {"status": 200, "body": '{"ok": true}'}


def test_a_lost_reply_is_sent_again_with_the_same_key(bed: Bed) -> None:
    bed.answer(Reply(500, b""), Reply(200, b""))

    job = bed.send()

    first, second = bed.server.seen
    assert (job.state, job.attempt) == ("succeeded", 2)
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert (first.headers["tenure-token"], second.headers["tenure-token"]) == ("1", "2")


def test_at_most_once_leaves_a_doubt_to_a_person(bed: Bed) -> None:
    bed.answer(Reply(502, b""))

    job = bed.send(atMostOnce=True)

    assert (job.state, job.waiting_for, len(bed.server.seen)) == ("waiting", f"effect:{job.id}:http", 1)


def test_nobody_there_to_hear_is_no_doubt(bed: Bed) -> None:
    url = f"http://127.0.0.1:{_silent_port()}/"
    job_id = bed.app.enqueue("http_request", {"url": url, "atMostOnce": True}, max_attempts=2).id
    drain(bed.app)

    job = bed.app.get(job_id)
    assert (job.state, job.attempt) == ("dead", 2)


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
        drain(app)

        job = app.get(job_id)
        assert (job.state, job.attempt) == ("failed", 1)
        assert "Nothing was sent" in (job.last_error or "")


@pytest.mark.parametrize(
    "headers", [{"Host": "evil"}, {"Idempotency-Key": "x"}, {"a\nb": "x"}, {"A": "x\r\nB: y"}, {"Tenure-Token": "9"}]
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
