"""HTTP: the API `/api/v1`, the console `/ui`, and live events, as one ASGI app over an App.

Owns who may come in and how; what is done is done by `App`. Imported by `tenure serve` and `tenure dev` only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tenure.errors import MissingExtra

if TYPE_CHECKING:
    from pathlib import Path

    from tenure.app import App
    from tenure.web.mounted import Mounted

LOOPBACK = ("localhost:*", "127.0.0.1:*", "[::1]:*")
"""The hosts that are answered by default."""


def asgi(
    app: App | Mapping[str, App],
    *,
    hosts: Sequence[str] = LOOPBACK,
    secure: bool = False,
    proxies: Sequence[str] = (),
    audit_heads: Path | None = None,
    mcp: Mounted | None = None,
    **settings: Any,
) -> Any:
    """An ASGI app that serves the API and the console of `app`; of several, by name, one per tenant.

    Mount it, or run it: `uvicorn.run(tenure.web.asgi(app))`. Nothing is open: programs need a token (`tenure token
    new`), browsers a session. A token and a session belong to one tenant and reach no other.

    Args:
        hosts: The values of the Host header that are answered, exactly; `name:*` allows any port. Others get 421.
        secure: Whether browsers reach it by HTTPS: cookies are then sent by HTTPS only.
        proxies: Addresses and networks whose X-Forwarded-For is believed; `unix` for what comes by a unix socket.
        audit_heads: A file to which the head of the audit's chain is written each minute.
        mcp: The MCP server to mount at /mcp: `tenure.mcp.http()`; none if left out.
        settings: Limits; see `tenure.web.site.Limits`.

    Raises: MissingExtra, ConfigError.
    """
    try:
        import fastapi as fastapi
    except ImportError:
        raise MissingExtra("web", "The HTTP API") from None
    from tenure.web.application import build
    from tenure.web.site import Limits, Site

    tenants = dict(app) if isinstance(app, Mapping) else {"default": app}
    limits = Limits(**settings)
    site = Site(tenants, hosts=hosts, secure=secure, proxies=proxies, limits=limits, audit_heads=audit_heads, mcp=mcp)
    return build(site)
