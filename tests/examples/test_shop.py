"""The shop of examples/shop_fastapi: a real server, real workers, buyers at once."""

from __future__ import annotations

import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

import tenure
from tests.examples.running import EXAMPLES, ask, await_server
from tests.integrations.served import started
from tests.servers import free_port
from tests.waiting import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

SHOP = EXAMPLES / "shop_fastapi"
POTS, BUYERS = 10, 30


def test_an_order_its_stock_and_its_jobs_are_one_transaction(postgres_url: str) -> None:
    environment = {"DATABASE_URL": postgres_url}
    port = free_port()
    server = ["-m", "uvicorn", "shop:api", "--port", str(port), "--log-level", "warning"]
    worker = ["-m", "tenure", "worker", "shop:queue"]
    at = f"http://127.0.0.1:{port}"

    def buy(number: int) -> tuple[int, dict[str, object]]:
        return ask(f"{at}/orders", {"sku": "tea", "quantity": 1, "mail_to": f"{number}@example.org"})

    with started(server, SHOP, environment) as api:
        await_server(f"{at}/openapi.json", api)
        assert ask(f"{at}/articles/tea?left={POTS}", {}, method="PUT") == (200, {"left": POTS})
        with tenure.App(postgres_url) as app, started(worker, SHOP, environment) as first:
            with ThreadPoolExecutor(8) as buyers:
                answers = list(buyers.map(buy, range(BUYERS)))
            assert Counter(status for status, _ in answers) == {201: POTS, 409: BUYERS - POTS}, api.output
            bought = [answer for status, answer in answers if status == 201]

            wait_until(lambda: any(ask(f"{at}/orders/{one['order']}")[1]["mails"] for one in bought), 60)
            first.process.send_signal(signal.SIGKILL)
            first.process.wait()
            with started(worker, SHOP, environment) as second:
                # What the dead worker held is taken over when its lease has run out.
                wait_until(lambda: all(ask(f"{at}/orders/{one['order']}")[1]["mails"] for one in bought), 150)
                assert second.process.poll() is None, second.output

            packed = [ask(f"{at}/orders/{one['order']}")[1] for one in bought]
            assert {one["state"] for one in packed} == {"packed"}
            assert [len(one["mails"]) for one in packed] == [1] * POTS
            # An order that was refused has left no job, not even a failed one.
            assert {job.id for job in app.jobs(kind="pack")} == {one["job"] for one in bought}
            assert len(app.jobs(kind="tell")) == POTS
        with psycopg.connect(postgres_url) as connection:
            assert connection.execute('SELECT "left" FROM article').fetchone() == (0,)
            assert connection.execute("SELECT count(*) FROM customer_order").fetchone() == (POTS,)
        assert ask(f"{at}/orders", {"sku": "tea", "quantity": 0, "mail_to": "x"})[0] == 422
        assert ask(f"{at}/orders", {"sku": "gold", "quantity": 1, "mail_to": "x"}) == (
            409,
            {"detail": "no such article"},
        )
        assert ask(f"{at}/orders/999999")[0] == 404
        assert api.terminate() in {0, -signal.SIGTERM}, api.output  # uvicorn ends by the signal itself
