"""A worker that drains a backlog, and says which process writes for it."""

from __future__ import annotations

import sys

import tenure

app = tenure.App(sys.argv[1])
said: list[int] = []


@app.job(kind="work")
async def work() -> None:
    dictation = app.store._database.dictation  # type: ignore[attr-defined]
    if not said and dictation is not None and dictation._is_ready:
        said.append(dictation._process.pid)
        print(said[0], flush=True)


app.run_worker(["default"])
