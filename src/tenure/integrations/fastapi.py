"""FastAPI: what Starlette gets, and the app as a dependency.

api = FastAPI(lifespan=lifespan(queue))
add_error_handlers(api)

@api.post("/orders")
async def order(app: TenureApp) -> str:            # or: app: App = Depends(get_tenure)
    return (await app.aio.enqueue("pack", {"order": 7})).id
"""

from __future__ import annotations

from typing import Annotated

from tenure.app import App
from tenure.errors import MissingPackage

try:
    from fastapi import Depends
except ModuleNotFoundError as exc:
    raise MissingPackage("fastapi", "tenure.integrations.fastapi") from exc

from tenure.integrations.starlette import add_error_handlers, get_tenure, lifespan

__all__ = ["TenureApp", "add_error_handlers", "get_tenure", "lifespan"]

TenureApp = Annotated[App, Depends(get_tenure)]
"""The annotation of a parameter that takes the App."""
