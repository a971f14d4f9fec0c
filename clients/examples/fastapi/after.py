"""The shop of `before.py` with the client's decorators.

SHOP_DB=shop.sqlite3 HOOKSTATION_SECRET=whsec_... uvicorn after:app
"""

import os
import sqlite3
from contextlib import closing

from fastapi import FastAPI
from hookstation_client.receiving import Event, Hooks, Reject, Retry, SQLiteStore
from pydantic import BaseModel

app = FastAPI()
hooks = Hooks(store=SQLiteStore(os.environ["SHOP_DB"]))


class Order(BaseModel):
    id: int
    article: str
    quantity: int = 1


def database() -> sqlite3.Connection:
    opened = sqlite3.connect(os.environ["SHOP_DB"], timeout=30)
    opened.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, article TEXT)")
    return opened


@app.get("/orders")
def orders() -> list[int]:
    with closing(database()) as db:
        return [row[0] for row in db.execute("SELECT id FROM orders ORDER BY id")]


@hooks.on("order.*")
def order(order: Order, event: Event) -> None:
    if order.quantity > 100:
        raise Reject("more than the shop has")
    if order.article == "fresh bread" and event.attempt == 1:
        raise Retry(after=1, reason="still in the oven")
    with closing(database()) as db, db:
        db.execute("REPLACE INTO orders VALUES (?, ?)", (order.id, order.article))


app.include_router(hooks.fastapi_router("/hooks"))
