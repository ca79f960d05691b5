"""The Django app: finds handlers, brings the schema along with `manage.py migrate`, checks the settings."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules

from tenure.errors import TenureError
from tenure.integrations.django.project import database_url, project_app, read_settings


class TenureConfig(AppConfig):
    """`tenure.integrations.django` in INSTALLED_APPS."""

    name = "tenure.integrations.django"
    label = "tenure"
    verbose_name = "Tenure"

    def ready(self) -> None:
        """Import every app's jobs.py and tasks.py, so that workers know their handlers."""
        post_migrate.connect(_migrate, sender=self)
        checks.register(_check)
        autodiscover_modules("jobs", "tasks")


def _migrate(using: str, verbosity: int = 1, **_: Any) -> None:
    """Set up or upgrade Tenure's schema in the database that was migrated, or beside it."""
    if using != read_settings().database:
        return
    app = project_app()
    try:
        applied = app.migrate()
    finally:
        app.close()  # a session left open would keep a test runner from dropping its database
    if applied and verbosity > 0:
        print(f"  Tenure: applied {', '.join(applied)}")  # noqa: T201 - as `migrate` does


def _check(**_: Any) -> list[checks.CheckMessage]:
    try:
        found = read_settings()
        if not found.url:
            database_url(found.database)
    except TenureError as exc:
        return [checks.Error(str(exc), id="tenure.E001")]
    return []
