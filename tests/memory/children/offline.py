"""Embeds and searches with the default embedder, and says what it found."""

from __future__ import annotations

import json
import sys

from tenure import App
from tenure.flow.embedding_jobs import embeddings

with App(sys.argv[1]) as app:
    app.use(embeddings())
    app.queue("A", agent_events="completed")
    app.memory.remember("The supplier sent brake discs that are too large for the vehicle", agent="A")
    app.memory.remember("Price of winter tyres was refreshed", agent="A")
    found = app.memory.search("brake rotor wrong size", by="meaning", limit=1)[0].text
    sys.stdout.write(json.dumps({"model": app.memory.embedder, "found": found}))
