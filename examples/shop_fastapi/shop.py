"""A small shop: an order, its stock and the jobs that follow are one transaction, or nothing.

export DATABASE_URL=postgresql://localhost/shop
uvicorn shop:api
tenure worker shop:queue
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field
from sqlalchemy import CheckConstraint, ForeignKey, create_engine, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

import tenure
from tenure.integrations.fastapi import add_error_handlers, lifespan
from tenure.integrations.sqlalchemy import enqueue

DATABASE_URL = os.environ["DATABASE_URL"]

engine = create_engine(DATABASE_URL.replace("postgresql://", "postgresql+psycopg://", 1))
new_session = sessionmaker(engine)
queue = tenure.App(DATABASE_URL)
for name in ("packing", "mail"):
    queue.queue(name, lease_seconds=30)  # so long until others take over what a dead worker held


class Base(DeclarativeBase):
    """The shop's tables, beside those of the queue."""


class Article(Base):
    """What can be bought. The rule on `left` is kept by the database, whatever two buyers do at once."""

    __tablename__ = "article"
    __table_args__ = (CheckConstraint('"left" >= 0', name="enough_left"),)
    sku: Mapped[str] = mapped_column(primary_key=True)
    left: Mapped[int]


class Order(Base):
    """What was bought."""

    __tablename__ = "customer_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    sku: Mapped[str] = mapped_column(ForeignKey("article.sku"))
    quantity: Mapped[int]
    mail_to: Mapped[str]
    state: Mapped[str] = mapped_column(default="ordered")


class Mail(Base):
    """Mails that were sent. `key` is the effect's: a repeated attempt sends no second one."""

    __tablename__ = "sent_mail"
    key: Mapped[str] = mapped_column(primary_key=True)
    order_id: Mapped[int]
    subject: Mapped[str]


# --- jobs -------------------------------------------------------------------------------------------------------------


@queue.job(queue="packing")
def pack(order_id: int) -> str:
    """Pack an order, and enqueue the mail about it in the same transaction."""
    with new_session.begin() as session:
        order = session.get_one(Order, order_id, with_for_update=True)
        if order.state == "ordered":  # an attempt that died after its commit is made again
            order.state = "packed"
            enqueue(session, tell.options(key=f"packed-{order_id}"), order_id)
        return order.state


@queue.job(queue="mail")
def tell(order_id: int, ctx: tenure.Context) -> None:
    """Send one mail, once, however often this runs: the receiver knows a repeat by its key, so `keyed=True`."""

    def send(call: tenure.EffectCall) -> None:
        with new_session.begin() as session:
            mail = insert(Mail).values(key=call.key, order_id=order_id, subject=f"Order {order_id} is packed")
            session.execute(mail.on_conflict_do_nothing())

    ctx.effect("mail", {"order": order_id}, do=send, keyed=True)


# --- requests ---------------------------------------------------------------------------------------------------------


class NewOrder(BaseModel):
    """The body of a request."""

    sku: str
    quantity: int = Field(gt=0)
    mail_to: str


@asynccontextmanager
async def life(api: FastAPI) -> AsyncIterator[None]:
    """Make the tables, and let requests know the queue. Its jobs run elsewhere: `tenure worker shop:queue`."""
    Base.metadata.create_all(engine)
    async with lifespan(queue, worker=False)(api):
        yield
    engine.dispose()


api = FastAPI(title="Shop", lifespan=life)
add_error_handlers(api)


@api.put("/articles/{sku}")
def stock(sku: str, left: int) -> dict[str, int]:
    """Say how many there are."""
    with new_session.begin() as session:
        session.merge(Article(sku=sku, left=left))
    return {"left": left}


@api.post("/orders", status_code=201)
def order(new: NewOrder) -> dict[str, int | str]:
    """Buy. The job is enqueued before the stock is checked: if the stock refuses, there was never a job."""
    try:
        with new_session.begin() as session:
            made = Order(**new.model_dump())
            session.add(made)
            session.flush()
            job = enqueue(session, pack.options(key=f"pack-{made.id}"), made.id)
            taken = Article.left - new.quantity
            session.execute(update(Article).where(Article.sku == new.sku).values(left=taken))
            return {"order": made.id, "job": job.id}
    except IntegrityError as exc:
        detail = "sold out" if "enough_left" in str(exc) else "no such article"
        raise HTTPException(409, detail) from exc


@api.get("/orders/{order_id}")
def show(order_id: int) -> dict[str, object]:
    """How far an order is."""
    with new_session() as session:
        found = session.get(Order, order_id)
        if found is None:
            raise HTTPException(404, "no such order")
        mails = session.scalars(select(Mail.subject).where(Mail.order_id == order_id)).all()
        return {"order": found.id, "state": found.state, "mails": list(mails)}
