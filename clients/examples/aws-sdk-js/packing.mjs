// What the shop does with an order.

import { mkdirSync, writeFileSync } from "node:fs";

const SLIPS = process.env.SHOP_SLIPS ?? "slips";
mkdirSync(SLIPS, { recursive: true });

/** Pack the order of a message: write its packing slip. A repeated order changes nothing. */
export function pack({ Body }) {
  const { order, article } = JSON.parse(Body);
  writeFileSync(`${SLIPS}/${order}.txt`, `${article}\n`);
  console.log(`order ${order} is packed`);
}
