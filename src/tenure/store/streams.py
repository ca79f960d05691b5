"""Streams: the output of running jobs, by offset.

**A reader may come and go.** Chunks of a stream are numbered from 1 without gaps, in the order in which they were
committed; a reader that asks for what is behind an offset gets every chunk once. **A new attempt voids the old one**:
with the first chunk that a newer grant writes, each stream of the job gets a `reset` chunk. **The end of the job is the
end of its streams**: no flag says so that a crash could leave unset, the job's own state does. A chunk is written only
while its grant holds the job, so none can follow the end.

**Bounded.** The streams of a job hold JOB_BYTES. When that is used up a `truncated` chunk says so and the rest of the
attempt is dropped; an attempt that finds more than half of it used by earlier ones removes what they wrote.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenure.errors import InvalidArgument
from tenure.model.frozen import frozen
from tenure.model.ids import JobId
from tenure.model.stream import CHUNK_BYTES, NewChunk, StreamInfo, StreamPage
from tenure.store.contract import Request

NAME_BYTES = 255


@frozen
class Appended:
    """What became of chunks."""

    lost: tuple[JobId, ...] = ()
    """Their grant does not hold them any more, so nothing was written."""
    full: tuple[JobId, ...] = ()
    """They have given out as much as is kept; some or all of the text was dropped."""


@frozen
class AppendStreams(Request[Appended]):
    """Add chunks to streams of held jobs, each fenced by its token; one that is lost does not stop the others.

    Safe to repeat: a chunk whose `part` this grant has written before is passed over, so the parts of a stream must
    rise. A name beyond STREAMS_MAX counts as full. Raises: InvalidArgument (a bad name, a chunk above CHUNK_BYTES or
    with NUL, a part below 1).
    """

    chunks: Sequence[NewChunk]


@frozen
class ReadStream(Request[StreamPage | None]):
    """What a stream of a job has behind an offset, up to `limit` chunks and about PAGE_BYTES; None if there is no such
    job. A stream that was never written to is empty."""

    job_id: JobId
    name: str
    after: int = 0
    limit: int = 1000


@frozen
class ListStreams(Request[list[StreamInfo]]):
    """The streams of a job by name."""

    job_id: JobId


def check_chunks(chunks: Sequence[NewChunk]) -> None:
    """Refuse what no stream takes."""
    for chunk in chunks:
        if not chunk.name.strip() or len(chunk.name.encode()) > NAME_BYTES or not chunk.name.isprintable():
            raise InvalidArgument(f"A stream needs a printable name of 1 to {NAME_BYTES} bytes, not {chunk.name!r}.")
        if chunk.part < 1:
            raise InvalidArgument(f"Stream {chunk.name!r}: parts are counted from 1, not {chunk.part}.")
        if "\0" in chunk.text or len(chunk.text.encode("utf-8", "surrogatepass")) > CHUNK_BYTES:
            raise InvalidArgument(
                f"Stream {chunk.name!r}: a chunk is text of up to {CHUNK_BYTES:,} bytes without NUL. "
                "Nothing was written."
            )
