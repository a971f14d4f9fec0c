// Programs written for Bull, on the broker that HOOKSTATION_URL and HOOKSTATION_KEY name.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { createRequire } from "node:module";
import { test } from "node:test";

import Queue from "../../dist/esm/index.js";

const PATIENCE_MS = Number(process.env.PATIENCE_MS ?? 60_000);

function queueOf(t, options) {
  const queue = new Queue(`bull-${randomUUID()}`, "redis://127.0.0.1:6379", options);
  queue.on("error", (error) => console.error(error));
  t.after(() => queue.close());
  return queue;
}

function emitted(queue, event, count = 1) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`no ${event}`)), PATIENCE_MS);
    const seen = [];
    queue.on(event, (...values) => {
      seen.push(values);
      if (seen.length < count) return;
      clearTimeout(timer);
      resolve(seen);
    });
  });
}

test("require gives the class itself", () => {
  assert.equal(createRequire(import.meta.url)("../../dist/cjs/index.js"), Queue);
});

test("promises, callbacks, names, progress and events", async (t) => {
  const queue = queueOf(t);
  const progress = emitted(queue, "progress");
  const completed = emitted(queue, "completed", 3);
  const everywhere = emitted(queue, "global:completed", 3);
  await queue.listener();
  queue.process(async (job) => {
    await job.progress(42);
    return { seen: job.data.n };
  });
  queue.process("video", 2, (job, done) => done(null, job.data.n * 2));
  queue.process("*", async (job) => job.name);

  const job = await queue.add({ n: 1 });
  await queue.add("video", { n: 2 });
  await queue.add("audio", {});

  assert.deepEqual(await job.finished(), { seen: 1 });
  const results = (await completed).map(([done, result]) => [done.name, result]);
  assert.deepEqual(new Map(results), new Map([["__default__", { seen: 1 }], ["video", 4], ["audio", "audio"]]));
  const [[reported, value]] = await progress;
  assert.deepEqual([reported.id, value, reported.progress()], [job.id, 42, 42]);
  assert.deepEqual(
    new Set((await everywhere).map(([, result]) => result)),
    new Set(['{"seen":1}', "4", '"audio"']),
  );
  assert.deepEqual(await queue.getJobCounts(), { waiting: 0, active: 0, completed: 3, failed: 0, delayed: 0 });
});

test("failures: callbacks, timeouts, strategies of backoff, discard, retry", async (t) => {
  const asked = [];
  const strategy = (attemptsMade, error) => asked.push([attemptsMade, error.message]) && 50;
  const queue = queueOf(t, { settings: { backoffStrategies: { odd: strategy } } });
  let isGood = false;
  queue.process("callback", (job, done) => done(isGood ? null : new Error("no")));
  queue.process("slow", () => new Promise((resolve) => setTimeout(resolve, 5_000).unref()));
  queue.process("discarded", async (job) => {
    job.discard();
    throw new Error("never again");
  });
  const failed = emitted(queue, "failed", 4);

  const job = await queue.add("callback", {}, { attempts: 2, backoff: { type: "odd" } });
  await queue.add("slow", {}, { timeout: 100 });
  await queue.add("discarded", {}, { attempts: 9 });

  const messages = (await failed).map(([, { message }]) => message).sort();
  assert.deepEqual(messages, ["Promise timed out after 100 milliseconds", "never again", "no", "no"]);
  assert.deepEqual(asked, [[1, "no"]]);
  assert.equal((await queue.getJob(job.id)).failedReason, "no");
  const completed = emitted(queue, "completed");
  isGood = true;
  await (await queue.getJob(job.id)).retry();
  await completed;
  assert.equal(await (await queue.getJob(job.id)).isCompleted(), true);
});

test("ids, priorities, delays, pause, repeats, empty", async (t) => {
  const queue = queueOf(t, { defaultJobOptions: { priority: 2 } });
  const first = await queue.add({ n: 1 }, { jobId: 7 });
  const again = await queue.add({ n: 2 }, { jobId: 7 });
  assert.deepEqual([first.id, again.id, (await queue.getJob(7)).data], ["7", "7", { n: 1 }]);
  assert.equal(await first.getState(), "waiting");
  await queue.add({}, { delay: 60_000 });
  const counts = await queue.getJobCounts();
  assert.deepEqual([counts.waiting, counts.delayed], [1, 1]);
  await queue.pause();
  assert.equal(await queue.isPaused(), true);
  await queue.resume();
  await queue.empty();
  assert.equal(await queue.count(), 0);

  await queue.add("daily", { n: 3 }, { repeat: { cron: "15 3 * * *" } });
  const [repeat] = await queue.getRepeatableJobs();
  assert.deepEqual([repeat.name, repeat.cron], ["daily", "15 3 * * *"]);
  await queue.removeRepeatable("daily", { cron: "15 3 * * *" });
  assert.deepEqual(await queue.getRepeatableJobs(), []);
});

test("what is not supported is refused by name", async (t) => {
  const queue = queueOf(t);
  const refused = (feature) => (error) => error.name === "NotSupported" && feature.test(error.message);

  await assert.rejects(queue.add({}, { lifo: true }), refused(/lifo/));
  await assert.rejects(queue.process("/srv/processor.js"), refused(/processor in a file/));
  await assert.rejects(queue.add({}, { repeat: { every: 500, count: 3 } }), refused(/repeat.count/));
  assert.throws(() => new Queue("q", { settings: { guardInterval: 1 } }), refused(/settings.guardInterval/));
  assert.throws(() => new Queue("q", { createClient() {} }), refused(/createClient/));
  assert.throws(() => new Queue("q", { limiter: { max: 1, duration: 1, groupKey: "a" } }), refused(/groupKey/));
});
