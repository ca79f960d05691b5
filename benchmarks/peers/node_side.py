"""The peers on Node: graphile-worker and pg-boss, each a script in `node/` behind the same hooks.

The script is asked verbs by JSON lines (prepare, each, bulk, one) and is its own worker. `BENCH_NODE` names the Node
binary, `BENCH_NODE_FOLDER` the folder with `node_modules`; the driver sets both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers.harness import Enqueue, Order, PostgresSide, main
from benchmarks.peers.tally import Tally

SCRIPTS = Path(__file__).parent / "node"


class NodeSide(PostgresSide):
    """A peer whose library is JavaScript."""

    script: str
    _client: subprocess.Popen[str] | None = None

    @property
    def version(self) -> str:
        """The installed version of the package."""
        manifest = Path(os.environ["BENCH_NODE_FOLDER"]) / "node_modules" / self.distribution / "package.json"
        return str(json.loads(manifest.read_text(encoding="utf-8"))["version"])

    def prepare(self, url: str) -> None:
        """Let the library make its tables."""
        self._tell("prepare", url)

    def enqueue_each(self, url: str, jobs: int) -> float:
        """One call each."""
        return float(self._tell("each", url, jobs=jobs)["seconds"])

    def enqueue_bulk(self, url: str, jobs: int) -> float:
        """The library's bulk call, by 1,000."""
        return float(self._tell("bulk", url, jobs=jobs)["seconds"])

    @contextmanager
    def enqueuer(self, url: str) -> Iterator[Enqueue]:
        """One call each; the moments are taken in Node, around the library's call."""

        def enqueue(i: int) -> tuple[int, int]:
            found = self._tell("one", url, i=i)
            return int(found["called"]), int(found["returned"])

        yield enqueue

    def worker_command(self, order: Order) -> list[str]:
        """The worker is the script itself."""
        return [*_node(self.script), "worker", json.dumps(asdict(order))]

    def worker(self, order: Order, tally: Tally) -> None:
        """Never asked: the worker is a Node process."""
        raise NotImplementedError

    def close(self) -> None:
        """End the client's process."""
        if self._client is not None and self._client.stdin is not None:
            self._client.stdin.close()
            self._client.wait(10)

    def _tell(self, verb: str, url: str, **more: Any) -> dict[str, Any]:
        if self._client is None:
            self._client = subprocess.Popen(
                _node(self.script), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr, text=True
            )
        assert self._client.stdin is not None
        assert self._client.stdout is not None
        self._client.stdin.write(json.dumps({"verb": verb, "url": url, **more}) + "\n")
        self._client.stdin.flush()
        line = self._client.stdout.readline()
        found: dict[str, Any] = json.loads(line) if line else {"ok": False, "error": "the Node process ended"}
        if not found["ok"]:
            raise RuntimeError(f"{self.distribution}: {found['error']}")
        return found


class GraphileSide(NodeSide):
    """graphile-worker, which deletes finished jobs."""

    name = "graphile-worker"
    distribution = "graphile-worker"
    script = "graphile.mjs"
    settings = "concurrentJobs 24, localQueue 500, completeJobBatchDelay 0, addJobs by 1,000"
    workloads = ("W1", "W2", "W3a", "W3b", "W4")


class PgBossSide(NodeSide):
    """pg-boss, which keeps finished jobs."""

    name = "pg-boss"
    distribution = "pg-boss"
    script = "pgboss.mjs"
    settings = "batchSize 500, localConcurrency 4, burstWhenBatchFull, LISTEN/NOTIFY, supervise off, insert by 1,000"
    workloads = ("W1", "W2", "W3a", "W3b", "W4")
    keeps_rows = True


SIDES = {"graphile-worker": GraphileSide, "pg-boss": PgBossSide}


def _node(script: str) -> list[str]:
    return [os.environ.get("BENCH_NODE", "node"), str(SCRIPTS / script)]


if __name__ == "__main__":
    chosen = sys.argv.pop(1)
    main(SIDES[chosen]())
