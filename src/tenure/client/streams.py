"""Streams of jobs from outside: `app.streams`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator

from tenure.client.operations import AsyncClient, Client, Pause, Steps, SyncClient, ask, operation
from tenure.errors import NotFound
from tenure.handler import arguments
from tenure.handler.arguments import Duration
from tenure.model.ids import JobId
from tenure.model.stream import Chunk, StreamInfo, StreamPage
from tenure.store.streams import ListStreams, ReadStream

WAIT_MAX = 3600.0
FOLLOW_SECONDS = 20.0
LIMIT_MAX = 1000
PAUSES = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Between looks at a stream that has nothing new; the last one goes on."""


class JobStreams(Client):
    """The streams of jobs: `app.streams`."""

    @operation
    def read(
        self, job_id: str, name: str = "output", *, after: int = 0, limit: int = LIMIT_MAX, wait: Duration = 0.0
    ) -> Steps[StreamPage]:
        """What a stream has behind the offset `after`; with `wait`, waits for it so long at most.

        `is_ended`: the job has ended and nothing follows, however it ended. Otherwise ask again with the offset of the
        last chunk. A chunk of kind `reset` says that another attempt begins: drop what you have. After a reset that
        was read late, chunks before it may be missing; they are void.

        Raises: NotFound if there is no such job.
        """
        return (
            yield from _read(
                arguments.job_id("job_id", job_id),
                arguments.name("name", name),
                arguments.whole("after", after, 0, 2**62),
                arguments.whole("limit", limit, 1, LIMIT_MAX),
                min(arguments.seconds("wait", wait), WAIT_MAX),
            )
        )

    @operation
    def names(self, job_id: str) -> Steps[list[StreamInfo]]:
        """The streams that a job has written to, by name."""
        return (yield from ask(ListStreams(arguments.job_id("job_id", job_id))))


class SyncStreams(JobStreams, SyncClient):
    """`app.streams`."""

    def follow(self, job_id: str, name: str = "output", *, after: int = 0) -> Iterator[Chunk]:
        """Every chunk behind `after`, as it comes, until the job has ended. Raises: NotFound."""
        while True:
            page = self.read(job_id, name, after=after, wait=FOLLOW_SECONDS)
            yield from page.chunks
            if page.is_ended:
                return
            after = page.chunks[-1].offset if page.chunks else after


class AsyncStreams(JobStreams, AsyncClient):
    """`app.aio.streams`."""

    async def follow(self, job_id: str, name: str = "output", *, after: int = 0) -> AsyncIterator[Chunk]:
        """Every chunk behind `after`, as it comes, until the job has ended. Raises: NotFound."""
        while True:
            page = await self.read(job_id, name, after=after, wait=FOLLOW_SECONDS)
            for chunk in page.chunks:
                yield chunk
            if page.is_ended:
                return
            after = page.chunks[-1].offset if page.chunks else after


def _read(job_id: JobId, name: str, after: int, limit: int, wait: float) -> Steps[StreamPage]:
    until = time.monotonic() + wait
    looks = 0
    while True:
        page = yield from ask(ReadStream(job_id, name, after, limit))
        if page is None:
            raise NotFound(f"There is no job {job_id}, so it has no stream {name!r}. `tenure jobs ls` lists jobs.")
        left = until - time.monotonic()
        if page.chunks or page.is_ended or left <= 0:
            return page
        yield from ask(Pause(min(left, PAUSES[min(looks, len(PAUSES) - 1)])))
        looks += 1
