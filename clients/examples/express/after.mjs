// The shop of before.mjs with the client.
//
// SHOP_DB=shop.sqlite3 HOOKSTATION_SECRET=whsec_... PORT=8100 node after.mjs

import express from "express";
import { Hooks, Reject, Retry, SQLiteStore } from "hookstation-client";
import Database from "libsql";

const database = new Database(process.env.SHOP_DB);
database.exec("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, article TEXT)");
const hooks = new Hooks({ store: new SQLiteStore(database) });

function toOrder(body) {
  if (!Number.isInteger(body?.id)) throw new Error("no order");
  return body;
}

function order({ id, article, quantity }, { attempt }) {
  if (quantity > 100) throw new Reject("more than the shop has");
  if (article === "fresh bread" && attempt === 1) {
    throw new Retry({ after: 1, reason: "still in the oven" });
  }
  database.prepare("REPLACE INTO orders VALUES (?, ?)").run(id, article);
}

hooks.on("order.*", order, { parse: toOrder });

const app = express();

app.get("/orders", (request, response) => {
  const rows = database.prepare("SELECT id FROM orders ORDER BY id").all();
  response.json(rows.map(({ id }) => id));
});

app.post("/hooks", hooks.express());
app.listen(Number(process.env.PORT), "127.0.0.1");
