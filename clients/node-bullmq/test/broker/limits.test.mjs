import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { NotSupported, Worker } from "../../dist/esm/index.js";
import { emitted, Stage, until } from "./support.mjs";

/** Options of an object that shares nothing with others, as one in another process. */
const { HOOKSTATION_URL: url, HOOKSTATION_KEY: key } = process.env;
const elsewhere = { connection: { url, key } };
const letters = (count) => Array.from({ length: count }, (_, n) => ({ name: "letter", data: { n } }));
/** The shortest time in which `count` jobs and one more have begun. */
const shortest = (begun, count) =>
  Math.min(...begun.slice(count).map((at, index) => at - begun[index]));

test("a limiter holds for all workers together, and its window opens with the first job", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const begun = [];
  const limiter = { max: 1, duration: 2_000 };
  const work = async () => void begun.push(Date.now());
  const workers = [{}, elsewhere].map((options) =>
    stage.worker(work, { limiter, concurrency: 3, ...options }),
  );
  await Promise.all(workers.map((worker) => worker.waitUntilReady()));
  await queue.addBulk(letters(3));

  await until(() => begun.length === 3, "jobs are missing");

  // Less than the duration, since the processor may begin late in the first window.
  assert.ok(shortest(begun, 1) >= 1_000, begun.join());
});

test("a rate limit of the queue goes before that of a worker, until it is removed", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  assert.equal(await queue.getGlobalRateLimit(), null);
  await queue.setGlobalRateLimit(2, 3_000);
  assert.deepEqual(await queue.getGlobalRateLimit(), { max: 2, duration: 3_000 });
  await queue.addBulk(letters(4));
  const begun = [];
  const ttls = [];
  const worker = stage.worker(
    async () => {
      begun.push(Date.now());
      ttls.push(await queue.getRateLimitTtl());
    },
    { limiter: { max: 100, duration: 10 } },
  );

  await until(() => ttls.length === 4, "jobs are missing");

  assert.ok(shortest(begun, 2) >= 1_500, begun.join());
  assert.ok(ttls.every((ttl) => ttl <= 3_000), ttls.join());
  assert.ok(ttls.some((ttl) => ttl > 0), ttls.join());
  await queue.removeGlobalRateLimit();
  assert.equal(await queue.getGlobalRateLimit(), null);
  const completed = emitted(worker, "completed", 10);
  const since = Date.now();
  await queue.addBulk(letters(10));
  await completed;
  // With the limit, twelve seconds.
  assert.ok(Date.now() - since < 10_000, `${Date.now() - since}`);
});

test("a queue's concurrency holds for all workers together", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  assert.equal(await queue.getGlobalConcurrency(), null);
  await queue.setGlobalConcurrency(2);
  assert.equal(await queue.getGlobalConcurrency(), 2);
  assert.equal(await queue.isMaxed(), false);
  let active = 0;
  let ended = 0;
  let asked;
  const most = [];
  const work = async () => {
    most.push((active += 1));
    if (active === 2) asked ??= queue.isMaxed();
    await sleep(60);
    // The first two jobs are active until the broker has answered.
    await until(() => asked, "no second job is active");
    await asked;
    active -= 1;
    ended += 1;
  };
  for (let n = 0; n < 4; n += 1) stage.worker(work, { concurrency: 5 });
  // All of them wait for the first jobs.
  await sleep(1_500);

  await queue.addBulk(letters(12));
  await until(() => ended === 12, "jobs are missing");

  assert.equal(Math.max(...most), 2, most.join());
  assert.equal(await asked, true);
  await queue.removeGlobalConcurrency();
  assert.equal(await queue.getGlobalConcurrency(), null);
  assert.equal(await queue.isMaxed(), false);
});

test("a worker that died does not count against the concurrency", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  await queue.setGlobalConcurrency(1);
  const dead = stage.worker(null, { autorun: false, lockDuration: 1_000 });
  await queue.addBulk(letters(2));
  assert.ok(await dead.getNextJob("dead"));

  const worker = stage.worker(async () => "sent");
  await emitted(worker, "completed", 2);

  assert.equal(await queue.getCompletedCount(), 2);
});

test("a job that is rate limited waits, and so do the others", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const limits = [];
  const begun = [];
  const worker = stage.worker(
    async (job) => {
      begun.push(Date.now());
      if (begun.length > 1) return job.attemptsStarted;
      await queue.rateLimit(1_500);
      limits.push(await queue.getRateLimitTtl());
      throw Worker.RateLimitError();
    },
    { limiter: { max: 10, duration: 100 } },
  );

  const completed = emitted(worker, "completed", 2);
  await queue.addBulk(letters(2));
  const ended = (await completed).map(([job]) => job);

  assert.ok(limits[0] > 500 && limits[0] <= 1_500, limits.join());
  assert.ok(begun[1] - begun[0] >= 1_000, begun.join());
  const again = ended.find(({ data }) => data.n === 0);
  assert.equal(again.returnvalue, 2);
  assert.equal(again.attemptsMade, 1);
  assert.equal(again.stalledCounter, 0);
  // It is no rejection, of which the broker counts at most a thousand.
  const headers = { Authorization: `Bearer ${key}` };
  const { deliveries } = await (await fetch(`${url}/api/v1/messages/${again.id}`, { headers })).json();
  assert.deepEqual(deliveries.map((one) => one.failure_count), [0]);
});

test("a rate limit can be removed before it ends", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const other = stage.queue(elsewhere);
  const limiter = { max: 1, duration: 100 };
  await queue.rateLimit(300_000);
  assert.ok((await other.getRateLimitTtl(1)) > 200_000);
  const worker = stage.worker(async () => "sent", { limiter, maximumRateLimitDelay: 200 });
  const completed = emitted(worker, "completed");
  await queue.add("letter", {});
  await sleep(1_000);
  assert.equal(await queue.getCompletedCount(), 0);

  assert.equal(await other.removeRateLimitKey(), 1);

  await completed;
  // The limiter counts the job for a moment.
  await until(async () => (await other.getRateLimitTtl(1)) <= 0, "the limit has not ended");
  assert.equal(await other.removeRateLimitKey(), 0);
});

test("limits that the broker does not have are refused", async (t) => {
  const queue = new Stage(t).queue();

  await assert.rejects(queue.setGlobalConcurrency(1_001), NotSupported);
  await assert.rejects(queue.setGlobalConcurrency(0), NotSupported);
  await assert.rejects(queue.setGlobalRateLimit(1, 3_600_000), NotSupported);

  assert.equal(await queue.getGlobalConcurrency(), null);
  assert.equal(await queue.getGlobalRateLimit(), null);
});
