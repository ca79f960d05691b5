"""A worker that embeds, slowly enough to be killed between two batches."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Sequence
from typing import Any

from tenure import App
from tenure.flow import embedding_jobs
from tenure.flow.memory import AgentMemory

app = App(sys.argv[1], embedder="wordllama:256")
embedding_jobs.BATCH = 3  # type: ignore[misc]
plain = AgentMemory.embed_events


def slow(self: AgentMemory, event_ids: Sequence[int]) -> Generator[Any, Any, int]:
    """The same, after a moment in which a signal may come."""
    yield lambda: time.sleep(0.05)
    return (yield from plain(self, event_ids))


AgentMemory.embed_events = slow  # type: ignore[method-assign]
app.use(embedding_jobs.embeddings())
app.run_worker(["embedding"], concurrency=10)
