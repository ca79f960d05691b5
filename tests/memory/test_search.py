"""Searching among many memories: codes by words, paraphrases by meaning, nothing downloaded."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import psycopg
import pytest

from tenure import App
from tenure.errors import ConfigError
from tenure.flow.embedding_jobs import embeddings
from tenure.flow.vectors import VectorCache
from tenure.model.ids import new_job_id
from tenure.model.job import NewJob
from tenure.model.outcome import Completed
from tenure.store.contract import Claim, Enqueue, Exchange
from tenure.store.memory import CountMemories
from tests.waiting import wait_until

LONG: Final = os.environ.get("TENURE_LONG") == "1"
EVENTS: Final = 20_000 if LONG else 2_000

PROBES: Final = {
    # Codes: one memory has them, by its words.
    "BX-4471": "Fitment of part BX-4471 confirmed for Audi A4 2012",
    "429": "Payment provider answered 429 and the job was parked",
    "order 88123": "Order 88123 was packed in the northern warehouse",
    "SKU QZ77": "Supplier feed normalised, SKU QZ77 came without a price",
    "ERR_TIMEOUT_9": "The crawler gave up with ERR_TIMEOUT_9 on the third page",
    # Paraphrases: few words in common, or none.
    "brake rotor wrong size": "The supplier sent brake discs that are too large for the vehicle",
    "customer withdrew purchase": "Order 991 was cancelled by the customer before shipping",
    "car would not start in the cold": "The vehicle's engine failed to turn over on a freezing morning",
    "money returned to shopper": "A refund was paid out to the client",
    "search engine headline improved": "SEO title rewritten for oil filters",
}
WORDS: Final = (
    *("alternator", "belt", "clutch", "gasket", "hose", "injector", "lamp", "mirror", "nozzle", "piston", "radiator"),
    *("sensor", "turbo", "valve", "wheel", "axle", "bumper", "cable", "door", "exhaust", "catalogue", "listing"),
)


def summaries() -> list[str]:
    """What the agents say of their tasks: the ten that are looked for, among the many."""
    chance = random.Random(7)
    texts = [
        f"{chance.choice(WORDS)} {chance.choice(WORDS)} {chance.choice(WORDS)} updated in catalogue {number}x"
        for number in range(EVENTS - len(PROBES))
    ]
    texts += PROBES.values()
    chance.shuffle(texts)
    return texts


def run_agents(app: App, texts: list[str]) -> None:
    """Let an agent complete a task for each text. The store writes the events."""
    app.queues.set("FitmentAgent", agent_events="completed")
    for first in range(0, len(texts), 500):
        batch = texts[first : first + 500]
        jobs = [NewJob(new_job_id(), "task", "{}", "FitmentAgent") for _ in batch]
        app.store.do(Enqueue(jobs))
        grants = app.store.do(Claim(app._state.worker_id, ["FitmentAgent"], limit=len(batch)))
        app.store.do(
            Exchange([Completed(g.id, g.token, "{}", text) for g, text in zip(grants, batch, strict=True)], None)
        )


@pytest.mark.timeout(900 if LONG else 120)
def test_the_right_memory_comes_first_among_many(app: App) -> None:
    app.use(embeddings())
    run_agents(app, summaries())

    stats = app.run_worker(["embedding"], concurrency=100, drain=True)

    assert stats.completed == EVENTS
    assert app.store.do(CountMemories()).models == {"wordllama:256": EVENTS}
    missed = {}
    for probe, wanted in PROBES.items():
        hits = app.memory.search(probe, agent="FitmentAgent", limit=5)
        if not hits or wanted not in hits[0].text:
            missed[probe] = [hit.text for hit in hits]
    assert missed == {}
    codes, paraphrases = list(PROBES)[:5], list(PROBES)[5:]
    for probe in codes:
        assert PROBES[probe] in app.memory.search(probe, by="words", limit=1)[0].text
    for probe in paraphrases:
        assert PROBES[probe] in app.memory.search(probe, by="meaning", limit=1)[0].text


def test_the_server_compares_vectors_where_pgvector_is_installed(app: App, url: str) -> None:
    if not url.startswith("postgres"):
        pytest.skip("SQLite has no pgvector")
    for text in PROBES.values():
        app.memory.remember(text, agent="A")
    asked = list(PROBES)[5:]
    by_numpy = [[hit.text for hit in app.memory.search(one, by="meaning", limit=4)] for one in asked]
    assert app.memory.stats().compares_vectors is False

    with psycopg.connect(url, autocommit=True) as owner:
        row = owner.execute("SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'").fetchone()
        if row == (0,):
            pytest.skip("this server has no pgvector")
        owner.execute("CREATE EXTENSION vector")

    with App(url, embedder="wordllama:256") as fresh:
        assert fresh.memory.stats().compares_vectors is True
        by_server = [[hit.text for hit in fresh.memory.search(one, by="meaning", limit=4)] for one in asked]
        assert fresh._state.memory._cache is None  # no vector came to this process
    assert [found[0] for found in by_server] == [found[0] for found in by_numpy]
    assert [PROBES[one] for one in asked] == [found[0] for found in by_server]


def test_a_search_never_mixes_models(url: str) -> None:
    with App(url, embedder="words") as app:
        app.memory.remember("The supplier sent brake discs that are too large", agent="A", kind="words")
    with App(url, embedder="wordllama:64") as app:
        app.memory.remember("The supplier sent brake discs that are too small", agent="A", kind="small")
    with App(url, embedder="wordllama:256") as app:
        app.memory.remember("Rotors of the wrong size came from the vendor", agent="A", kind="large")
        assert [hit.kind for hit in app.memory.search("brake rotor wrong size", by="meaning")] == ["large"]
        assert {hit.kind for hit in app.memory.search("brake discs", by="words")} == {"words", "small"}

        app.use(embeddings())
        asked = app.memory.reindex()
        assert (asked.model, asked.memories, asked.jobs, asked.events) == ("wordllama:256", 2, 1, 0)
        assert app.memory.reindex().memories == 2  # nothing is embedded yet, and the job is there once
        assert app.run_worker(["embedding"], drain=True).completed == 1

        assert app.memory.stats().models == {"wordllama:256": 3}
        kinds = [hit.kind for hit in app.memory.search("brake rotor wrong size", by="meaning")]
        assert sorted(kinds) == ["large", "small", "words"]
        assert app.memory.reindex().jobs == 0


def test_without_a_model_words_are_enough_and_meaning_is_refused(url: str) -> None:
    with App(url, embedder="words") as app:
        app.memory.remember("Fitment of part BX-4471 confirmed", agent="A")

        assert [hit.by for hit in app.memory.search("BX-4471")] == [("words",)]
        with pytest.raises(ConfigError, match=r"tenure\[memory\]"):
            app.memory.search("fits", by="meaning")


def test_what_was_forgotten_is_found_no_more_by_either(app: App) -> None:
    one = app.memory.remember("brake discs too large", agent="A")
    app.memory.remember("brake pads too thin", agent="B")
    assert len(app.memory.search("brake")) == 2

    assert app.memory.forget(one, reason="asked to") == 1

    assert [hit.agent for hit in app.memory.search("brake discs")] == ["B"]
    assert [hit.agent for hit in app.memory.search("brake discs", by="meaning")] == ["B"]
    assert app.memory.forget(agent="B") == 1
    assert app.memory.search("brake") == []
    assert [row.act for row in app.access.audit(subject="memory")] == ["forget_memories"] * 2


OFFLINE: Final = Path(__file__).parent / "children" / "offline.py"


def test_a_memory_whose_time_is_over_is_dropped_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as its row was there it was read again, and with it every vector, by each search that came near it."""
    with App(url, embedder="wordllama:256") as app:
        app.memory.remember("the brake rotor was too small", agent="A", ttl=0.01)
        app.memory.remember("the invoice was paid twice", agent="A")
        wait_until(lambda: sum(one.memories for one in app.memory.stats().counts) == 1)
        app.memory.search("invoice for a brake rotor", by="meaning")
        cleared: list[VectorCache] = []

        def clear(cache: VectorCache) -> None:
            cleared.append(cache)

        monkeypatch.setattr(VectorCache, "clear", clear)

        for _ in range(3):
            [hit] = app.memory.search("invoice for a brake rotor", by="meaning")
            assert hit.text == "the invoice was paid twice"

        assert cleared == []


def test_no_network_is_touched(tmp_path: Path) -> None:
    """In a network namespace that has no interface but a loopback that is down."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-n", "true"], capture_output=True, check=False).returncode:
        pytest.skip("a network namespace needs root, or user namespaces that are allowed")
    command = [unshare, "-n", sys.executable, str(OFFLINE), f"sqlite:///{tmp_path}/jobs.db"]
    environment = {**os.environ, "HF_HOME": str(tmp_path / "none"), "HOME": str(tmp_path)}

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100, env=environment)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "model": "wordllama:256",
        "found": "The supplier sent brake discs that are too large for the vehicle",
    }
    assert not (tmp_path / "none").exists()
