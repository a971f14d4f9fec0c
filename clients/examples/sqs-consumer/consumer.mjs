// Pack orders until stopped, and print each packed order.

import { setTimeout } from "node:timers/promises";

import { Consumer } from "sqs-consumer";

import { pack } from "./packing.mjs";
import { openOrders, sqs } from "./queues.mjs";

/** Open the queue as soon as it answers; returns its URL. */
async function opened() {
  for (;;) {
    try {
      return await openOrders();
    } catch (error) {
      console.error(`the queue does not answer: ${error.message}`);
      await setTimeout(500);
    }
  }
}

const orders = Consumer.create({
  sqs,
  queueUrl: await opened(),
  batchSize: 10,
  waitTimeSeconds: 5,
  authenticationErrorTimeout: 500, // also its pause after the queue does not answer
  handleMessage: async (message) => {
    pack(message);
    return message; // which deletes it
  },
});

for (const event of ["error", "processing_error", "timeout_error"]) {
  orders.on(event, (error) => console.error(`an order waits: ${error.message}`));
}
// On Ctrl-C or SIGTERM it packs the received orders, then receives no more.
process.once("SIGINT", () => orders.stop());
process.once("SIGTERM", () => orders.stop());
orders.start();
