// Place orders: `node producer.mjs 1 20` places 1 to 20 and prints each stored number.

import { setTimeout } from "node:timers/promises";

import { SendMessageCommand } from "@aws-sdk/client-sqs";

import { openOrders, sqs } from "./queues.mjs";

/** Send an order until it is stored. After an error it may be stored twice. */
async function place(QueueUrl, order) {
  const MessageBody = JSON.stringify({ order, article: "tea" });
  for (;;) {
    try {
      await sqs.send(new SendMessageCommand({ QueueUrl, MessageBody }));
      return;
    } catch (error) {
      console.error(`order ${order} is sent again: ${error.message}`);
      await setTimeout(500);
    }
  }
}

const [first, last] = process.argv.slice(2).map(Number);
const orders = await openOrders();
for (let number = first; number <= last; number += 1) {
  await place(orders, number);
  console.log(number);
  await setTimeout(20);
}
