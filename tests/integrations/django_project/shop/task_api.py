"""Django's tasks: its own from Django 6 on, those of the package django-tasks before."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_tasks import TaskContext, TaskResultStatus, default_task_backend, task
    from django_tasks.exceptions import InvalidTaskError, TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.signals import task_enqueued, task_finished, task_started
else:
    try:
        from django.tasks import TaskContext, TaskResultStatus, default_task_backend, task
        from django.tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
        from django.tasks.signals import task_enqueued, task_finished, task_started

        try:
            from django.tasks.exceptions import InvalidTask as InvalidTaskError
        except ImportError:
            from django.tasks.exceptions import InvalidTaskError
    except ModuleNotFoundError:
        from django_tasks import TaskContext, TaskResultStatus, default_task_backend, task
        from django_tasks.exceptions import InvalidTaskError, TaskResultDoesNotExist, TaskResultMismatch
        from django_tasks.signals import task_enqueued, task_finished, task_started

LOGGER = task.__module__.removesuffix(".base")
"""The logger that tells of tasks: `django.tasks`, or `django_tasks` before."""

__all__ = [
    "LOGGER",
    "InvalidTaskError",
    "TaskContext",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "default_task_backend",
    "task",
    "task_enqueued",
    "task_finished",
    "task_started",
]
