"""The project's app under a name that `tenure worker` and its processes can import; sets Django up."""

from __future__ import annotations

from tenure.integrations.django.project import project_app, set_up

set_up()
app = project_app()
