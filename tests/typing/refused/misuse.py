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


@app.job
def resize(image_id: int, width: int = 80) -> str:
    return f"{image_id} {width}"


@app.job
async def count(ctx: tenure.Context, word: str) -> int:
    return len(ctx.kind + word)


@app.job(queue=7)  # E
def wrong_queue() -> None: ...


report.enqueue()  # E
report.enqueue(7)  # E
report.enqueue(Report("may"), priority=3)  # E
report.options(prority=3).enqueue(Report("may"))  # E
report.options(priority="high").enqueue(Report("may"))  # E
resize.enqueue()  # E
resize.enqueue("7")  # E
resize.enqueue(7, height=80)  # E
resize.options(key="7").enqueue(7, width="80")  # E
length: int = resize.enqueue(7).result()  # E
count.enqueue(7)  # E
report.enqueue({"month": "may"})  # E
app.job(retry_on="OSError")  # E
report("may")  # E
tick.enqueue(Report("may"))  # E
app.queue("q", max_atempts=3)  # E
app.queue("q", key_scope="always")  # E
app.run_worker(poll_second=1)  # E
app.worker(prefetch="many")  # E
app.revive("id")  # E
app.claim("worker")  # E
app.cancel(7)  # E
app.fail("id", "x")  # E
app.complete(app.claim())  # E
print(app.get("id").sate)  # E
app.get("id").state = tenure.State.DEAD  # E
app.enqueue("report", Report("may"))


@app.middleware  # E
def no_middleware(ctx: tenure.Context, call: int) -> None: ...
