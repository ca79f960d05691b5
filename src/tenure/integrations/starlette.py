"""Starlette: a worker for as long as the server runs, the app at hand in requests, errors as problem documents.

api = Starlette(routes=…, lifespan=lifespan(app, queues=["mail"]))
add_error_handlers(api)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Unpack

from tenure.app import App
from tenure.errors import ConfigError, MissingPackage, TenureError
from tenure.integrations.embedded import embedded_worker
from tenure.integrations.problem import MEDIA_TYPE, problem_of

try:
    from starlette.requests import HTTPConnection
    from starlette.responses import JSONResponse
except ModuleNotFoundError as exc:
    raise MissingPackage("starlette", "tenure.integrations.starlette") from exc

if TYPE_CHECKING:
    from tenure.client.worker import LogTo, Queues, WorkerSettings

__all__ = ["add_error_handlers", "get_tenure", "lifespan"]


def lifespan(
    app: App,
    *,
    worker: bool = True,
    queues: Queues | None = None,
    concurrency: int = 10,
    emit: LogTo | None = None,
    **settings: Unpack[WorkerSettings],
) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """A lifespan that makes `app` known to requests and, with `worker`, runs a worker on the server's event loop.

    The server starts once the worker takes jobs. When the server ends, running handlers have `grace_seconds` to finish;
    then their jobs are given back. In a lifespan of your own: `async with lifespan(app)(api): yield`.

    Args:
        worker: Whether this server runs jobs; without, it enqueues only, and `tenure worker` runs them elsewhere.
        settings: Further fields of WorkerConfig.
    """

    @asynccontextmanager
    async def run(api: Any) -> AsyncIterator[None]:
        api.state.tenure = app
        working = embedded_worker(app, queues, concurrency=concurrency, emit=emit, **settings)
        try:
            async with working if worker else nullcontext():
                yield
        finally:
            await app.aio.close()

    return run


def get_tenure(connection: HTTPConnection) -> App:
    """The App that `lifespan` made known, of a request or a WebSocket. Raises: ConfigError."""
    found = getattr(connection.app.state, "tenure", None)
    if not isinstance(found, App):
        raise ConfigError(
            "This server knows no tenure.App. Start it with lifespan=tenure.integrations.starlette.lifespan(app), "
            "or set `api.state.tenure = app`."
        )
    return found


def add_error_handlers(api: Any) -> None:
    """Answer errors of Tenure's with problem documents: an invalid payload with 422, an unknown job with 404."""
    api.add_exception_handler(TenureError, _handle)


async def _handle(_request: Any, error: Any) -> JSONResponse:
    answer = problem_of(error)
    return JSONResponse(answer.body, answer.status, answer.headers, media_type=MEDIA_TYPE)
