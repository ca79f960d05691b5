"""`python -m benchmarks.console`: how fast the console is beside millions of jobs, and what viewers cost workers.

A database is filled through the product (enqueue, claim, end; one job in a hundred dies), then `tenure serve` is
started on it. Fifty viewers sign in, hold a live stream each, and ask for pages again and again, each after a pause.
Besides, one worker process drains no-op jobs, with the viewers and without them by turns. Prints percentiles by page
and the ratio.

`--url` names a database that stays: a second run on it measures without filling again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import nullcontext

import httpx

import tenure
from benchmarks import machine
from benchmarks.scale import app, database, drain_rate
from tenure.model.access import EVERYTHING
from tenure.model.outcome import Completed, Failed
from tenure.store.contract import Claim, Settle

PAGES = ("/", "/jobs", "/jobs?q=state:dead", "/jobs/{job}", "/dead-letters", "/queues", "/metrics")
SERVE_PORT = 8431
BATCH = 2_000
DEAD_OF = 100
PAUSE_SECONDS = 2.0
"""A viewer looks at a page so long before it asks for the next."""


def main() -> None:
    """Fill, serve, look, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--jobs", type=int, default=100_000, help="ended jobs beside which pages are asked for")
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long pages are asked for")
    parser.add_argument("--url", help="fill and measure this database instead of a throw-away one; it keeps its jobs")
    parser.add_argument("--only-fill", action="store_true")
    options = parser.parse_args()
    print("; ".join(f"{name}: {value}" for name, value in machine.describe().items()))
    with nullcontext(options.url) if options.url else database(options.engine) as url, app.pointed_at(url):
        app.migrate()
        app.queue("scale")
        fill(options.jobs)
        if options.only_fill:
            return
        pages, rates = measure(url, options.viewers, options.seconds)
    print(f"\n{options.engine}, {options.jobs:,} ended jobs, {options.viewers} viewers\n")
    print("| page | asked | p50 ms | p95 ms | longest ms |\n|---|---:|---:|---:|---:|")
    for page, times in pages.items():
        ranked = sorted(times)
        p95 = ranked[max(0, round(len(ranked) * 0.95) - 1)]
        print(f"| `{page}` | {len(ranked)} | {statistics.median(ranked):.0f} | {p95:.0f} | {ranked[-1]:.0f} |")
    for title, found in rates.items():
        print(f"drain {title}: {', '.join(f'{rate:,.0f}' for rate in found)} jobs/s")
    print(f"with ÷ without: {statistics.median(rates['with viewers']) / statistics.median(rates['without']):.2f}")


def fill(jobs: int) -> None:
    """End so many jobs; those that are there count."""
    there = sum(one.jobs for one in app.queues.counts(queue="scale", state=("succeeded", "dead")))
    worker = tenure.WorkerId("fill")
    begun = time.perf_counter()
    for done in range(there, jobs, BATCH):
        new = [app.new_job("nothing", {"user_id": n, "text": "x" * 100}, max_attempts=1) for n in range(BATCH)]
        app.enqueue_many(new)
        grants = app.store.do(Claim(worker, ["scale"], limit=BATCH))
        ends = [
            Failed(grant.id, grant.token, f"ValueError: supplier {n % 17} did not answer")
            if n % DEAD_OF == 0
            else Completed(grant.id, grant.token, '{"ok": true}', "done")
            for n, grant in enumerate(grants)
        ]
        app.store.do(Settle(ends))
        if done % 100_000 < BATCH:
            print(f"{done:,} of {jobs:,} jobs, {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)


def measure(url: str, viewers: int, seconds: float) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Pages asked for by all viewers, then drains with and without them by turns."""
    command = [sys.executable, "-m", "tenure", "serve", "--port", str(SERVE_PORT)]
    environment = {**os.environ, "TENURE_URL": url}
    serving = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return asyncio.run(_measure(url, viewers, seconds))
    finally:
        serving.terminate()
        serving.wait(30)


async def _measure(url: str, viewers: int, seconds: float) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(viewer()) for _ in range(viewers)]
        pages = await look(clients, seconds)
        rates: dict[str, list[float]] = {"with viewers": [], "without": []}
        for _ in range(3):
            looking = asyncio.create_task(look(clients, 3600))
            await asyncio.sleep(1)
            rates["with viewers"].append(await asyncio.to_thread(drain_rate, url, 1, 20_000))
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            rates["without"].append(await asyncio.to_thread(drain_rate, url, 1, 20_000))
    return pages, rates


@contextlib.asynccontextmanager
async def viewer() -> AsyncIterator[httpx.AsyncClient]:
    """A signed-in browser without scripts."""
    base = f"http://127.0.0.1:{SERVE_PORT}"
    async with httpx.AsyncClient(base_url=base, timeout=60) as client:
        for _ in range(300):
            with contextlib.suppress(httpx.TransportError):
                if (await client.get("/healthz")).status_code == 200:
                    break
            await asyncio.sleep(0.1)
        code = await asyncio.to_thread(app.access.new_link, "bench", EVERYTHING)
        answer = await client.post(
            "/ui/session", data={"code": code}, headers={"Sec-Fetch-Site": "same-origin", "Origin": base}
        )
        if answer.status_code != 303:
            raise RuntimeError(f"not signed in: {answer.status_code} {answer.text[:200]}")
        yield client


async def look(clients: list[httpx.AsyncClient], seconds: float) -> dict[str, list[float]]:
    """Every viewer holds its stream and asks for one page after the other; milliseconds by page."""
    times: dict[str, list[float]] = defaultdict(list)
    until = time.perf_counter() + seconds
    (job,) = (await asyncio.to_thread(app.jobs, state="dead", limit=1)).items

    async def watch(client: httpx.AsyncClient) -> None:
        page = await client.get("/ui/")
        found = re.search(r'hx-sse:connect="([^"]+)"', page.text)
        if found is None:
            raise RuntimeError("the page has no live stream")
        async with client.stream("GET", found[1].replace("&amp;", "&"), timeout=None) as stream:
            async for _ in stream.aiter_bytes():
                pass

    async def browse(number: int, client: httpx.AsyncClient) -> None:
        watching = asyncio.create_task(watch(client))
        try:
            await asyncio.sleep(PAUSE_SECONDS * number / len(clients))
            for turn in range(number, 10**9):
                page = PAGES[turn % len(PAGES)]
                begun = time.perf_counter()
                if begun > until:
                    return
                answer = await client.get("/ui" + page.replace("{job}", job.id))
                if answer.status_code != 200:
                    raise RuntimeError(f"{page}: {answer.status_code}")
                times[page].append((time.perf_counter() - begun) * 1000)
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    await asyncio.gather(*(browse(number, client) for number, client in enumerate(clients)))
    return dict(times)


if __name__ == "__main__":
    main()
