// Pack orders until stopped, and print each packed order.

import { setTimeout } from "node:timers/promises";

import { DeleteMessageCommand, ReceiveMessageCommand } from "@aws-sdk/client-sqs";

import { pack } from "./packing.mjs";
import { openOrders, sqs } from "./queues.mjs";

let isEnding = false;

/** Receive up to ten orders; delete each message after its order is packed. */
async function work(QueueUrl) {
  const asked = { QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 5 };
  const { Messages = [] } = await sqs.send(new ReceiveMessageCommand(asked));
  for (const message of Messages) {
    pack(message);
    const { ReceiptHandle } = message;
    await sqs.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle }));
  }
}

/** Stop on Ctrl-C or SIGTERM: pack the received orders, then receive no more. */
function end() {
  isEnding = true;
}

process.once("SIGINT", end);
process.once("SIGTERM", end);
let orders;
while (!isEnding) {
  try {
    orders ??= await openOrders();
    await work(orders);
  } catch (error) {
    console.error(`the queue does not answer: ${error.message}`);
    await setTimeout(500);
  }
}
