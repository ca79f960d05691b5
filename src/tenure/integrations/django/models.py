"""No tables: jobs belong to Tenure's own schema. `Job` is there for the admin and its permission."""

from __future__ import annotations

from typing import Any

from django.db import models


class Job(models.Model):
    """Stands for jobs in the admin; is never queried."""

    id: models.UUIDField[Any, Any] = models.UUIDField(primary_key=True)

    class Meta:
        managed = False
        default_permissions = ("view",)
        verbose_name = "job"
        verbose_name_plural = "jobs"
