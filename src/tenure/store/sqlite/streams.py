"""Streams. See store.streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from tenure.model.clock import from_us
from tenure.model.ids import JobId, Token
from tenure.model.stream import (
    CHUNK_COST,
    JOB_BYTES,
    PAGE_BYTES,
    STREAMS_MAX,
    Chunk,
    NewChunk,
    StreamInfo,
    StreamPage,
)
from tenure.store.sqlite import steps
from tenure.store.sqlite.statements import load
from tenure.store.sqlite.transaction import Transaction, check_limit
from tenure.store.streams import Appended, AppendStreams, ListStreams, ReadStream, check_chunks

_SQL: Final = load("streams")


@dataclass
class _Stream:
    """One stream as it stands within the transaction."""

    name: str
    token: int
    part: int = 0
    last: int = 0
    bytes: int = 0
    is_full: bool = False


def append_streams(transaction: Transaction, request: AppendStreams) -> Appended:
    """See store.streams.AppendStreams."""
    check_chunks(request.chunks)
    lost, full = [], []
    by_grant = sorted(request.chunks, key=lambda chunk: (chunk.job_id, chunk.token))  # stable: their order stays
    for (job_id, token), chunks in groupby(by_grant, lambda chunk: (chunk.job_id, chunk.token)):
        if steps.held_job(transaction, job_id, token) is None:
            lost.append(job_id)
        elif _put_chunks(transaction, job_id, token, list(chunks)):
            full.append(job_id)
    return Appended(tuple(lost), tuple(full))


def read_stream(transaction: Transaction, request: ReadStream) -> StreamPage | None:
    """See store.streams.ReadStream."""
    check_limit(request.limit - 1)
    over = transaction.one(_SQL["is_over"], (request.job_id,))
    if over is None:
        return None
    values = {"job_id": request.job_id, "name": request.name, "after": request.after, "limit": request.limit}
    rows = transaction.all(_SQL["page"], values)
    chunks = [
        Chunk(offset, kind, text, token, from_us(at))
        for offset, kind, text, token, at, bytes_before in rows[: request.limit]
        if bytes_before <= PAGE_BYTES
    ]
    return StreamPage(chunks, bool(over[0]) and len(chunks) == len(rows))


def list_streams(transaction: Transaction, request: ListStreams) -> list[StreamInfo]:
    """See store.streams.ListStreams."""
    return [
        StreamInfo(name, last, bytes_, bool(is_full))
        for name, _, _, last, bytes_, is_full in transaction.all(_SQL["streams"], (request.job_id,))
    ]


def mark_gone(transaction: Transaction, ids: str) -> None:
    """Jobs (a JSON array of ids) have just been cleaned."""
    transaction.run(_SQL["mark_gone"], {"ids": ids})


def drop(transaction: Transaction, limit: int) -> int:
    """Remove chunks of cleaned jobs, up to a limit, and streams that have none left. Answers how many chunks went."""
    chunks = transaction.run(_SQL["prune_chunks"], {"limit": limit}).rowcount
    if chunks < limit:
        transaction.run(_SQL["prune_streams"], {"limit": limit})
    return chunks


def _put_chunks(transaction: Transaction, job_id: JobId, token: Token, chunks: Sequence[NewChunk]) -> bool:
    """Add chunks to the streams of a job that is known to be held. Answers whether text was dropped."""
    streams = _streams_of(transaction, job_id, token)
    used = sum(one.bytes for one in streams.values())
    is_full = False
    changed: dict[str, _Stream] = {}
    for chunk in chunks:
        stream = streams.get(chunk.name)
        if stream is None:
            if len(streams) >= STREAMS_MAX:
                is_full = True
                continue
            stream = streams[chunk.name] = _Stream(chunk.name, token)
        if chunk.part <= stream.part:
            continue
        is_full = is_full or stream.is_full
        if stream.is_full:
            continue
        kind, text, size = "text", chunk.text, len(chunk.text.encode()) + CHUNK_COST
        if used + size > JOB_BYTES:
            kind, text, size = "truncated", "", CHUNK_COST
            is_full = stream.is_full = True
        stream.part = chunk.part
        stream.last += 1
        stream.bytes += size
        used += size
        changed[chunk.name] = stream
        transaction.run(
            _SQL["put_chunk"],
            {
                "job_id": job_id,
                "name": chunk.name,
                "offset": stream.last,
                "kind": kind,
                "token": token,
                "text": text,
                "now": transaction.now,
            },
        )
    for stream in changed.values():
        transaction.run(_SQL["put_stream"], {"job_id": job_id, **vars(stream)})
    return is_full


def _streams_of(transaction: Transaction, job_id: JobId, token: Token) -> dict[str, _Stream]:
    """The job's streams by name, for a writer with this token. What earlier grants wrote is reset first."""
    rows = _read_streams(transaction, job_id)
    if not any(one.token < token for one in rows):
        return {one.name: one for one in rows}
    if sum(one.bytes for one in rows) > JOB_BYTES // 2:
        transaction.run(_SQL["drop_chunks"], (job_id,))
        transaction.run(_SQL["forget_bytes"], (job_id,))
    values = {"job_id": job_id, "token": token, "now": transaction.now, "cost": CHUNK_COST}
    transaction.run(_SQL["reset_chunks"], values)
    transaction.run(_SQL["reset_streams"], values)
    return {one.name: one for one in _read_streams(transaction, job_id)}


def _read_streams(transaction: Transaction, job_id: JobId) -> list[_Stream]:
    rows = transaction.all(_SQL["streams"], (job_id,))
    return [_Stream(name, token, part, last, bytes_, bool(full)) for name, token, part, last, bytes_, full in rows]


WRITES: Final[Mapping[type, Callable[[Transaction, Any], Any]]] = {AppendStreams: append_streams}
READS: Final[Mapping[type, Callable[[Transaction, Any], Any]]] = {ReadStream: read_stream, ListStreams: list_streams}
