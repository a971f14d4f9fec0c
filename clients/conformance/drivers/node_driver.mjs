// The driver of the Node.js client. HOOKSTATION_NODE_CLIENT is the path of a client's module that
// is built but not installed. With HOOKSTATION_GRPC_URL it receives and settles over gRPC streams.

import { resolve } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const built = process.env.HOOKSTATION_NODE_CLIENT;
const client = built ? pathToFileURL(resolve(built)).href : "hookstation-client";
const { Hookstation, HookstationError, SignatureError, Stream, verify } = await import(client);

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

/** Seconds without a message after which a receive over a stream ends. */
const QUIET_S = 0.3;
/** Opens a stream for the consumer of the last receive that was not refused. */
let openAgain;

async function receiveOverStream({ channel, consumer, max = 10, wait = 0, ...options }) {
  const { worker_id: workerId, lease, resume } = options;
  const asked = { credits: max, lease, workerId, resume };
  const stream = await Stream.open(hooks, channel, consumer, asked);
  const messages = [];
  let next = stream.next();
  while (messages.length < max) {
    const patience = messages.length ? QUIET_S : Math.max(wait, QUIET_S);
    const timer = new AbortController();
    const late = sleep(patience * 1000, undefined, { signal: timer.signal }).catch(() => undefined);
    const result = await Promise.race([next, late]);
    timer.abort();
    if (result === undefined || result.done) break;
    messages.push(result.value);
    next = stream.next();
  }
  const closed = stream.close();
  // The broker may have sent more before it saw that.
  for (let result = await next; !result.done; result = await stream.next()) {
    messages.push(result.value);
  }
  await closed;
  openAgain = () => Stream.open(hooks, channel, consumer);
  for (const message of messages) {
    if (message.bodyUrl) message.body = await hooks.body(message.id);
  }
  return { messages: messages.map(shown) };
}

/** Settles over a stream of its own, or over REST if another process received the message. */
async function settledOverStream(action, ...given) {
  if (openAgain === undefined) return settled(await hooks[action](...given));
  const stream = await openAgain();
  try {
    return settled(await stream[action](...given));
  } finally {
    await stream.close();
  }
}

if (hooks.grpc) {
  Object.assign(operations, {
    receive: receiveOverStream,
    ack: ({ lease }) => settledOverStream("ack", lease),
    nack: ({ lease, ...options }) => settledOverStream("nack", lease, options),
    extend: ({ lease, seconds }) => settledOverStream("extend", lease, seconds),
    release: ({ lease, ...options }) => settledOverStream("release", lease, options),
  });
}

async function answer({ op, ...members }) {
  if (op === "hello") return { ok: { client: hooks.grpc ? "node-grpc" : "node", ops: Object.keys(operations) } };
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
