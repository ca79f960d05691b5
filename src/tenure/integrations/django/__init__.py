"""Django: the project's App, `manage.py tenure …`, jobs.py found by themselves, and a backend for Django's tasks.

    INSTALLED_APPS = [..., "tenure.integrations.django"]

    # shop/jobs.py
    from tenure.integrations.django import app

    @app.job(queue="mail")
    def welcome(user_id: int) -> None: ...

    # in a view: the job exists exactly if the view's transaction commits
    enqueue(welcome, user.id)

Jobs live in the project's own database, so they join its transactions. See docs/guides/django.md for the settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.errors import ConfigError, MissingPackage

try:
    import django as _django
except ModuleNotFoundError as exc:
    raise MissingPackage("django", "tenure.integrations.django") from exc

from tenure.integrations.django.project import aenqueue, enqueue, project_app, set_up

if TYPE_CHECKING:
    from tenure.app import App

    app: App

__all__ = ["aenqueue", "app", "enqueue"]

if _django.VERSION < (5, 2):
    raise ConfigError(f"tenure.integrations.django needs Django 5.2 or later, and this is {_django.get_version()}.")


def __getattr__(name: str) -> App:
    """`app` is made when it is first asked for: the settings must be there by then.

    A process of its own for one handler imports that handler's module before anything else, so Django is set up here.
    """
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    set_up()
    return project_app()
