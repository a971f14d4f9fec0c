// Workers and streams over gRPC, on the broker that HOOKSTATION_GRPC_URL names.

import assert from "node:assert/strict";
import { cpSync, mkdtempSync } from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath, pathToFileURL } from "node:url";

import {
  BadRequest,
  ConnectionFailed,
  Hookstation,
  NotFound,
  Retry,
  Stream,
  Unauthorized,
  Worker,
} from "../../dist/esm/index.js";
import { channelOf, hooks, listed, PATIENCE_MS, SILENT, statesOf, until } from "./support.mjs";

const ends = { timeout: PATIENCE_MS };
const OPTIONS = { wait: 1, logger: SILENT, handleSignals: false };
const { hostname: HOST, port: PORT } = new URL(process.env.HOOKSTATION_GRPC_URL);

/** A client, and what it receives, settles and fetches over REST. */
function watched(grpc = hooks.grpc) {
  const used = [];
  const watch = (url, ...options) => {
    const { pathname } = new URL(url);
    if (/\/(receive|body|leases\/\w+)$/.test(pathname)) used.push(pathname.split("/").at(-1));
    return fetch(url, ...options);
  };
  return { client: new Hookstation(hooks.urls, { timeout: 60, fetch: watch, grpc }), used };
}

/** A port that forwards connections to the broker's gRPC server while it is open. */
async function tunnel(t) {
  const sockets = new Set();
  const server = createServer((near) => {
    const far = connect(Number(PORT), HOST);
    for (const [one, other] of [[near, far], [far, near]]) {
      sockets.add(one);
      one.on("error", () => other.destroy());
      one.on("close", () => other.destroy());
      one.pipe(other);
    }
  });
  const listen = (port) => new Promise((resolve) => server.listen(port, "127.0.0.1", resolve));
  await listen(0);
  const { port } = server.address();
  const close = async () => {
    const closed = new Promise((resolve) => server.close(resolve));
    for (const socket of sockets) socket.destroy();
    sockets.clear();
    await closed;
  };
  t.after(() => (server.listening ? close() : undefined));
  return { url: `grpc://127.0.0.1:${port}`, open: () => listen(port), close, sockets };
}

/** Starts a worker, which ends with the test at the latest; returns when it has ended. */
function started(t, worker) {
  t.after(() => worker.stop());
  return worker.run();
}

/** A channel with a pull consumer and messages. */
async function channelWith(count, settings = {}) {
  const channel = await channelOf();
  await hooks.register(channel, "all", settings);
  const messages = Array.from({ length: count }, (_, number) => ({ body: `${number}` }));
  if (count) await hooks.publishBatch(channel, messages);
  return channel;
}

const areDelivered = (channel, count) => async () =>
  (await statesOf(channel)).filter((state) => state === "Delivered").length === count;

test("a worker does nothing over REST", ends, async (t) => {
  const channel = await channelWith(200);
  const { client, used } = watched();
  const handled = [];
  const handle = (delivery) => void handled.push(delivery.text());
  const worker = new Worker(client, channel, "all", handle, { ...OPTIONS, concurrency: 16 });

  const ended = started(t, worker);
  await until(async () => handled.length === 200, "not everything is handled");
  worker.stop();
  await ended;

  assert.deepEqual(used, []);
  assert.equal(new Set(handled).size, 200);
  assert.deepEqual(await statesOf(channel), Array(200).fill("Delivered"));
});

test("a worker holds no more messages than it handles", ends, async (t) => {
  const channel = await channelWith(20);
  let begun = 0;
  let end;
  const may = new Promise((resolve) => (end = resolve));
  const handle = () => {
    begun += 1;
    return may;
  };
  const worker = new Worker(hooks, channel, "all", handle, { ...OPTIONS, concurrency: 3 });

  const ended = started(t, worker);
  await until(async () => begun === 3, "the worker has not begun");
  await sleep(1000);
  // Another worker gets all the others.
  const others = await hooks.receiveBatch(channel, "all", { max: 100 });
  await hooks.release(others);
  worker.stop();
  end();
  await ended;

  assert.deepEqual([begun, others.length], [3, 17]);
  assert.ok(await areDelivered(channel, 3)());
});

test("a worker uses REST while nobody listens, and then a stream again", ends, async (t) => {
  const channel = await channelWith(3);
  const broker = await tunnel(t);
  await broker.close();
  const { client, used } = watched(broker.url);
  const warnings = [];
  const logger = { warn: (text) => warnings.push(text), error() {} };
  const worker = new Worker(client, channel, "all", () => {}, { ...OPTIONS, logger });

  const ended = started(t, worker);
  await until(areDelivered(channel, 3), "nothing is handled over REST");
  assert.ok(used.includes("ack"));
  assert.match(warnings[0], /the stream ended, using the REST API: .*UNAVAILABLE/);

  await broker.open();
  const isHandledOverStream = async () => {
    const [before, count] = [used.length, (await statesOf(channel)).length];
    await hooks.publish(channel, "x");
    await until(areDelivered(channel, count + 1), "nothing is handled");
    return used.length === before;
  };
  await until(isHandledOverStream, "it opens no stream");
  worker.stop();
  await ended;
});

test("what a broken stream did not confirm is settled over REST", ends, async (t) => {
  const channel = await channelWith(1);
  const broker = await tunnel(t);
  const { client, used } = watched(broker.url);
  let end;
  const begun = new Promise((resolve) => {
    const handle = () => new Promise((done) => resolve((end = done)));
    const worker = new Worker(client, channel, "all", handle, OPTIONS);
    started(t, worker);
  });

  await begun;
  assert.deepEqual(used, []);
  await broker.close();
  end();
  await until(areDelivered(channel, 1), "not acknowledged");
  assert.ok(used.includes("ack"));
  const [delivery] = await listed(hooks.deliveries(channel, "all"));
  assert.equal(delivery.attempt_count, 1);
});

test("a worker without the gRPC libraries uses REST", ends, async (t) => {
  const channel = await channelWith(2);
  const folder = mkdtempSync(join(tmpdir(), "hookstation-node-"));
  cpSync(fileURLToPath(new URL("../../dist", import.meta.url)), folder, { recursive: true });
  const alone = await import(pathToFileURL(join(folder, "esm/index.js")));
  const client = new alone.Hookstation(hooks.urls, { timeout: 60, grpc: hooks.grpc });
  const warnings = [];
  const logger = { warn: (text) => warnings.push(text), error() {} };
  const worker = new alone.Worker(client, channel, "all", () => {}, { ...OPTIONS, logger });

  const ended = started(t, worker);
  await until(areDelivered(channel, 2), "nothing is handled");
  worker.stop();
  await ended;

  assert.equal(warnings.length, 1);
  assert.match(warnings[0], /using the REST API: .*Install @grpc\/grpc-js and @grpc\/proto-loader/);
  await assert.rejects(alone.Stream.open(client, channel, "all"), /Install @grpc/);
});

test("a worker ends with a refusal that is not temporary", ends, async (t) => {
  const channel = await channelWith(0);
  const { client, used } = watched();
  const stranger = new Hookstation(hooks.urls, { key: "hsk_no", grpc: hooks.grpc });

  await assert.rejects(
    started(t, new Worker(client, channel, "nobody", () => {}, OPTIONS)),
    (error) => error instanceof NotFound && error.code === "unknown_consumer" && error.status === 404,
  );
  await assert.rejects(started(t, new Worker(stranger, channel, "all", () => {}, OPTIONS)), Unauthorized);
  assert.deepEqual(used, []);
});

test("a worker survives a settlement that the broker refuses", ends, async (t) => {
  const channel = await channelWith(2, { max_attempts: 1 });
  const handle = (delivery) => {
    if (delivery.text() === "0") throw new Retry({ after: 1e9 });
  };
  const warnings = [];
  const logger = { warn: (text) => warnings.push(text), error() {} };
  const worker = new Worker(hooks, channel, "all", handle, { ...OPTIONS, concurrency: 1, logger });

  const ended = started(t, worker);
  await until(areDelivered(channel, 1), "the other message is not handled");
  worker.stop();
  await ended;
  assert.match(warnings.join(), /delay_s/);
});

test("bodies that are too large for the stream are fetched", ends, async (t) => {
  const channel = await channelWith(0);
  const bodies = Array.from({ length: 12 }, (_, number) => Buffer.alloc(1_000_000, 65 + number));
  for (const body of bodies) await hooks.publish(channel, body);
  const { client, used } = watched();
  const got = [];
  const handle = ({ body, bodyUrl }) => void got.push([bodyUrl, body]);
  const worker = new Worker(client, channel, "all", handle, { ...OPTIONS, concurrency: 16 });

  const ended = started(t, worker);
  await until(areDelivered(channel, bodies.length), "not handled");
  worker.stop();
  await ended;

  got.sort(([, one], [, other]) => one[0] - other[0]);
  assert.deepEqual(got, bodies.map((body) => ["", body]));
  assert.deepEqual([...new Set(used)], ["body"]);
});

test("a stream sends as many messages as it has credits, and confirms settlements", ends, async () => {
  const channel = await channelWith(5);
  const stream = await Stream.open(hooks, channel, "all", { credits: 2, workerId: "one" });
  const first = (await stream.next()).value;
  const second = (await stream.next()).value;
  const third = stream.next();
  assert.equal(await Promise.race([third, sleep(1000, "late")]), "late");

  const settled = [stream.ack([first, "lse_made-up"]), stream.nack(second, { delay: 3600, error: "no" })];
  assert.deepEqual(await Promise.all(settled), [
    { done: [first.lease], failed: { "lse_made-up": "unknown" } },
    { done: [second.lease], failed: {} },
  ]);
  stream.grant(1);
  const { value } = await third;
  assert.deepEqual((await stream.ack(first)).done, [first.lease]);
  assert.deepEqual((await stream.extend(value, 60)).done, [value.lease]);
  assert.deepEqual((await stream.release(value)).done, [value.lease]);
  const [expired] = Object.values((await stream.ack(value)).failed);
  assert.equal(expired, "expired");

  await stream.close();
  assert.deepEqual(await stream.next(), { done: true, value: undefined });
  await assert.rejects(stream.ack(value), ConnectionFailed);
  assert.deepEqual(await statesOf(channel), ["Delivered", "Queued", "Queued", "Retry-Delivery", "Retry-Delivery"]);
});

test("a stream that is refused throws the broker's error", ends, async () => {
  const channel = await channelWith(1);
  const stream = await Stream.open(hooks, channel, "all", { credits: 1 });
  const { value } = await stream.next();

  await assert.rejects(stream.nack(value, { delay: -1 }), (error) => {
    assert.ok(error instanceof BadRequest);
    assert.deepEqual([error.status, Object.keys(error.fields)], [422, ["delay_s"]]);
    return true;
  });
  await assert.rejects(stream.next(), BadRequest);
  await stream.close();
});
