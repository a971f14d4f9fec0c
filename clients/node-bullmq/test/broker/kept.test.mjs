import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { emitted, Stage, until } from "./support.mjs";

const WEEK_MS = 7 * 86_400_000;
const ids = (jobs) => jobs.map(({ id }) => id).sort();

/** Adds jobs and has each of them end before the next one. */
async function end(stage, names, options, fails = false) {
  const queue = stage.queue();
  const worker = stage.worker(async () => {
    if (fails) throw new Error("no such letter");
  });
  for (const jobId of names) {
    const ended = emitted(worker, fails ? "failed" : "completed");
    await queue.add("letter", {}, { jobId, ...options });
    await ended;
    // The event comes before the job is settled.
    const shown = fails ? "failed" : "completed";
    await until(async () => (await queue.getJobState(jobId)) === shown, `${jobId} has not ended`);
  }
  await worker.close();
  return queue;
}

test("so many completed jobs stay as removeOnComplete says", async (t) => {
  const stage = new Stage(t);

  const queue = await end(stage, ["a", "b", "c", "d"], { removeOnComplete: 2 });

  await until(async () => (await queue.getCompletedCount()) === 2, "jobs were not removed");
  assert.deepEqual(ids(await queue.getCompleted()), ["c", "d"]);
  assert.equal(await queue.getJob("b"), undefined);
  assert.equal(await queue.getJobState("a"), "unknown");
  assert.equal(await queue.getJobState("d"), "completed");
  // An id that is free again is another job.
  await end(stage, ["a"], { removeOnComplete: { count: 5 } });
  // What has gone does not come back when more jobs may stay.
  await until(async () => (await queue.getCompletedCount()) === 3, "a job is missing");
  assert.deepEqual(ids(await queue.getCompleted()), ["a", "c", "d"]);
});

test("failed jobs have a count of their own", async (t) => {
  const stage = new Stage(t);
  await end(stage, ["good"], { removeOnComplete: 1, removeOnFail: 1 });

  const queue = await end(stage, ["a", "b", "c"], { removeOnComplete: 1, removeOnFail: { count: 1 } }, true);

  await until(async () => (await queue.getFailedCount()) === 1, "jobs were not removed");
  assert.deepEqual(ids(await queue.getFailed()), ["c"]);
  assert.deepEqual(ids(await queue.getCompleted()), ["good"]);
});

test("jobs that are too old go when the next one ends", async (t) => {
  const stage = new Stage(t);
  const options = { removeOnComplete: { age: 2, count: 100 } };
  const queue = await end(stage, ["a", "b"], options);
  assert.equal(await queue.getCompletedCount(), 2);
  await sleep(2_100);

  await end(stage, ["c"], options);

  await until(async () => (await queue.getCompletedCount()) === 1, "jobs were not removed");
  assert.deepEqual(ids(await queue.getCompleted()), ["c"]);
});

test("the count goes on in the next week, also in a process that starts then", async (t) => {
  const stage = new Stage(t);
  const options = { removeOnComplete: 2 };
  await end(stage, ["a", "b", "c"], options);
  const now = Date.now;
  t.after(() => (Date.now = now));
  Date.now = () => now() + WEEK_MS;

  const queue = await end(stage, ["d"], options);

  await until(async () => (await queue.getJobState("b")) === "unknown", "b was not removed");
  assert.deepEqual(ids(await queue.getCompleted()), ["c", "d"]);
});
