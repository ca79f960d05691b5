"""Customers in JSON files, each change with its side effects, and a worker that is killed amid it all.

    python examples/outbox/main.py

The data files are the data layer; the queue only remembers what must still happen. A change is one call: it is refused,
or the file and the mails come, whichever process dies in between.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pydantic

import tenure
from tenure.effects import Outbox
from tenure.effects.outbox import Change

DATABASE, DATA, MAILS = Path("outbox.db"), Path("data"), Path("mails.txt")

app = tenure.App(f"sqlite:///{DATABASE}")
outbox = Outbox(DATA)
app.use(outbox)
app.queue("mail", lease_seconds=1.0)  # short, so that the example need not wait long for the dead


class Mail(pydantic.BaseModel):
    to: str
    subject: str


@app.job(queue="mail", max_attempts=20)
def send_mail(payload: Mail, ctx: tenure.Context) -> None:
    def deliver(call: tenure.EffectCall) -> None:
        time.sleep(0.02)
        with MAILS.open("a") as file:
            file.write(f"{call.key} {payload.to}: {payload.subject}\n")

    def was_delivered(call: tenure.EffectCall) -> bool:
        return MAILS.exists() and call.key in MAILS.read_text()

    ctx.effect("deliver", payload.model_dump(), do=deliver, verify=was_delivered)


def sign_up(number: int) -> None:
    address = f"customer-{number}@example.com"

    def change(data: Any, box: Change) -> dict[str, Any]:
        box.enqueue("send_mail", Mail(to=address, subject="Welcome"))
        return {**(data or {}), "email": address, "visits": 0}

    outbox.update(f"customers/{number}.json", change)


def visit(number: int) -> None:
    def change(data: Any, box: Change) -> None:
        data["visits"] += 1
        if data["visits"] == 3:
            box.then("send_mail", Mail(to=data["email"], subject="Thank you for three visits"))

    outbox.update(f"customers/{number}.json", change)


def main() -> None:
    if DATABASE.exists():
        sys.exit(f"{DATABASE} is here from an earlier run, which would be counted too. Start in an empty folder.")
    DATA.mkdir(exist_ok=True)
    for number in range(20):
        sign_up(number)
    app.queues.set("outbox_files", lease_seconds=1.0)
    for _ in range(3):
        for number in range(20):
            visit(number)
    print(f"accepted: 80 changes; files written so far: {len(list(DATA.rglob('*.json')))}")
    print(f"customer 7, as every reader sees it already: {outbox.read('customers/7.json')}")

    for _ in range(3):
        worker = subprocess.Popen([sys.executable, __file__, "worker"])
        time.sleep(0.8)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    print("three workers were killed amid their work")

    while app.queues.counts(state=["queued", "leased", "running"]):
        app.run_worker(concurrency=4, drain=True, poll_seconds=0.1)
        time.sleep(0.2)  # what a dead worker held comes back when its lease has run out
    visits = [outbox.read(f"customers/{number}.json")["visits"] for number in range(20)]
    written = len(list(DATA.rglob("*.json")))
    mails = [line.partition(" ")[0] for line in MAILS.read_text().splitlines()]
    print(f"files: {written}, visits: {sum(visits)}, mails: {len(mails)}, sent twice: {len(mails) - len(set(mails))}")
    print(f"discrepancies between records and files: {len(list(app.effects.reconcile()))}")
    assert (written, sum(visits), len(mails), len(set(mails))) == (20, 60, 40, 40)


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        app.run_worker(concurrency=4, poll_seconds=0.1)
    else:
        main()
    app.close()
