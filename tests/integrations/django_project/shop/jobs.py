"""Handlers that are found because the file is called jobs.py."""

import os

from tenure.integrations.django import app  # before the models: it sets Django up in a process of its own

from shop.models import Entry  # type: ignore[import-not-found]  # isort: skip


@app.job(queue="mail", max_attempts=1)
def record(word: str) -> int:
    Entry.objects.create(word=word)
    return int(Entry.objects.count())


@app.job(queue="mail", max_attempts=1)
async def record_async(word: str) -> int:
    await Entry.objects.acreate(word=word)
    return int(await Entry.objects.acount())


@app.job(queue="mail", max_attempts=1, isolate=True)
def record_isolated(word: str) -> int:
    Entry.objects.create(word=word)
    return os.getpid()
