"""Any text in any field is a value and nothing else (S05): no quote ends a literal, no name reaches the SQL."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tenure.errors import InvalidArgument, InvalidPayload
from tenure.model.fingerprint import fingerprint
from tenure.model.ids import JobId, WorkerId
from tenure.model.policy import QueuePolicy
from tenure.store.admin import AcquireLease, PauseQueues, SetGate, SetQueues
from tenure.store.contract import Cancel, Claim, Clone, Enqueue, Revive
from tenure.store.postgres import migrate
from tenure.store.postgres.store import PostgresStore
from tenure.store.queries import GetJobs, ListAudit, ListDeadLetters, ListEvents, ListJobs, ListQueues
from tests.conformance.acts import new_job
from tests.servers import PostgresServer

pytestmark = pytest.mark.postgres

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=60)
NASTY = "'; DROP SCHEMA tenure CASCADE; --"


@pytest.fixture(scope="module")
def url(postgres_server: PostgresServer) -> Iterator[str]:
    made = postgres_server.create_database()
    migrate.migrate(made)
    yield made
    postgres_server.drop_database(made)


@pytest.fixture(scope="module")
def store(url: str) -> Iterator[PostgresStore]:
    made = PostgresStore(url)
    yield made
    made.close()


@settings(max_examples=40)
@given(text=TEXTS)
@example(NASTY)
@example("$$; SELECT 1; $$")
@example("\\'\"%s %(x)s {0} $1 :x ::")
@example("\ufeff\u202e\U0001f600\x7f\x1f\n")
def test_every_field_gives_back_what_was_put_in(store: PostgresStore, text: str) -> None:
    queue, kind = f"q{text}", "k" + re.sub("[\x01-\x1f]", "", text)
    store.do(SetQueues({queue: QueuePolicy(profile=text)}, actor=f"a{text}"))
    job = new_job(
        kind,
        {text: text},
        queue=queue,
        key=text,
        source_ref=text,
        actor=f"a{text}",
        tenant=text,
        trace=text,
        affinity_key=text,
        concurrency_key=text,
    )
    store.do(Enqueue([job]))

    [grant] = store.do(Claim(WorkerId(f"w{text}"), [queue], kinds=[kind], affinity=[text]))
    [found] = store.do(ListJobs(queues=[queue], kinds=[kind], key=text, worker=WorkerId(f"w{text}"))).items
    store.do(Cancel([job.id], actor=f"a{text}", reason=text))

    assert grant.payload == {text: text} == found.payload
    assert (found.queue, found.kind, found.key, found.lease_owner) == (queue, kind, text, f"w{text}")
    assert (found.source_ref, found.actor, found.tenant, found.trace) == (text, f"a{text}", text, text)
    assert [row.policy.profile for row in store.do(ListQueues([queue]))] == [text]
    assert store.do(PauseQueues([queue], paused=True, actor=f"a{text}", reason=text)) == [queue]
    [audit] = store.do(ListAudit(subject=job.id))
    assert (audit.actor, audit.reason) == (f"a{text}", text)
    assert store.do(AcquireLease(f"l{text}", f"o{text}")).owner == f"o{text}"
    if "\n" not in queue:
        assert store.do(SetGate(f"queue:{queue}", is_open=True, actor=f"a{text}")).name == f"queue:{queue}"


@pytest.mark.parametrize("text", [NASTY, "x", "", "00000000", "{}", "0192f0c1-2b3c-7def-8123-456789abcdeg"])
def test_an_id_that_is_none_names_nothing(store: PostgresStore, text: str) -> None:
    assert store.do(GetJobs([JobId(text)])) == [None]
    assert store.do(ListJobs(workflow_id=text)).items == []
    assert store.do(ListJobs(parent_id=JobId(text))).items == []
    assert store.do(ListDeadLetters(ids=[text])).items == []
    assert store.do(ListDeadLetters(job_id=JobId(text))).items == []
    assert store.do(ListEvents(job_id=JobId(text))) == []
    [answer] = store.do(Revive([JobId(text)], actor="ann", reason="why"))
    assert answer.state is None


def test_a_page_that_is_none_is_refused(store: PostgresStore) -> None:
    with pytest.raises(InvalidArgument):
        store.do(ListDeadLetters(after=NASTY))
    with pytest.raises(InvalidArgument):
        store.do(ListJobs(limit=0))


def test_a_clone_under_an_id_that_is_none_is_refused(store: PostgresStore) -> None:
    [made] = store.do(Enqueue([new_job()]))
    store.do(Cancel([made.id], actor="ann", reason="test"))

    with pytest.raises(InvalidArgument):
        store.do(Clone({made.id: JobId(NASTY)}, actor="ann", reason="why"))


@pytest.mark.parametrize("actor", ["", "  "])
def test_a_nameless_act_is_refused(store: PostgresStore, actor: str) -> None:
    [made] = store.do(Enqueue([new_job()]))
    store.do(Cancel([made.id], actor="ann", reason="test"))

    with pytest.raises(InvalidArgument, match="actor"):
        store.do(Revive([made.id], actor=actor, reason="why"))
    with pytest.raises(InvalidArgument, match="actor"):
        store.do(SetGate("master", is_open=True, actor=actor))


def test_nul_and_half_characters_are_refused(store: PostgresStore) -> None:
    for text in ("a\0b", "a\ud800b"):
        with pytest.raises((InvalidArgument, InvalidPayload)):
            store.do(SetQueues({text: QueuePolicy()}, actor="ann"))
        with pytest.raises((InvalidArgument, InvalidPayload)):
            store.do(Cancel([new_job().id], actor=text, reason="x"))


@settings(max_examples=150)
@given(error=st.none() | TEXTS | st.from_regex(r"(?s).{0,20}(0x[0-9a-f]+|[0-9]+|[A-Fa-f0-9-]{36}).{0,20}"))
@example("Job 0192F0C1-2B3C-7DEF-8123-456789ABCDEF at 0xDEADBEEF, 0x, 0xg, 12345678-1234")
@example("İstanbul ẞ ÄÖÜ ﬀ 17")
def test_a_fingerprint_is_the_same_in_python_and_in_sql(url: str, error: str | None) -> None:
    if error is not None:
        error = error.replace("\0", "").encode("utf-8", "ignore").decode()
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT tenure.fingerprint('error', %s)", [error]).fetchone()

    assert row == (fingerprint("error", error),)


@settings(max_examples=100)
@given(us=st.integers(-62_000_000_000_000_000, 253_402_300_799_999_999))
@example(2**63 - 1)
@example(-(2**63))
@example(0)
def test_moments_are_exact_both_ways(url: str, us: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT tenure.to_us(tenure.from_us(%s::bigint))", [us]).fetchone()

    assert row == (us,)
