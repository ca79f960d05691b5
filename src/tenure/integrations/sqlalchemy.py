"""SQLAlchemy: enqueue in a session's own transaction.

    with Session(engine) as session, session.begin():
        order = Order(customer=7)
        session.add(order)
        session.flush()                       # the order has its id
        enqueue(session, pack, order.id)      # exists exactly if the session commits

What the session has pending is flushed before, in the same transaction. A refusal of ours leaves the session usable.
The session's database must be the App's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from tenure.errors import MissingPackage

try:
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session
except ModuleNotFoundError as exc:
    raise MissingPackage("sqlalchemy", "tenure.integrations.sqlalchemy") from exc

if TYPE_CHECKING:
    from typing import Any

    from tenure.client.function import Enqueuer
    from tenure.client.handle import JobHandle

__all__ = ["aenqueue", "aenqueue_many", "enqueue", "enqueue_many"]

A = ParamSpec("A")
T = TypeVar("T")


def enqueue(
    session: Session | scoped_session[Session], job: Enqueuer[A, T], /, *args: A.args, **kwargs: A.kwargs
) -> JobHandle[T]:
    """Enqueue one job in the session's transaction: `enqueue(session, pack.options(key="7"), 7)`.

    Raises: InvalidPayload, KeyConflict, GateClosed, ConfigError and others, and the transaction goes on.
    """
    session.flush()
    return job.options(connection=session).enqueue(*args, **kwargs)


def enqueue_many(
    session: Session | scoped_session[Session], job: Enqueuer[..., T], payloads: Iterable[Any], /
) -> list[JobHandle[T]]:
    """Enqueue a job for each payload in the session's transaction, in batches."""
    session.flush()
    return job.options(connection=session).enqueue_many(payloads)


async def aenqueue(
    session: AsyncSession | async_scoped_session[AsyncSession],
    job: Enqueuer[A, T],
    /,
    *args: A.args,
    **kwargs: A.kwargs,
) -> JobHandle[T]:
    """`enqueue` for async sessions."""
    await session.flush()
    return await job.options(connection=session).aenqueue(*args, **kwargs)


async def aenqueue_many(
    session: AsyncSession | async_scoped_session[AsyncSession], job: Enqueuer[..., T], payloads: Iterable[Any], /
) -> list[JobHandle[T]]:
    """`enqueue_many` for async sessions."""
    await session.flush()
    return await job.options(connection=session).aenqueue_many(payloads)
