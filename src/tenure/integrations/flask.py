"""Flask: the app as an extension, handlers inside the application's context, errors as problem documents.

    queue = tenure.App("postgresql://…")
    tenure_extension = Tenure(queue)

    def create_app() -> Flask:
        site = Flask(__name__)
        tenure_extension.init_app(site)
        return site

`tenure worker shop:queue` runs the jobs; the module that it names makes the Flask application too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tenure.app import App
from tenure.errors import ConfigError, MissingPackage, TenureError
from tenure.handler.context import Context
from tenure.integrations.problem import MEDIA_TYPE, problem_of

try:
    from flask import Flask, current_app, json
except ModuleNotFoundError as exc:
    raise MissingPackage("flask", "tenure.integrations.flask") from exc

__all__ = ["Tenure", "get_tenure"]

EXTENSION = "tenure"


class Tenure:
    """The extension: `Tenure(queue, site)`, or `Tenure(queue)` and `init_app(site)` later.

    Handlers of `queue` run inside the application's context, so `current_app` and extensions such as Flask-SQLAlchemy
    work in them. Without an App the site's setting TENURE_URL names the database.
    """

    def __init__(self, queue: App | None = None, site: Flask | None = None) -> None:
        self._queue = queue
        if site is not None:
            self.init_app(site)

    def init_app(self, site: Flask) -> None:
        """Join a Flask application. Of several, as a factory may make, handlers run in the context of the last.

        Raises: ConfigError, if there is neither an App nor a TENURE_URL.
        """
        queue = self._queue or self._from_settings(site)
        site.extensions[EXTENSION] = queue
        site.register_error_handler(TenureError, _handle)
        for one in queue.registry.middleware:
            known = getattr(one.function, "__self__", None)
            if isinstance(known, _Contexts):
                known.site = site
                return
        queue.middleware(_Contexts(site).around)

    def _from_settings(self, site: Flask) -> App:
        url = site.config.get("TENURE_URL")
        if not url:
            raise ConfigError(
                "The Flask extension has no App and the site no TENURE_URL. Write Tenure(tenure.App(…), site), or set "
                "site.config['TENURE_URL']."
            )
        return App(url)


class _Contexts:
    """Puts handlers of one App into the context of a Flask application."""

    def __init__(self, site: Flask) -> None:
        self.site = site

    def around(self, ctx: Context) -> Iterator[None]:  # noqa: ARG002
        with self.site.app_context():
            yield


def get_tenure() -> App:
    """The App of the Flask application at hand. Raises: ConfigError."""
    found = current_app.extensions.get(EXTENSION)
    if not isinstance(found, App):
        raise ConfigError("This Flask application knows no tenure.App. Call Tenure(queue).init_app(site) first.")
    return found


def _handle(error: TenureError) -> Any:
    answer = problem_of(error)
    return current_app.response_class(
        json.dumps(answer.body), status=answer.status, headers=answer.headers, mimetype=MEDIA_TYPE
    )
