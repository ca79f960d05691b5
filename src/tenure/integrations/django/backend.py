"""A backend for Django's tasks: `django.tasks` of Django 6, or the package django-tasks before.

    TASKS = {"default": {"BACKEND": "tenure.integrations.django.backend.TenureBackend", "QUEUES": ["default", "mail"]}}

A task is enqueued on Django's own connection, so it exists exactly if the caller's transaction commits: no `on_commit`
is needed. Its kind is the path of its function, known from the moment the task is defined; workers import every app's
tasks.py. A failed attempt is tried again as the queue's policy says, and is READY meanwhile; OPTIONS may hold
`max_attempts`. Jobs without a Task, made by `app.job` or in other languages, live beside them.
"""

from __future__ import annotations

import re
import traceback
from asyncio import CancelledError
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypedDict, cast

from django.conf import settings
from django.core import checks
from django.utils import timezone

from tenure.errors import LeaseLost, MissingPackage, NotFound, StoreUnavailable, TenureError
from tenure.handler.context import Context
from tenure.handler.signals import Interrupted, Parked, Permanent, Snooze
from tenure.integrations.django.project import own_connection, project_app
from tenure.model.ids import new_job_id
from tenure.model.job import Attempt, Job
from tenure.model.policy import QueuePolicy
from tenure.model.state import State

if TYPE_CHECKING:
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import InvalidTaskError, TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json
else:
    try:
        from django.tasks.backends.base import BaseTaskBackend
        from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
        from django.tasks.exceptions import InvalidTask as InvalidTaskError
        from django.tasks.exceptions import TaskResultDoesNotExist
        from django.tasks.signals import task_enqueued, task_finished, task_started
        from django.utils.json import normalize_json
    except ModuleNotFoundError:
        try:
            from django_tasks.backends.base import BaseTaskBackend
            from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
            from django_tasks.exceptions import InvalidTaskError, TaskResultDoesNotExist
            from django_tasks.signals import task_enqueued, task_finished, task_started
            from django_tasks.utils import normalize_json
        except ModuleNotFoundError as exc:
            raise MissingPackage("django-tasks", "The backend for Django's tasks, before Django 6,") from exc

__all__ = ["TenureBackend"]

_STATUSES = {
    State.RUNNING: TaskResultStatus.RUNNING,
    State.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    State.FAILED: TaskResultStatus.FAILED,
    State.DEAD: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}
"""All other states are READY."""

_NO_FAILURES = (
    Snooze,
    StoreUnavailable,
    LeaseLost,
    Interrupted,
    Parked,
    CancelledError,
    GeneratorExit,
    KeyboardInterrupt,
)
"""By these an attempt ends without a failure of its own: the job is given back, or another worker has it."""

_RAISED = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)")
_tasks: dict[str, Task[..., Any]] = {}
"""Tasks by the path of their function, as they were defined."""


class TaskCall(TypedDict):
    """The payload of a task's job."""

    args: list[Any]
    kwargs: dict[str, Any]


class TenureBackend(BaseTaskBackend):
    """Enqueues tasks as jobs of the project's App."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: Task[..., Any]) -> None:
        """Refuse a task that cannot be run; make workers of this project know the others."""
        super().validate_task(task)
        queues = project_app().registry.queues
        for name in {*self.queues, task.queue_name} - {"default"}:
            queues.setdefault(name, QueuePolicy())
        known = _tasks.get(task.module_path)
        if known is None or known.func is not task.func:
            _tasks[task.module_path] = task
            _register(task, type(self), self.options.get("max_attempts"))

    def enqueue(self, task: Task[..., Any], args: Any, kwargs: Any) -> TaskResult[Any]:
        """Make a job of the task, in the transaction of Django's connection.

        Raises: TypeError or ValueError for arguments that are not JSON; GateClosed and other errors of Tenure's.
        """
        self.validate_task(task)
        result: TaskResult[Any] = TaskResult(
            task=task,
            id=new_job_id(),
            status=TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        project_app().enqueue(
            task.module_path,
            {"args": result.args, "kwargs": result.kwargs},
            id=result.id,
            queue=task.queue_name,
            priority=int(task.priority),
            run_at=_aware(task.run_after),
            connection=own_connection(),
        )
        object.__setattr__(result, "enqueued_at", _enqueued_at(result.id))
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult[Any]:
        """What became of a task. One that was enqueued in a transaction is found once that has committed.

        Raises: TaskResultDoesNotExist.
        """
        app = project_app()
        try:
            job = app.get(result_id)
        except (NotFound, TenureError) as exc:
            if not isinstance(exc, NotFound) and exc.code != "invalid_argument":
                raise
            raise TaskResultDoesNotExist(result_id) from exc
        task = _tasks.get(job.kind)
        if task is None:
            raise TaskResultDoesNotExist(
                f"Job {result_id} is of kind {job.kind!r}, which is no task that this process has imported."
            )
        return _result_of(job, task, self.alias, app.attempts(job.id))

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """The app must be installed, or no worker would know the tasks."""
        from django.apps import apps

        yield from super().check(**kwargs)
        if not apps.is_installed("tenure.integrations.django"):
            yield checks.Error(
                "TASKS uses TenureBackend, but 'tenure.integrations.django' is not in INSTALLED_APPS.",
                id="tenure.E002",
            )


def _register(task: Task[..., Any], sender: type, max_attempts: int | None) -> None:
    """Make the task's function a handler of the project's App."""

    def sync(payload: TaskCall, ctx: Context) -> Any:
        run = _Run(task, sender, payload, ctx)
        try:
            value = normalize_json(task.func(*run.args, **payload["kwargs"]))
        except BaseException as exc:
            run.failed(exc)
            raise
        return run.succeeded(value)

    async def on_loop(payload: TaskCall, ctx: Context) -> Any:
        run = _Run(task, sender, payload, ctx)
        try:
            value = normalize_json(await task.func(*run.args, **payload["kwargs"]))
        except BaseException as exc:
            run.failed(exc)
            raise
        return run.succeeded(value)

    handler: Callable[..., Any] = on_loop if iscoroutinefunction(task.func) else sync
    # A process of its own finds a handler by the module and the name of its function.
    handler.__module__, handler.__qualname__ = task.func.__module__, task.func.__qualname__
    project_app().job(kind=task.module_path, queue=task.queue_name, max_attempts=max_attempts)(handler)


class _Run:
    """One attempt of a task: its context, and the signals of its begin and end."""

    def __init__(self, task: Task[..., Any], sender: type, payload: TaskCall, ctx: Context) -> None:
        self._sender = sender
        self._is_last = ctx.attempt >= ctx.max_attempts
        now = timezone.now()
        self.result: TaskResult[Any] = TaskResult(
            task=task,
            id=ctx.id,
            status=TaskResultStatus.RUNNING,
            enqueued_at=_enqueued_at(ctx.id),
            started_at=now,
            finished_at=None,
            last_attempted_at=now,
            args=payload["args"],
            kwargs=payload["kwargs"],
            backend=task.backend,
            errors=[],
            worker_ids=[str(ctx.job.worker)] * ctx.attempt,
        )
        self.args = [TaskContext(task_result=self.result)] if task.takes_context else []
        self.args += payload["args"]
        task_started.send(sender=sender, task_result=self.result)

    def succeeded(self, value: Any) -> Any:
        object.__setattr__(self.result, "_return_value", value)
        self._finished(TaskResultStatus.SUCCESSFUL)
        return value

    def failed(self, exc: BaseException) -> None:
        """Tell of the end, unless another attempt follows."""
        if isinstance(exc, Permanent) or (self._is_last and not isinstance(exc, _NO_FAILURES)):
            path = f"{type(exc).__module__}.{type(exc).__qualname__}"
            told = "".join(traceback.format_exception(exc))
            self.result.errors.append(TaskError(exception_class_path=path, traceback=told))
            self._finished(TaskResultStatus.FAILED)

    def _finished(self, status: TaskResultStatus) -> None:
        object.__setattr__(self.result, "finished_at", timezone.now())
        object.__setattr__(self.result, "status", status)
        task_finished.send(self._sender, task_result=self.result)


def _result_of(job: Job, task: Task[..., Any], backend: str, attempts: list[Attempt]) -> TaskResult[Any]:
    payload = cast("TaskCall", job.payload or {"args": [], "kwargs": {}})  # retention may have removed it
    failed = [one for one in attempts if one.outcome in {"retried", "dead", "failed", "expired"}]
    workers = [str(one.worker or "unknown") for one in failed]
    workers += [str(job.lease_owner or "unknown")] * (job.attempt - len(workers))
    begun = job.state is not State.QUEUED or job.attempt > 0
    result: TaskResult[Any] = TaskResult(
        task=_task_of(job, task, backend),
        id=job.id,
        status=_STATUSES.get(job.state, TaskResultStatus.READY),
        enqueued_at=_enqueued_at(job.id) or _shown(job.created_at),
        started_at=_shown((job.started_at or job.claimed_at) if begun else None),
        finished_at=_shown(job.finished_at),
        last_attempted_at=_shown(job.claimed_at if begun else None),
        args=payload["args"],
        kwargs=payload["kwargs"],
        backend=backend,
        errors=[_error_of(one.error or "") for one in failed],
        worker_ids=workers,
    )
    object.__setattr__(result, "_return_value", job.result)
    return result


def _task_of(job: Job, task: Task[..., Any], backend: str) -> Task[..., Any]:
    """The task as it was enqueued. Operators and other programs may choose a queue or a priority that TASKS does not
    allow; then the task is shown as it is defined."""
    try:
        return task.using(queue_name=job.queue, priority=job.priority, backend=backend, run_after=_run_after(job))
    except InvalidTaskError:
        return task.using(backend=backend)


def _error_of(text: str) -> TaskError:
    """The error of an attempt. The last line of a traceback that begins with a name tells the class in full."""
    headline, _, trace = text.partition("\n")
    lines = [line for line in trace.splitlines() if not line.startswith(" ")]
    named = [found[1] for line in reversed(lines) if (found := _RAISED.match(line)) and line != "Traceback"]
    name = named[0] if named else headline.partition(":")[0]
    path = name if "." in name else f"builtins.{name}"
    return TaskError(exception_class_path=path, traceback=trace or headline)


def _run_after(job: Job) -> datetime | None:
    return _shown(job.run_at) if job.attempt == 0 and job.run_at > job.created_at else None


def _aware(moment: datetime | None) -> datetime | None:
    return timezone.make_aware(moment) if moment is not None and timezone.is_naive(moment) else moment


def _shown(moment: datetime | None) -> datetime | None:
    """A moment as the project wants it: naive and local without USE_TZ."""
    return moment if moment is None or settings.USE_TZ else timezone.make_naive(moment)


def _enqueued_at(job_id: str) -> datetime | None:
    """The moment in the id, if that is one of ours: the caller, the handler and later readers are told the same one."""
    if job_id[14] != "7":
        return None
    return _shown(datetime.fromtimestamp(int(job_id.replace("-", "")[:12], 16) / 1000, UTC))
