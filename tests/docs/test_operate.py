"""What the pages on operation say about logins holds for real ones."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

import tenure
from tests.servers import PostgresServer

pytestmark = pytest.mark.postgres


@pytest.fixture
def admin(postgres_url: str) -> Iterator[tenure.App]:
    with tenure.App(postgres_url) as app:
        app.queues.all()
        yield app


@pytest.fixture
def worker_url(postgres_server: PostgresServer, postgres_url: str, admin: tenure.App) -> Iterator[str]:
    """The same database for a login that has the role tenure_worker and no other."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE ROLE docs_worker LOGIN")
        connection.execute("GRANT tenure_worker TO docs_worker")
        yield postgres_server.url(str(conninfo_to_dict(postgres_url)["dbname"]), user="docs_worker")
        connection.execute("DROP ROLE docs_worker")


def app_at(url: str) -> tenure.App:
    app = tenure.App(url)

    @app.job(queue="mail")
    def double(number: int) -> int:
        return 2 * number

    return app


def test_a_workers_login_runs_the_jobs_of_a_queue_that_an_admin_made(admin: tenure.App, worker_url: str) -> None:
    admin.queues.set("mail")
    job = admin.enqueue("double", 4, queue="mail")

    with app_at(worker_url) as app:
        stats = app.run_worker(drain=True, handle_signals=False, maintain=False)

    assert (stats.completed, admin.get(job.id).result) == (1, 8)


def test_a_workers_login_cannot_create_a_queue_and_says_so(admin: tenure.App, worker_url: str) -> None:
    with app_at(worker_url) as app, pytest.raises(tenure.AccessDenied, match="set_queues"):
        app.run_worker(drain=True, handle_signals=False, maintain=False)

    assert [queue.name for queue in admin.queues.all()] == ["default"]
