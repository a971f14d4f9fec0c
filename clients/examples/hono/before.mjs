// A shop that receives signed webhooks without the client, with Hono.
//
// SHOP_DB=shop.sqlite3 HOOKSTATION_SECRET=whsec_... PORT=8100 node before.mjs

import { serve } from "@hono/node-server";
import { Hono } from "hono";
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

const app = new Hono();

app.get("/orders", (context) => {
  const rows = database.prepare("SELECT id FROM orders ORDER BY id").all();
  return context.json(rows.map(({ id }) => id));
});

app.post("/hooks", async (context) => {
  const never = { "Hookstation-Retry": "never" };
  let order;
  try {
    order = webhook.verify(await context.req.text(), context.req.header());
  } catch (error) {
    if (error instanceof WebhookVerificationError) {
      return context.json({ detail: error.message }, 401);
    }
    return context.json({ detail: "no JSON" }, 422, never);
  }
  if (!Number.isInteger(order?.id)) return context.json({ detail: "no order" }, 422, never);
  const messageId = context.req.header("webhook-id");
  if (database.prepare("SELECT 1 FROM handled WHERE id = ?").get(messageId)) {
    return context.body(null, 204);
  }
  if (order.quantity > 100) {
    return context.json({ detail: "more than the shop has" }, 422, never);
  }
  if (order.article === "fresh bread" && context.req.header("Hookstation-Attempt") === "1") {
    return context.json({ detail: "still in the oven" }, 409, { "Retry-After": "1" });
  }
  store(messageId, order);
  return context.body(null, 204);
});

serve({ fetch: app.fetch, hostname: "127.0.0.1", port: Number(process.env.PORT) });
