"""The chain over the audit finds what an owner of the database changed."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

import tenure
from tests.web.conftest import Server

pytestmark = pytest.mark.anyio


def tamper(url: str, statement: str) -> None:
    """What only the owner of the tables can do."""
    if url.startswith("sqlite"):
        import sqlite3

        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            connection.execute(statement.replace("tenure.", "tenure_"))
            return
    with psycopg.connect(url) as other:
        other.execute(statement.encode())


def fill(app: tenure.App) -> None:
    for name in ("a", "b", "c"):
        app.queues.set(name, max_attempts=4)
    app.access.seal()


TAMPERING = {
    "UPDATE tenure.audit SET actor = 'mallory' WHERE seq = 2": "row 2 was changed",
    "UPDATE tenure.audit SET reason = 'because' WHERE seq = 2": "row 2 was changed",
    "DELETE FROM tenure.audit WHERE seq = 2": "row 2 is gone",
    "DELETE FROM tenure.audit_seal WHERE number = 2": "Links 2 to 2 are gone",
    "UPDATE tenure.audit_seal SET seq = CASE seq WHEN 1 THEN -2 ELSE -1 END WHERE seq IN (1, 2)": "gone",
}


@pytest.mark.parametrize("statement", TAMPERING)
def test_what_was_changed_removed_or_moved_is_named(url: str, statement: str) -> None:
    with tenure.App(url) as app:
        fill(app)
        assert app.access.verify_audit().faults == ()

        tamper(url, statement)

        assert TAMPERING[statement] in " ".join(app.access.verify_audit().faults)


def test_a_chain_that_was_cut_short_is_found_by_a_head_that_was_written_down(url: str) -> None:
    with tenure.App(url) as app:
        fill(app)
        kept = app.access.verify_audit()
        tamper(url, "DELETE FROM tenure.audit WHERE seq = 3")
        tamper(url, "DELETE FROM tenure.audit_seal WHERE number = 3")

        assert app.access.verify_audit().faults == ()
        assert app.access.verify_audit(heads={kept.links: kept.head}).faults


async def test_a_server_seals_what_it_did_and_writes_the_head_down(url: str, tmp_path: Path) -> None:
    heads = tmp_path / "heads"
    with tenure.App(url) as app:
        server = Server(app, audit_heads=heads)
        async with server.client(server.token("enqueue:*")) as client:
            await client.post("/api/v1/jobs", json={"kind": "k"})
        site = server.asgi._site
        await site.background.stop()

        found = app.access.verify_audit()

    assert (found.faults, found.unsealed) == ((), 0)
    number, head = heads.read_text().split()[-2:]
    assert (int(number), head) == (found.links, found.head)


async def test_pages_of_the_audit_follow_each_other_by_a_signed_cursor(url: str) -> None:
    with tenure.App(url) as app:
        server = Server(app)
        text = server.token("admin")
        for number in range(7):
            app.queues.set("mail", max_attempts=number + 1)
        app.queues.set("other")
        expected = [row.seq for row in app.access.audit(subject="mail")]

        seen: list[int] = []
        async with server.client(text) as client:
            answer = await client.get("/api/v1/audit", params={"subject": "mail", "limit": 3})
            while True:
                page = answer.json()
                seen += [row["seq"] for row in page["items"]]
                if page["next"] is None:
                    break
                assert 'rel="next"' in answer.headers["link"]
                app.queues.set("mail", max_attempts=50)  # what comes meanwhile moves no page
                answer = await client.get("/api/v1/audit", params={"cursor": page["next"], "limit": 3})
            forged = await client.get("/api/v1/audit", params={"cursor": "eyJhIjoxfQ.AAAA"})

        assert seen == expected
        assert forged.status_code == 400
        assert [row.seq for row in app.access.audit(subject="mail", before=seen[2], limit=2)] == seen[3:5]
