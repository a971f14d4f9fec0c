import assert from "node:assert/strict";
import { test } from "node:test";

import { DelayedError, UnrecoverableError } from "../../dist/esm/index.js";
import { emitted, Stage, until } from "./support.mjs";

test("a job is processed, and its result is read from another object", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const events = await stage.events();
  const seen = [];
  for (const event of ["added", "waiting", "active", "completed"]) {
    events.on(event, ({ jobId }) => seen.push([event, jobId]));
  }
  const job = await queue.add("letter", { to: "Ana" });
  const worker = stage.worker(async ({ data }) => ({ sent: data.to }));

  assert.deepEqual(await job.waitUntilFinished(events, 30_000), { sent: "Ana" });
  await until(async () => seen.length >= 4, "events are missing");

  const read = await queue.getJob(job.id);
  assert.equal(await job.getState(), "completed");
  assert.deepEqual(read.returnvalue, { sent: "Ana" });
  assert.equal(read.attemptsMade, 1);
  assert.ok(read.finishedOn >= read.processedOn);
  assert.deepEqual(new Set(seen.map(([event]) => event)), new Set(["added", "waiting", "active", "completed"]));
  assert.ok(seen.every(([, id]) => id === job.id));
  assert.ok(worker.isRunning());
});

test("a failed job comes again after its backoff, and fails for good", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const calls = [];
  const worker = stage.worker(async (job) => {
    calls.push([job.attemptsMade, job.attemptsStarted, Date.now(), job.delay]);
    throw new Error(`attempt\n${calls.length}`);
  });
  const failed = emitted(worker, "failed", 3);

  const job = await queue.add("bad", {}, { attempts: 3, backoff: { type: "fixed", delay: 400 } });
  await failed;

  assert.deepEqual(calls.map(([made, started]) => [made, started]), [[0, 1], [1, 2], [2, 3]]);
  assert.ok(calls[1][2] - calls[0][2] >= 400);
  assert.deepEqual(calls.map(([, , , delay]) => delay), [0, 0, 0]);
  const read = await queue.getJob(job.id);
  assert.equal(await read.getState(), "failed");
  assert.equal(read.failedReason, "attempt\n3");
  assert.equal(read.stacktrace.length, 3);
  assert.deepEqual(await queue.getJobCounts("failed", "completed"), { failed: 1, completed: 0 });
});

test("an unrecoverable error fails at once, and a retry runs the job again", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  let isGood = false;
  const worker = stage.worker(async () => {
    if (!isGood) throw new UnrecoverableError("no such letter");
    return "sent";
  });
  const failed = emitted(worker, "failed");
  const job = await queue.add("letter", {}, { attempts: 5 });
  await failed;
  isGood = true;
  const completed = emitted(worker, "completed");

  await (await queue.getJob(job.id)).retry();
  await completed;

  const read = await queue.getJob(job.id);
  assert.equal(read.returnvalue, "sent");
  assert.equal(read.attemptsMade, 2);
  assert.equal(await read.getState(), "completed");
});

test("a delayed job waits for its time, or until it is promoted", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const begun = Date.now();
  const [soon, late] = await queue.addBulk([
    { name: "soon", data: {}, opts: { delay: 3_000 } },
    { name: "late", data: {}, opts: { delay: 3_600_000 } },
  ]);
  assert.deepEqual(await queue.getJobCounts("delayed", "waiting"), { delayed: 2, waiting: 0 });
  const worker = stage.worker(async ({ name }) => [name, Date.now() - begun]);
  const [[, [, after]]] = await emitted(worker, "completed");
  assert.ok(after >= 3_000, `${after}`);
  assert.equal(await soon.getState(), "completed");
  const completed = emitted(worker, "completed");

  await (await queue.getJob(late.id)).promote();
  await completed;

  assert.equal(await late.getState(), "completed");
});

test("jobs without a priority go first, then 1, then 9", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const jobs = (name, priority) => Array.from({ length: 8 }, () => ({ name, data: {}, opts: { priority } }));
  await queue.addBulk([...jobs("low", 9), ...jobs("high", 1), ...jobs("none", 0)]);
  assert.deepEqual(await queue.getCountsPerPriority([0, 1, 4]), { 0: 8, 1: 8, 4: 0 });
  assert.deepEqual((await queue.getPrioritized(0, 8)).map(({ priority }) => priority), [1, 1, 1, 1, 1, 1, 1, 1, 9]);
  const order = [];

  const worker = stage.worker(async ({ name }) => order.push(name));
  await emitted(worker, "completed", 24);

  // One receive in ten takes the oldest job instead.
  const among = (name, from) => order.slice(from, from + 8).filter((one) => one === name).length;
  assert.ok(among("none", 0) >= 3, order.join());
  assert.ok(among("high", 8) >= 3, order.join());
});

test("jobs keep a priority above 9; the broker has one for all of them", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const jobs = (name, priority) => Array.from({ length: 8 }, () => ({ name, data: {}, opts: { priority } }));
  await queue.addBulk([...jobs("low", 2_000_000), ...jobs("high", 8)]);
  const own = await queue.add("own", {}, { jobId: "own", priority: 15 });
  assert.deepEqual(await queue.getCountsPerPriority([8, 9, 15, 2_000_000]), { 8: 8, 9: 0, 15: 1, 2_000_000: 8 });
  assert.equal((await queue.getJob("own")).priority, 15);

  await own.changePriority({ priority: 30 });

  assert.equal((await queue.getJob("own")).priority, 30);
  await own.changePriority({ priority: 3 });
  assert.equal((await queue.getJob("own")).priority, 3);
  const order = [];
  const worker = stage.worker(async ({ name, priority }) => order.push(`${name} ${priority}`));
  await emitted(worker, "completed", 17);
  // One receive in ten takes the oldest job instead.
  assert.ok(order.slice(0, 9).filter((one) => one === "high 8").length >= 5, order.join());
  assert.ok(order.slice(0, 3).includes("own 3"), order.join());
  assert.ok(order.slice(12).every((one) => one === "low 2000000"), order.join());
});

test("a job id is one job until it is removed", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const events = await stage.events();
  const duplicated = emitted(events, "duplicated");
  const first = await queue.add("letter", { n: 1 }, { jobId: "order-7" });
  const second = await queue.add("letter", { n: 2 }, { jobId: "order-7" });
  await duplicated;
  assert.equal(second.id, first.id);
  assert.deepEqual((await queue.getJob("order-7")).data, { n: 1 });
  assert.equal(await queue.getWaitingCount(), 1);

  await first.remove();
  assert.equal(await queue.getJob("order-7"), undefined);
  await queue.add("letter", { n: 3 }, { jobId: "order-7", removeOnComplete: true });
  assert.deepEqual((await queue.getJob("order-7")).data, { n: 3 });
  const worker = stage.worker(async ({ data }) => data.n);
  await emitted(worker, "completed");

  assert.equal(await queue.getJob("order-7"), undefined);
  assert.equal(await queue.getCompletedCount(), 0);
  const again = emitted(worker, "completed");
  await queue.add("letter", { n: 4 }, { jobId: "order-7" });
  const [[job]] = await again;
  assert.equal(job.returnvalue, 4);
});

test("progress, data and log rows are kept", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const events = await stage.events();
  const progress = emitted(events, "progress", 2);
  const worker = stage.worker(async (job) => {
    await job.updateProgress(50);
    await job.updateProgress({ pages: 2 });
    await job.updateData({ step: 2 });
    await job.log("first");
    return job.log("second");
  });
  const completed = emitted(worker, "completed");

  const { id } = await queue.add("letter", { step: 1 });
  await completed;

  assert.deepEqual((await progress).map(([{ data }]) => data), [50, { pages: 2 }]);
  const read = await queue.getJob(id);
  assert.deepEqual([read.progress, read.data, read.returnvalue], [{ pages: 2 }, { step: 2 }, 2]);
  assert.deepEqual(await queue.getJobLogs(id), { logs: ["first", "second"], count: 2 });
});

test("changes of a job by several programs at the same time are all kept", async (t) => {
  const stage = new Stage(t);
  const queues = [stage.queue(), stage.queue(), stage.queue()];
  const events = await stage.events();
  const { id } = await queues[0].add("letter", { n: 0 });
  const jobs = await Promise.all(queues.map((queue) => queue.getJob(id)));
  const told = emitted(events, "progress", 9);

  await Promise.all(jobs.flatMap((job) => [1, 2, 3].map((n) => job.updateProgress(n))));
  await jobs[0].updateData({ n: 1 });

  assert.deepEqual((await told).map(([{ data }]) => data).sort(), [1, 1, 1, 2, 2, 2, 3, 3, 3]);
  assert.deepEqual((await queues[1].getJob(id)).data, { n: 1 });
});

test("a job that its processor delays comes back then, without an attempt", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const begun = [];
  const worker = stage.worker(async (job, token) => {
    begun.push(Date.now());
    if (begun.length > 1) return "sent";
    await job.moveToDelayed(Date.now() + 1_000, token);
    throw new DelayedError();
  });
  const completed = emitted(worker, "completed");

  await queue.add("letter", {});
  const [[job]] = await completed;

  assert.ok(begun[1] - begun[0] >= 900, begun.join());
  assert.deepEqual([job.attemptsMade, job.attemptsStarted], [1, 2]);
});

test("a paused queue keeps its jobs; drain and clean remove them", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  await queue.pause();
  await queue.add("a", {});
  await queue.add("b", {});
  const worker = stage.worker(async ({ name }) => name);
  assert.equal(await queue.isPaused(), true);
  assert.deepEqual((await queue.getJobs(["waiting"], 0, -1, true)).map(({ name }) => name), ["a", "b"]);
  const completed = emitted(worker, "completed", 2);

  await queue.resume();
  await completed;
  assert.equal(await queue.getCompletedCount(), 2);
  assert.equal((await queue.clean(0, 0, "completed")).length, 2);
  assert.deepEqual(await queue.getCompleted(), []);
  await queue.add("later", {}, { delay: 60_000 });
  await queue.drain(true);

  assert.equal(await queue.count(), 0);
});

test("close waits for what runs; as many jobs run as concurrency says", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  let running = 0;
  let most = 0;
  const worker = stage.worker(
    async () => {
      most = Math.max(most, (running += 1));
      await new Promise((resolve) => setTimeout(resolve, 400));
      running -= 1;
    },
    { concurrency: 3 },
  );
  await queue.addBulk(Array.from({ length: 5 }, () => ({ name: "slow", data: {} })));
  await until(async () => running === 3, "three do not run");

  await worker.close();

  assert.equal(running, 0);
  assert.equal(most, 3);
  const { completed, waiting, active } = await queue.getJobCounts("completed", "waiting", "active");
  assert.equal(active, 0);
  assert.equal(completed + waiting, 5);
  assert.ok(completed >= 3);
});

test("what another producer publishes is a job", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  await queue.waitUntilReady();
  const { Hookstation } = await import("hookstation-client");
  await new Hookstation().publish(stage.name, { id: 7 }, { eventType: "order.created" });

  const worker = stage.worker(async ({ name, data }) => [name, data]);
  const [[, result]] = await emitted(worker, "completed");

  assert.deepEqual(result, ["order.created", { id: 7 }]);
});

test("all failed jobs are retried once, although a worker fails them again meanwhile", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  let runs = 0;
  const worker = stage.worker(async () => {
    runs += 1;
    throw new Error("no ink");
  });
  const failed = emitted(worker, "failed", 3);
  await queue.addBulk(Array.from({ length: 3 }, () => ({ name: "letter", data: {} })));
  await failed;
  const backend = queue.getBackend();
  const retry = backend.retryFinishedJobs.bind(backend);
  backend.retryFinishedJobs = async (...asked) => {
    const rest = await retry(...asked);
    await until(async () => (await queue.getFailedCount()) === 3, "they do not fail again");
    return runs > 6 ? 0 : rest;
  };

  await queue.retryJobs({ count: 1 });

  assert.equal(runs, 6);
});

test("the counts of jobs are exported for Prometheus", async (t) => {
  const queue = new Stage(t).queue();
  await queue.add("letter", {});

  const said = await queue.exportPrometheusMetrics();

  assert.match(said, /bullmq_job_count\{queue="[^"]+", state="waiting"\} 1/);
  assert.equal((await queue.getMetrics("completed")).count, 0);
});

test("a queue without a limiter has no rate limit", async (t) => {
  const queue = new Stage(t).queue();

  assert.equal(await queue.getRateLimitTtl(), -2);
  assert.equal(await queue.getRateLimitTtl(2), 0);
});
