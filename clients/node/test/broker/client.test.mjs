import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";

import {
  BadRequest,
  Conflict,
  Hooks,
  Hookstation,
  LeaseLost,
  NotFound,
  Unauthorized,
} from "../../dist/esm/index.js";
import { channelOf, hooks, listed, SILENT, statesOf, until } from "./support.mjs";

test("a published message is received with all its fields", async () => {
  const channel = await channelOf();
  await hooks.register(channel, "all");
  const body = { name: "Zoë \u{1F40D}" };
  const options = {
    id: "one",
    eventType: "order.created",
    orderingKey: "customer 4",
    priority: 7,
    headers: { "X-Tenant": "blue" },
  };
  const sent = await hooks.publish(channel, body, options);
  const again = await hooks.publish(channel, body, options);

  const [delivery] = await hooks.receiveBatch(channel, "all", { wait: 10 });
  assert.deepEqual([again.id, again.isDuplicate, sent.isDuplicate], [sent.id, true, false]);
  assert.ok(sent.dueAt instanceof Date && delivery.acceptedAt instanceof Date);
  assert.deepEqual(delivery.json(), body);
  assert.deepEqual(
    [delivery.id, delivery.eventType, delivery.orderingKey, delivery.priority, delivery.attempt],
    [sent.id, "order.created", "customer 4", 7, 1],
  );
  assert.deepEqual(delivery.headers, { "X-Tenant": "blue" });
  await delivery.extend(60);
  await delivery.ack();
  assert.deepEqual(await statesOf(channel), ["Delivered"]);
  await assert.rejects(delivery.nack(), (error) => error instanceof LeaseLost && error instanceof Conflict);
  assert.deepEqual(await hooks.body(sent.id), Buffer.from(JSON.stringify(body)));
});

test("receive with a wait of 0 ends, and released messages return", async () => {
  const channel = await channelOf();
  await hooks.register(channel, "all");
  await hooks.publishBatch(channel, ["a", "b", "c"].map((body) => ({ body })));
  const bodies = [];

  for await (const delivery of hooks.receive(channel, "all", { max: 2, wait: 0 })) {
    bodies.push(delivery.text());
    if (bodies.length === 1) await delivery.release();
    else await delivery.ack();
  }

  assert.equal(bodies.length, 4);
  assert.deepEqual([...new Set(bodies)].sort(), ["a", "b", "c"]);
});

test("consumers are registered, changed, paused, resumed and retired", async () => {
  const channel = await channelOf();
  const made = await hooks.register(channel, "shop", { url: "http://127.0.0.1:9/x", events: ["order.*"] });

  assert.match(made.secret, /^whsec_/);
  assert.deepEqual(made.event_types, ["order.*"]);
  const changed = await hooks.updateConsumer(channel, "shop", { max_attempts: 3 });
  assert.equal(changed.max_attempts, 3);
  assert.equal((await hooks.pauseConsumer(channel, "shop")).state, "paused");
  assert.equal((await hooks.resumeConsumer(channel, "shop")).state, "active");
  assert.notEqual((await hooks.rotateSecret(channel, "shop", 60)).secret, made.secret);
  assert.equal((await hooks.consumer(channel, "shop")).client_id, "shop");
  assert.equal((await listed(hooks.consumers(channel))).length, 1);
  await hooks.retireConsumer(channel, "shop");
  assert.equal((await listed(hooks.consumers(channel))).length, 0);
});

test("channels are found, and an unknown one is NotFound", async () => {
  const channel = await channelOf();

  assert.equal((await hooks.channel(channel)).slug, channel);
  assert.ok((await listed(hooks.channels())).some(({ slug }) => slug === channel));
  await assert.rejects(hooks.channel(`${channel}-other`), NotFound);
  await assert.rejects(hooks.publish(channel, {}, { priority: 12 }), (error) => {
    assert.ok(error instanceof BadRequest);
    assert.deepEqual([error.code, error.status], ["invalid_fields", 422]);
    return Object.keys(error.fields).length === 1;
  });
  const stranger = new Hookstation(hooks.urls, { key: "hsk_no" });
  await assert.rejects(stranger.channel(channel), Unauthorized);
});

test("schedules are put, read, paused, run and deleted", async () => {
  const channel = await channelOf();
  const schedules = hooks.schedules(channel);

  const made = await schedules.put("daily", { cron: "0 9 * * *", body: { id: 1 }, event_type: "tick" });
  const every = await schedules.put("often", { every: 3600, body: "tick" });
  assert.deepEqual([made.state, every.every_ms], ["active", 3_600_000]);
  assert.equal((await schedules.pause("daily")).state, "paused");
  assert.equal((await schedules.resume("daily")).state, "active");
  assert.equal((await schedules.update("often", { every: 60 })).every_ms, 60_000);
  assert.deepEqual(await hooks.body((await schedules.run("daily")).id), Buffer.from('{"id":1}'));
  assert.equal((await listed(schedules.list())).length, 2);
  await schedules.delete("daily");
  await assert.rejects(schedules.get("daily"), NotFound);
});

test("a delivery is cancelled, a dead one is replayed", async () => {
  const channel = await channelOf();
  await hooks.register(channel, "all", { max_attempts: 1 });
  await hooks.publish(channel, "dead", { eventType: "a" });
  const [delivery] = await hooks.receiveBatch(channel, "all", { wait: 10 });
  await delivery.nack({ error: "no paper" });

  const [dead] = await listed(hooks.deadLetters(channel, "all", { eventType: "a" }));
  assert.equal((await hooks.delivery(dead.id)).attempts[0].error, "no paper");
  await hooks.replayDelivery(dead.id, { reason: "paper is there" });
  await hooks.cancelDelivery(dead.id);
  assert.deepEqual(await statesOf(channel), ["Cancelled"]);
});

test("request and pages make any other call", async () => {
  const channel = await channelOf();
  const sent = await hooks.publish(channel, {}, { deliverIn: 3600 });

  const due = await listed(hooks.pages(`/channels/${channel}/timeline`));
  assert.deepEqual(due.map(({ id }) => id), [sent.id]);
  const replay = { filter: { channel }, dry_run: true };
  assert.equal((await hooks.request("POST", "/replays", { json: replay })).matched_count, 0);
});

test("the broker delivers to handlers of Hooks, and tests need no handler", async (t) => {
  const channel = await channelOf();
  const calls = [];
  let secret = "";
  const receiver = new Hooks({ secret: () => secret, logger: SILENT });
  receiver.on("order.*", (order, { attempt, channel: from }) => void calls.push([order.id, attempt, from]));
  const server = createServer(receiver.express());
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => server.close() && server.closeAllConnections());
  const url = `http://127.0.0.1:${server.address().port}/`;
  secret = (await hooks.register(channel, "all", { url })).secret;

  const tested = await hooks.testConsumer(channel, "all");
  await hooks.publish(channel, { id: 7 }, { eventType: "order.created" });
  await hooks.publish(channel, { id: 8 }, { eventType: "invoice.created" });
  await until(async () => `${await statesOf(channel)}` === "Dead,Delivered", "not settled");

  assert.equal(tested.status_code, 204, JSON.stringify(tested));
  assert.deepEqual(calls, [[7, 1, channel]]);
});
