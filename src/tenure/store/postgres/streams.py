"""Streams, as calls of PostgreSQL functions. See store.streams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from tenure.model.clock import from_us
from tenure.model.stream import Chunk, StreamInfo, StreamPage
from tenure.store.contract import Request
from tenure.store.postgres.codec import Call, encode, text
from tenure.store.streams import Appended, AppendStreams, ListStreams, ReadStream, check_chunks


def _append(request: AppendStreams) -> str:
    check_chunks(request.chunks)
    return text({"chunks": [asdict(chunk) for chunk in request.chunks]})


def _page(answer: dict[str, Any] | None, _: ReadStream) -> StreamPage | None:
    if answer is None:
        return None
    chunks = [Chunk(offset, kind, said, token, from_us(at)) for offset, kind, said, token, at in answer["chunks"]]
    return StreamPage(chunks, answer["is_over"] and not answer["more"])


CALLS: Final[Mapping[type[Request[Any]], Call]] = {
    AppendStreams: Call(
        "append_streams", _append, lambda answer, _: Appended(tuple(answer["lost"]), tuple(answer["full"]))
    ),
    ReadStream: Call("read_stream", encode, _page),
    ListStreams: Call("list_streams", encode, lambda answer, _: [StreamInfo(*row) for row in answer]),
}
