"""Tests of a Django project: `TEST_RUNNER = "tenure.integrations.django.testing.TenureRunner"`."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections
from django.test.runner import DiscoverRunner

from tenure.integrations.django.project import project_app


class TenureRunner(DiscoverRunner):
    """Closes the project's App before the test databases go: PostgreSQL drops no database that has sessions."""

    def teardown_databases(self, old_config: Any, **kwargs: Any) -> None:
        """Close the App, and what async handlers opened in asgiref's own thread; then drop the databases."""
        project_app().close()
        asyncio.run(_close_connections_of_async_code())
        gc.collect()  # threads of handlers that have ended leave theirs in cycles
        super().teardown_databases(old_config, **kwargs)


async def _close_connections_of_async_code() -> None:
    await sync_to_async(connections.close_all, thread_sensitive=True)()
