"""What mypy must refuse: each line that ends in `# E` has an error, and no other has."""

from __future__ import annotations

from dataclasses import dataclass

import tenure

app = tenure.App()


@dataclass
class Report:
    month: str


@app.job
def report(payload: Report) -> int:
    return len(payload.month)


@app.job
def tick() -> None: ...


@app.job  # E
def two_payloads(first: int, second: int) -> None: ...


@app.job(queue=7)  # E
def wrong_queue() -> None: ...


report.enqueue()  # E
report.enqueue(7)  # E
report.enqueue(Report("may"), prority=3)  # E
report.enqueue(Report("may"), priority="high")  # E
report("may")  # E
tick.enqueue(Report("may"))  # E
app.queue("q", max_atempts=3)  # E
app.queue("q", key_scope="always")  # E
app.revive("id")  # E
app.claim("worker")  # E
app.cancel(7)  # E
app.fail("id", "x")  # E
app.complete(app.claim())  # E
print(app.get("id").sate)  # E
app.get("id").state = tenure.State.DEAD  # E
report.enqueue({"month": "may"})
app.enqueue("report", Report("may"))
