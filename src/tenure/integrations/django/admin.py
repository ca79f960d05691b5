"""The admin: a page of jobs, newest first, with links to the console where settings name it. It changes nothing."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path

from tenure.errors import TenureError
from tenure.integrations.django.models import Job
from tenure.integrations.django.project import project_app, read_settings
from tenure.model.state import State

PAGE = 50


@admin.register(Job)
class JobAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # not generic at run time
    """Shows jobs to users with the permission `tenure.view_job`."""

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002
        return False

    def has_change_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:  # noqa: ARG002
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Job | None = None) -> bool:  # noqa: ARG002
        return False

    def get_urls(self) -> list[Any]:
        """The list alone: one job is shown by the console."""
        return [path("", self.admin_site.admin_view(self.list_jobs), name="tenure_job_changelist")]

    def list_jobs(self, request: HttpRequest) -> HttpResponse:
        """Jobs of a state, a page at a time."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        state = request.GET.get("state") or None
        console = (read_settings().console_url or "").rstrip("/")
        context: dict[str, Any] = {
            **self.admin_site.each_context(request),
            "title": "Jobs",
            "opts": self.opts,
            "console": console,
            "states": [str(one) for one in State],
            "state": state,
        }
        try:
            page = project_app().jobs(state=state, limit=PAGE, after=request.GET.get("after") or None)
            context |= {"jobs": page.items, "next": page.next}
        except TenureError as exc:
            context["error"] = str(exc)
        return TemplateResponse(request, "admin/tenure/jobs.html", context)
