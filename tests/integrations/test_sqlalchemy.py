"""SQLAlchemy sessions: a job exists exactly if its session commits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

import tenure
from tenure.client.function import JobFunction
from tenure.integrations.sqlalchemy import aenqueue, aenqueue_many, enqueue, enqueue_many

Pack = JobFunction[[int], [int], None, None]


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "shop_order"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def queue(url: str) -> Iterator[tenure.App]:
    with tenure.App(url, migrate="always") as app:
        app.queues.all()
        yield app


@pytest.fixture
def pack(queue: tenure.App) -> Pack:
    @queue.job(queue="packing")
    def pack(order: int) -> None: ...

    return pack


@pytest.fixture
def session(url: str) -> Iterator[Session]:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        yield session
    engine.dispose()


@pytest.fixture
async def async_session(url: str) -> AsyncIterator[AsyncSession]:
    driver = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}[url.partition("://")[0]]
    engine = create_async_engine(url.replace(url.partition("://")[0], driver, 1))
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with AsyncSession(engine) as session:
        yield session
    await engine.dispose()


def test_a_job_and_an_order_are_committed_together(session: Session, queue: tenure.App, pack: Pack) -> None:
    with session.begin():
        session.add(Order(id=7))
        handle = enqueue(session, pack.options(key="7"), 7)
        assert queue.get_many([handle.id]) == [None]

    assert (queue.get(handle.id).payload, queue.get(handle.id).queue) == (7, "packing")
    assert session.get(Order, 7) is not None


def test_nothing_is_visible_after_a_rollback(session: Session, queue: tenure.App, pack: Pack) -> None:
    session.add(Order(id=7))
    enqueue(session, pack, 7)
    enqueue_many(session, pack, [8, 9])
    session.rollback()

    assert queue.jobs().items == []
    assert session.get(Order, 7) is None


def test_an_inner_rollback_takes_back_its_own_jobs_only(session: Session, queue: tenure.App, pack: Pack) -> None:
    with session.begin():
        enqueue(session, pack, 1)
        inner = session.begin_nested()
        enqueue(session, pack, 2)
        inner.rollback()
        enqueue(session, pack, 3)

    assert sorted(job.payload for job in queue.jobs()) == [1, 3]


def test_a_refusal_leaves_the_session_usable(session: Session, queue: tenure.App, pack: Pack) -> None:
    with session.begin():
        session.add(Order(id=7))
        enqueue(session, pack.options(key="one"), 7)
        with pytest.raises(tenure.KeyConflict):
            enqueue(session, pack.options(key="one"), 8)
        with pytest.raises(tenure.InvalidPayload):
            enqueue(session, pack, "no number")  # type: ignore[arg-type]

    assert [job.payload for job in queue.jobs()] == [7]
    assert session.get(Order, 7) is not None


def test_what_is_pending_is_flushed_before(session: Session, queue: tenure.App, pack: Pack) -> None:
    with session.begin():
        order = Order()
        session.add(order)
        enqueue_many(session, pack, [1, 2])
        assert order.id is not None

    assert len(queue.jobs()) == 2


def test_a_scoped_session_serves_too(session: Session, queue: tenure.App, pack: Pack) -> None:
    scoped = scoped_session(sessionmaker(session.get_bind()))
    enqueue(scoped, pack, 5)
    assert queue.jobs().items == []
    scoped.commit()
    scoped.remove()

    assert [job.payload for job in queue.jobs()] == [5]


@pytest.mark.anyio
async def test_async_sessions_commit_and_roll_back_jobs(
    async_session: AsyncSession, queue: tenure.App, pack: Pack
) -> None:
    async with async_session.begin():
        async_session.add(Order(id=7))
        await aenqueue(async_session, pack, 7)
        assert (await queue.aio.jobs()).items == []
    async_session.add(Order(id=8))
    await aenqueue(async_session, pack, 8)
    await aenqueue_many(async_session, pack, [9, 10])
    await async_session.rollback()

    assert [job.payload for job in await queue.aio.jobs()] == [7]


@pytest.mark.postgres
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_session_on_another_engine_is_refused(pack: Pack) -> None:
    with Session(create_engine("sqlite://")) as session, pytest.raises(tenure.ConfigError, match="belongs to sqlite"):
        enqueue(session, pack, 1)
