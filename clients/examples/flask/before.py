"""A shop that receives signed webhooks without the client, with Flask.

SHOP_DB=shop.sqlite3 HOOKSTATION_SECRET=whsec_... flask --app before run
"""

import os
import sqlite3
from contextlib import closing

from flask import Flask, request
from standardwebhooks import Webhook, WebhookVerificationError

app = Flask(__name__)


def database() -> sqlite3.Connection:
    opened = sqlite3.connect(os.environ["SHOP_DB"], timeout=30)
    opened.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, article TEXT)")
    opened.execute("CREATE TABLE IF NOT EXISTS handled (id TEXT PRIMARY KEY)")
    return opened


@app.get("/orders")
def orders():
    with closing(database()) as db:
        return [row[0] for row in db.execute("SELECT id FROM orders ORDER BY id")]


@app.post("/hooks")
def receive():
    try:
        secret = os.environ["HOOKSTATION_SECRET"]
        order = Webhook(secret).verify(request.get_data(), dict(request.headers))
    except WebhookVerificationError as error:
        return {"detail": str(error)}, 401
    if not isinstance(order, dict) or not isinstance(order.get("id"), int):
        return {"detail": "no order"}, 422, {"Hookstation-Retry": "never"}
    message_id = request.headers["webhook-id"]
    with closing(database()) as db, db:
        if db.execute("SELECT 1 FROM handled WHERE id = ?", (message_id,)).fetchone():
            return "", 204
        if order.get("quantity", 1) > 100:
            return {"detail": "more than the shop has"}, 422, {"Hookstation-Retry": "never"}
        if order["article"] == "fresh bread" and request.headers["Hookstation-Attempt"] == "1":
            return {"detail": "still in the oven"}, 409, {"Retry-After": "1"}
        db.execute("REPLACE INTO orders VALUES (?, ?)", (order["id"], order["article"]))
        db.execute("INSERT INTO handled VALUES (?)", (message_id,))
    return "", 204
