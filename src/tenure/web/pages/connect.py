"""`/ui/connect`: lines to copy, for this server and this database."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from tenure.web.pages.visit import Answer, Shown, Visit


def connect(visit: Visit) -> Answer:
    """The page. Passwords in the database's URL are not shown."""
    parts = urlsplit(visit.app.url)
    url = visit.app.url
    if parts.password:
        url = url.replace(f":{parts.password}@", ":…@", 1)
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
