"""How fast the console is beside millions of jobs, and what viewers cost workers. One command per engine:

    python -m benchmarks.console --engine sqlite       2,000,000 ended jobs
    python -m benchmarks.console --engine postgres    10,000,000

A database is filled through the product (enqueue, claim, end; one job in a hundred dies) with a tenth of the jobs, at
most 200,000; the rest are copies of these rows with other ids and earlier moments. It stays in a folder, so a second
run measures without filling; `--fresh` begins anew. Then
`tenure serve` is started on it. Fifty viewers sign in, hold a live stream each, and ask for pages again and again, each
after a pause. Besides, one worker process drains no-op jobs, with the viewers and without them by turns.

Prints percentiles by page, the processor time that the server took for a page, and the ratio. An answer that is no page
is counted and named, and the run goes on; the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import psycopg

import tenure
from benchmarks import machine
from benchmarks.errors import BenchError
from benchmarks.scale import app, drain_rate
from benchmarks.servers import postgres
from benchmarks.tenure_tables import Tables
from tenure.errors import SchemaError
from tenure.model.access import EVERYTHING
from tenure.model.outcome import Completed, Failed
from tenure.store.contract import Claim, Settle

PAGES: Final = ("/", "/jobs", "/jobs?q=state:dead", "/jobs/{job}", "/dead-letters", "/queues", "/metrics")
JOBS: Final = {"sqlite": 2_000_000, "postgres": 10_000_000}
BATCH: Final = 2_000
DEAD_OF: Final = 100
WRITTEN: Final = 200_000
"""Jobs that the product writes; the others are copies of theirs."""
PAUSE_SECONDS: Final = 2.0
"""A viewer looks at a page so long before it asks for the next."""
DRAINED: Final = 20_000
ROUNDS: Final = 3
READY_SECONDS: Final = 60.0


def main() -> None:
    """Fill, serve, look, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--jobs", type=int, help="ended jobs beside which pages are asked for")
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long pages are asked for")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp/tenure-console"), help="where the database stays")
    parser.add_argument("--url", help="another database, to fill and measure instead; it keeps its jobs")
    parser.add_argument("--fresh", action="store_true", help="remove what an earlier run left, and begin anew")
    parser.add_argument("--only-fill", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    jobs = options.jobs or JOBS[options.engine]
    print("; ".join(f"{name}: {value}" for name, value in machine.describe().items()), flush=True)
    try:
        with database(options.engine, options.folder, options.url, is_fresh=options.fresh) as url:
            fill(url, jobs)
            if options.only_fill:
                return
            found = asyncio.run(measure(url, options.viewers, options.seconds))
    except (BenchError, tenure.errors.TenureError) as exc:
        sys.exit(f"{type(exc).__name__}: {exc}")
    found = {"engine": options.engine, "jobs": jobs, "viewers": options.viewers, **found}
    show(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    sys.exit(1 if found["refused"] else 0)


@contextlib.contextmanager
def database(engine: str, folder: Path, url: str | None, *, is_fresh: bool) -> Iterator[str]:
    """The database to measure, migrated."""
    own = folder / engine
    if is_fresh and not url:
        shutil.rmtree(own, ignore_errors=True)
    with contextlib.ExitStack() as stack:
        if not url:
            own.mkdir(parents=True, exist_ok=True)
            own.chmod(0o755 if engine == "postgres" else 0o700)
            kept = stack.enter_context(postgres(own, keep=True)).url if engine == "postgres" else ""
            url = kept or f"sqlite:///{own}/jobs.db"
        stack.enter_context(app.pointed_at(url))
        try:
            app.migrate()
        except SchemaError as exc:
            raise BenchError(f"{exc} Begin anew with --fresh.") from exc
        if not app.queues.all("scale"):
            app.queues.set("scale")
        yield url


def fill(url: str, jobs: int) -> None:
    """End so many jobs; those that are there count."""
    there = sum(one.jobs for one in app.queues.counts(queue="scale", state=("succeeded", "dead")))
    worker = tenure.WorkerId("fill")
    begun = time.perf_counter()

    def told(done: int) -> None:
        print(f"filled {done:,} of {jobs:,} jobs, {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)

    end_all(worker)  # what a run that was cut off left
    written = min(jobs // 10, WRITTEN)
    for done in range(there, written, BATCH):
        app.enqueue_many(
            [app.new_job("nothing", {"user_id": n, "text": "x" * 100}, max_attempts=1) for n in range(BATCH)]
        )
        end_all(worker)
        if done % 20_000 == 0:
            told(done)
    if there < jobs:
        with contextlib.closing(Tables(url)) as tables:
            tables.copy_history(jobs, told)
    if there < jobs and not url.startswith("sqlite"):
        print("vacuum", file=sys.stderr, flush=True)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE)")
            connection.execute("CHECKPOINT")


def end_all(worker: tenure.WorkerId) -> None:
    """Claim and end what waits; one in a hundred dies."""
    while grants := app.store.do(Claim(worker, ["scale"], limit=BATCH)):
        ends = [
            Failed(grant.id, grant.token, f"ValueError: supplier {n % 17} did not answer")
            if n % DEAD_OF == 0
            else Completed(grant.id, grant.token, '{"ok": true}', "done")
            for n, grant in enumerate(grants)
        ]
        app.store.do(Settle(ends))


async def measure(url: str, viewers: int, seconds: float) -> dict[str, object]:
    """Pages asked for by all viewers, then drains with and without them by turns."""
    (job,) = (await asyncio.to_thread(app.jobs, state="dead", limit=1)).items
    with serving(url) as server:
        links = [await asyncio.to_thread(app.access.new_link, f"viewer {n}", EVERYTHING) for n in range(viewers)]
        people = [Viewer(server.port, job.id) for _ in range(viewers)]
        for person, link in zip(people, links, strict=True):
            await person.sign_in(link)
        worked = server.worked_seconds()
        looks = await look(people, seconds)
        worked = server.worked_seconds() - worked
        rates: dict[str, list[float]] = {"with viewers": [], "without": []}
        for _ in range(ROUNDS):
            looking = asyncio.create_task(look(people, 3600))
            await asyncio.sleep(1)
            rates["with viewers"].append(await asyncio.to_thread(drain_rate, url, 1, DRAINED))
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            rates["without"].append(await asyncio.to_thread(drain_rate, url, 1, DRAINED))
        server.check()
    asked = sum(len(times) for times in looks.times.values())
    ratio = statistics.median(rates["with viewers"]) / statistics.median(rates["without"])
    return {
        "pages": {page: spread(times) for page, times in looks.times.items()},
        "refused": dict(looks.refused),
        "server_ms_per_page": round(1000 * worked / max(1, asked), 1),
        "drain": rates,
        "ratio": round(ratio, 3),
    }


class Serving:
    """A `tenure serve` of the measured code."""

    def __init__(self, process: subprocess.Popen[str], port: int, log: Path) -> None:
        self.port = port
        self._process = process
        self._log = log

    def worked_seconds(self) -> float:
        """The processor time that it has taken so far."""
        stat = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def check(self) -> None:
        """Raises: BenchError, if it has ended."""
        if self._process.poll() is not None:
            raise BenchError(f"tenure serve ended with {self._process.returncode}: {self._log.read_text()[-2000:]}")


@contextlib.contextmanager
def serving(url: str) -> Iterator[Serving]:
    """A server on a port of its own."""
    command = [sys.executable, "-m", "tenure", "serve", "--port", "0", "--json", "--no-link"]
    with tempfile.NamedTemporaryFile("w", prefix="tenure-serve-", suffix=".log") as log:
        process = subprocess.Popen(
            command, env={**os.environ, "TENURE_URL": url}, stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            if not said:
                process.wait(READY_SECONDS)
                raise BenchError(f"tenure serve did not start: {Path(log.name).read_text()[-2000:]}")
            yield Serving(process, int(json.loads(said)["url"].rpartition(":")[2]), Path(log.name))
        finally:
            process.terminate()
            process.wait(30)


class Refused(Exception):
    """An answer that is no page."""


class Viewer:
    """A signed-in browser without scripts: one connection for pages, one for its live stream. It speaks HTTP by itself,
    because a client library would take more processor time than the server that is measured."""

    def __init__(self, port: int, job_id: str) -> None:
        self._port = port
        self._job_id = job_id
        self._cookie = ""
        self._stream = ""
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def sign_in(self, link: str) -> None:
        """By a link that works once."""
        body = urlencode({"code": link}).encode()
        head = (
            f"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {len(body)}\r\n"
            f"Sec-Fetch-Site: same-origin\r\nOrigin: http://127.0.0.1:{self._port}\r\n"
        )
        status, headers, text = await self._ask("POST", "/ui/session", head, body)
        found = re.search(r"set-cookie: (tenure-\d+=[^;]+)", headers, re.IGNORECASE)
        if status != 303 or found is None:
            raise BenchError(f"A viewer was not signed in: {status} {text[:300]}")
        self._cookie = found[1]
        until = time.monotonic() + READY_SECONDS
        while not self._stream:  # the server's first look at the database may take a while
            shown = re.search(r'hx-sse:connect="([^"]+)"', await self.page("/"))
            self._stream = "" if shown is None else shown[1].replace("&amp;", "&")
            if time.monotonic() > until:
                raise BenchError("The overview has no live stream.")

    async def page(self, path: str) -> str:
        """A page's HTML. Raises: Refused."""
        status, _, text = await self._ask("GET", "/ui" + path.replace("{job}", self._job_id), "", b"")
        if status != 200:
            told = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text.partition("<main")[2] or text)).strip()
            raise Refused(f"{path}: {status} {told[:120]}")
        return text

    async def watch(self) -> None:
        """Read the live stream of the overview for ever."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(self._head("GET", self._stream, "Accept: text/event-stream\r\n"))
            while await reader.read(65_536):
                pass
        finally:
            writer.close()
        raise BenchError("A live stream was ended by the server.")

    def close(self) -> None:
        """Let go of the connection for pages."""
        if self._connection is not None:
            self._connection[1].close()
        self._connection = None

    async def _ask(self, verb: str, path: str, more: str, body: bytes) -> tuple[int, str, str]:
        if self._connection is None:
            self._connection = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._connection
        try:
            writer.write(self._head(verb, path, more) + body)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
            text = await reader.readexactly(int(length[1]) if length else 0)
        except BaseException:
            self.close()  # an answer that was not read to its end would be taken for the next one
            raise
        return int(head.split(" ", 2)[1]), head, text.decode()

    def _head(self, verb: str, path: str, more: str) -> bytes:
        cookie = f"Cookie: {self._cookie}\r\n" if self._cookie else ""
        return f"{verb} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n{cookie}{more}\r\n".encode()


class Looks:
    """What the viewers met: milliseconds by page, and answers that were no pages."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = defaultdict(list)
        self.refused: Counter[str] = Counter()


async def look(people: list[Viewer], seconds: float) -> Looks:
    """Every viewer holds its stream and asks for one page after the other."""
    found = Looks()
    until = time.perf_counter() + seconds

    async def browse(number: int, person: Viewer) -> None:
        await asyncio.sleep(PAUSE_SECONDS * number / len(people))
        for turn in range(number, 10**9):
            begun = time.perf_counter()
            if begun > until:
                return
            path = PAGES[turn % len(PAGES)]
            try:
                await person.page(path)
                found.times[path].append((time.perf_counter() - begun) * 1000)
            except Refused as exc:
                found.refused[str(exc)] += 1
            except (OSError, asyncio.IncompleteReadError) as exc:
                found.refused[f"{path}: {type(exc).__name__}"] += 1
            await asyncio.sleep(PAUSE_SECONDS)

    async def both(number: int, person: Viewer) -> None:
        watching = asyncio.create_task(person.watch())
        browsing = asyncio.create_task(browse(number, person))
        try:
            await asyncio.wait((watching, browsing), return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()  # raises why
            await browsing
        finally:
            for task in (watching, browsing):
                task.cancel()
            await asyncio.gather(watching, browsing, return_exceptions=True)
            person.close()

    await asyncio.gather(*(both(number, person) for number, person in enumerate(people)))
    return found


def spread(times: list[float]) -> dict[str, float]:
    """How many, and percentiles in milliseconds."""
    ranked = sorted(times)
    p95 = ranked[max(0, round(len(ranked) * 0.95) - 1)]
    found = {"p50": statistics.median(ranked), "p95": p95, "longest": ranked[-1]}
    return {"asked": len(ranked), **{name: round(value, 1) for name, value in found.items()}}


def show(found: dict[str, object]) -> None:
    """Print the figures in Markdown."""
    pages, drain, refused = found["pages"], found["drain"], found["refused"]
    assert isinstance(pages, dict)
    assert isinstance(drain, dict)
    assert isinstance(refused, dict)
    print(f"\n{found['engine']}, {found['jobs']:,} ended jobs, {found['viewers']} viewers\n")
    print("| page | asked | p50 ms | p95 ms | longest ms |\n|---|---:|---:|---:|---:|")
    for page in PAGES:
        if page in pages:
            one = pages[page]
            print(f"| `{page}` | {one['asked']} | {one['p50']:.0f} | {one['p95']:.0f} | {one['longest']:.0f} |")
    print(f"\nprocessor time of the server, its streams included: {found['server_ms_per_page']} ms a page")
    for title, rates in drain.items():
        print(f"drain {title}: {', '.join(f'{rate:,.0f}' for rate in rates)} jobs/s")
    print(f"with ÷ without: {found['ratio']}")
    for what, times in refused.items():
        print(f"REFUSED {times} times: {what}")


if __name__ == "__main__":
    main()
