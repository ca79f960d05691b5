"""Durable jobs on the command line: their steps, what they wait for, and signals."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shlex

import pytest

import tenure
from tenure import App
from tenure.model.memo import memo_id
from tests.cli.conftest import Cli


@pytest.fixture
def order(app: App) -> str:
    """A durable job that has one step behind it and waits for a signal."""

    @app.job(durable=True)
    def order(ctx: tenure.Context) -> int:
        price: int = ctx.step("quote", lambda: 40)
        paid: int = ctx.wait_for("paid:7", timeout=3600)
        return price + paid

    job_id = order.enqueue().id
    app.run_worker(drain=True)
    return job_id


def test_a_shown_job_has_its_steps(cli: Cli, order: str) -> None:
    plain = cli("jobs", "show", order)
    told = cli("jobs", "show", order, "--json").json

    assert "quote" in plain.out
    assert "signal:paid:7" in plain.out
    assert [(one["key"], one["state"], one["value"]) for one in told["steps"]] == [
        ("quote", "done", "40"),
        ("wait/paid:7", "open", None),
    ]


def test_a_parked_job_is_explained_by_what_it_waits_for(cli: Cli, order: str) -> None:
    found = cli("jobs", "explain", order, "--json").json

    assert [one["code"] for one in found["reasons"]] == ["waits_for_signal", "steps"]
    assert "'paid:7'" in found["reasons"][0]["sentence"]
    assert found["reasons"][0]["fix"] == "tenure signal paid:7 JSON"
    assert "1 step" in found["reasons"][1]["sentence"]


def test_a_deadline_is_no_sleep(cli: Cli, app: App) -> None:
    @app.job(durable=True, deadline=86_400)
    def order(ctx: tenure.Context) -> None:
        ctx.step("quote", lambda: 40)
        ctx.wait_for("paid:7")

    job_id = order.enqueue().id
    app.run_worker(drain=True)

    found = cli("jobs", "explain", job_id, "--json").json

    assert [(one["code"], one["blocks"]) for one in found["reasons"]] == [
        ("waits_for_signal", True),
        ("deadline", False),
        ("steps", False),
    ]
    assert found["reasons"][1]["sentence"].startswith("It ends as failed if it is not done by 20")


def test_a_signal_ends_the_wait_and_the_first_value_stays(cli: Cli, app: App, order: str) -> None:
    first = cli("signal", "paid:7", "2", "--json")
    second = cli("signal", "paid:7", "3")
    app.run_worker(drain=True)

    assert (first.code, first.json["is_taken"]) == (0, True)
    assert second.code == 4
    assert "Another value" in second.err
    assert app.get(order).result == 42


def test_a_signal_for_a_job_that_is_not_there_is_an_error(cli: Cli, app: App) -> None:
    nowhere = "0190a000-0000-7000-8000-000000000001"

    found = cli("signal", "paid", "1", "--to", nowhere, "--json")

    assert (found.code, found.error["code"]) == (3, "not_found")


def test_a_value_that_is_no_json_is_refused(cli: Cli, app: App) -> None:
    assert cli("signal", "paid", "{oops").code == 2


def test_a_forgotten_step_runs_again(cli: Cli, app: App, order: str) -> None:
    forgotten = cli("jobs", "forget-step", order, "quote", "-r", "the price was wrong", "--json")

    assert forgotten.json == {"forgotten": ["quote"]}
    assert [step.key for step in app.steps.all(order)] == ["wait/paid:7"]
    assert cli("jobs", "forget-step", order, "nothing").code == 3


def test_a_dead_job_is_revived_from_a_step(cli: Cli, app: App) -> None:
    calls: list[str] = []

    @app.job(durable=True, max_attempts=1)
    def fragile(ctx: tenure.Context) -> list[str]:
        for name in ("a", "b", "c"):
            ctx.step(name, calls.append, name)
        if len(calls) == 3:
            raise ValueError("broken")
        return calls

    job_id = fragile.enqueue().id
    app.run_worker(drain=True)
    revived = cli("jobs", "revive", job_id, "--from-step", "b")
    app.run_worker(drain=True)

    assert revived.code == 0
    assert app.get(job_id).result == ["a", "b", "c", "b", "c"]
    assert cli("jobs", "revive", "--from-step", "b", "--queue", "default").code == 2


def test_what_a_job_gave_out_is_followed_to_its_end(cli: Cli, app: App) -> None:
    @app.job(max_attempts=2, backoff=tenure.Backoff(shape="none"))
    def talk(ctx: tenure.Context) -> None:
        ctx.stream().write(f"attempt {ctx.attempt}\n\x1b[31mred")
        if ctx.attempt == 1:
            raise ValueError("broken")

    job_id = talk.enqueue().id
    app.run_worker(drain=True)

    followed = cli("jobs", "follow", job_id)
    told = [json.loads(line) for line in cli("jobs", "follow", job_id, "--after", "1", "--json").out.splitlines()]

    assert followed.code == 0
    assert "\x1b" not in followed.out
    assert "attempt 1\n" in followed.out
    assert "another attempt begins" in followed.err
    assert [(one["offset"], one["kind"]) for one in told] == [(2, "reset"), (3, "text")]
    assert set(told[0]) == {field.name for field in dataclasses.fields(tenure.Chunk)}
    assert "It has output." in cli("jobs", "follow", job_id, "--stream", "nothing").err
    assert cli("jobs", "follow", "0190a000-0000-7000-8000-000000000001").code == 3


def test_a_stream_is_followed_by_python_too(app: App) -> None:
    @app.job
    async def talk(ctx: tenure.Context) -> None:
        await ctx.stream().write("one")
        await ctx.stream("thoughts").write("two")

    async def follow(job_id: str) -> list[str]:
        return [chunk.text async for chunk in app.aio.streams.follow(job_id, "thoughts")]

    job_id = talk.enqueue().id
    assert app.streams.read(job_id) == tenure.StreamPage([], False)
    app.run_worker(drain=True)

    assert [chunk.text for chunk in app.streams.follow(job_id)] == ["one"]
    assert asyncio.run(follow(job_id)) == ["two"]
    assert [one.name for one in app.streams.names(job_id)] == ["output", "thoughts"]
    with pytest.raises(tenure.NotFound):
        app.streams.read("0190a000-0000-7000-8000-000000000001")


def test_a_wait_for_children_is_told_in_words_and_no_time_is_shown_where_there_is_none(app: App, cli: Cli) -> None:
    @app.job
    def child(n: int) -> int:
        if n == 1:
            raise tenure.Permanent("no")
        return n

    @app.job(durable=True)
    def parent(ctx: tenure.Context) -> None:
        ctx.map("all", child, [0, 1, 2], tolerate=1)
        ctx.wait_for("go")

    job_id = parent.enqueue().id
    app.run_worker(drain=True)

    shown = cli("jobs", "show", job_id)

    assert "3 of 3 children ended, 1 failed" in shown.out
    assert app.get(job_id).due_at is None
    assert "run_at" not in shown.out


# --- memos


@pytest.fixture
def memos(app: App) -> None:
    @app.job(memo=3600)
    def embed(text: str) -> list[float]:
        return [float(len(text))]

    @app.job(durable=True)
    def extract(page: str, ctx: tenure.Context) -> None:
        ctx.memo("extract", key=page, ttl=60, do=lambda: f"text of {page}")

    embed.enqueue("disc")
    for page in ("it's 7", "page 8", "page 9"):
        extract.enqueue(page)
    app.run_worker(drain=True)


@pytest.mark.usefixtures("memos")
def test_memos_are_listed_page_by_page(cli: Cli) -> None:
    first = cli("memos", "ls", "-n", "2")
    told = cli("memos", "ls", "-n", "2", "--json").json
    rest = cli("memos", "ls", "--after", told["next"], "--json").json

    assert "embed" in first.out
    assert "text of it's 7" in first.out
    assert f"--after {shlex.quote(told['next'])}" in first.err
    assert [one["key"] for one in told["memos"] + rest["memos"]][1:] == ["it's 7", "page 8", "page 9"]
    assert rest["next"] is None


@pytest.mark.usefixtures("memos")
@pytest.mark.parametrize(
    ("chosen", "gone"),
    [
        (["extract", "--key", "page 8"], 1),
        (["extract", "--prefix", "page", "--yes"], 2),
        (["extract", "-y"], 3),
        (["--kind", "embed", "--payload", '"disc"'], 1),
        (["--kind", "embed", "--payload", '"pad"'], 0),
        (["--id", memo_id(None, "extract", "page 9")], 1),
    ],
)
def test_memos_are_forgotten(cli: Cli, chosen: list[str], gone: int) -> None:
    done = cli("memos", "forget", *chosen, "--reason", "wrong", "--json")

    assert (done.code, done.json["forgotten"]) == (0, gone)
    assert len(cli("memos", "ls", "--json").json["memos"]) == 4 - gone


@pytest.mark.usefixtures("memos")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["forget"], "Which memos?"),
        (["forget", "extract"], "--yes"),
        (["forget", "extract", "--kind", "embed", "-y"], "not of both"),
        (["forget", "extract", "--payload", "1"], "`payload` chooses"),
        (["forget", "--id", "7"], "SHA-256"),
        (["ls", "--key", "page 8"], "belongs to a name"),
        (["ls", "--after", "7"], "no `next`"),
    ],
)
def test_a_choice_of_memos_that_is_not_clear_is_refused(cli: Cli, words: list[str], said: str) -> None:
    refused = cli("memos", *words)

    assert refused.code == 2
    assert said in refused.err
    assert len(cli("memos", "ls", "--json").json["memos"]) == 4
