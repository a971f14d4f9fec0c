"""The shop of `before.py` with the client's decorators.

SHOP_DB=shop.sqlite3 HOOKSTATION_SECRET=whsec_... flask --app after run
"""

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass

from flask import Flask
from hookstation_client.receiving import Event, Hooks, Reject, Retry, SQLiteStore

app = Flask(__name__)
hooks = Hooks(store=SQLiteStore(os.environ["SHOP_DB"]))


@dataclass
class Order:
    id: int
    article: str
    quantity: int = 1


def database() -> sqlite3.Connection:
    opened = sqlite3.connect(os.environ["SHOP_DB"], timeout=30)
    opened.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, article TEXT)")
    return opened


@app.get("/orders")
def orders():
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


app.register_blueprint(hooks.flask_blueprint("/hooks"))
