"""An API in front of a queue: an order is a row and a task, and both exist if the transaction of its request commits.

Serve it by `POOLKEEPER_DSN=postgresql://… uvicorn api:api`, after `poolkeeper queue apply queue.yaml`.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated
from uuid import UUID

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from handlers import Shipment
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from poolkeeper import AsyncClient, Conflict, Refused


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "shop_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    task: Mapped[UUID | None]


class Wanted(BaseModel):
    item: str


class Known(BaseModel):
    order: int
    state: str
    result: str | None = None


@asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncIterator[None]:
    engine = create_async_engine(os.environ["POOLKEEPER_DSN"].replace("postgresql://", "postgresql+psycopg://"))
    api.state.sessions = async_sessionmaker(engine, expire_on_commit=False)
    async with engine.begin() as conn:
        await conn.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()


async def session(request: Request) -> AsyncIterator[AsyncSession]:
    """The transaction of a request; an error rolls it back."""
    async with request.app.state.sessions.begin() as one:
        yield one


# scope="function": committed before the answer is sent. By default it would be after that, and a 202 might be a lie.
Transaction = Annotated[AsyncSession, Depends(session, scope="function")]

api = FastAPI(title="Shop", lifespan=lifespan)


@api.post("/orders", status_code=202)
async def order(wanted: Wanted, session: Transaction) -> Known:
    row = Order(item=wanted.item)
    session.add(row)
    await session.flush()  # for its id
    task = await AsyncClient(session).submit("orders", "orders.ship", Shipment(order=row.id), key=f"order-{row.id}")
    row.task = task.task_id
    return Known(order=row.id, state="accepted")


@api.get("/orders/{number}")
async def look(number: int, session: Transaction) -> Known:
    task = await AsyncClient(session).get(await task_of(number, session))
    return Known(order=number, state=task.state, result=task.result)


@api.delete("/orders/{number}")
async def cancel(number: int, session: Transaction) -> Known:
    """Cancel: at once while it waits; a handler that runs is told."""
    changed = await AsyncClient(session).cancel(
        await task_of(number, session), who="shop API", why="the customer asked"
    )
    return Known(order=number, state=changed.state or "unknown")


async def task_of(number: int, session: AsyncSession) -> UUID:
    row = await session.get(Order, number)
    if row is None or row.task is None:
        raise HTTPException(404, f"there is no order {number}")
    return row.task


@api.exception_handler(Conflict)
async def conflict(_request: Request, error: Conflict) -> JSONResponse:
    return JSONResponse({"code": str(error.code), "detail": str(error)}, 409)


@api.exception_handler(Refused)
async def refused(_request: Request, error: Refused) -> JSONResponse:
    """The queue is paused or full: nothing was ordered, try again later."""
    later = {} if error.retry_after is None else {"Retry-After": str(int(error.retry_after.total_seconds()) + 1)}
    return JSONResponse({"code": str(error.code), "detail": str(error)}, 503, headers=later)
