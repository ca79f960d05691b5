"""The API's handlers, one file per resource, and the list of their routes."""

from __future__ import annotations

from tenure.web.api import (
    access,
    approvals,
    budgets,
    bulk,
    jobs,
    live,
    memos,
    operate,
    server,
    streams,
    work,
    workflows,
)
from tenure.web.routes import Route

ROUTES: tuple[Route, ...] = (
    *server.ROUTES,
    *jobs.ROUTES,
    *bulk.ROUTES,
    *streams.ROUTES,
    *live.ROUTES,
    *work.ROUTES,
    *operate.ROUTES,
    *budgets.ROUTES,
    *memos.ROUTES,
    *workflows.ROUTES,
    *approvals.ROUTES,
    *access.ROUTES,
)
