"""Tokens, sessions, and the chain over the audit: store.access, on every store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tenure.client.access import link_hash
from tenure.errors import InvalidArgument, KeyConflict
from tenure.model.access import digest, new_secret, new_token
from tenure.store.access import (
    ApiToken,
    CountUnsealed,
    CreateLink,
    CreateToken,
    EndSessions,
    FindSession,
    FindToken,
    KeepSecret,
    ListSealed,
    ListSessions,
    ListTokens,
    NewAudit,
    OpenSession,
    RememberRequest,
    RevokeTokens,
    SealAudit,
    TouchSession,
    TouchTokens,
    WriteAudit,
)
from tenure.store.queries import ListAudit
from tests.conformance.acts import Subject
from tests.conformance.engines import SteeredClock

DAY = 86_400.0


def make_token(store: Subject, name: str = "ci", seconds: float = DAY) -> ApiToken:
    made = new_token()
    return store.do(CreateToken(made.id, made.digest, name, ["read:meta"], seconds, "ops"))


def acts(store: Subject) -> list[str]:
    return [row.act for row in store.do(ListAudit())]


def test_a_token_is_kept_as_a_digest_and_found_by_its_id(store: Subject) -> None:
    made = new_token()

    stored = store.do(CreateToken(made.id, made.digest, "ci", ["read:meta", "operate"], DAY, "ops"))

    assert stored == store.do(FindToken(made.id))
    assert (stored.name, list(stored.scopes), stored.digest, stored.is_valid) == (
        "ci",
        ["read:meta", "operate"],
        made.digest,
        True,
    )
    assert stored.created_by == "ops"
    assert store.do(FindToken("0" * 12)) is None
    assert acts(store) == ["create_token"]


def test_a_repeated_create_answers_the_first_row_and_another_secret_is_refused(store: Subject) -> None:
    made = new_token()
    request = CreateToken(made.id, made.digest, "ci", ["operate"], DAY, "ops")

    assert store.do(request) == store.do(request)
    with pytest.raises(KeyConflict):
        store.do(CreateToken(made.id, digest("another"), "ci", ["operate"], DAY, "ops"))

    assert acts(store) == ["create_token"]


@pytest.mark.parametrize(
    ("name", "scopes", "seconds"),
    [("ci", ["operate"], 0), ("ci", ["operate"], 367 * DAY), ("ci", [], DAY), (" ", ["a"], 1)],
)
def test_a_token_without_end_name_or_scope_is_refused(
    store: Subject, name: str, scopes: list[str], seconds: float
) -> None:
    made = new_token()

    with pytest.raises(InvalidArgument):
        store.do(CreateToken(made.id, made.digest, name, scopes, seconds, "ops"))

    assert store.do(ListTokens()) == []


def test_a_token_is_invalid_once_it_has_expired(store: Subject, clock: SteeredClock) -> None:
    token = make_token(store, seconds=60)

    clock.advance(59)
    before = store.do(FindToken(token.id))
    clock.advance(1)
    after = store.do(FindToken(token.id))

    assert before is not None
    assert after is not None
    assert (before.is_valid, after.is_valid) == (True, False)


def test_a_revoked_token_is_invalid_and_its_sessions_end(store: Subject) -> None:
    token, other = make_token(store), make_token(store, "other")
    mine, theirs = digest(new_secret()), digest(new_secret())
    store.do(OpenSession(mine, DAY, token_id=token.id))
    store.do(OpenSession(theirs, DAY, token_id=other.id))

    changed = store.do(RevokeTokens([token.id, token.id, "missing"], "ops"))

    assert changed == [token.id]
    assert store.do(RevokeTokens([token.id], "ops")) == []
    found = store.do(FindToken(token.id))
    assert found is not None
    assert (found.is_valid, found.revoked_by) == (False, "ops")
    assert [one.digest for one in store.do(ListSessions())] == [theirs]
    assert acts(store)[0] == "revoke_token"


def test_the_use_of_a_token_is_noted_once_a_minute(store: Subject, clock: SteeredClock) -> None:
    token = make_token(store)

    written = []
    for seconds in (0, 30, 31):
        clock.advance(seconds)
        written.append(store.do(TouchTokens([token.id])))

    assert written == [1, 0, 1]
    found = store.do(FindToken(token.id))
    assert found is not None
    assert found.last_used_at == clock.now()


def test_a_link_opens_one_session(store: Subject) -> None:
    link = digest(new_secret())
    store.do(CreateLink(link, "ada", ["admin"], 60, "serve"))

    first = store.do(OpenSession(digest(new_secret()), DAY, link=link, address="127.0.0.1"))
    second = store.do(OpenSession(digest(new_secret()), DAY, link=link))

    assert first is not None
    assert (first.name, list(first.scopes), first.kind, first.is_valid) == ("ada", ["admin"], "session", True)
    assert second is None
    assert acts(store) == ["sign_in", "create_link"]


def test_an_expired_link_opens_nothing(store: Subject, clock: SteeredClock) -> None:
    link = digest(new_secret())
    store.do(CreateLink(link, "ada", ["admin"], 60, "serve"))
    clock.advance(60)

    assert store.do(OpenSession(digest(new_secret()), DAY, link=link)) is None


def test_a_link_is_no_session_and_no_session_opens_another(store: Subject) -> None:
    link, session = digest(new_secret()), digest(new_secret())
    store.do(CreateLink(link, "ada", ["admin"], 60, "serve"))
    found = store.do(FindSession(link))

    store.do(OpenSession(session, DAY, link=link))

    assert found is not None
    assert found.kind == "link"
    assert store.do(OpenSession(digest(new_secret()), DAY, link=session)) is None


def test_a_session_ends_when_idle_or_old_and_its_use_is_noted(store: Subject, clock: SteeredClock) -> None:
    token = make_token(store)
    session = digest(new_secret())
    store.do(OpenSession(session, 3600, token_id=token.id))

    def is_valid() -> bool:
        found = store.do(FindSession(session, 1800))
        assert found is not None
        return found.is_valid

    clock.advance(1799)
    assert is_valid()
    assert store.do(TouchSession(session))
    clock.advance(1799)
    assert is_valid()
    clock.advance(1)
    assert not is_valid(), "idle for half an hour"
    assert store.do(TouchSession(session))
    clock.advance(1)
    assert not is_valid(), "an hour old"


def test_a_session_that_was_ended_is_invalid(store: Subject) -> None:
    token = make_token(store)
    session = digest(new_secret())
    store.do(OpenSession(session, DAY, token_id=token.id))

    assert store.do(EndSessions([session], "ada")) == [session]
    assert store.do(EndSessions([session], "ada")) == []

    found = store.do(FindSession(session))
    assert found is not None
    assert not found.is_valid


def test_an_invalid_token_opens_no_session(store: Subject) -> None:
    token = make_token(store)
    store.do(RevokeTokens([token.id], "ops"))

    assert store.do(OpenSession(digest(new_secret()), DAY, token_id=token.id)) is None
    assert store.do(OpenSession(digest(new_secret()), DAY, token_id="0" * 12)) is None


def test_the_first_candidate_of_a_secret_stays(store: Subject) -> None:
    assert [store.do(KeepSecret("cursor", value)) for value in ("one", "two")] == ["one", "one"]
    assert store.do(KeepSecret("grant", "three")) == "three"


def test_a_remembered_request_answers_the_first_ids_for_a_day(store: Subject, clock: SteeredClock) -> None:
    first = store.do(RememberRequest("t", "k", "body", ["1"]))
    again = store.do(RememberRequest("t", "k", "other", ["2"]))
    elsewhere = store.do(RememberRequest("u", "k", "other", ["3"]))
    clock.advance(DAY + 1)
    later = store.do(RememberRequest("t", "k", "other", ["4"]))

    assert (first.is_new, first.body, list(first.ids)) == (True, "body", ["1"])
    assert (again.is_new, again.body, list(again.ids)) == (False, "body", ["1"])
    assert elsewhere.is_new
    assert (later.is_new, list(later.ids)) == (True, ["4"])


def test_a_remembered_request_keeps_its_first_answers_as_long_as_itself(store: Subject, clock: SteeredClock) -> None:
    request = RememberRequest("t", "k", "body", ["1"])
    new = store.do(request)
    answered = store.do(replace(request, answers=[{"id": "1", "duplicate": True}]))
    again = store.do(replace(request, ids=["2"], answers=[{"id": "2", "duplicate": False}]))
    foreign = store.do(replace(request, body="other", answers=[]))
    clock.advance(DAY + 1)
    later = store.do(replace(request, ids=["3"]))

    assert (new.answers, answered.is_new) == (None, False)
    for found in (answered, again, foreign):
        assert (found.body, list(found.ids)) == ("body", ["1"])
        assert list(found.answers or ()) == [{"id": "1", "duplicate": True}]
    assert (later.is_new, later.answers) == (True, None)


def test_every_audit_row_gets_a_link_that_covers_it(store: Subject) -> None:
    rows = [NewAudit("ada", "look", f"job {n}", "why é" if n else None, {"n": n}) for n in range(3)]
    store.do(WriteAudit(rows))
    assert store.do(CountUnsealed()) == 3

    first = store.do(SealAudit(2))
    second = store.do(SealAudit(2))

    assert (first.number, first.added, first.more) == (2, 2, True)
    assert (second.number, second.added, second.more) == (3, 1, False)
    links = store.do(ListSealed())
    assert [link.number for link in links] == [1, 2, 3]
    assert [link.previous for link in links] == ["", links[0].hash, links[1].hash]
    for link in links:
        assert link.row_text is not None
        assert link.hash == link_hash(link.previous, link.row_text)
    assert links[-1].hash == second.hash
    assert store.do(CountUnsealed()) == 0


def test_a_nameless_act_is_not_written(store: Subject) -> None:
    with pytest.raises(InvalidArgument):
        store.do(WriteAudit([NewAudit(" ", "look", "job", None, {})]))

    assert acts(store) == []
