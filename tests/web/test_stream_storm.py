"""Viewers of live events by the hundred on real server processes: one is killed, all come back to the other, while two
writers commit out of order. No event is lost, none is shown twice.

The database's clock stands still: what a viewer resumes from is a place among commits, and no time that has gone by.
`TENURE_LONG=1`: a thousand viewers.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

import tenure
from tests.conformance.engines import SteeredDatabase
from tests.servers import PostgresServer
from tests.web.test_serve import COMMAND

pytestmark = [pytest.mark.postgres, pytest.mark.anyio, pytest.mark.timeout(600)]

LONG = os.environ.get("TENURE_LONG") == "1"
VIEWERS = 1000 if LONG else 24
PAIRS = 30 if LONG else 6
"""Pairs of events of which the later number commits first, before the server is killed, and as many after it."""
PER_TOKEN = 60


@pytest.fixture
def still(postgres_server: PostgresServer) -> Iterator[SteeredDatabase]:
    database = SteeredDatabase(postgres_server)
    yield database
    database.close()


@contextmanager
def serving(url: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server process and its port."""
    told = {**os.environ, "TENURE_URL": url}
    command = [*COMMAND, "serve", "--port", "0", "--json", "--no-link"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=told, cwd=folder) as process:
        try:
            assert process.stdout is not None
            yield process, int(json.loads(process.stdout.readline())["url"].rpartition(":")[2])
        finally:
            process.kill()


class Viewer:
    """Reads one stream over a socket, and comes back with the last id it was given."""

    def __init__(self, token: str) -> None:
        self._token = token
        self.last_id = ""
        self.seen: list[int] = []
        self.resyncs = 0
        self.is_ready = asyncio.Event()

    async def watch(self, port: int) -> None:
        """Until the connection ends."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            again = f"Last-Event-ID: {self.last_id}\r\n" if self.last_id else ""
            writer.write(
                f"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {self._token}\r\n"
                f"{again}\r\n".encode()
            )
            assert b" 200 " in await reader.readline()
            identity = name = ""
            while line := (await reader.readline()).decode().rstrip("\r\n"):
                pass  # the head
            self.is_ready.set()
            while raw := await reader.readline():
                line = raw.decode().rstrip("\r\n")
                word, _, value = line.partition(": ")
                if word == "id":
                    identity = value
                elif word == "event":
                    name = value
                elif word == "data":
                    self.last_id = identity
                    self.resyncs += name == "resync"
                    if name == "job":
                        self.seen.append(json.loads(value)["seq"])
        except ConnectionError:
            pass
        finally:
            writer.close()


def write_pairs(url: str, pairs: int) -> None:
    """Two writers, each in a transaction of its own: the one that took the lower number commits last."""
    took, passed = threading.Barrier(2), threading.Barrier(2)

    def write(name: str, *, is_late: bool) -> None:
        with tenure.App(url) as app, psycopg.connect(url) as connection:
            for _ in range(pairs):
                if is_late:
                    app.enqueue(name, connection=connection)
                    took.wait(120)
                    passed.wait(120)
                    connection.commit()
                else:
                    took.wait(120)
                    app.enqueue(name, connection=connection)
                    connection.commit()
                    passed.wait(120)

    threads = [
        threading.Thread(target=write, args=(name,), kwargs={"is_late": name == "late"}) for name in ("late", "b")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)


async def until_all_have(viewers: list[Viewer], numbers: set[int]) -> None:
    async with asyncio.timeout(300):
        while not all(numbers <= set(viewer.seen) for viewer in viewers):  # noqa: ASYNC110  as many as there are
            await asyncio.sleep(0.05)


def numbers_of(url: str) -> set[int]:
    with psycopg.connect(url) as connection:
        return {row[0] for row in connection.execute("SELECT seq FROM tenure.event")}


async def test_all_viewers_come_back_to_another_process_without_loss_and_without_repetition(
    still: SteeredDatabase, tmp_path: Path
) -> None:
    with tenure.App(still.url) as app:
        app.queues.set("default", events=True)
        tokens = [app.access.new_token(f"t{n}", "read:meta").text for n in range(-(-VIEWERS // PER_TOKEN))]
    viewers = [Viewer(tokens[n // PER_TOKEN]) for n in range(VIEWERS)]
    with serving(still.url, tmp_path) as (first, port), serving(still.url, tmp_path) as (_, other):
        tasks = [asyncio.create_task(viewer.watch(port)) for viewer in viewers]
        async with asyncio.timeout(300):
            await asyncio.gather(*(viewer.is_ready.wait() for viewer in viewers))
            while not all(viewer.last_id for viewer in viewers):  # noqa: ASYNC110  each was told where it begins
                await asyncio.sleep(0.05)
        await asyncio.to_thread(write_pairs, still.url, PAIRS)
        await until_all_have(viewers, numbers_of(still.url))

        first.send_signal(signal.SIGKILL)
        await asyncio.wait(tasks, timeout=120)
        writing = asyncio.create_task(asyncio.to_thread(write_pairs, still.url, PAIRS))
        tasks = [asyncio.create_task(viewer.watch(other)) for viewer in viewers]
        await writing
        written = numbers_of(still.url)
        await until_all_have(viewers, written)
        with tenure.App(still.url) as app:
            app.enqueue("last")  # whatever was to be shown twice stands before it
        whole = numbers_of(still.url)
        await until_all_have(viewers, whole)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    assert len(whole) == 4 * PAIRS + 1
    assert {len(viewer.seen) for viewer in viewers} == {len(whole)}
    assert [viewer.resyncs for viewer in viewers if viewer.resyncs] == []
    print(f"{VIEWERS} viewers, {len(whole)} events each, {VIEWERS} resumed on another process")
