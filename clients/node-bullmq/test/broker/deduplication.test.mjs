import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { emitted, Stage, until } from "./support.mjs";

test("a delayed job is replaced by a later one", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const events = await stage.events();
  const told = emitted(events, "deduplicated");
  const options = { delay: 60_000, deduplication: { id: "a", replace: true } };
  const first = await queue.add("letter", { n: 1 }, options);

  const second = await queue.add("letter", { n: 2 }, options);

  assert.notEqual(second.id, first.id);
  assert.equal(await queue.getJob(first.id), undefined);
  assert.deepEqual((await queue.getDelayed()).map(({ data }) => data.n), [2]);
  assert.equal(await queue.getDeduplicationJobId("a"), second.id);
  const [[event]] = await told;
  assert.deepEqual([event.jobId, event.deduplicatedJobId], [second.id, first.id]);
  // A job that waits is not replaced.
  await second.promote();
  assert.equal((await queue.add("letter", { n: 3 }, options)).id, second.id);
});

test("jobs that are added at the same time with one id are one job", async (t) => {
  const queue = new Stage(t).queue();
  const options = { deduplication: { id: "a" } };

  const added = await Promise.all([1, 2, 3, 4].map((n) => queue.add("letter", { n }, options)));

  assert.equal(await queue.getWaitingCount(), 1);
  const [{ id }] = await queue.getWaiting();
  assert.deepEqual(added.map((job) => job.id), [id, id, id, id]);
});

test("a time to live is extended by later jobs, if they say so", async (t) => {
  const queue = new Stage(t).queue();
  const add = (id, extend) => queue.add("letter", {}, { deduplication: { id, ttl: 8_000, extend } });
  const [kept, ended] = [await add("kept", true), await add("ended", false)];
  await sleep(4_000);
  assert.equal((await add("kept", true)).id, kept.id);
  assert.equal((await add("ended", false)).id, ended.id);

  await until(async () => (await add("ended", false)).id !== ended.id, "the id is never free");
  assert.equal((await add("kept", true)).id, kept.id);
});

test("the last job that was added while one was active runs after it", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const begun = [];
  let end;
  const gate = new Promise((resolve) => (end = resolve));
  stage.worker(
    async ({ data }) => {
      begun.push(data.n);
      if (data.n === 1) await gate;
    },
    { concurrency: 4 },
  );
  const add = (n, jobId) =>
    queue.add("letter", { n }, { jobId, deduplication: { id: "a", keepLastIfActive: true, ttl: 100 } });
  const first = await add(1);
  await until(() => begun.length === 1, "the first job did not begin");

  for (const [n, id] of [[2], [3], [4, "own"]]) assert.equal((await add(n, id)).id, first.id);
  await sleep(300);
  assert.deepEqual(begun, [1]);
  end();

  await until(async () => (await queue.getCompletedCount()) === 2, "the last job is missing");
  assert.deepEqual(begun, [1, 4]);
  assert.deepEqual((await queue.getJob("own")).data, { n: 4 });
  const later = await add(5);
  await until(() => begun.length === 3, "the id was not free");
  assert.notEqual(later.id, first.id);
});

test("a job that is removed frees its deduplication id", async (t) => {
  const queue = new Stage(t).queue();
  const options = { deduplication: { id: "a", ttl: 60_000 } };
  const first = await queue.add("letter", {}, options);
  assert.equal((await queue.add("letter", {}, options)).id, first.id);

  await first.remove();

  assert.equal(await queue.getDeduplicationJobId("a"), null);
  assert.notEqual((await queue.add("letter", {}, options)).id, first.id);
});

test("a deduplication id and removed jobs are known in the next weeks, too", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const options = { deduplication: { id: "a" } };
  const first = await queue.add("letter", {}, { ...options, delay: 60_000 });
  const gone = await queue.add("letter", {}, { jobId: "gone" });
  stage.worker(async () => undefined);
  await until(async () => (await queue.getCompletedCount()) === 1, "nothing is completed");
  await gone.remove();
  const now = Date.now;
  t.after(() => (Date.now = now));

  for (const weeks of [1, 2]) {
    Date.now = () => now() + weeks * 7 * 86_400_000;
    const other = stage.queue();
    assert.equal((await other.add("letter", {}, options)).id, first.id);
    assert.equal(await other.getCompletedCount(), 0);
  }
});
