import assert from "node:assert/strict";
import dns from "node:dns";
import { test } from "node:test";

import { Addresses } from "../../dist/cjs/addresses.js";
import { ConnectionFailed, Hookstation, NotFound, Unavailable } from "../../dist/esm/index.js";
import { Transport } from "../../dist/cjs/transport.js";
import { ACCEPTED, refusing, serving } from "./support.mjs";

const KEY = { key: "hsk_1" };
const BUSY = [503, { code: "storage_unavailable", detail: "Busy." }, { "Retry-After": "0" }];
const OK = [202, ACCEPTED];

test("address and key come from the environment", () => {
  Object.assign(process.env, { HOOKSTATION_URL: "http://a/, http://b", HOOKSTATION_KEY: "hsk_2" });
  assert.deepEqual(new Hookstation().urls, ["http://a", "http://b"]);
  assert.deepEqual(new Hookstation({ retries: 0 }).urls, ["http://a", "http://b"]);
  delete process.env.HOOKSTATION_URL;
  delete process.env.HOOKSTATION_KEY;
  assert.throws(() => new Hookstation(), /HOOKSTATION_URL/);
  assert.throws(() => new Hookstation("http://a"), /HOOKSTATION_KEY/);
  assert.throws(() => new Hookstation("ftp://a", KEY), /not an http or https URL/);
});

test("a retry has the key of the first try, even without a given one", async (t) => {
  const broker = await serving(t, "reset", BUSY, [500, {}], OK);
  const hooks = new Hookstation(broker.url, KEY);

  await hooks.publish("orders", { id: 7 });
  await hooks.publish("orders", { id: 8 }, { id: "order-8" });

  const keys = broker.requests.map(({ headers }) => headers["idempotency-key"]);
  assert.equal(keys.length, 5);
  assert.equal(new Set(keys.slice(0, 4)).size, 1);
  assert.match(keys[0], /^[0-9a-f-]{36}$/);
  assert.equal(keys[4], "order-8");
});

test("the error of a nack is one line of 300 characters", async (t) => {
  const broker = await serving(t, [200, { done: ["lse_1"], failed: [] }]);
  const hooks = new Hookstation(broker.url, KEY);

  await hooks.nack("lse_1", { error: `no\nink\u001b[0m\ud83d${"😀".repeat(400)}` });

  const { error } = JSON.parse(broker.requests[0].body);
  assert.equal(error, `no ink [0m ${"😀".repeat(289)}`);
});

test("options of a publish are headers", async (t) => {
  const broker = await serving(t, OK);
  await new Hookstation(broker.url, KEY).publish("a/b", "text", {
    eventType: "order.created",
    orderingKey: "k",
    priority: 7,
    deliverIn: 1.5,
    deliverAt: new Date(0),
    producerSeq: 3,
    headers: { "X-Tenant": "blue" },
  });

  const [{ url, headers, body }] = broker.requests;
  assert.equal(url, "/api/v1/channels/a%2Fb/messages");
  assert.equal(body, "text");
  const said = {
    authorization: "Bearer hsk_1",
    "content-type": "text/plain; charset=utf-8",
    "hookstation-event-type": "order.created",
    "hookstation-ordering-key": "k",
    "hookstation-priority": "7",
    "hookstation-delay": "1500",
    "hookstation-deliver-at": "1970-01-01T00:00:00.000Z",
    "hookstation-producer-seq": "3",
    "hookstation-header-x-tenant": "blue",
  };
  for (const [name, value] of Object.entries(said)) assert.equal(headers[name], value);
});

test("non-ASCII text is sent as JSON, with the same key in each try", async (t) => {
  const broker = await serving(t, "reset", [207, { items: [{ ...ACCEPTED, status: 202 }] }]);

  const sent = await new Hookstation(broker.url, KEY).publish("orders", "x", { orderingKey: "Zoë" });

  const items = broker.requests.map(({ body }) => JSON.parse(body)[0]);
  assert.equal(sent.id, "msg_1");
  assert.deepEqual(items[0], items[1]);
  assert.deepEqual([items[0].ordering_key, items[0].body], ["Zoë", "x"]);
  assert.match(items[0].idempotency_key, /^[0-9a-f-]{36}$/);
});

test("an unsupported body is refused before it is sent", async () => {
  const hooks = new Hookstation("http://127.0.0.1:9", KEY);

  await assert.rejects(hooks.publish("orders", undefined), TypeError);
});

test("a call that is not idempotent is not retried after an ambiguous failure", async (t) => {
  const broker = await serving(t, "reset", [200, {}]);

  await assert.rejects(
    new Hookstation(broker.url, KEY).replayDelivery("dlv_1"),
    (error) => error instanceof ConnectionFailed && error.code === "no_response",
  );
  assert.equal(broker.requests.length, 1);
});

test("retries end, and 0 turns them off", async (t) => {
  const broker = await serving(t, BUSY);

  await assert.rejects(new Hookstation(broker.url, { ...KEY, retries: 2 }).message("m"), Unavailable);
  assert.equal(broker.requests.length, 3);
  await assert.rejects(new Hookstation(broker.url, { ...KEY, retries: 0 }).message("m"), Unavailable);
  assert.equal(broker.requests.length, 4);
});

test("a missing response times out", async (t) => {
  const broker = await serving(t, "silence");
  const hooks = new Hookstation(broker.url, { ...KEY, retries: 0, timeout: 2 });

  await assert.rejects(hooks.message("m"), /no response within 2 s/);
});

test("a batch with an unfetchable body is released", async (t) => {
  const messages = [{ id: "m1", lease: "a", body: "x" }, { id: "m2", lease: "b", body_url: "/x" }];
  const done = [200, { done: [], failed: [] }];
  const broker = await serving(t, [200, { messages }], [404, {}], done);

  await assert.rejects(new Hookstation(broker.url, KEY).receiveBatch("c", "all"), NotFound);
  const { url, body } = broker.requests[2];
  assert.deepEqual([url, body], ["/api/v1/leases/release", '{"leases":["a","b"]}']);
});

test("a redirect is not followed with the key", async (t) => {
  const other = await serving(t, [200, {}]);
  const broker = await serving(t, [302, {}, { Location: other.url }]);

  await assert.rejects(new Hookstation(broker.url, KEY).message("m"), /HTTP status 302/);
  assert.equal(other.requests.length, 0);
});

for (const away of ["reset", [502, {}], [503, {}], [504, {}]]) {
  test(`the next address is used at once after ${JSON.stringify(away)}, and kept`, async (t) => {
    const [first, second] = [await serving(t, away), await serving(t, OK)];
    const hooks = new Hookstation([first.url, second.url], { ...KEY, retries: 0 });

    await hooks.publish("orders", {});
    await hooks.publish("orders", {});

    assert.deepEqual([first.requests.length, second.requests.length], [1, 2]);
    const key = "idempotency-key";
    assert.equal(first.requests[0].headers[key], second.requests[0].headers[key]);
  });
}

test("an address that refuses connections is skipped, and tried again while the other is busy", async (t) => {
  const second = await serving(t, OK, BUSY);
  const hooks = new Hookstation([await refusing(), second.url], { ...KEY, retries: 0 });

  await hooks.publish("orders", {});
  // The second one is busy: the first is tried, though it was away a moment ago.
  await assert.rejects(hooks.publish("orders", {}), ConnectionFailed);
  assert.equal(second.requests.length, 2);
});

test("an address that does not respond in time is skipped", async (t) => {
  const [first, second] = [await serving(t, "silence"), await serving(t, [200, { id: "m" }])];
  const hooks = new Hookstation(`${first.url},${second.url}`, { ...KEY, timeout: 2, retries: 0 });

  assert.equal((await hooks.message("m")).id, "m");
});

test("a call that is not idempotent stays at its address after an ambiguous failure", async (t) => {
  const [first, second] = [await serving(t, "reset"), await serving(t, [200, {}])];
  const hooks = new Hookstation([first.url, second.url], KEY);

  await assert.rejects(hooks.replayDelivery("dlv_1"), ConnectionFailed);
  assert.equal(second.requests.length, 0);
});

test("an address that failed recently is not tried first", async (t) => {
  const [first, second] = [await serving(t, "reset"), await serving(t, [200, { id: "m" }])];
  const hooks = new Hookstation([first.url, second.url], KEY);

  await assert.rejects(hooks.replayDelivery("dlv_1"), ConnectionFailed);
  await hooks.message("m");
  assert.deepEqual([first.requests.length, second.requests.length], [1, 1]);
});

test("the address that works is kept after the other one is back", async (t) => {
  const [first, second] = [await serving(t, [503, {}], OK), await serving(t, OK)];
  let now = 0;
  const addresses = new Addresses([first.url, second.url], () => now);
  const transport = new Transport({ addresses, key: "k", timeout: 5, retries: 0, fetch });

  for (now of [0, 60]) await transport.send({ method: "GET", path: "/channels" });

  assert.deepEqual([first.requests.length, second.requests.length], [1, 2]);
});

test("a call that is not idempotent uses the next address only if nothing was sent", async (t) => {
  const [silent, second] = [await serving(t, "silence"), await serving(t, [200, { id: "d" }])];
  const options = { ...KEY, timeout: 2 };

  const found = await new Hookstation([await refusing(), second.url], options).replayDelivery("d");
  assert.equal(found.id, "d");
  await assert.rejects(
    new Hookstation([silent.url, second.url], options).replayDelivery("d"),
    (error) => error.code === "no_response",
  );
  assert.equal(second.requests.length, 1);
});

test("the messages of a batch have the same keys in each try", async (t) => {
  const broker = await serving(t, "reset", [207, { items: [] }]);

  await new Hookstation(broker.url, KEY).publishBatch("orders", [{ body: "a" }, { body: "b" }]);

  const keys = broker.requests.map(({ body }) => JSON.parse(body).map((one) => one.idempotency_key));
  assert.deepEqual(keys[0], keys[1]);
  assert.ok(keys[0].every((key) => /^[0-9a-f-]{36}$/.test(key)) && keys[0][0] !== keys[0][1]);
});

test("a refusal is final at the first address", async (t) => {
  const [first, second] = [await serving(t, [422, { code: "x" }]), await serving(t, OK)];

  await assert.rejects(new Hookstation([first.url, second.url], KEY).publish("orders", {}), /x:/);
  assert.equal(second.requests.length, 0);
});

const [major] = process.versions.node.split(".");
const skip = Number(major) < 20 && "Node.js 18 connects to the first record alone";

test("a DNS record that refuses connections is skipped", { skip }, async (t) => {
  const { url, requests } = await serving(t, [200, { id: "m" }]);
  const { port } = new URL(url);
  const real = dns.lookup;
  t.after(() => {
    dns.lookup = real;
  });
  dns.lookup = (name, options, done) => {
    const found = ["127.0.0.77", "127.0.0.1"].map((address) => ({ address, family: 4 }));
    done(null, ...(options.all ? [found] : [found[0].address, 4]));
  };

  await new Hookstation(`http://broker.test:${port}`, { ...KEY, retries: 0 }).message("m");

  assert.equal(requests[0].headers.host, `broker.test:${port}`);
});

test("fetch can be replaced", async () => {
  const seen = [];
  const replaced = async (url, { method }) => {
    seen.push([method, url]);
    return new Response('{"id": "m"}');
  };

  await new Hookstation("http://localhost", { ...KEY, fetch: replaced }).message("m");

  assert.deepEqual(seen, [["GET", "http://localhost/api/v1/messages/m"]]);
});

test("lists are read page by page", async (t) => {
  const broker = await serving(
    t,
    [200, { items: [{ id: 1 }, { id: 2 }], next: "c 2" }],
    [200, { items: [{ id: 3 }], next: null }],
  );
  const found = [];
  const from = new Date(0);
  for await (const { id } of new Hookstation(broker.url, KEY).messages("orders", { from, eventType: "a" })) {
    found.push(id);
  }

  assert.deepEqual(found, [1, 2, 3]);
  const path = "/api/v1/channels/orders/messages?from=1970-01-01T00%3A00%3A00.000Z&event_type=a";
  assert.deepEqual(broker.requests.map(({ url }) => url), [path, `${path}&cursor=c+2`]);
});

test("a call with a version is conditional and not retried", async (t) => {
  const broker = await serving(t, [500, {}]);

  await assert.rejects(new Hookstation(broker.url, KEY).cancel("m", { version: 3 }), Unavailable);
  assert.deepEqual(broker.requests.map(({ headers }) => headers["if-match"]), ['"3"']);
});

test("more than 100 leases are refused before they are sent", async () => {
  const leases = Array.from({ length: 101 }, (_, n) => `${n}`);

  await assert.rejects(new Hookstation("http://127.0.0.1:9", KEY).ack(leases), RangeError);
});
