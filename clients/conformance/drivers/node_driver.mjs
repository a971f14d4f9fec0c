// The driver of the Node.js client. HOOKSTATION_NODE_CLIENT is the path of a client's module that
// is built but not installed.

import { resolve } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const built = process.env.HOOKSTATION_NODE_CLIENT;
const client = built ? pathToFileURL(resolve(built)).href : "hookstation-client";
const { Hookstation, HookstationError, SignatureError, verify } = await import(client);

const hooks = new Hookstation();

/** An operation that failed; `members` are those of the response's `error`. */
class Refused extends Error {
  constructor(members) {
    super(members.detail);
    this.members = members;
  }
}

function bytesOf({ body = "", body_base64: encoded }) {
  return encoded === undefined ? Buffer.from(body) : Buffer.from(encoded, "base64");
}

function shown(message) {
  return {
    id: message.id,
    lease: message.lease,
    attempt: message.attempt,
    event_type: message.eventType,
    ordering_key: message.orderingKey,
    priority: message.priority,
    headers: message.headers,
    content_type: message.contentType,
    body_base64: message.body.toString("base64"),
  };
}

function settled({ failed }) {
  for (const code of Object.values(failed)) {
    throw new Refused({ code, status: 200, detail: "The lease is lost." });
  }
  return {};
}

async function idsOf(items, name) {
  const ids = [];
  for await (const item of items) ids.push(item[name]);
  return { ids };
}

/** The operations of the protocol, by the client's methods. */
const operations = {
  now: () => Date.now() / 1000,
  create_channel: ({ channel, settings }) => hooks.createChannel(channel, settings),
  register: ({ channel, consumer, settings }) => hooks.register(channel, consumer, settings),
  async publish({ channel, ...said }) {
    const { id, isDuplicate } = await hooks.publish(channel, bytesOf(said), {
      id: said.id,
      contentType: said.content_type ?? "application/json",
      eventType: said.event_type,
      orderingKey: said.ordering_key,
      priority: said.priority,
      deliverIn: said.deliver_in,
      headers: said.headers,
    });
    return { id, duplicate: isDuplicate };
  },
  async publish_batch({ channel, messages }) {
    const results = await hooks.publishBatch(channel, messages);
    return {
      results: results.map(({ message, error }) =>
        error ? { error: error.code } : { id: message.id, duplicate: message.isDuplicate },
      ),
    };
  },
  list_messages: ({ channel }) => idsOf(hooks.messages(channel), "id"),
  message: ({ id }) => hooks.message(id),
  move: ({ id, deliver_in: deliverIn, priority }) => hooks.move(id, { deliverIn, priority }),
  cancel: ({ id }) => hooks.cancel(id),
  async receive({ channel, consumer, worker_id: workerId, ...options }) {
    const messages = await hooks.receiveBatch(channel, consumer, { ...options, workerId });
    return { messages: messages.map(shown) };
  },
  ack: async ({ lease }) => settled(await hooks.ack(lease)),
  nack: async ({ lease, ...options }) => settled(await hooks.nack(lease, options)),
  extend: async ({ lease, seconds }) => settled(await hooks.extend(lease, seconds)),
  release: async ({ lease, ...options }) => settled(await hooks.release(lease, options)),
  dead_letters: ({ channel, consumer }) => idsOf(hooks.deadLetters(channel, consumer), "message_id"),
  replay_delivery: ({ id }) => hooks.replayDelivery(id),
  put_schedule: ({ channel, schedule, settings }) => hooks.schedules(channel).put(schedule, settings),
  get_schedule: ({ channel, schedule }) => hooks.schedules(channel).get(schedule),
  async delete_schedule({ channel, schedule }) {
    await hooks.schedules(channel).delete(schedule);
    return {};
  },
  verify: ({ secret, headers, ...said }) => ({ id: verify(secret, headers, bytesOf(said)) }),
};

async function answer({ op, ...members }) {
  if (op === "hello") return { ok: { client: "node", ops: Object.keys(operations) } };
  try {
    return { ok: await operations[op](members) };
  } catch (error) {
    if (error instanceof Refused) return { error: error.members };
    if (error instanceof SignatureError) {
      return { error: { code: "bad_signature", status: 0, detail: error.message } };
    }
    if (!(error instanceof HookstationError)) throw error;
    const { code, status, detail, fields } = error;
    return { error: { code, status, detail, fields: Object.keys(fields) } };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await answer(JSON.parse(line)))}\n`);
}
