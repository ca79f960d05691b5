"""A receiver is told of events of jobs: signed, each once by one job, until it says that it is gone."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

import tenure
from tenure.effects import event_hooks
from tenure.sandbox.ssrf import SsrfPolicy
from tenure.testing import ManualClock, drain, temporary_app
from tests.effects.conftest import app_at, on_both_engines
from tests.effects.proxies import CuttingProxy, Reply, Rule

SECRET = b"a secret of thirty-two bytes ..."
KEY = "whsec_" + base64.b64encode(SECRET).decode()
HERE = SsrfPolicy(allow_private=True, allow_http=True)
QUEUE = "event_hooks.crm"


@dataclass
class Bed:
    app: tenure.App
    server: CuttingProxy
    clock: ManualClock

    def pass_time(self, seconds: float = 6.0) -> None:
        self.clock.advance(seconds)
        drain(self.app, raise_errors=False)

    def answer(self, *replies: Reply | None) -> None:
        self.server.rules = [Rule(lambda _: True, reply) for reply in replies]

    def told(self) -> list[tuple[str, str]]:
        bodies = [json.loads(seen.body) for seen in self.server.seen]
        return [(body["type"], body["data"]["job_id"]) for body in bodies]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def bed(store_url: str, clock: ManualClock) -> Iterator[Bed]:
    with CuttingProxy(None) as server:
        app = tenure.App().use(event_hooks("crm", url=f"{server.url}/hook", key=KEY, policy=HERE, queues=["mail"]))

        @app.job(queue="mail", kind="welcome", max_attempts=1)
        def welcome(payload: dict[str, bool]) -> str:
            if payload.get("fails"):
                raise tenure.Permanent("never")
            return "secret result"

        app.queue("mail", events=True)
        with app_at(app, store_url, clock) as made:
            bed = Bed(made, server, clock)
            bed.answer(*[Reply(204, b"")] * 20)
            made.enqueue("event_hook.crm.start", {})
            bed.pass_time()
            yield bed


@on_both_engines
def test_each_end_is_told_once_and_signed(bed: Bed) -> None:
    good = bed.app.enqueue("welcome", {}).id
    bad = bed.app.enqueue("welcome", {"fails": True}).id
    for _ in range(5):
        bed.pass_time()

    assert sorted(bed.told()) == sorted([("job.completed", good), ("job.failed", bad)])
    for seen in bed.server.seen:
        signed = f"{seen.headers['webhook-id']}.{seen.headers['webhook-timestamp']}.".encode() + seen.body
        mac = base64.b64encode(hmac.new(SECRET, signed, hashlib.sha256).digest()).decode()
        assert seen.headers["webhook-signature"] == f"v1,{mac}"
        assert b"secret result" not in seen.body
    assert len({seen.headers["webhook-id"] for seen in bed.server.seen}) == 2


@on_both_engines
def test_a_delivery_that_fails_is_repeated_under_the_same_id(bed: Bed) -> None:
    bed.answer(Reply(500, b""), None, Reply(200, b""))
    bed.app.enqueue("welcome", {})
    for _ in range(9):
        bed.pass_time(60)

    assert len(bed.server.seen) == 3
    assert len({seen.headers["webhook-id"] for seen in bed.server.seen}) == 1


@on_both_engines
def test_a_receiver_that_is_gone_is_told_nothing_more(bed: Bed) -> None:
    bed.answer(Reply(410, b""), Reply(200, b""))
    bed.app.enqueue("welcome", {})
    for _ in range(3):
        bed.pass_time()
    bed.app.enqueue("welcome", {})
    for _ in range(3):
        bed.pass_time()
    assert len(bed.server.seen) == 1
    (gate,) = [gate for gate in bed.app.gates.all() if gate.name == f"queue:{QUEUE}"]
    assert not gate.is_open
    assert [row.reason for row in bed.app.access.audit(subject=f"queue:{QUEUE}")] == ["the receiver answered 410 Gone"]

    bed.app.gates.open(f"queue:{QUEUE}", actor="ops")
    for _ in range(3):
        bed.pass_time()
    assert len(bed.server.seen) == 2


@on_both_engines
def test_an_idle_watch_leaves_no_rows_and_a_cancelled_one_is_started_again(bed: Bed) -> None:
    for _ in range(20):
        bed.pass_time()
    (watch,) = bed.app.jobs(kind="event_hook.crm.watch").items

    bed.app.cancel(watch.id, actor="ops", reason="test")
    bed.app.enqueue("welcome", {})
    bed.pass_time()
    assert bed.server.seen == []
    bed.app.enqueue("event_hook.crm.start", {})
    for _ in range(4):
        bed.pass_time()

    assert [kind for kind, _ in bed.told()] == ["job.completed"]


def test_the_schedule_starts_the_watch() -> None:
    app = tenure.App().use(event_hooks("crm", url="https://crm.example.com/", key=KEY))

    assert app.registry.find("event_hook.crm.start") is not None
    with temporary_app(app) as made:
        made.schedules.declare()
        assert [row.name for row in made.schedules.all()] == ["event_hook.crm.start"]


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"key": "whsec_short"}, "24 to 64 random bytes"),
        ({"key": base64.b64encode(SECRET).decode()}, "`whsec_`"),
        ({"url": "http://crm.example.com/"}, "scheme 'http' is not allowed"),
        ({"events": ["finished"]}, "finished"),
        ({"name": "a b"}, "letters, digits"),
    ],
)
def test_what_cannot_work_is_refused(terms: dict[str, object], said: str) -> None:
    given = {"name": "crm", "url": "https://crm.example.com/", "key": KEY, **terms}
    name = str(given.pop("name"))

    with pytest.raises(tenure.ConfigError, match=said) as caught:
        event_hooks(name, **given)  # type: ignore[arg-type]

    assert "whsec_short" not in str(caught.value)
