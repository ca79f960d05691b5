"""Tasks of the kinds that a backend has to serve."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_tasks import TaskContext, task
else:
    from shop.task_api import TaskContext, task


@task
def nothing(*args: Any, **kwargs: Any) -> None: ...


@task
async def nothing_async(*args: Any) -> None: ...


@task
def meaning_of_life() -> int:
    return 42


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task
def fails() -> None:
    raise ValueError("this task fails")


@task
def fails_by_key() -> None:
    dict[str, int]()["missing"]


@task
def exits() -> None:
    raise SystemExit("this task exits")


class Odd(Exception):
    """An error of the project's own, with more than text."""


@task
def fails_oddly() -> None:
    raise Odd(Odd("inner"), object())


@task
def returns_no_json() -> Any:
    return object()


@task(takes_context=True)
def own_id(context: TaskContext) -> str:
    return context.task_result.id


@task(takes_context=True)
def attempts(context: TaskContext, expected: int) -> int:
    assert context.attempt == expected
    return context.attempt


@task(priority=10, queue_name="mail")
def urgent() -> None: ...


def plain() -> None: ...
