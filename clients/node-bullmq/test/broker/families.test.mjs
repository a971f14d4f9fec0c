import assert from "node:assert/strict";
import { test } from "node:test";

import { FlowProducer } from "../../dist/esm/index.js";
import { connection, emitted, Stage, until } from "./support.mjs";

test("a parent begins when its children have ended, and reads their results", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const flows = stage.flows();
  const child = (n) => ({ name: "page", data: { n }, queueName: stage.name });
  const { job } = await flows.add({
    name: "book",
    queueName: stage.name,
    children: [child(1), child(2), child(3)],
  });
  assert.equal(await job.getState(), "waiting-children");
  assert.deepEqual(await queue.getJobCounts("waiting", "waiting-children"), {
    waiting: 3,
    "waiting-children": 1,
  });

  const order = [];
  const worker = stage.worker(async (one) => {
    order.push(one.name);
    if (one.name === "page") return one.data.n;
    const values = Object.values(await one.getChildrenValues());
    return values.reduce((sum, value) => sum + value, 0);
  });
  await emitted(worker, "completed", 4);

  assert.deepEqual(order, ["page", "page", "page", "book"]);
  assert.equal((await queue.getJob(job.id)).returnvalue, 6);
  assert.deepEqual(await job.getDependenciesCount(), {
    processed: 3,
    unprocessed: 0,
    ignored: 0,
    failed: 0,
  });
});

test("a child that fails takes its parent along, or is ignored", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const flows = stage.flows();
  const worker = stage.worker(async ({ name }) => {
    if (name === "page") throw new Error("no ink");
    return name;
  });
  const failed = emitted(worker, "failed", 3);
  const completed = emitted(worker, "completed");
  const book = (opts) => ({
    name: "book",
    queueName: stage.name,
    children: [{ name: "page", queueName: stage.name, opts }],
  });

  const strict = await flows.add(book({ failParentOnFailure: true }));
  const lenient = await flows.add(book({ ignoreDependencyOnFailure: true }));
  await Promise.all([failed, completed]);

  const parent = await queue.getJob(strict.job.id);
  assert.equal(await parent.getState(), "failed");
  assert.match(parent.failedReason, /^child .* failed$/);
  assert.equal(await lenient.job.getState(), "completed");
  assert.deepEqual(Object.values(await lenient.job.getIgnoredChildrenFailures()), ["no ink"]);
});

test("a child that has ended before is a child of a later parent, too", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const flows = stage.flows();
  const worker = stage.worker(async (job) =>
    job.name === "page" ? "printed" : Object.values(await job.getChildrenValues()),
  );
  const first = emitted(worker, "completed");
  await queue.add("page", {}, { jobId: "page-1" });
  await first;
  const second = emitted(worker, "completed");
  const page = { name: "page", queueName: stage.name, opts: { jobId: "page-1" } };

  await flows.add({ name: "book", queueName: stage.name, children: [page] });
  const [[book, result]] = await second;

  assert.deepEqual([book.name, result], ["book", ["printed"]]);
  await assert.rejects(
    flows.add({ name: "other", queueName: stage.name, children: [page] }),
    /cannot be replaced/,
  );
});

test("a prefix with colons keeps queues of one name apart", async (t) => {
  const stage = new Stage(t);
  const prefix = "{bull}:custom";
  const flows = stage.keep(new FlowProducer({ connection, prefix }));
  const plain = stage.queue();
  const children = [{ name: "page", queueName: stage.name }];
  await flows.add({ name: "book", queueName: stage.name, children });
  assert.equal(await plain.count(), 0);

  const worker = stage.worker(async ({ name }) => name, { prefix });
  const done = await emitted(worker, "completed", 2);

  assert.deepEqual(done.map(([{ name }]) => name), ["page", "book"]);
});

test("an interval fires again and again until it is removed", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const worker = stage.worker(async ({ data }) => data.n);
  const completed = emitted(worker, "completed", 3);
  const begun = Date.now();

  const first = await queue.upsertJobScheduler(
    "Every half second",
    { every: 500 },
    { name: "tick", data: { n: 1 }, opts: { attempts: 2 } },
  );
  await completed;

  assert.ok(Date.now() - begun >= 1_000);
  assert.match(first.id, /^repeat:Every half second:\d+$/);
  const read = await queue.getJobScheduler("Every half second");
  assert.deepEqual([read.every, read.name, read.template.data], [500, "tick", { n: 1 }]);
  assert.equal(await queue.getJobSchedulersCount(), 1);
  assert.equal(await queue.removeJobScheduler("Every half second"), true);
  assert.equal(await queue.getJobSchedulersCount(), 0);
  assert.equal(await queue.getJobScheduler("Every half second"), undefined);
});

test("a pattern has the time zone and the next occurrence", async (t) => {
  const queue = new Stage(t).queue();
  await queue.upsertJobScheduler("daily", { pattern: "0 30 9 * * *", tz: "Europe/Paris" });

  const [read] = await queue.getJobSchedulers();

  assert.deepEqual([read.key, read.pattern, read.tz], ["daily", "0 30 9 * * *", "Europe/Paris"]);
  assert.equal(new Date(read.next).getMinutes(), 30);
});

test("workers begin as many jobs in a window as their limiter allows, together", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const limiter = { max: 2, duration: 1_500 };
  const begun = [];
  await queue.addBulk(Array.from({ length: 6 }, () => ({ name: "call", data: {} })));
  const options = { limiter, concurrency: 3 };
  for (const _ of [1, 2]) stage.worker(async () => begun.push(Date.now()), options);

  await until(async () => begun.length === 6, "not all are done");

  // Two in each of three windows; the machine may be slow between a window and the job.
  assert.ok(begun[5] - begun[0] >= 1_000, begun.join());
});

test("a deduplication id is one job until it ends", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const opts = { deduplication: { id: "customer-4" } };
  const first = await queue.add("mail", { n: 1 }, opts);
  const second = await queue.add("mail", { n: 2 }, opts);
  assert.equal(second.id, first.id);
  assert.equal(await queue.getDeduplicationJobId("customer-4"), first.id);
  const worker = stage.worker(async ({ data }) => data.n);
  await emitted(worker, "completed");

  const third = await queue.add("mail", { n: 3 }, opts);

  assert.notEqual(third.id, first.id);
});

test("children that are drained or cleaned hold their parent back no longer", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const parents = stage.queue({}, `${stage.name}-books`);
  const flows = stage.flows();
  const page = { name: "page", queueName: stage.name };
  const book = (queueName) => ({ name: "book", queueName, children: [page, page] });

  const elsewhere = await flows.add(book(parents.name));
  const here = await flows.add(book(stage.name));
  await queue.drain();
  assert.equal(await elsewhere.job.getState(), "waiting");
  assert.equal(await here.job.getState(), "unknown");
  assert.equal(await queue.count(), 0);

  const cleaned = await flows.add(book(parents.name));
  assert.equal((await queue.clean(0, 10, "wait")).length, 2);
  assert.equal(await cleaned.job.getState(), "waiting");
});

test("a child of one parent is refused to another, which does not wait for it", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const page = { name: "page", queueName: stage.name, opts: { jobId: "page-1" } };
  await stage.flows().add({ name: "book", queueName: stage.name, children: [page] });
  const other = await queue.add("book", {}, { jobId: "book-2" });
  const parent = { id: other.id, queue: queue.qualifiedName };

  const refused = queue.add("page", {}, { jobId: "page-1", parent });

  await assert.rejects(refused, { message: /^The parent job .*:book-2 cannot be replaced\. addJob$/ });
  assert.equal((await other.getDependenciesCount()).unprocessed, 0);
});

test("a parent that was removed has no children", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const page = { name: "page", queueName: stage.name };
  const { job } = await stage.flows().add({ name: "book", queueName: stage.name, children: [page] });

  await queue.remove(job.id);

  assert.deepEqual(await job.getDependencies(), { processed: {}, unprocessed: [], ignored: {}, failed: [] });
  assert.equal((await job.getDependenciesCount()).unprocessed, 0);
});

test("a parent waits again for a failed child that is retried", async (t) => {
  const stage = new Stage(t);
  stage.queue();
  const page = { name: "page", queueName: stage.name, opts: { ignoreDependencyOnFailure: true } };
  const other = { name: "page", queueName: stage.name, opts: { delay: 3_600_000 } };
  const tree = await stage
    .flows()
    .add({ name: "book", queueName: stage.name, children: [page, other] });
  const worker = stage.worker(async () => {
    throw new Error("no ink");
  });
  await emitted(worker, "failed");
  await worker.close();
  assert.equal((await tree.job.getDependenciesCount()).ignored, 1);

  await tree.children[0].job.retry();

  assert.deepEqual(await tree.job.getDependenciesCount(), {
    processed: 0,
    unprocessed: 2,
    ignored: 0,
    failed: 0,
  });
});
