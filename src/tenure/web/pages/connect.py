"""`/ui/connect`: lines to copy, for this server and this database."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from tenure.web.pages.visit import Answer, Shown, Visit


def connect(visit: Visit) -> Answer:
    """The page."""
    url = shown_url(visit.app.url)
    entry = {"command": "tenure", "args": ["mcp"], "env": {"TENURE_URL": url}}
    return Shown(
        "connect.html",
        {
            "keys": (),
            "kinds": sorted(visit.app.registry)[:1] or ["welcome"],
            "mcp": json.dumps({"mcpServers": {"tenure": entry}}, indent=2),
            "origin": visit.origin,
            "topic": "",
            "url": url,
        },
    )


def shown_url(url: str) -> str:
    """The database's URL without a password in it."""
    parts = urlsplit(url)
    return url.replace(f":{parts.password}@", ":…@", 1) if parts.password else url
