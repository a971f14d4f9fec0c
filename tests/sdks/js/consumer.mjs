// sqs-consumer as its documentation has it; prints one line of JSON for each check.
import { readFileSync } from "node:fs";

import * as sqs from "@aws-sdk/client-sqs";
import { Consumer } from "sqs-consumer";

const PACKAGE = new URL("node_modules/sqs-consumer/package.json", import.meta.url);
const client = new sqs.SQSClient();
const PATIENCE_MS = 60_000;

async function queue(name, Attributes = {}) {
  const QueueName = `${process.env.QUEUE}-${name}`;
  return (await client.send(new sqs.CreateQueueCommand({ QueueName, Attributes }))).QueueUrl;
}

const send = (QueueUrl, MessageBody, more = {}) =>
  client.send(new sqs.SendMessageCommand({ QueueUrl, MessageBody, ...more }));

// Runs a consumer until `isDone` says so, and `settleMs` longer; returns the errors it emitted.
async function consume(options, isDone, settleMs = 0) {
  const consumer = Consumer.create({ waitTimeSeconds: 5, suppressFifoWarning: true, ...options });
  const errors = [];
  for (const event of ["error", "processing_error", "timeout_error"]) {
    consumer.on(event, (error) => errors.push(error));
  }
  consumer.start();
  const end = Date.now() + PATIENCE_MS;
  while (!isDone(errors)) {
    if (Date.now() > end) throw new Error(`not done; errors: ${errors.map((it) => it.message)}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  await new Promise((resolve) => setTimeout(resolve, settleMs));
  consumer.stop();
  return [...errors];
}

async function isEmpty(QueueUrl) {
  const AttributeNames = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"];
  const asked = new sqs.GetQueueAttributesCommand({ QueueUrl, AttributeNames });
  const counts = Object.values((await client.send(asked)).Attributes);
  return counts.every((count) => count === "0");
}

function expect(condition, reason) {
  if (!condition) throw new Error(reason);
}

const checks = {
  async messages() {
    const queueUrl = await queue("messages");
    const MessageAttributes = { kind: { DataType: "String", StringValue: "x" } };
    await send(queueUrl, "one", { MessageAttributes });
    await send(queueUrl, "two", { MessageAttributes });
    const got = [];
    const handleMessage = async (message) => {
      got.push(`${message.Body} ${message.MessageAttributes.kind.StringValue}`);
      return message;
    };
    const options = { queueUrl, batchSize: 10, messageAttributeNames: ["All"], handleMessage };
    const errors = await consume(options, () => got.length >= 2, 500);
    expect(errors.length === 0, `errors: ${errors}`);
    expect(got.sort().join() === "one x,two x", `received: ${got}`);
    expect(await isEmpty(queueUrl), "the queue is not empty");
  },

  async batches() {
    const queueUrl = await queue("batches");
    const Entries = ["keep", "a", "b"].map((body) => ({ Id: body, MessageBody: body }));
    await client.send(new sqs.SendMessageBatchCommand({ QueueUrl: queueUrl, Entries }));
    const done = [];
    const handleMessageBatch = async (messages) => {
      const acked = messages.filter((message) => message.Body !== "keep");
      done.push(...acked.map((message) => message.Body));
      return acked;
    };
    const options = { queueUrl, batchSize: 10, visibilityTimeout: 600, handleMessageBatch };
    const errors = await consume(options, () => done.length >= 2, 500);
    expect(errors.length === 0, `errors: ${errors}`);
    expect(!(await isEmpty(queueUrl)), "what was not acknowledged is gone");
  },

  async retries() {
    const queueUrl = await queue("retries", { VisibilityTimeout: "600" });
    await send(queueUrl, "x");
    const counts = [];
    const handleMessage = async (message) => {
      counts.push(message.Attributes.ApproximateReceiveCount);
      if (counts.length === 1) throw new Error("the first try fails");
      return message;
    };
    const names = ["ApproximateReceiveCount"];
    const options = { queueUrl, messageSystemAttributeNames: names, terminateVisibilityTimeout: true };
    await consume({ ...options, handleMessage }, () => counts.length >= 2, 500);
    expect(counts.join() === "1,2", `receive counts: ${counts}`);
    expect(await isEmpty(queueUrl), "the queue is not empty");
  },

  async "retries of batches"() {
    const queueUrl = await queue("retries-of-batches", { VisibilityTimeout: "600" });
    await send(queueUrl, "x");
    const started = [];
    const handleMessageBatch = async (messages) => {
      started.push(Date.now());
      if (started.length === 1) throw new Error("the first try fails");
      return messages;
    };
    const options = { queueUrl, batchSize: 10, terminateVisibilityTimeout: () => 1 };
    await consume({ ...options, handleMessageBatch }, () => started.length >= 2, 500);
    expect(started[1] - started[0] >= 900, "it came back before its time");
    expect(await isEmpty(queueUrl), "the queue is not empty");
  },

  async heartbeat() {
    const queueUrl = await queue("heartbeat");
    await send(queueUrl, "x");
    let starts = 0;
    let ends = 0;
    const handleMessage = async (message) => {
      starts += 1;
      await new Promise((resolve) => setTimeout(resolve, 9500));
      ends += 1;
      return message;
    };
    const options = { queueUrl, visibilityTimeout: 5, heartbeatInterval: 1, handleMessage };
    const second = consume(options, () => ends >= 1, 500);
    const errors = [...(await consume(options, () => ends >= 1, 500)), ...(await second)];
    expect(errors.length === 0, `errors: ${errors}`);
    expect(starts === 1, `it was handled ${starts} times`);
    expect(await isEmpty(queueUrl), "the queue is not empty");
  },

  async "message groups"() {
    const queueUrl = await queue("groups.fifo", { FifoQueue: "true", VisibilityTimeout: "600" });
    for (const body of ["1", "2", "3"]) {
      await send(queueUrl, body, { MessageGroupId: "a", MessageDeduplicationId: body });
    }
    const got = [];
    const handleMessage = async (message) => {
      got.push(message.Body);
      if (got.length === 2) throw new Error("this try fails");
      return message;
    };
    const options = { queueUrl, batchSize: 10, terminateVisibilityTimeout: true, handleMessage };
    await consume(options, () => got.length >= 4, 500);
    expect(got.join() === "1,2,2,3", `received: ${got}`);
    expect(await isEmpty(queueUrl), "the queue is not empty");
  },

  async "no queue"() {
    const queueUrl = `${process.env.AWS_ENDPOINT_URL_SQS}/000000000000/${process.env.QUEUE}-none`;
    const options = { queueUrl, handleMessage: async (message) => message };
    const [error] = await consume(options, (errors) => errors.length >= 1);
    expect(error.code === "QueueDoesNotExist", `the error's code is ${error.code}`);
  },
};

process.stdout.write(`${JSON.stringify({ version: JSON.parse(readFileSync(PACKAGE)).version })}\n`);
for (const [check, run] of Object.entries(checks)) {
  let said = { check, ok: true };
  try {
    await run();
  } catch (error) {
    said = { check, ok: false, reason: String(error.message) };
  }
  process.stdout.write(`${JSON.stringify(said)}\n`);
}
