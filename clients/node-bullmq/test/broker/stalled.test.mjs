import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { test } from "node:test";

import { emitted, PATIENCE_MS, Stage, until } from "./support.mjs";

const HANGS = `
import { Worker } from ${JSON.stringify(new URL("../../dist/esm/index.js", import.meta.url).href)};
const connection = {};
new Worker(process.argv[1], () => {
  console.log("active");
  return new Promise(() => undefined);
}, { connection, lockDuration: 1000, maxStalledCount: 1 });
`;

/** Runs a worker until it has a job, and kills it. */
async function killedAtWork(name) {
  const child = spawn(process.execPath, ["--input-type=module", "-e", HANGS, name], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  await new Promise((resolve) => child.stdout.once("data", resolve));
  child.kill("SIGKILL");
  await new Promise((resolve) => child.once("exit", resolve));
}

test("the job of a killed worker stalls, runs again, and fails the second time", { timeout: PATIENCE_MS }, async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const events = await stage.events();
  const stalled = emitted(events, "stalled");
  const job = await queue.add("letter", {});
  await killedAtWork(stage.name);
  assert.equal(await job.getState(), "active");
  assert.equal(await queue.remove(job.id), 0);

  const worker = stage.worker(async () => "sent");
  const [[done, result]] = await emitted(worker, "completed");
  await stalled;
  await worker.close();

  assert.equal(result, "sent");
  assert.deepEqual([done.stalledCounter, done.attemptsStarted, done.attemptsMade], [1, 2, 1]);

  await queue.add("letter", {}, { attempts: 9 });
  await killedAtWork(stage.name);
  await killedAtWork(stage.name);
  const last = stage.worker(async () => "sent");
  const [[, error]] = await emitted(last, "failed");

  assert.equal(error.message, "job stalled more than allowable limit");
});

test("a worker that lost its lease changes nothing", { timeout: PATIENCE_MS }, async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const slow = stage.worker(null, { lockDuration: 1000, skipLockRenewal: true });
  const job = await queue.add("letter", {});
  const first = await slow.getNextJob("one");
  await new Promise((resolve) => setTimeout(resolve, 1_100));
  const other = stage.worker(null);
  const second = await other.getNextJob("two");
  assert.equal(second.id, first.id);

  await assert.rejects(first.moveToCompleted("late", "one", false), /job|lock/i);
  await second.moveToCompleted("in time", "two", false);

  assert.equal((await queue.getJob(job.id)).returnvalue, "in time");
});

test("a result that was stored before its worker died is kept, and nothing runs again", { timeout: PATIENCE_MS }, async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const events = await stage.events();
  const first = stage.worker(null, { lockDuration: 1000, skipLockRenewal: true });
  const job = await queue.add("letter", {});
  const active = await first.getNextJob("one");
  const { fetch } = globalThis;
  let lose;
  // The acknowledgement does not leave.
  globalThis.fetch = (url, init) =>
    String(url).endsWith("/leases/ack")
      ? new Promise((_, reject) => (lose = () => reject(new TypeError("lost"))))
      : fetch(url, init);
  t.after(() => (globalThis.fetch = fetch));
  const told = emitted(events, "completed");
  const moved = active.moveToCompleted("first", "one", false).catch(() => undefined);
  await told;
  await until(async () => lose, "nothing is acknowledged");
  globalThis.fetch = fetch;

  let calls = 0;
  const worker = stage.worker(async () => (calls += 1));
  await until(async () => (await queue.getJobCounts("active")).active === 0, "it stays active");
  await worker.close();

  assert.equal(calls, 0);
  assert.equal((await queue.getJob(job.id)).returnvalue, "first");
  assert.equal(await job.getState(), "completed");
  lose();
  await moved;
});
