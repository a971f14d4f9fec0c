"""A shop that receives signed webhooks without the client, with FastAPI.

SHOP_DB=shop.sqlite3 HOOKSTATION_SECRET=whsec_... uvicorn before:app
"""

import os
import sqlite3
from contextlib import closing

from fastapi import FastAPI, HTTPException, Request, Response
from pydantic import BaseModel, ValidationError
from standardwebhooks import Webhook, WebhookVerificationError

app = FastAPI()


class Order(BaseModel):
    id: int
    article: str
    quantity: int = 1


def database() -> sqlite3.Connection:
    opened = sqlite3.connect(os.environ["SHOP_DB"], timeout=30)
    opened.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, article TEXT)")
    opened.execute("CREATE TABLE IF NOT EXISTS handled (id TEXT PRIMARY KEY)")
    return opened


@app.get("/orders")
def orders() -> list[int]:
    with closing(database()) as db:
        return [row[0] for row in db.execute("SELECT id FROM orders ORDER BY id")]


@app.post("/hooks")
async def receive(request: Request) -> Response:
    body = await request.body()
    try:
        Webhook(os.environ["HOOKSTATION_SECRET"]).verify(body, dict(request.headers))
    except WebhookVerificationError as error:
        raise HTTPException(401, str(error)) from error
    try:
        order = Order.model_validate_json(body)
    except ValidationError as error:
        raise HTTPException(422, str(error), {"Hookstation-Retry": "never"}) from error
    message_id = request.headers["webhook-id"]
    with closing(database()) as db, db:
        if db.execute("SELECT 1 FROM handled WHERE id = ?", (message_id,)).fetchone():
            return Response(status_code=204)
        if order.quantity > 100:
            detail = "more than the shop has"
            raise HTTPException(422, detail, {"Hookstation-Retry": "never"})
        if order.article == "fresh bread" and request.headers["hookstation-attempt"] == "1":
            raise HTTPException(409, "still in the oven", {"Retry-After": "1"})
        db.execute("REPLACE INTO orders VALUES (?, ?)", (order.id, order.article))
        db.execute("INSERT INTO handled VALUES (?)", (message_id,))
    return Response(status_code=204)
