"""Streams: text that a running job gives out bit by bit, numbered so that a reader can go on where it stopped."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

from tenure.model.frozen import frozen
from tenure.model.ids import JobId, Token

ChunkKind = Literal["text", "reset", "truncated"]

CHUNK_BYTES: Final = 65_536
"""What one chunk holds at most."""
CHUNK_COST: Final = 128
"""Bytes that a chunk counts for beside its text: a stream of single letters is bounded too."""
JOB_BYTES: Final = 8 * 1024 * 1024
"""What the streams of one job hold at most, of all its attempts together."""
STREAMS_MAX: Final = 100
"""Streams that one job may have."""
PAGE_BYTES: Final = 262_144
"""A page of a stream ends with the chunk that passes this size."""


@frozen
class NewChunk:
    """Text for a stream of a held job. `part` numbers what this grant writes to the stream, from 1 on."""

    job_id: JobId
    token: Token
    name: str
    part: int
    text: str


@frozen
class Chunk:
    """A piece of a stream. `offset` counts from 1 in each stream of a job."""

    offset: int
    kind: ChunkKind
    """`text`; `reset`: another attempt begins, so what came before is void; `truncated`: the job has given out as much
    as is kept, and the rest of this attempt is not."""
    text: str
    token: Token
    """Of the grant that wrote it."""
    at: datetime


@frozen
class StreamPage:
    """Chunks in order. `is_ended`: the job has ended, and nothing follows."""

    chunks: list[Chunk]
    is_ended: bool


@frozen
class StreamInfo:
    """One stream of a job."""

    name: str
    last_offset: int
    bytes: int
    """What it counts towards the job's limit."""
    is_full: bool
