"""`tenure budgets`, and what explain, jobs show and doctor say about an empty one."""

from __future__ import annotations

import math

import pytest

import tenure
from tenure import App
from tenure.errors import InvalidArgument
from tenure.testing import drain
from tests.cli.conftest import Cli


def test_a_budget_is_set_listed_raised_and_removed(cli: Cli, app: App) -> None:
    made = cli("budgets", "set", "tenant:7", "--usd", "5.00", "--tokens", "1000", "--per", "day", "--json").json
    assert [(one["unit"], one["limit"], one["per"]) for one in made["budgets"]] == [
        ("usd", 5_000_000, "day"),
        ("tokens", 1000, "day"),
    ]
    raised = cli(
        "budgets", "raise", "tenant:7", "--usd", "2.5", "--per", "day", "-r", "more", "--actor", "ada", "--json"
    )
    assert raised.json["budgets"][0]["limit"] == 7_500_000
    rows = cli("budgets", "ls").rows
    assert next(row for row in rows if "7.50 USD" in row)[:2] == ["tenant:7", "day"]
    assert cli("budgets", "ls", "--limit", "1", "--json").json["next"] == "budget:tenant:7:tokens:day"
    assert cli("budgets", "rm", "tenant:7", "--unit", "usd", "--json").json == {"changed": ["budget:tenant:7:usd:day"]}

    [act] = [one for one in app.access.audit(subject="budget:tenant:7:usd:day") if one.act == "raise_budget"]
    assert (act.actor, act.reason) == ("ada", "more")


def test_what_cannot_be_is_refused_with_a_hint(cli: Cli, app: App) -> None:
    assert "all, queue:NAME" in cli("budgets", "set", "person:7", "--usd", "5").err
    assert "six decimal places" in cli("budgets", "set", "all", "--usd", "0.0000001").err
    assert "at least one limit" in cli("budgets", "set", "all").err
    assert "hour, day, month, total" in cli("budgets", "set", "all", "--usd", "1", "--per", "week").err
    missing = cli("budgets", "raise", "all", "--usd", "5")
    assert (missing.code, "tenure budgets set" in missing.err) == (3, True)
    assert cli("budgets", "rm", "all").code == 3
    assert app.budgets.all() == []


def test_a_limiter_that_would_never_reopen_is_refused(cli: Cli, app: App) -> None:
    for seconds in ("2d", "inf", "nan", "-1", "soon"):
        found = cli("limits", "block", "llm", seconds, "--json")
        assert found.code == 2, seconds
        assert found.error["message"]
    assert "a block ends within 86,400 s" in cli("limits", "block", "llm", "2d").err
    assert "Give --per-minute" in cli("limits", "set", "llm").err
    assert cli("limits", "set", "llm", "--per-minute", "0").code == 2
    for wrong in (math.inf, math.nan, -1.0, 86_401.0):
        with pytest.raises(InvalidArgument):
            app.limits.block("llm", wrong)
    assert app.limits.all() == []


def test_an_empty_budget_is_named_with_what_raises_it(cli: Cli, app: App) -> None:
    @app.job
    def spend(ctx: tenure.Context) -> None:
        with ctx.reserve(usd="0.40"):
            pass

    app.budgets.set("kind:spend", usd="0.30", on_empty="escalate")
    job_id = spend.enqueue().id
    drain(app)

    [reason] = cli("jobs", "explain", job_id, "--json").json["reasons"]
    assert (reason["code"], reason["blocks"]) == ("waits_for_budget", True)
    assert "asks for 0.40 USD" in reason["sentence"]
    assert "0.30 USD left of 0.30 USD" in reason["sentence"]
    assert reason["fix"] == "tenure budgets raise kind:spend --usd AMOUNT --per total"
    assert reason["fix"] in cli("jobs", "show", job_id).err
    checks = [one for one in cli("doctor", "--no-sandbox", "--json").json["checks"] if one["name"] == "budget"]
    assert [(one["status"], one["fix"]) for one in checks] == [("wrong", reason["fix"])]
    assert "1 job waits for it" in checks[0]["says"]

    app.budgets.raise_by("kind:spend", usd="5")
    drain(app)
    assert app.get(job_id).state == "succeeded"
