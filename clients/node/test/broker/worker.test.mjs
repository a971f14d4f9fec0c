import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { test } from "node:test";

import { Hookstation, NotFound, Reject, Retry, Worker } from "../../dist/esm/index.js";
import { channelOf, hooks, listed, PATIENCE_MS, SILENT, statesOf, until } from "./support.mjs";

const ends = { timeout: PATIENCE_MS };
/** The other tests also pass over a stream: they run again with HOOKSTATION_GRPC_URL. */
const ofRest = { skip: Boolean(process.env.HOOKSTATION_GRPC_URL) && "concerns the REST API" };
const OPTIONS = { wait: 1, logger: SILENT, handleSignals: false };

/** Starts a worker, which ends with the test at the latest; returns when it has ended. */
function started(test, worker) {
  test.after(() => worker.stop());
  return worker.run();
}

/** A handler of one message: `running` resolves when it is called, `end` lets it return. */
function holding() {
  let begun;
  let end;
  const running = new Promise((resolve) => (begun = resolve));
  const handle = () => {
    begun();
    return new Promise((resolve) => (end = resolve));
  };
  return { handle, running, end: () => end() };
}

/** Runs the worker until something is so. */
async function runUntil(worker, done, otherwise) {
  const ended = worker.run();
  try {
    await until(done, otherwise);
  } finally {
    worker.stop();
    await ended;
  }
}

test("a worker acknowledges, retries and rejects", async () => {
  const channel = await channelOf();
  await hooks.register(channel, "all", { max_attempts: 2, retry: [1] });
  await hooks.publishBatch(channel, ["good", "later", "bad", "no"].map((body) => ({ body })));
  const calls = [];
  const worker = new Worker(
    hooks,
    channel,
    "all",
    async (delivery) => {
      const text = delivery.text();
      calls.push(`${text} ${delivery.attempt}`);
      if (text === "bad") throw new TypeError("closed");
      if (text === "no") throw new Reject("no such room");
      if (text === "later" && delivery.attempt === 1) throw new Retry({ after: 0 });
    },
    OPTIONS,
  );

  await runUntil(
    worker,
    async () => `${await statesOf(channel)}` === "Dead,Dead,Delivered,Delivered",
    "the worker has not settled everything",
  );

  assert.deepEqual(calls.sort(), ["bad 1", "bad 2", "good 1", "later 1", "later 2", "no 1"]);
  const dead = await listed(hooks.deadLetters(channel, "all"));
  const found = await Promise.all(dead.map(({ id }) => hooks.delivery(id)));
  assert.deepEqual(found.map(({ reason, attempts }) => `${reason}: ${attempts[0].error}`).sort(), [
    "exhausted: TypeError: closed",
    "permanent_failure: no such room",
  ]);
});

test("Retry sets the time of the retry instead of the retry policy", async () => {
  const channel = await channelOf();
  await hooks.register(channel, "all", { retry: [3600] });
  await hooks.publish(channel, "x");
  const worker = new Worker(
    hooks,
    channel,
    "all",
    ({ attempt }) => {
      if (attempt === 1) throw new Retry({ after: 0.4 });
    },
    OPTIONS,
  );

  const isDelivered = async () => `${await statesOf(channel)}` === "Delivered";
  await runUntil(worker, isDelivered, "it does not come again");
});

test("a worker extends leases and runs at most concurrency handlers", async (t) => {
  const channel = await channelOf();
  await hooks.register(channel, "all");
  await hooks.publishBatch(channel, ["1", "2", "3", "4", "5"].map((body) => ({ body })));
  let end;
  const may = new Promise((resolve) => (end = resolve));
  let begun = 0;
  const worker = new Worker(
    hooks,
    channel,
    "all",
    async () => {
      begun += 1;
      await may;
    },
    { ...OPTIONS, concurrency: 4, lease: 2 },
  );

  const ended = started(t, worker);
  await until(async () => begun === 4, "the handlers do not run beside each other");
  // Another receiver asks for longer than the leases last, were they not extended.
  const others = await hooks.receiveBatch(channel, "all", { wait: 6 });
  const more = await hooks.receiveBatch(channel, "all", { wait: 6 });
  const [beside] = others;
  await beside.ack();
  worker.stop();
  end();
  await ended;

  assert.deepEqual([others.length, more.length, begun], [1, 0, 4]);
  assert.deepEqual(await statesOf(channel), Array(5).fill("Delivered"));
  const attempts = (await listed(hooks.deliveries(channel, "all"))).map((one) => one.attempt_count);
  assert.deepEqual(attempts, [1, 1, 1, 1, 1]);
});

test("a stopped worker releases messages received meanwhile, uncharged", ofRest, async (t) => {
  const channel = await channelOf();
  await hooks.register(channel, "all", { max_attempts: 1 });
  // What comes after the stop: the broker's answer is held until then.
  const stopping = {
    receiveBatch: async (...request) => {
      const received = await hooks.receiveBatch(...request);
      worker.stop();
      return received;
    },
    release: (...leases) => hooks.release(...leases),
  };
  const handle = () => assert.fail("handled");
  const worker = new Worker(stopping, channel, "all", handle, { ...OPTIONS, wait: 20 });

  await hooks.publish(channel, "x");
  await started(t, worker);

  const [again] = await hooks.receiveBatch(channel, "all", { wait: 10 });
  await again.ack();
  assert.deepEqual(await statesOf(channel), ["Delivered"]);
});

test("a fully occupied worker stops at once", ends, async (t) => {
  const channel = await channelOf();
  await hooks.register(channel, "all");
  await hooks.publish(channel, "x");
  const { handle, running } = holding();
  const options = { ...OPTIONS, concurrency: 1, shutdownTimeout: 0.2 };
  const worker = new Worker(hooks, channel, "all", handle, options);

  const ended = started(t, worker);
  await running;
  // By then the worker waits for a handler to end.
  await new Promise(setImmediate);
  worker.stop();

  await ended;
});

test("a malformed response does not end a worker", ofRest, async (t) => {
  const channel = await channelOf();
  await hooks.register(channel, "all");
  await hooks.publish(channel, "x");
  const warnings = [];
  const logger = { warn: (text) => warnings.push(text), error() {} };
  const handle = (delivery) => {
    delivery.ack = async () => JSON.parse("<html>");
    worker.stop();
  };
  const worker = new Worker(hooks, channel, "all", handle, { ...OPTIONS, logger });

  await started(t, worker);

  assert.match(warnings.join(), /cannot settle, the message will be delivered again: SyntaxError/);
});

test("a worker waits for its handlers up to shutdownTimeout", async (t) => {
  const channel = await channelOf();
  await hooks.register(channel, "all");
  await hooks.publish(channel, "x");
  const warnings = [];
  const logger = { warn: (text) => warnings.push(text), error() {} };
  const { handle, running, end } = holding();
  const options = { ...OPTIONS, logger, shutdownTimeout: 0.2 };
  const worker = new Worker(hooks, channel, "all", handle, options);

  const ended = started(t, worker);
  await running;
  const stopped = Date.now();
  worker.stop();
  await ended;

  assert.ok(Date.now() - stopped < 20_000);
  assert.deepEqual(warnings, ["1 handlers did not end in time"]);
  assert.deepEqual(await statesOf(channel), ["In-flight"]);
  end();
  await until(async () => `${await statesOf(channel)}` === "Delivered", "the late one is not kept");
});

test("a worker ends with an error that is not temporary", ends, async (t) => {
  const worker = new Worker(hooks, await channelOf(), "nobody", () => {}, OPTIONS);

  await assert.rejects(started(t, worker), NotFound);
});

test("a worker continues when the broker is back", ofRest, async (t) => {
  const channel = await channelOf();
  await hooks.register(channel, "all");
  await hooks.publish(channel, "x");
  let isAway = true;
  const flaky = (...request) => (isAway ? Promise.reject(new TypeError("away")) : fetch(...request));
  const client = new Hookstation(hooks.urls, { retries: 0, fetch: flaky });
  const warnings = [];
  const logger = { warn: (text) => warnings.push(text), error() {} };
  const worker = new Worker(client, channel, "all", () => {}, { ...OPTIONS, logger });

  const ended = started(t, worker);
  await until(async () => warnings.length > 0, "it has not noticed");
  isAway = false;
  await until(async () => `${await statesOf(channel)}` === "Delivered", "it does not go on");
  worker.stop();
  await ended;
  assert.match(warnings[0], /cannot receive/);
});

const PROGRAM = `
import { once } from "node:events";
import { createInterface } from "node:readline";
import { Hookstation, Worker } from ${JSON.stringify(new URL("../../dist/esm/index.js", import.meta.url))};
const lines = createInterface({ input: process.stdin });
async function handle() {
  console.log("begun");
  await once(lines, "line");
  console.log("done");
}
for (const signal of ["SIGTERM", "SIGINT"]) {
  // Later than the worker's own listener, which ends with the first signal.
  process.once(signal, () => setImmediate(console.log, "told"));
}
const options = { concurrency: 1, lease: 60, wait: 1, workerId: "one", resume: true };
await new Worker(new Hookstation({ timeout: 60 }), process.argv[1], "all", handle, options).run();
console.log("ended");
lines.close();
`;

/** A worker in a process of its own, killed when the test ends. */
function workerProcess(test, channel) {
  const program = ["--input-type=module", "-e", PROGRAM, channel];
  const child = spawn(process.execPath, program, { stdio: ["pipe", "pipe", "inherit"] });
  test.after(() => child.kill("SIGKILL"));
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const ended = new Promise((resolve) => child.on("exit", (code, signal) => resolve(code ?? signal)));
  return { child, ended, line: async () => (await lines.next()).value };
}

for (const signal of ["SIGTERM", "SIGINT"]) {
  test(`${signal} ends a worker when it has finished what it does`, ends, async (t) => {
    const channel = await channelOf();
    await hooks.register(channel, "all");
    await hooks.publishBatch(channel, [{ body: "one" }, { body: "two" }]);

    const { child, line, ended } = workerProcess(t, channel);
    assert.equal(await line(), "begun");
    child.kill(signal);
    assert.equal(await line(), "told");
    child.stdin.write("\n");

    assert.deepEqual([await line(), await line(), await ended], ["done", "ended", 0]);
    assert.deepEqual(await statesOf(channel), ["Delivered", "Queued"]);
  });
}

test("a second signal ends a worker at once", ends, async (t) => {
  const channel = await channelOf();
  await hooks.register(channel, "all");
  await hooks.publish(channel, "x");

  const { child, line, ended } = workerProcess(t, channel);
  assert.equal(await line(), "begun");
  child.kill("SIGTERM");
  assert.equal(await line(), "told");
  child.kill("SIGTERM");

  assert.equal(await ended, "SIGTERM");
});

test("a resuming worker first receives the leases of its killed predecessor", ends, async (t) => {
  const channel = await channelOf();
  await hooks.register(channel, "all");
  await hooks.publish(channel, "x");
  const first = workerProcess(t, channel);
  assert.equal(await first.line(), "begun");
  first.child.kill("SIGKILL");
  await first.ended;

  const killed = Date.now();
  const second = workerProcess(t, channel);
  assert.equal(await second.line(), "begun");
  assert.ok(Date.now() - killed < 30_000, "it waited for the end of the lease");
  second.child.stdin.write("\n");
  assert.equal(await second.line(), "done");

  await until(async () => `${await statesOf(channel)}` === "Delivered", "not acknowledged");
  const [delivery] = await listed(hooks.deliveries(channel, "all"));
  assert.equal(delivery.attempt_count, 2);
});
