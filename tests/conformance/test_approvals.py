"""Approvals: asked with the suspend, bound to the exact arguments, decided once, by a person who is not involved."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Unpack

import pytest

from tenure.errors import Forbidden, IllegalMove, InvalidArgument, NotFound, TenureError
from tenure.model.approval import VOID, VOIDS_MAX, Approval, Question, canonical, hash_of
from tenure.model.ids import JobId, new_job_id
from tenure.model.job import Grant
from tenure.model.outcome import EffectRecord, Rejected, Settled, Suspended
from tenure.model.state import State
from tenure.model.step import NewStep, Step
from tenure.store.admin import RecordEffect
from tenure.store.approvals import CountApprovals, DecideApproval, ListApprovals
from tenure.store.contract import Clone, EditJob, Prune, Revive, Wake
from tenure.store.flow import ForgetSteps, ListSteps, SweepFlow
from tenure.store.queries import ListAudit
from tests.conformance.acts import JobFields, Subject, cancel, claim, claim_one, complete, enqueue, get, reap, settle
from tests.conformance.engines import SteeredClock

DOORS = ("do", "ado")
ARGS = {"order": 7, "eur": 120}
SOME_ID = "01890000-0000-7000-8000-000000000001"


def question(
    args: object = None,
    *,
    key: str = "refund",
    need: int = 1,
    ask: tuple[str, ...] = (),
    expires: float | None = None,
    on_expiry: str = "deny",
) -> NewStep:
    asked = Question(
        new_job_id(), key, canonical(ARGS if args is None else args), "Pay it back?", need, ask, expires, on_expiry
    )
    return NewStep(key, "approval", "open", value=asked.to_json())


def park(store: Subject, grant: Grant, step: NewStep) -> Settled:
    return settle(store, Suspended(grant.id, grant.token, f"approval:{step.key}", steps=(step,)))


def asked(store: Subject, step: NewStep | None = None, **job: Unpack[JobFields]) -> Approval:
    """What a fresh job asks."""
    job_id = enqueue(store, **job)
    assert park(store, claim_one(store), step or question()).state == "waiting"
    return pending(store, job_id)


def pending(store: Subject, job_id: JobId) -> Approval:
    [found] = store.do(ListApprovals(("pending",), job_id=job_id))
    return found


def read(store: Subject, approval_id: str) -> Approval:
    [found] = store.do(ListApprovals(ids=[approval_id]))
    return found


def vote(store: Subject, one: Approval, voter: str = "maria", choice: str = "approve", **more: str) -> Approval:
    told = {"args_hash": one.args_hash, **more}
    return store.do(DecideApproval(one.id, voter, choice, **told))


def step_of(store: Subject, job_id: JobId, key: str = "refund") -> Step:
    return next(step for step in store.do(ListSteps(job_id)) if step.key == key)


def sweep(store: Subject) -> None:
    while store.do(SweepFlow()).more:
        pass


def test_an_approval_is_written_with_the_suspend_and_shows_the_exact_arguments(
    store: Subject, clock: SteeredClock
) -> None:
    one = asked(store, question({"b": 1.50, "a": ["é", None]}, need=2, ask=("ops", "Maria"), expires=60))

    assert one.args_text == '{"a":["é",null],"b":1.5}'
    assert (one.args, one.args_hash) == ({"a": ["é", None], "b": 1.5}, hash_of(one.args_text))
    assert (one.name, one.text, one.need, one.asked_of, one.asked_by) == (
        "refund", "Pay it back?", 2, ("ops", "Maria"), "w1",
    )  # fmt: skip
    assert (one.state, one.votes, one.decided_at, one.on_expiry) == ("pending", (), None, "deny")
    assert (one.created_at, one.expires_at is not None and (one.expires_at - clock.now()).seconds) == (clock.now(), 60)
    assert (one.kind, one.queue, one.job_state) == ("work", "default", "waiting")
    step = step_of(store, one.job_id)
    assert (step.state, step.awaits, json.loads(step.value or "")) == (
        "open", f"approval:{one.id}", {"approval": one.id, "args_hash": one.args_hash},
    )  # fmt: skip
    assert store.do(CountApprovals()) == 1


def test_a_grant_wakes_the_job_and_hands_the_frozen_arguments_over(store: Subject, clock: SteeredClock) -> None:
    one = asked(store)
    clock.advance(5)

    decided = vote(store, one, note="the customer called")

    assert (decided.state, decided.decided_at) == ("granted", clock.now())
    [cast] = decided.votes
    assert (cast.voter, cast.choice, cast.note, cast.door, cast.at) == (
        "maria", "approve", "the customer called", "python", clock.now(),
    )  # fmt: skip
    assert get(store, one.job_id).state is State.QUEUED
    [step] = claim_one(store).steps
    assert step.state == "done"
    assert json.loads(step.value or "") == {
        "approval": one.id,
        "state": "granted",
        "granted": True,
        "why": None,
        "by": ["maria"],
        "note": "the customer called",
        "args": one.args_text,
        "args_hash": one.args_hash,
    }
    [row] = [row for row in store.do(ListAudit(limit=10)) if row.subject == one.id]
    assert (row.actor, row.act, row.reason, row.detail["args_hash"]) == (
        "maria", "approve", "the customer called", one.args_hash,
    )  # fmt: skip


def test_one_denial_denies_although_others_have_approved(store: Subject) -> None:
    one = asked(store, question(need=3))
    assert vote(store, one, "ann").state == "pending"
    assert get(store, one.job_id).state is State.WAITING

    assert vote(store, one, "bob", "deny", note="too much").state == "denied"

    [step] = claim_one(store).steps
    told = json.loads(step.value or "")
    assert (told["granted"], told["by"], told["note"]) == (False, ["bob"], "too much")


def test_n_of_m_needs_so_many_different_people(store: Subject) -> None:
    one = asked(store, question(need=2, ask=("Ann", "bob", "carl")))

    assert vote(store, one, "ann").state == "pending"
    assert vote(store, one, " ANN ").approved == 1, "the same person"
    with pytest.raises(Forbidden, match="asked of Ann, bob, carl"):
        vote(store, one, "dora")
    decided = vote(store, one, "carl")

    assert (decided.state, [cast.voter for cast in decided.votes]) == ("granted", ["ann", "carl"])


def test_a_group_that_the_door_vouches_for_may_answer(store: Subject) -> None:
    one = asked(store, question(ask=("ops",)))
    with pytest.raises(Forbidden):
        vote(store, one, "maria")

    answer = DecideApproval(one.id, "maria", "approve", one.args_hash, groups=["dev", "Ops"])

    assert store.do(answer).state == "granted"


@pytest.mark.parametrize(
    "column", ["actor", "created_by_user_id", "requested_by_user_id", "queue", "worker", "link maker"]
)
def test_neither_who_had_the_job_done_nor_what_does_it_may_answer(store: Subject, column: str) -> None:
    person = new_job_id() if column.endswith("_id") else "maria"
    fields: JobFields = {}
    if column not in ("queue", "worker", "link maker"):
        fields[column] = person  # type: ignore[literal-required]  # a name of the parameters above
    one = asked(store, **fields)
    voter = {"queue": "Default", "worker": "w1"}.get(column, person.upper())
    answer = DecideApproval(one.id, voter, "approve", one.args_hash)
    if column == "link maker":
        answer = DecideApproval(one.id, "bob", "approve", one.args_hash, door="link", vouched_by="W1")

    with pytest.raises(Forbidden, match="another person has to answer"):
        store.do(answer)

    assert (read(store, one.id).state, read(store, one.id).votes) == ("pending", ())
    assert vote(store, one, "someone-else").state == "granted"


def test_a_vote_with_another_hash_is_refused(store: Subject) -> None:
    one = asked(store)

    with pytest.raises(IllegalMove, match="another hash"):
        vote(store, one, args_hash=hash_of(canonical({"order": 7, "eur": 1200})))

    assert read(store, one.id) == one


def test_a_repeated_answer_is_harmless_and_another_one_is_refused(store: Subject) -> None:
    one = asked(store, question(need=2))
    first = vote(store, one, "ann")

    assert vote(store, one, "ann") == first
    with pytest.raises(IllegalMove, match="has answered already"):
        vote(store, one, "ann", "deny")
    vote(store, one, "bob")
    assert vote(store, one, "ann").state == "granted", "the answer to a lost reply"
    with pytest.raises(IllegalMove, match="decided before: it is granted"):
        vote(store, one, "carl", "deny")


def test_of_two_that_answer_at_once_one_decides(store: Subject) -> None:
    """Both are let go by a barrier; whichever transaction comes second finds the first one's decision."""
    ones = [asked(store) for _ in range(12)]
    barrier = Barrier(2)

    def answer(voter: str, choice: str) -> list[object]:
        said: list[object] = []
        for one in ones:
            barrier.wait(30)
            try:
                said.append(vote(store, one, voter, choice).state)
            except IllegalMove as exc:
                said.append(str(exc))
        return said

    with ThreadPoolExecutor(2) as pool:
        approving = pool.submit(answer, "ann", "approve")
        denying = pool.submit(answer, "bob", "deny")
        pairs = list(zip(approving.result(60), denying.result(60), strict=True))

    for one, (approved, denied) in zip(ones, pairs, strict=True):
        stands = read(store, one.id)
        assert len(stands.votes) == 1
        if stands.state == "granted":
            assert approved == "granted"
            assert "it is granted" in str(denied)
        else:
            assert (stands.state, denied) == ("denied", "denied")
            assert "it is denied" in str(approved)
        assert get(store, one.job_id).state is State.QUEUED


def test_a_pending_approval_expires_by_the_stores_clock_and_denies(store: Subject, clock: SteeredClock) -> None:
    one = asked(store, question(expires=60))
    later = asked(store, question(expires=61))
    clock.advance(59)
    sweep(store)
    assert get(store, one.job_id).state is State.WAITING
    clock.advance(1)

    with pytest.raises(IllegalMove, match="expired at"):
        vote(store, one)
    sweep(store)

    assert (read(store, one.id).state, read(store, one.id).decided_at) == ("expired", clock.now())
    assert get(store, later.job_id).state is State.WAITING
    [step] = claim_one(store).steps
    told = json.loads(step.value or "")
    assert (step.state, told["granted"], told["state"], told["by"]) == ("done", False, "expired", [])
    with pytest.raises(IllegalMove, match="it is expired"):
        vote(store, one)


def test_an_approval_may_grant_itself_when_it_expires_if_it_says_so(store: Subject, clock: SteeredClock) -> None:
    one = asked(store, question(expires=60, on_expiry="grant"))
    clock.advance(60)

    sweep(store)

    assert (read(store, one.id).state, read(store, one.id).why) == ("granted", "expiry")
    [step] = claim_one(store).steps
    assert json.loads(step.value or "")["granted"] is True


def test_asking_again_with_the_same_arguments_changes_nothing(store: Subject) -> None:
    one = asked(store)
    store.do(Wake([one.job_id]))

    assert park(store, claim_one(store), question()).state == "waiting"

    assert store.do(ListApprovals(job_id=one.job_id)).items == [one]
    vote(store, one)
    assert get(store, one.job_id).state is State.QUEUED, "it is woken under its new grant"


def test_other_arguments_void_what_was_granted_and_ask_anew(store: Subject) -> None:
    one = asked(store)
    vote(store, one)

    assert park(store, claim_one(store), question({"order": 7, "eur": 1200})).state == "waiting"

    assert (read(store, one.id).state, read(store, one.id).why) == ("void", "changed")
    other = pending(store, one.job_id)
    assert (other.args, other.votes) == ({"order": 7, "eur": 1200}, ())
    with pytest.raises(IllegalMove, match="is void"):
        vote(store, one, "bob")
    vote(store, other)
    assert json.loads(step_of(store, one.job_id).value or "")["args_hash"] == other.args_hash


def test_arguments_that_change_three_times_fail_the_step(store: Subject) -> None:
    one = asked(store, question({"n": 0}))
    for n in range(1, VOIDS_MAX):
        store.do(Wake([one.job_id]))
        assert park(store, claim_one(store), question({"n": n})).state == "waiting"
    store.do(Wake([one.job_id]))

    answer = park(store, claim_one(store), question({"n": VOIDS_MAX}))

    assert answer.state == "queued"
    step = step_of(store, one.job_id)
    assert (step.state, step.error) == ("failed", VOID)
    found = store.do(ListApprovals(job_id=one.job_id))
    assert [(each.state, each.why) for each in found] == [("void", "changed")] * VOIDS_MAX


@pytest.mark.parametrize("end", ["cancelled", "failed", "succeeded"])
def test_the_end_of_the_job_voids_what_it_asks(store: Subject, end: str) -> None:
    one = asked(store)
    if end == "cancelled":
        cancel(store, one.job_id)
    else:
        store.do(Wake([one.job_id]))
        grant = claim_one(store)
        if end == "failed":
            settle(store, Rejected(grant.id, grant.token, "no"))
        else:
            complete(store, grant)

    assert (read(store, one.id).state, read(store, one.id).why) == ("void", "ended")
    assert store.do(CountApprovals()) == 0
    with pytest.raises(IllegalMove, match=f"job {one.job_id} has ended as {end}"):
        vote(store, one)


def test_a_revived_job_asks_anew(store: Subject) -> None:
    one = asked(store)
    cancel(store, one.job_id)
    store.do(Revive([one.job_id], "ops", "go on"))

    assert park(store, claim_one(store), question()).state == "waiting"

    again = pending(store, one.job_id)
    assert (again.id != one.id, again.args_hash) == (True, one.args_hash)
    vote(store, again)
    assert get(store, one.job_id).state is State.QUEUED


def test_forgetting_the_step_voids_its_approval_and_asks_anew(store: Subject) -> None:
    one = asked(store)
    vote(store, one)

    store.do(ForgetSteps(one.job_id, "refund", "ops", "ask again"))
    assert park(store, claim_one(store), question()).state == "waiting"

    assert (read(store, one.id).state, read(store, one.id).why) == ("void", "forgotten")
    assert pending(store, one.job_id).id != one.id


def test_a_crash_after_the_ask_leaves_one_question_and_its_answer_is_found(store: Subject, clock: SteeredClock) -> None:
    one = asked(store)
    store.do(Wake([one.job_id]))
    claim(store, lease_seconds=30)  # this worker dies before it parks again
    vote(store, one)
    clock.advance(31)
    reap(store)

    grant = claim_one(store, worker="w2")

    assert grant.steps[0].state == "open", "nothing waited when the answer came"
    assert park(store, grant, question()).state == "queued"
    assert json.loads(claim_one(store).steps[0].value or "")["granted"] is True
    assert [each.id for each in store.do(ListApprovals(job_id=one.job_id))] == [one.id]


def test_an_answer_that_came_while_a_worker_held_the_job_sends_it_straight_back(store: Subject) -> None:
    one = asked(store)
    store.do(Wake([one.job_id]))
    grant = claim_one(store)
    vote(store, one)

    assert park(store, grant, question()).state == "queued"

    [step] = claim_one(store).steps
    assert json.loads(step.value or "")["granted"] is True


def use(store: Subject, grant: Grant, approval_id: str, args: object = None, name: str = "refund") -> object:
    effect = EffectRecord(name, "intended", "", canonical(ARGS if args is None else args), approval=approval_id)
    return store.do(RecordEffect(grant.id, grant.token, effect))


def test_an_effect_uses_an_approval_once(store: Subject, clock: SteeredClock) -> None:
    one = asked(store)
    vote(store, one)
    grant = claim_one(store)

    assert use(store, grant, one.id) is not None

    found = read(store, one.id)
    assert (found.state, found.used_at, found.used_for) == ("used", clock.now(), ":refund")
    assert use(store, grant, one.id) is not None, "a later attempt of the same effect"
    with pytest.raises(IllegalMove, match="another effect has used it"):
        use(store, grant, one.id, name="refund-again")


def test_an_effect_with_other_arguments_may_not_use_it(store: Subject) -> None:
    one = asked(store)
    vote(store, one)
    grant = claim_one(store)

    with pytest.raises(IllegalMove, match="other arguments"):
        use(store, grant, one.id, {"order": 7, "eur": 121})

    assert read(store, one.id).state == "granted"
    assert use(store, grant, one.id, {"eur": 120.0, "order": 7}) is not None, "numbers and order as JSON compares them"


@pytest.mark.parametrize("state", ["pending", "denied", "other job", "unknown"])
def test_what_was_not_granted_is_not_used(store: Subject, state: str) -> None:
    one = asked(store)
    if state != "pending":
        vote(store, one, choice="deny" if state == "denied" else "approve")
    else:
        store.do(Wake([one.job_id]))
    if state == "other job":
        complete(store, claim_one(store))
        enqueue(store)
    grant = claim_one(store)

    with pytest.raises(IllegalMove, match="may not use approval"):
        use(store, grant, new_job_id() if state == "unknown" else one.id)


def test_what_was_used_stays_used_whatever_is_asked_later(store: Subject) -> None:
    one = asked(store)
    vote(store, one)
    grant = claim_one(store)
    use(store, grant, one.id)

    assert park(store, grant, question({"order": 8})).state == "queued"

    assert [each.state for each in store.do(ListApprovals(job_id=one.job_id))] == ["used"]
    assert json.loads(step_of(store, one.job_id).value or "")["args"] == one.args_text


def test_pages_are_newest_first_and_end(store: Subject) -> None:
    ones = [asked(store, question(ask=("ann",) if n % 2 else ())) for n in range(5)]
    vote(store, ones[0])

    first = store.do(ListApprovals(("pending",), limit=2))
    second = store.do(ListApprovals(("pending",), limit=2, after=first.next))

    newest = [one.id for one in reversed(ones)]
    assert [one.id for one in (*first, *second)] == newest[:4]
    assert [one.id for one in store.do(ListApprovals())] == newest
    assert [one.id for one in store.do(ListApprovals(("pending",), person="bob"))] == [ones[4].id, ones[2].id]
    assert len(store.do(ListApprovals(("pending",), person="ANN"))) == 4
    assert [one.id for one in store.do(ListApprovals(("granted", "denied")))] == [ones[0].id]
    with pytest.raises(InvalidArgument, match="never 'open'"):
        store.do(ListApprovals(("open",)))


def test_retention_takes_the_arguments_and_then_the_rows(store: Subject, clock: SteeredClock) -> None:
    one = asked(store)
    vote(store, one, note="call me")
    complete(store, claim_one(store))
    clock.advance(100)

    store.do(Prune(older_than_seconds=10))
    cleaned = read(store, one.id)
    clock.advance(100)
    store.do(Prune(older_than_seconds=10, delete_after_seconds=10))

    assert (cleaned.args_text, cleaned.text, cleaned.args_hash) == (None, "", one.args_hash)
    assert [(cast.voter, cast.note) for cast in cleaned.votes] == [("maria", None)]
    assert store.do(ListApprovals()).items == []


@pytest.mark.parametrize(
    "value",
    [
        None,
        "{}",
        '{"id": "x", "name": "refund"}',
        json.dumps({"id": SOME_ID, "name": "refund", "args": "{}", "need": 0}),
        json.dumps({"id": SOME_ID, "name": "refund", "args": "{}", "expires": -1}),
        json.dumps({"id": SOME_ID, "name": "refund", "args": "{}", "expires": 0}),
        json.dumps({"id": SOME_ID, "name": "refund", "args": "{}", "on_expiry": "maybe"}),
        json.dumps({"id": SOME_ID, "name": "refund", "args": json.dumps("x" * 70_000)}),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused_and_the_job_stays_held(store: Subject, value: str | None) -> None:
    job_id = enqueue(store)
    grant = claim_one(store)

    with pytest.raises(InvalidArgument, match=r"Nothing was changed|need is|expires after|on_expiry"):
        park(store, grant, NewStep("refund", "approval", "open", value=value))

    assert get(store, job_id).state is State.RUNNING
    assert store.do(ListApprovals()).items == []


@pytest.mark.parametrize(
    ("voter", "choice", "note"), [("", "approve", None), ("a", "maybe", None), ("a", "deny", "x" * 2001)]
)
def test_an_answer_that_says_nothing_is_refused(store: Subject, voter: str, choice: str, note: str | None) -> None:
    one = asked(store)

    with pytest.raises(InvalidArgument):
        store.do(DecideApproval(one.id, voter, choice, one.args_hash, note))


def test_an_approval_that_is_not_there_is_not_found(store: Subject) -> None:
    with pytest.raises(NotFound, match="There is no approval"):
        store.do(DecideApproval(new_job_id(), "maria", "approve", "0"))


def test_a_plain_job_costs_no_statement_more(store: Subject) -> None:
    """A whole life of a plain job, counted with approvals pending in the database and without."""

    def statements() -> int:
        before = store.store.stats().statements
        enqueue(store)
        complete(store, claim_one(store))
        return store.store.stats().statements - before

    statements()
    without = statements()
    asked(store)

    assert statements() == without


def test_errors_are_ours(store: Subject) -> None:
    one = asked(store)
    for bad in (DecideApproval(one.id, "maria", "approve", ""), DecideApproval("no-uuid", "maria", "deny", "0")):
        with pytest.raises(TenureError):
            store.do(bad)


def link_vote(store: Subject, one: Approval, voter: str, maker: str, choice: str = "approve") -> Approval:
    """An answer by a link that `maker` made for `voter`."""
    request = DecideApproval(one.id, voter, choice, one.args_hash, groups=one.asked_of, door="link", vouched_by=maker)
    return store.do(request)


def test_one_person_counts_once_however_many_links_they_make(store: Subject) -> None:
    """With links to invented people one approver would be N of M."""
    one = asked(store, question(need=2))
    link_vote(store, one, "x", "ann")

    for voter, maker in (("y", "ann"), ("y", " ANN ")):
        with pytest.raises(Forbidden, match="counts once"):
            link_vote(store, one, voter, maker)
    with pytest.raises(Forbidden, match="counts once"):
        vote(store, one, "Ann")

    assert read(store, one.id).state == "pending"
    assert link_vote(store, one, "y", "bob").state == "granted"
    assert [(cast.voter, cast.vouched_by) for cast in read(store, one.id).votes] == [("x", "ann"), ("y", "bob")]


def test_who_has_answered_makes_no_link_that_counts(store: Subject) -> None:
    one = asked(store, question(need=2))
    vote(store, one, "ann")

    with pytest.raises(Forbidden, match="counts once"):
        link_vote(store, one, "x", "ann")
    assert link_vote(store, one, "x", "bob").state == "granted"


def test_a_messenger_makes_links_for_all_who_were_asked_by_name(store: Subject) -> None:
    one = asked(store, question(need=2, ask=("ann", "bob", "ops")))
    link_vote(store, one, "ann", "mailer")

    with pytest.raises(Forbidden, match="counts once"):
        link_vote(store, one, "x", "mailer")
    assert link_vote(store, one, "Bob", "mailer").state == "granted"


def test_a_list_for_a_person_holds_what_is_asked_of_their_groups(store: Subject) -> None:
    mine = asked(store, question(ask=("Billing",)))
    other = asked(store, question(ask=("ops",)))
    free = asked(store)

    def seen(*groups: str) -> set[str]:
        return {one.id for one in store.do(ListApprovals(("pending",), "ann", groups=groups))}

    assert seen() == {free.id}
    assert seen("billing ") == {free.id, mine.id}
    assert seen("ops", "billing") == {free.id, mine.id, other.id}


def test_a_truth_value_is_no_number_where_an_effect_uses_an_approval(store: Subject) -> None:
    one = asked(store, question({"all": 0, "n": 1}))
    vote(store, one)
    grant = claim_one(store)
    for args in ({"all": False, "n": 1}, {"all": 0, "n": True}, {"all": 0, "n": "1"}):
        with pytest.raises(IllegalMove, match="other arguments"):
            use(store, grant, one.id, args)
    use(store, grant, one.id, {"n": 1.0, "all": 0})

    assert read(store, one.id).state == "used"


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("voter", ["\tann", "ann\u00a0", "ANN\n", "\u2003Ann\u3000", "\u0085ann\x1f"])
def test_no_blank_at_the_ends_of_a_name_makes_another_person_of_it(store: Subject, voter: str) -> None:
    """PostgreSQL took off spaces alone, so who had the job done could answer as their name and a tab."""
    one = asked(store, question(need=2), actor="ann")
    with pytest.raises(Forbidden, match="another person has to answer"):
        vote(store, one, voter)

    free = asked(store, question(need=2))
    vote(store, free, "ann")
    assert vote(store, free, voter).approved == 1, "one person, one answer"
    assert link_vote(store, free, "x", "bob").state == "granted"


@pytest.mark.parametrize("person", ["\u00c4nne", "\u00c4NNE\u00a0", "\u00e4nne"])
def test_names_are_found_whatever_letters_they_have(store: Subject, person: str) -> None:
    """SQLite's lower() leaves letters beyond ASCII alone: what \u00c4nne was asked by name was in no inbox of hers."""
    if person.startswith("\u00e4") and store.engine != "sqlite":
        pytest.skip("in the locale C, which the tests' servers have, PostgreSQL knows no case of letters beyond ASCII")
    mine = asked(store, question(ask=("\u00c4nne",)))
    other = asked(store, question(ask=("bob",)))
    free = asked(store)

    def seen(limit: int = 50, after: str | None = None, states: tuple[str, ...] = ("pending",)) -> list[str]:
        found = store.do(ListApprovals(states, person, limit=limit, after=after))
        return [one.id for one in found.items]

    assert seen() == seen(states=()) == [free.id, mine.id]
    assert seen(limit=1) == [free.id]
    assert seen(limit=1, after=free.id) == [mine.id]
    assert other.id not in seen(limit=2)
    assert vote(store, mine, person).state == "granted"


def test_who_gave_the_job_another_payload_may_not_answer(store: Subject) -> None:
    job_id = enqueue(store, actor="bob", priority=5)
    store.do(EditJob(job_id, "carl", "sooner", priority=6))
    store.do(EditJob(job_id, "Ann", "more", '{"eur": 9999}'))
    park(store, claim_one(store), question(need=2))
    one = pending(store, job_id)

    for voter in ("ann", "bob"):
        with pytest.raises(Forbidden, match="another person has to answer"):
            vote(store, one, voter)
    vote(store, one, "carl")  # who changed its place alone

    child = enqueue(store, parent_id=job_id)
    park(store, claim_one(store), question())
    with pytest.raises(Forbidden, match="another person has to answer"):
        vote(store, pending(store, child), "ann")


def test_who_has_a_job_done_again_may_not_answer_what_the_copy_asks(store: Subject) -> None:
    job_id = enqueue(store, actor="bob")
    complete(store, claim_one(store))
    [made] = store.do(Clone({job_id: new_job_id()}, "ann", "once more"))
    park(store, claim_one(store), question())
    one = pending(store, made.id)

    assert one.actor == "ann"
    with pytest.raises(Forbidden, match="another person has to answer"):
        vote(store, one, "ann")
    assert vote(store, one, "bob").state == "granted"
