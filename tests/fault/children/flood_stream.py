"""A worker whose handler gives out far more than a stream keeps: `python flood_stream.py URL TOTAL PIECE`, in bytes.

Prints by how many KiB the peak of its memory grew over that of a worker that has written a little.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tenure


def peak() -> int:
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


def main(url: str, total: int, piece: int) -> None:
    with tenure.App(url) as app:

        @app.job(queue="default", kind="flood", max_attempts=1)
        def flood(payload: dict[str, int], ctx: tenure.Context) -> int:
            text = "x" * payload["piece"]
            for _ in range(payload["total"] // payload["piece"]):
                ctx.stream().write(text)
            return payload["total"]

        flood.enqueue({"total": 100_000, "piece": 1_000})
        app.run_worker(drain=True, handle_signals=False)
        before = peak()
        flood.enqueue({"total": total, "piece": piece})
        app.run_worker(drain=True, handle_signals=False)
    print(peak() - before)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
