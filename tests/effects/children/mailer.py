"""A worker whose jobs each send a message to a sink that loses half of what it is told. Arguments: URL, port, sort."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import tenure

URL, PORT, SORT = sys.argv[1], int(sys.argv[2]), sys.argv[3]

app = tenure.App(URL)


async def send(call: tenure.EffectCall) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
    try:
        writer.write(json.dumps({"key": call.key, "token": call.token}).encode() + b"\n")
        await writer.drain()
        await asyncio.sleep(0.02)  # the time it takes somewhere else; kills come in between
        answer = await reader.readline()
    finally:
        writer.close()
    if not answer:
        raise ConnectionError("the line went dead")
    return json.loads(answer)


@app.job(queue="mail")
async def mail(ctx: tenure.Context) -> Any:
    return await ctx.effect("mail", {"to": ctx.id}, do=send, keyed=SORT == "keyed")


if __name__ == "__main__":
    app.run_worker(["mail"], concurrency=8, maintain=False, poll_seconds=0.1)
