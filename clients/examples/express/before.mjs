// A shop that receives signed webhooks without the client, with Express.
//
// SHOP_DB=shop.sqlite3 HOOKSTATION_SECRET=whsec_... PORT=8100 node before.mjs

import express from "express";
import Database from "libsql";
import { Webhook, WebhookVerificationError } from "standardwebhooks";

const webhook = new Webhook(process.env.HOOKSTATION_SECRET);
const database = new Database(process.env.SHOP_DB);
database.exec("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, article TEXT)");
database.exec("CREATE TABLE IF NOT EXISTS handled (id TEXT PRIMARY KEY)");

/** Stores an order and the id of its message in one transaction. */
const store = database.transaction((messageId, order) => {
  database.prepare("REPLACE INTO orders VALUES (?, ?)").run(order.id, order.article);
  database.prepare("INSERT INTO handled VALUES (?)").run(messageId);
});

const app = express();

app.get("/orders", (request, response) => {
  const rows = database.prepare("SELECT id FROM orders ORDER BY id").all();
  response.json(rows.map(({ id }) => id));
});

app.post("/hooks", express.raw({ type: () => true, limit: "16mb" }), (request, response) => {
  const never = { "Hookstation-Retry": "never" };
  let order;
  try {
    order = webhook.verify(request.body, request.headers);
  } catch (error) {
    if (error instanceof WebhookVerificationError) {
      return response.status(401).json({ detail: error.message });
    }
    return response.status(422).set(never).json({ detail: "no JSON" });
  }
  if (!Number.isInteger(order?.id)) {
    return response.status(422).set(never).json({ detail: "no order" });
  }
  const messageId = request.get("webhook-id");
  if (database.prepare("SELECT 1 FROM handled WHERE id = ?").get(messageId)) {
    return response.status(204).end();
  }
  if (order.quantity > 100) {
    return response.status(422).set(never).json({ detail: "more than the shop has" });
  }
  if (order.article === "fresh bread" && request.get("Hookstation-Attempt") === "1") {
    return response.status(409).set("Retry-After", "1").json({ detail: "still in the oven" });
  }
  store(messageId, order);
  return response.status(204).end();
});

app.listen(Number(process.env.PORT), "127.0.0.1");
