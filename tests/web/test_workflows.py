"""Workflows by HTTP and on their pages: how far they are, why they are not done, the graph, and the acts."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

import tenure
from tests.web.conftest import Server
from tests.web.test_pages import VECTORS, _text, signed_in

pytestmark = pytest.mark.anyio
MISSING = "00000000-0000-7000-8000-000000000000"


def _started(app: tenure.App, *, on_breach: str = "continue", name: str = "import", many: int = 0) -> str:
    """load → (fit, price) → publish; `price` has failed for good."""
    app.agent("Worker")
    flow = tenure.Workflow(
        name,
        on_breach=on_breach,  # type: ignore[arg-type]
        escalate_to=tenure.Escalation(person="ops", after=timedelta(hours=1)) if on_breach == "escalate" else (),
    )
    load = flow.task("load", agent="Worker", task_type="load")
    fit = flow.task("fit", agent="Worker", task_type="fit", after=[load])
    price = flow.task("price", agent="Worker", task_type="price", after=[load])
    flow.task("publish", agent="Worker", task_type="publish", after=[fit, price.ended])
    for n in range(many):
        flow.task(f"many-{n}", agent="Worker", task_type="many", after=[load])
    run = app.workflows.start(flow, key=f"{name}-7")
    (first,) = app.claim(queues="Worker", worker="w-1", kinds=["load"])
    app.complete(first, {"ok": True})
    app.workflows.advance()
    for grant in app.claim(queues="Worker", worker="w-1", kinds=["price"]):
        app.reject(grant, "ValueError: canary-error")
    app.workflows.advance()
    return run.id


async def test_the_api_lists_shows_pages_cancels_and_retries(server: Server) -> None:
    flow = _started(server.app)
    other = _started(server.app, name="export")

    async with server.client(server.token("operate")) as client:
        first = (await client.get("/api/v1/workflows", params={"limit": 1})).json()
        second = (await client.get("/api/v1/workflows", params={"cursor": first["next"], "limit": 1})).json()
        named = (await client.get("/api/v1/workflows", params={"name": "import"})).json()
        shown = (await client.get(f"/api/v1/workflows/{flow}")).json()["item"]
        tasks = (await client.get(f"/api/v1/workflows/{flow}/tasks", params={"outcome": "failed"})).json()
        retried = await client.post(f"/api/v1/workflows/{flow}/retry", json={"reason": "price list mended"})
        cancelled = await client.post(f"/api/v1/workflows/{other}/cancel", json={"reason": "not wanted"})
        again = await client.post(f"/api/v1/workflows/{other}/retry", json={"reason": "too late"})

    assert [first["items"][0]["id"], second["items"][0]["id"]] == [other, flow]
    assert [one["id"] for one in named["items"]] == [flow]
    assert (shown["counts"]["failed"], shown["counts"]["open"]) == (1, 2)
    assert {(node["name"], node["state"]) for node in shown["graph"]["nodes"]} == {
        ("load", "succeeded"), ("fit", "queued"), ("price", "failed"), ("publish", "blocked"),
    }  # fmt: skip
    assert len(shown["graph"]["edges"]) == 4
    assert [one["name"] for one in tasks["items"]] == ["price"]
    assert tasks["items"][0]["last_error"] is None  # the token may not read payloads
    assert retried.json()["item"]["counts"]["failed"] == 0
    assert cancelled.json()["item"]["state"] == "cancelled"
    assert again.status_code == 409
    assert {row.act for row in server.app.access.audit(limit=50)} >= {"http:retry_workflow", "http:cancel_workflow"}


async def test_an_id_that_is_unknown_malformed_or_a_cursor_of_another_is_refused(small: Server) -> None:
    flow = _started(small.app, many=3)
    other = _started(small.app, name="export", many=3)

    async with small.client(small.token("operate")) as client:
        unknown = [(await client.get(f"/api/v1/workflows/{one}")).json()["detail"] for one in ("zzz", "0" * 36, "%00")]
        missing = await client.get(f"/api/v1/workflows/{MISSING}/tasks")
        cursor = (await client.get(f"/api/v1/workflows/{flow}/tasks", params={"limit": 1})).json()["next"]
        foreign = await client.get(f"/api/v1/workflows/{other}/tasks", params={"cursor": cursor})

    assert len(set(unknown)) == 1
    assert missing.status_code == 404
    assert foreign.status_code == 422 or foreign.status_code == 400


async def test_an_escalation_is_answered_by_the_api_and_by_the_page(small: Server) -> None:
    first = _started(small.app, on_breach="escalate")
    second = _started(small.app, on_breach="escalate", name="export")
    (one, two) = small.app.workflows.escalations()

    async with small.client(small.token("operate")) as client:
        answered = await client.post(
            f"/api/v1/escalations/{one.id}/answer",
            json={"answer": "raise_threshold", "threshold": {"share": 0.9}, "note": "prices may be missing"},
        )
    async with signed_in(small) as browser:
        page = _text(await browser.get(f"/ui/workflows/{second}"))
        none = await browser.post(f"/ui/workflows/{second}/answer", data={"escalation": two.id, "reason": "x"})
        done = await browser.post(
            f"/ui/workflows/{second}/answer", data={"escalation": two.id, "answer": "fail", "reason": "give up"}
        )

    assert answered.json()["item"]["state"] == "answered"
    assert small.app.workflows.get(first).state == "running"
    assert "What shall become of it?" in page
    assert none.status_code == 400
    assert done.status_code == 303
    assert small.app.workflows.get(second).state == "failed"


async def test_the_page_shows_progress_reasons_graph_and_outline(server: Server) -> None:
    flow = _started(server.app)

    async with signed_in(server) as client:
        listed = _text(await client.get("/ui/workflows"))
        filtered = _text(await client.get("/ui/workflows?state=completed"))
        answer = await client.get(f"/ui/workflows/{flow}")
    page = _text(answer)

    assert "2 of 4" in listed
    assert "No workflow matches" in filtered
    for said in (
        "2 of 4 tasks ended",
        "Why it is not done",
        "after 1 attempt",
        "canary-error",
        "Outline",
        "needs 1 more",
    ):
        assert said.replace(" ", "\xa0") in page.replace(" ", "\xa0"), said
    assert answer.text.count('class="node ') == 4
    assert answer.text.count('class="link') == 4
    assert "after fit, price (any end)" in page
    assert f"tenure workflows show {flow}" in page


async def test_without_the_scope_no_error_of_a_task_is_shown(small: Server) -> None:
    flow = _started(small.app)

    async with signed_in(small, "read:meta", "operate") as client:
        pages = [await client.get(path) for path in ("/ui/workflows", f"/ui/workflows/{flow}")]

    assert all(page.status_code == 200 and "canary" not in page.text for page in pages)


async def test_a_workflow_of_many_tasks_is_folded(small: Server) -> None:
    flow = _started(small.app, many=400)

    async with signed_in(small) as client:
        answer = await client.get(f"/ui/workflows/{flow}")

    assert answer.text.count('class="node ') == 5
    assert "404\xa0tasks are drawn as 5\xa0nodes" in answer.text
    assert len(answer.text) < 60_000


async def test_acts_ask_first_and_need_a_reason(small: Server) -> None:
    flow = _started(small.app)

    async with signed_in(small) as client:
        asked = _text(await client.get(f"/ui/workflows/{flow}/cancel"))
        refused = await client.post(f"/ui/workflows/{flow}/cancel", data={"reason": ""})
        retried = await client.post(f"/ui/workflows/{flow}/retry", data={"reason": "mended"})
        cancelled = await client.post(f"/ui/workflows/{flow}/cancel", data={"reason": "not wanted"})
        odd = await client.post(f"/ui/workflows/{flow}/explode", data={"reason": "x"})
        over = await client.get(f"/ui/workflows/{flow}/cancel")

    assert "Cancel import-7?" in asked
    assert (refused.status_code, retried.status_code, cancelled.status_code) == (400, 303, 303)
    assert (odd.status_code, over.status_code) == (404, 400)
    assert small.app.workflows.get(flow).state == "cancelled"


async def test_a_label_of_jobs_that_is_no_workflow_leads_to_its_jobs(small: Server) -> None:
    small.app.enqueue("k", {}, workflow_id=MISSING)

    async with signed_in(small) as client:
        answer = await client.get(f"/ui/workflows/{MISSING}")
        nothing = await client.get("/ui/workflows/00000000-0000-7000-8000-000000000001")

    assert answer.headers["location"].startswith("/ui/jobs?q=workflow")
    assert nothing.status_code == 404


@pytest.mark.parametrize("vector", VECTORS[:30])
async def test_no_name_escapes_its_place(small: Server, vector: str) -> None:
    name = re.sub(r"[\x00-\x1f]", "", vector)[:80]
    small.app.agent("A")
    shapes = []
    for text in (name, "harmless"):
        flow = tenure.Workflow(text)
        flow.task(text, agent="A", task_type=text)
        run = small.app.workflows.start(flow)
        async with signed_in(small) as client:
            page = (await client.get(f"/ui/workflows/{run.id}")).text
        main = page[page.index("<main") : page.index("</main>")].replace(run.id, "ID")
        main = re.sub(r"/jobs/[0-9a-f-]{36}", "/jobs/ID", main)
        shapes.append([re.sub(r'"[^"]*"', '""', tag) for tag in re.findall(r"</?[a-zA-Z][^>]*>", main)])

    assert shapes[0] == shapes[1]
