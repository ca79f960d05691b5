"""About the server itself: is it up, can it reach its database, who am I, what can be asked."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from tenure.errors import StoreUnavailable
from tenure.web.auth import Principal
from tenure.web.routes import PUBLIC, Route


def principal(request: Request) -> Principal:
    """Who asks; the guard of the route has found out."""
    who: Principal = request.state.principal
    return who


Who = Annotated[Principal, Depends(principal)]


class Health(BaseModel):
    """The server is up."""

    status: str


class Me(BaseModel):
    """Whose token it is and what it may do."""

    name: str
    token: str
    tenant: str
    scopes: list[str]


class ProblemDocument(BaseModel):
    """RFC 9457. `code` is stable; `detail` says what happened, why, and what to do."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str | None = None
    errors: list[dict[str, str]] | None = None


async def healthz() -> Health:
    """Say that the server is up. Asks no database."""
    return Health(status="ok")


async def readyz(who: Who) -> Health:
    """Say whether the tenant's database answers."""
    if not await who.app.aio.gates.all():
        raise StoreUnavailable("The database has no gates; it was not migrated.")
    return Health(status="ok")


async def me(who: Who) -> Me:
    """Show whose token this is and what it may do."""
    return Me(name=who.name, token=who.token_id or "", tenant=who.tenant, scopes=[str(one) for one in who.scopes])


async def openapi(request: Request, _who: Who) -> dict[str, Any]:
    """The API as an OpenAPI 3.1 document."""
    return document(request.app)


def document(app: Any) -> dict[str, Any]:
    """The document, made once."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            openapi_version="3.1.0",
            description=app.description,
            routes=[route for route in app.routes if getattr(route, "include_in_schema", False)],
        )
        schemas = made.setdefault("components", {}).setdefault("schemas", {})
        schemas["Problem"] = ProblemDocument.model_json_schema()
        made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"token": []}]
        made["paths"]["/healthz"]["get"]["security"] = []
        app.openapi_schema = made
    found: dict[str, Any] = app.openapi_schema
    return found


ROUTES = (
    Route("GET", "/healthz", PUBLIC, None, healthz, "server"),
    Route("GET", "/readyz", "read:meta", None, readyz, "server"),
    Route("GET", "/api/v1/me", "read:meta", None, me, "server"),
    Route("GET", "/api/v1/openapi.json", "read:meta", None, openapi, "server"),
)
