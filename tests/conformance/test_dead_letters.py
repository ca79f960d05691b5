"""Dead letters: one row per death, written with it, grouped by what the errors have in common, kept past retention."""

from __future__ import annotations

import uuid

import pytest

from tenure.model.fingerprint import fingerprint
from tenure.model.ids import JobId, new_job_id
from tenure.model.outcome import FailureClass, Triage
from tenure.model.state import State
from tenure.store.admin import TriageDeadLetters
from tenure.store.browsing import ListDeaths
from tenure.store.contract import Prune
from tenure.store.queries import GroupDeadLetters, ListAudit, ListDeadLetters
from tests.conformance.acts import (
    Subject,
    claim_one,
    enqueue,
    exists,
    fail,
    get,
    letters,
    make_queue,
    reject,
    revive,
)
from tests.conformance.engines import SteeredClock


def die(store: Subject, error: str = "boom", kind: str = "work", queue: str = "default") -> JobId:
    job_id = enqueue(store, kind, queue=queue, max_attempts=1)
    fail(store, claim_one(store, queue=queue), error)
    return job_id


def test_a_death_leaves_a_letter_with_all_that_a_person_needs(store: Subject, clock: SteeredClock) -> None:
    workflow, run = str(uuid.uuid4()), str(uuid.uuid4())
    job_id = enqueue(
        store,
        "mail",
        {"to": 7},
        key="k",
        max_attempts=1,
        actor="shop",
        source_ref="s",
        target_ref="t",
        payload_ref="p",
        workflow_id=workflow,
        run_id=run,
    )
    grant = claim_one(store)
    clock.advance(4)

    fail(store, grant, "smtp: 550", FailureClass.TIMEOUT)

    [letter] = letters(store, job_id)
    assert (letter.job_id, letter.queue, letter.kind, letter.state) == (job_id, "default", "mail", State.DEAD)
    assert (letter.payload, letter.attempts, letter.crashes, letter.failure_class) == ({"to": 7}, 1, 0, "timeout")
    assert (letter.final_error, letter.moved_at, letter.triage) == ("smtp: 550", clock.now(), "pending")
    assert (letter.key, letter.actor, letter.workflow_id, letter.run_id) == ("k", "shop", workflow, run)
    assert (letter.source_ref, letter.target_ref, letter.payload_ref) == ("s", "t", "p")
    assert letter.moved_by != ""
    assert letter.fingerprint == fingerprint("timeout", "smtp: 550")
    assert (letter.triage_note, letter.triaged_at, letter.triaged_by) == (None, None, None)


@pytest.mark.parametrize(
    "error",
    [
        "",
        "plain",
        "Job 0192f0c1-2b3c-7def-8123-456789abcdef failed at 0xdeadbeef after 17 tries",
        "UPPER and lower",
        "first line 1\nsecond line",
        "naïve – “quotes” 漢字 ÄÖÜ",
        "x" * 2000,
        "9" * 600,
        "abc123def 1.5e10 -7",
    ],
)
def test_the_fingerprint_is_the_same_on_every_engine(store: Subject, error: str) -> None:
    job_id = die(store, error or " ")

    [letter] = letters(store, job_id)

    assert letter.fingerprint == fingerprint("error", error or " ")


def test_alike_errors_form_a_group_and_the_largest_comes_first(store: Subject, clock: SteeredClock) -> None:
    first = clock.now()
    die(store, "disk full on /dev/sda1")
    for n in range(3):
        die(store, f"user {n} not found")
        clock.advance(1)

    groups = store.do(GroupDeadLetters())

    assert [(group.letters, group.pending) for group in groups] == [(3, 3), (1, 1)]
    assert groups[0].fingerprint == fingerprint("error", "user 1 not found")
    assert (groups[0].kind, groups[0].queue) == ("work", "default")
    assert groups[0].first_at == first
    assert (groups[0].last_at - groups[0].first_at).total_seconds() == 2
    assert "not found" in groups[0].sample_error
    assert exists(store, groups[0].sample_job_id)


def test_groups_keep_kinds_and_queues_apart(store: Subject) -> None:
    make_queue(store, "other")
    die(store, kind="a")
    die(store, kind="b")
    die(store, kind="a", queue="other")

    groups = store.do(GroupDeadLetters())

    assert sorted((group.kind, group.queue) for group in groups) == [("a", "default"), ("a", "other"), ("b", "default")]


def test_groups_show_what_is_pending_unless_asked_for_more(store: Subject) -> None:
    [letter] = letters(store, die(store))
    store.do(TriageDeadLetters([letter.id], Triage.CLOSED, actor="ann"))

    assert store.do(GroupDeadLetters()) == []
    [group] = store.do(GroupDeadLetters(triage=["closed"]))
    assert (group.letters, group.pending) == (1, 0)


@pytest.mark.parametrize("triage", list(Triage))
def test_triage_is_kept_with_note_who_and_when(store: Subject, clock: SteeredClock, triage: Triage) -> None:
    job_id = die(store)
    [letter] = letters(store, job_id)
    clock.advance(60)

    changed = store.do(TriageDeadLetters([letter.id, str(uuid.uuid4())], triage, actor="ann", note="known bug"))

    assert changed == [letter.id]
    [after] = letters(store, job_id)
    assert (after.triage, after.triage_note) == (triage.value, "known bug")
    assert (after.triaged_by, after.triaged_at) == ("ann", clock.now())
    assert (after.final_error, after.moved_at) == (letter.final_error, letter.moved_at)
    [row] = store.do(ListAudit(subject=letter.id))
    assert (row.actor, row.reason) == ("ann", "known bug")


def test_an_owner_stays_until_another_is_named(store: Subject) -> None:
    job_id = die(store)
    [letter] = letters(store, job_id)

    store.do(TriageDeadLetters([letter.id], Triage.ACKNOWLEDGED, actor="ann", note="yours", owner="bob"))
    store.do(TriageDeadLetters([letter.id], Triage.ESCALATED, actor="bob", note="not mine alone"))

    [after] = letters(store, job_id)
    [death] = store.do(ListDeaths(Triage.ESCALATED.value))
    assert (letter.owner, after.owner, death.owner) == (None, "bob", "bob")
    assert [row.detail.get("owner") for row in store.do(ListAudit(subject=letter.id))] == [None, "bob"]


def test_one_row_per_death(store: Subject, clock: SteeredClock) -> None:
    job_id = enqueue(store, max_attempts=1)
    for turn in range(3):
        fail(store, claim_one(store), f"death {turn}")
        revive(store, job_id)
        clock.advance(1)

    assert [letter.final_error for letter in letters(store, job_id)] == ["death 2", "death 1", "death 0"]


def test_a_repeated_settle_of_a_death_leaves_no_second_letter(store: Subject) -> None:
    job_id = enqueue(store, max_attempts=1)
    grant = claim_one(store)

    fail(store, grant)
    assert fail(store, grant).state == "dead"

    assert len(letters(store, job_id)) == 1


def test_a_letter_survives_retention_with_its_job_while_it_is_open(store: Subject, clock: SteeredClock) -> None:
    job_id = die(store)
    before = letters(store, job_id)
    clock.advance(365 * 86_400)

    pruned = store.do(Prune(older_than_seconds=0, delete_after_seconds=0))

    assert (pruned.cleaned, pruned.deleted) == (0, 0)
    assert letters(store, job_id) == before
    assert get(store, job_id).cleaned_at is None


def test_a_closed_letter_survives_the_deletion_of_its_job(store: Subject, clock: SteeredClock) -> None:
    job_id = die(store)
    [letter] = letters(store, job_id)
    store.do(TriageDeadLetters([letter.id], Triage.CLOSED, actor="ann"))
    clock.advance(365 * 86_400)

    assert store.do(Prune(older_than_seconds=0)).cleaned == 1
    pruned = store.do(Prune(older_than_seconds=0, delete_after_seconds=0))

    assert pruned.deleted == 1
    assert not exists(store, job_id)
    [kept] = letters(store, job_id)
    assert (kept.id, kept.payload, kept.final_error) == (letter.id, letter.payload, letter.final_error)


def test_letters_are_found_by_what_they_are(store: Subject) -> None:
    make_queue(store, "other")
    one = die(store, "error one", kind="a")
    two = die(store, "quite another", kind="b", queue="other")
    [first], [second] = letters(store, one), letters(store, two)
    store.do(TriageDeadLetters([second.id], Triage.ESCALATED, actor="ann"))

    def found(request: ListDeadLetters) -> list[str]:
        return [letter.id for letter in store.do(request).items]

    assert found(ListDeadLetters(kinds=["a"])) == [first.id]
    assert found(ListDeadLetters(queues=["other"])) == [second.id]
    assert found(ListDeadLetters(triage=["pending"])) == [first.id]
    assert found(ListDeadLetters(triage=["escalated"])) == [second.id]
    assert found(ListDeadLetters(fingerprint=first.fingerprint)) == [first.id]
    assert found(ListDeadLetters(ids=[second.id])) == [second.id]
    assert found(ListDeadLetters(job_id=new_job_id())) == []


def test_letters_come_newest_first_in_pages(store: Subject, clock: SteeredClock) -> None:
    ids = []
    for n in range(7):
        ids.append(die(store, f"death of {'abcdefg'[n]}"))
        clock.advance(1)
    seen: list[str] = []
    after = None

    while True:
        page = store.do(ListDeadLetters(limit=3, after=after))
        seen += [letter.job_id for letter in page.items]
        if page.next is None:
            break
        after = page.next

    assert seen == ids[::-1]


def test_a_refused_job_leaves_a_letter_that_says_failed(store: Subject) -> None:
    job_id = enqueue(store)
    reject(store, claim_one(store), "bad payload")

    [letter] = letters(store, job_id)

    assert (letter.state, letter.failure_class) == (State.FAILED, "permanent")
