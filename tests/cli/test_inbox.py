"""`tenure inbox`: what waits for a person, and answers about what was shown."""

from __future__ import annotations

from typing import Any

import pytest

import tenure
from tenure.cli.reference import SHAPES
from tenure.errors import IllegalMove
from tenure.testing import drain
from tests.cli.conftest import Cli
from tests.cli.test_reference import mismatches


@pytest.fixture
def job_id(app: tenure.App) -> str:
    """A job that waits for an approval."""

    @app.job(durable=True)
    def order(payload: dict[str, int], ctx: tenure.Context) -> Any:
        ok = ctx.approve("refund", args={"eur": 120, "name": "Zoë"}, text="Pay it back?", expires=3600)
        return [ok.granted, ok.by]

    found = order.options(actor="carl").enqueue({"order": 7}).id
    drain(app)
    return found


@pytest.fixture
def approval(app: tenure.App, job_id: str) -> tenure.Approval:
    [found] = app.approvals.all(job_id=job_id)
    return found


def shaped(cli: Cli, path: str, *args: str) -> Any:
    """The JSON of a command that ended well, which has the shape that is written down."""
    found = cli("inbox", path, *args, "--json")
    assert found.code == 0, found.err
    assert list(mismatches(found.json, SHAPES[f"inbox {path}"], path)) == []
    return found.json


def test_the_inbox_holds_approvals_escalations_and_unknown_effects(
    cli: Cli, app: tenure.App, approval: tenure.Approval
) -> None:
    @app.job(queue="B", max_attempts=1)
    def bad(payload: dict[str, int]) -> None:
        raise tenure.Permanent("never")

    @app.job(queue="C")
    def doubtful(payload: dict[str, int], ctx: tenure.Context) -> None:
        def do(call: tenure.EffectCall) -> None:
            raise TimeoutError

        ctx.effect("pay", do=do)

    risky = tenure.Workflow("risky", on_breach="escalate", escalate_to=tenure.Escalation(person="ann"))
    risky.task("first", agent="B", task_type="bad")
    app.workflows.start(risky)
    doubtful.enqueue({})
    drain(app, queues=["B", "C"], raise_errors=False)
    app.workflows.advance()

    listed = shaped(cli, "ls")["inbox"]
    anns = shaped(cli, "ls", "--person", "ann")["inbox"]
    bobs = shaped(cli, "ls", "--person", "bob")["inbox"]

    assert sorted((one["kind"], one["state"]) for one in listed) == [
        ("approval", "pending"), ("effect", "unknown"), ("escalation", "open"),
    ]  # fmt: skip
    assert {one["kind"] for one in anns} == {"approval", "escalation", "effect"}
    assert {one["kind"] for one in bobs} == {"approval", "effect"}
    assert [entry.kind for entry in app.inbox("bob")] == [one["kind"] for one in bobs]
    assert approval.id in {one["id"] for one in listed}
    assert "Pay it back?" in cli("inbox", "ls").out


def test_it_shows_the_exact_arguments_with_their_hash(cli: Cli, approval: tenure.Approval) -> None:
    told = shaped(cli, "show", approval.id)["approval"]
    shown = cli("inbox", "show", approval.id).out

    assert (told["args_text"], told["args_hash"]) == ('{"eur":120,"name":"Zoë"}', approval.args_hash)
    assert approval.args_hash in shown
    assert '"eur": 120' in shown
    assert "carl" in shown
    assert f"unlocks\tjob {approval.job_id} (order in default) goes on behind 'approve/refund'" in shown


def test_an_answer_names_the_hash_of_what_was_seen(cli: Cli, app: tenure.App, approval: tenure.Approval) -> None:
    unseen = cli("inbox", "approve", approval.id, "--yes")
    blind = cli("inbox", "approve", approval.id)
    other = cli("inbox", "approve", approval.id, "--hash", "0" * 64, "--json")
    short = cli("inbox", "approve", approval.id, "--hash", approval.args_hash[:6])
    assert [one.code for one in (unseen, blind, other, short)] == [2, 2, 4, 2]
    assert "another hash" in other.error["message"]
    assert app.approvals.get(approval.id).votes == ()

    done = shaped(cli, "approve", approval.id, "--hash", approval.args_hash[:16], "--note", "ok", "--actor", "ann")

    [vote] = done["approval"]["votes"]
    assert (done["approval"]["state"], vote["voter"], vote["note"], vote["door"]) == ("granted", "ann", "ok", "cli")


def test_who_had_the_job_done_is_refused_here_too(cli: Cli, approval: tenure.Approval) -> None:
    for verb in ("approve", "deny"):
        refused = cli("inbox", verb, approval.id, "--hash", approval.args_hash, "--actor", "Carl", "--json")
        assert (refused.code, refused.error["code"]) == (7, "forbidden")
    made = cli("inbox", "link", approval.id, "--person", "ann", "--actor", "carl", "--json")
    assert (made.code, made.error["code"]) == (7, "forbidden")


def test_an_approval_of_an_ended_job_is_refused_with_the_reason(
    cli: Cli, app: tenure.App, job_id: str, approval: tenure.Approval
) -> None:
    link = app.approvals.link(approval.id, "ann", by="bob")
    app.cancel(job_id)

    late = cli("inbox", "approve", approval.id, "--hash", approval.args_hash, "--actor", "ann", "--json")
    unmade = cli("inbox", "link", approval.id, "--person", "ann", "--actor", "bob", "--json")

    assert (late.code, late.error["code"]) == (4, "illegal_move")
    assert "has ended as cancelled" in late.error["message"]
    assert (unmade.code, unmade.error["code"]) == (4, "illegal_move")
    with pytest.raises(IllegalMove, match="has ended as cancelled"):
        app.approvals.answer_link(link, "approve", args_hash=approval.args_hash)
    assert app.approvals.get(approval.id).votes == ()


def test_a_denial_ends_the_question(cli: Cli, app: tenure.App, job_id: str, approval: tenure.Approval) -> None:
    shaped(cli, "deny", approval.id, "--hash", approval.args_hash, "--actor", "ann")
    drain(app)

    assert app.get(job_id).result == [False, ["ann"]]
    assert shaped(cli, "ls")["inbox"] == []
    [past] = shaped(cli, "ls", "--state", "denied")["inbox"]
    assert (past["id"], past["state"]) == (approval.id, "denied")


def test_a_link_is_made_for_one_person(cli: Cli, app: tenure.App, approval: tenure.Approval) -> None:
    made = shaped(cli, "link", approval.id, "--person", "ann", "--valid", "2h", "--base", "https://q.example/")

    assert made["link"].startswith("https://q.example/answer/")
    found, voter = app.approvals.open_link(made["link"].rpartition("/")[2])
    assert (found.id, voter) == (approval.id, "ann")


def test_what_is_not_there_is_not_found(cli: Cli, app: tenure.App) -> None:
    found = cli("inbox", "show", "00000000-0000-7000-8000-000000000000")

    assert found.code == 3
    assert "tenure inbox ls" in found.err


def test_jobs_show_and_explain_say_what_is_asked(cli: Cli, job_id: str, approval: tenure.Approval) -> None:
    shown = cli("jobs", "show", job_id)
    told = cli("jobs", "show", job_id, "--json").json
    explained = cli("jobs", "explain", job_id, "--json").json

    assert approval.id in shown.out
    assert list(mismatches(told, SHAPES["jobs show"], "show")) == []
    assert [one["id"] for one in told["approvals"]] == [approval.id]
    [reason] = explained["reasons"]
    assert reason["code"] == "waits_for_approval"
    assert "'refund': 0 of 1 said yes, and is denied in" in reason["sentence"]
    assert reason["fix"] == f"tenure inbox show {approval.id}"


def test_an_empty_budget_that_escalates_is_one_entry_until_it_is_raised(app: tenure.App, cli: Cli) -> None:
    @app.job
    def summarise(number: int, ctx: tenure.Context) -> None:
        with ctx.reserve(usd="1.00"):
            pass

    app.budgets.set("kind:summarise", usd="0.50", on_empty="escalate")
    for number in range(3):
        summarise.enqueue(number)
    drain(app)

    [entry] = [one for one in shaped(cli, "ls")["inbox"] if one["kind"] == "budget"]
    assert (entry["id"], entry["state"]) == ("budget:kind:summarise:usd:total", "empty")
    assert "0.50 USD left of 0.50 USD, and 3 jobs wait" in entry["title"]
    assert entry["since"] is not None
    app.budgets.raise_by("kind:summarise", usd="1.00")
    drain(app)
    [entry] = [one for one in app.inbox("ann") if one.kind == "budget"]
    assert "2 jobs wait" in entry.title
    app.budgets.raise_by("kind:summarise", usd="2.00")
    drain(app)

    assert [one for one in app.inbox() if one.kind == "budget"] == []
    assert [one.state for one in app.jobs().items] == ["succeeded"] * 3
