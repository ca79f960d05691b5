"""AutoMechanica: an orchestrator takes a supplier through four agents, one of which fails: python main.py [URL]

The orchestrator starts a workflow and answers what it is asked. The agents know nothing of each other: each works on
the tasks of its own queue. Runs on a SQLite file with no server, or on the database that the URL names.
"""

import sys
from datetime import timedelta
from typing import Any

import tenure

URL = sys.argv[1] if len(sys.argv) > 1 else "sqlite:///automechanica.db"
PARTS = ["BX-4471", "BX-4472", "BX-4473", "CC-0001"]

app = tenure.App(URL, embedder="words", actor="orchestrator")
app.use(tenure.embeddings())
supplier, fitment = app.agent("SupplierAgent"), app.agent("FitmentAgent")
pricing, seo = app.agent("PricingAgent"), app.agent("SeoAgent")
repaired: set[str] = set()
"""Parts whose data a person has put right."""


@supplier.job(kind="normalise")
def normalise(payload: dict[str, Any], ctx: tenure.Context) -> dict[str, Any]:
    ctx.set_result_summary(f"supplier {payload['supplier']}: {len(PARTS)} parts")
    return {"parts": [{"sku": sku, "name": f"brake disc {sku}"} for sku in PARTS]}


@fitment.job(kind="generate_fitment", max_attempts=1)
def generate_fitment(payload: dict[str, Any], ctx: tenure.Context) -> dict[str, Any]:
    sku = payload["item"]["sku"]
    if sku.startswith("CC") and sku not in repaired:
        raise tenure.Permanent(f"{sku}: the supplier gives no diameter")
    ctx.set_result_summary(f"{sku} fits the Golf IV, rear axle")
    return {"sku": sku, "fits": ["Golf IV"]}


@pricing.job(kind="refresh_price")
def refresh_price() -> dict[str, float]:
    return {sku: 19.9 + number for number, sku in enumerate(PARTS)}


@seo.job(kind="write_page")
def write_page(payload: dict[str, Any]) -> str:
    return f"Brake discs by supplier {payload['supplier']}: {len(PARTS)} pages written"


def onboarding(number: int) -> tenure.Workflow:
    """normalise → fitment of every part, prices → pages."""
    flow = tenure.Workflow(
        "onboard_supplier",
        fail=tenure.FailureThreshold(count=1),
        on_breach="escalate",
        escalate_to=tenure.Escalation(person="catalogue", after=timedelta(hours=4)),
        deadline=timedelta(days=2),
    )
    about = {"supplier": number}
    parts = flow.task("normalise", agent="SupplierAgent", task_type="normalise", payload=about, priority=1)
    fits = flow.each(
        "fitment", agent="FitmentAgent", task_type="generate_fitment", over=parts.result["parts"], priority=0
    )
    price = flow.task("price", agent="PricingAgent", task_type="refresh_price", after=[parts], optional=True)
    flow.task("pages", agent="SeoAgent", task_type="write_page", payload=about, after=[fits, price.ended])
    return flow


def work(run_id: str) -> tenure.WorkflowRow:
    """Let the agents work until the workflow ends or asks. In earnest each agent is a `tenure worker` of its own."""
    while True:
        app.run_worker(drain=True)
        app.workflows.advance()
        found = app.workflows.get(run_id)
        if found.state in ("completed", "failed", "escalated"):
            return found


def main() -> None:
    app.profiles.install("automechanica")
    run = app.workflows.start(onboarding(7), key="supplier-7")
    print("started:", app.workflows.get(run.id).name, "with", app.workflows.get(run.id).total, "tasks")

    found = work(run.id)
    [asked] = app.workflows.escalations(person="catalogue")
    failed = next(task for task in app.workflows.tasks(run.id) if task.outcome == "tolerated")
    why = str(failed.last_error).splitlines()[-1]
    print(f"{found.state}: {asked.detail}; {failed.name}: {why}")

    repaired.add("CC-0001")  # the person rings the supplier, and answers
    app.workflows.answer(asked.id, "retry_failed", actor="jane", note="the supplier sent the diameter")
    extra = {"agent_name": "SeoAgent", "task_type": "write_page", "payload": {"supplier": 7}, "workflow_id": run.id}
    app.create_task(extra)  # one more task joins the running workflow

    found = work(run.id)
    print(f"{found.state}: {found.succeeded} of {found.total} tasks succeeded")
    try:
        fitment.create_task("refresh_price", agent_name="PricingAgent")
    except tenure.Forbidden as refused:
        print("refused:", str(refused).partition(".")[0])
    hit = app.memory.search("which disc fits the Golf IV", agent="FitmentAgent", limit=1)[0]
    print("remembered:", hit.agent, "·", hit.text.split(". ")[1])
    print(app.workflows.graph(run.id).to_mermaid().splitlines()[0], f"… {len(app.workflows.graph(run.id).nodes)} nodes")


if __name__ == "__main__":
    with app:
        main()
