"""What a person finds out about an effect of unknown outcome is written once, and wakes the job that waits for it."""

from __future__ import annotations

import pytest

from tenure.errors import IllegalMove, InvalidArgument, NotFound
from tenure.model.ids import JobId, new_job_id
from tenure.model.job import Grant
from tenure.model.outcome import EffectRecord, Suspended
from tenure.store.admin import RecordEffect, ResolveEffect
from tenure.store.contract import Settle
from tenure.store.queries import ListAudit
from tests.conformance.acts import Subject, claim_one, enqueue, get


def waiting(store: Subject, step: str = "") -> Grant:
    """A job that waits for a person, because it does not know what became of its effect."""
    enqueue(store)
    grant = claim_one(store)
    store.do(RecordEffect(grant.id, grant.token, EffectRecord("mail", "intended", step=step, args='{"to": 7}')))
    store.do(
        RecordEffect(grant.id, grant.token, EffectRecord("mail", "unknown", step=step, error="the line went dead"))
    )
    place = f"{step}:mail" if step else "mail"
    store.do(Settle([Suspended(grant.id, grant.token, f"effect:{grant.id}:{place}")]))
    return grant


@pytest.mark.parametrize("step", ["", "checkout"])
def test_a_confirmed_effect_keeps_the_result_and_wakes_its_job(store: Subject, step: str) -> None:
    grant = waiting(store, step)

    row = store.do(
        ResolveEffect(grant.id, "mail", "confirmed", "ann", "found in the outbox", step=step, result='{"id": 9}')
    )

    assert (row.state, row.result, row.args, row.error) == ("confirmed", {"id": 9}, {"to": 7}, "found in the outbox")
    assert get(store, grant.id).state == "queued"
    (audit,) = store.do(ListAudit(subject=grant.id))
    assert (audit.actor, audit.act, audit.reason) == ("ann", "resolve_effect", "found in the outbox")
    assert audit.detail == {"step": step, "name": "mail", "outcome": "confirmed"}


def test_retry_makes_it_an_intent_again_and_failed_says_who_gave_it_up(store: Subject) -> None:
    first, second = waiting(store), waiting(store)

    retried = store.do(ResolveEffect(first.id, "mail", "retry", "ann"))
    failed = store.do(ResolveEffect(second.id, "mail", "failed", "ann", "never mind"))

    assert (retried.state, retried.result) == ("intended", None)
    assert (failed.state, failed.result, failed.error) == ("failed", {"given_up_by": "ann"}, "never mind")
    assert [get(store, one.id).state for one in (first, second)] == ["queued", "queued"]


def test_repeating_an_answer_is_harmless_and_a_confirmed_effect_stays(store: Subject) -> None:
    grant = waiting(store)
    request = ResolveEffect(grant.id, "mail", "confirmed", "ann", result='{"id": 9}')
    first = store.do(request)

    assert store.do(request) == first
    with pytest.raises(IllegalMove):
        store.do(ResolveEffect(grant.id, "mail", "retry", "ann"))
    assert len(store.do(ListAudit(subject=grant.id))) == 1


def test_while_a_worker_holds_the_job_it_decides_itself(store: Subject) -> None:
    enqueue(store)
    grant = claim_one(store)
    store.do(RecordEffect(grant.id, grant.token, EffectRecord("mail", "unknown")))

    with pytest.raises(IllegalMove):
        store.do(ResolveEffect(grant.id, "mail", "retry", "ann"))


@pytest.mark.parametrize("missing", ["job", "effect"])
def test_what_is_not_there_cannot_be_resolved(store: Subject, missing: str) -> None:
    job_id: JobId = new_job_id() if missing == "job" else enqueue(store)

    with pytest.raises(NotFound):
        store.do(ResolveEffect(job_id, "mail", "retry", "ann"))


def test_other_outcomes_are_refused(store: Subject) -> None:
    grant = waiting(store)

    with pytest.raises(InvalidArgument, match="outcome"):
        store.do(ResolveEffect(grant.id, "mail", "perhaps", "ann"))
