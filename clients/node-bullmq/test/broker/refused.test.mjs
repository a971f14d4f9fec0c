import assert from "node:assert/strict";
import { test } from "node:test";

import { NotSupported, Worker } from "../../dist/esm/index.js";
import { connection, Stage } from "./support.mjs";

const refused = (feature) => (error) => {
  assert.ok(error instanceof NotSupported, String(error));
  assert.match(error.feature, feature);
  return true;
};

test("what cannot be kept is refused by name, and nothing is added", async (t) => {
  const stage = new Stage(t);
  const queue = stage.queue();
  const add = (opts) => queue.add("letter", {}, opts);

  await assert.rejects(add({ lifo: true }), refused(/lifo/));
  await assert.rejects(add({ jobId: "Grüße" }), refused(/jobId/));
  await assert.rejects(add({ attempts: 1_001 }), refused(/attempts/));
  const bulk = [{ name: "good", data: {} }, { name: "bad", data: {}, opts: { lifo: true } }];
  await assert.rejects(queue.addBulk(bulk), refused(/lifo/));
  await assert.rejects(queue.getWorkers(), refused(/getWorkers/));
  await assert.rejects(queue.trimEvents(10), refused(/trimEvents/));
  assert.throws(
    () => new Worker(stage.name, null, { connection, metrics: { maxDataPoints: 10 } }),
    refused(/metrics/),
  );

  assert.equal(await queue.count(), 0);
});
