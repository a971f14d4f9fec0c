import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";

import { createAdaptorServer } from "@hono/node-server";
import express from "express";
import Fastify from "fastify";
import { Hono } from "hono";

import { Hooks, MemoryStore, Reject, Retry } from "../../dist/esm/index.js";
import { listening, OTHER, SECRET, signed, SILENT } from "./support.mjs";

const ORDER = '{"id":7}';

function hooksOf(options = {}) {
  return new Hooks({ secret: SECRET, logger: SILENT, ...options });
}

async function statusOf(hooks, body = ORDER, headers = {}) {
  return (await hooks.handle(signed(body, headers), Buffer.from(body))).status;
}

test("the first handler whose pattern matches gets body and event", async () => {
  const calls = [];
  const named = (name) => (body, event) => calls.push([name, body, event.id, event.attempt]);
  const hooks = hooksOf()
    .on("order.paid", named("paid"))
    .on(["invoice.*", "order.*"], named("order"))
    .on("*", named("rest"));

  for (const type of ["order.created", "order.paid", "orders", "order", "invoice.x.y", ""]) {
    assert.equal(await statusOf(hooks, ORDER, { "hookstation-event-type": type }), 204);
  }

  assert.deepEqual(calls[0], ["order", { id: 7 }, "msg_1", 1]);
  const names = calls.map(([name]) => name);
  assert.deepEqual(names, ["order", "paid", "rest", "rest", "order", "rest"]);
});

test("an event without a handler is rejected", async () => {
  const hooks = hooksOf().on("invoice.*", () => {});
  const { status, headers } = await hooks.handle(signed(ORDER), Buffer.from(ORDER));

  assert.deepEqual([status, headers["Hookstation-Retry"]], [422, "never"]);
});

for (const [name, error, status, headers] of [
  ["Retry", new Retry({ after: 1.2 }), 409, { "Retry-After": "2" }],
  ["Retry with pause", new Retry({ after: 30, pause: true }), 503, { "Retry-After": "30" }],
  ["Reject", new Reject("why"), 422, { "Hookstation-Retry": "never" }],
  ["another error", new TypeError("secret"), 500, {}],
]) {
  test(`${name} is answered ${status}`, async () => {
    const hooks = hooksOf().on("*", async () => {
      throw error;
    });
    const said = await hooks.handle(signed(ORDER), Buffer.from(ORDER));

    assert.equal(said.status, status);
    assert.deepEqual(said.headers, { "Content-Type": "application/json", ...headers });
    const detail = status === 500 ? "TypeError" : error.message;
    assert.deepEqual(JSON.parse(said.body), { detail });
  });
}

test("forged, old and unsigned requests get 401 and reach no handler", async () => {
  const hooks = hooksOf().on("*", () => assert.fail("called"));
  const now = Math.floor(Date.now() / 1000);

  assert.equal(await statusOf(hooks, ORDER, { secret: OTHER }), 401);
  assert.equal(await statusOf(hooks, ORDER, { at: now - 301 }), 401);
  assert.equal(await statusOf(hooks, ORDER, { at: now + 302 }), 401);
  assert.equal((await hooks.handle(signed(ORDER), Buffer.from("{}"))).status, 401);
  assert.equal((await hooks.handle({}, Buffer.from("{}"))).status, 401);
});

test("tolerance, several secrets and a secret function are options", async () => {
  const old = { at: Math.floor(Date.now() / 1000) - 400 };
  const secrets = [[OTHER, SECRET], () => SECRET, async () => [SECRET]];

  assert.equal(await statusOf(hooksOf({ tolerance: 500 }).on("*", () => {}), ORDER, old), 204);
  for (const secret of secrets) {
    assert.equal(await statusOf(hooksOf({ secret }).on("*", () => {})), 204);
  }
});

test("the secret comes from the environment, and without one nothing is accepted", async () => {
  const hooks = hooksOf({ secret: undefined }).on("*", () => {});

  assert.equal(await statusOf(hooks), 500);
  process.env.HOOKSTATION_SECRET = SECRET;
  assert.equal(await statusOf(hooks), 204);
  delete process.env.HOOKSTATION_SECRET;
});

test("a body is JSON, text or bytes by its content type", async () => {
  const bodies = [];
  const hooks = hooksOf().on("*", (body) => bodies.push(body));

  for (const type of ["application/json", "application/cloudevents+json; charset=utf-8", "text/plain", "image/png"]) {
    await statusOf(hooks, ORDER, { "content-type": type });
  }

  assert.deepEqual(bodies, [{ id: 7 }, { id: 7 }, ORDER, Buffer.from(ORDER)]);
});

test("an invalid body is rejected", async () => {
  const parse = (order) => {
    if (!Number.isInteger(order.id)) throw new Error("no id");
    return order.id;
  };
  const ids = [];
  const hooks = hooksOf().on("*", (id) => ids.push(id), { parse });

  assert.equal(await statusOf(hooks, ORDER), 204);
  assert.equal(await statusOf(hooks, "{"), 422);
  assert.equal(await statusOf(hooks, "{}"), 422);
  assert.deepEqual(ids, [7]);
});

test("test samples need no handler by default", async () => {
  const calls = [];
  const sample = { "hookstation-test": "true" };

  assert.equal(await statusOf(hooksOf(), ORDER, sample), 204);
  const asking = hooksOf({ handleTests: true }).on("*", (_, { isTest }) => calls.push(isTest));
  assert.equal(await statusOf(asking, ORDER, sample), 204);
  assert.deepEqual(calls, [true]);
});

test("a repeat is acknowledged and not handled; a failure is retried", async () => {
  let calls = 0;
  const hooks = hooksOf({ store: new MemoryStore() }).on("*", () => {
    calls += 1;
    if (calls === 1) throw new Error("no database");
  });

  assert.deepEqual([await statusOf(hooks), await statusOf(hooks), await statusOf(hooks)], [500, 204, 204]);
  assert.equal(calls, 2);
  assert.equal(await statusOf(hooks, ORDER, { id: "msg_2" }), 204);
  assert.equal(calls, 3);
});

test("a repeat during handling is retried later", async () => {
  let end;
  const hooks = hooksOf({ store: new MemoryStore() }).on("*", () => new Promise((done) => (end = done)));

  const first = statusOf(hooks);
  await new Promise(setImmediate);
  const { status, headers } = await hooks.handle(signed(ORDER), Buffer.from(ORDER));
  end();

  assert.deepEqual([status, headers["Retry-After"], await first], [409, "120", 204]);
});

/** By framework: an application with a route for webhooks, and one that reads JSON. */
const FRAMEWORKS = {
  express(hooks) {
    const app = express();
    app.post("/hooks", hooks.express());
    app.use(express.json());
    app.post("/json", (request, response) => response.json(request.body));
    return createServer(app);
  },
  "express with the bytes read before"(hooks) {
    const app = express();
    app.post("/json", express.json(), (request, response) => response.json(request.body));
    app.use(express.raw({ type: () => true, limit: "10kb" }));
    app.post("/hooks", hooks.express());
    app.use((error, request, response, next) => response.status(error.status).end());
    return createServer(app);
  },
  async fastify(hooks) {
    const app = Fastify();
    app.register(hooks.fastify("/hooks"));
    app.post("/json", async (request) => request.body);
    await app.ready();
    return app.server;
  },
  hono(hooks) {
    const app = new Hono();
    app.post("/hooks", hooks.hono());
    app.post("/json", async (context) => context.json(await context.req.json()));
    return createAdaptorServer(app);
  },
};

for (const [name, serverOf] of Object.entries(FRAMEWORKS)) {
  test(`${name}: a webhook is verified by its exact bytes`, async (t) => {
    const orders = [];
    const hooks = hooksOf({ maxBodyBytes: 10_000 }).on("order.*", (order) => {
      if (order.id === 0) throw new Retry({ after: 3 });
      orders.push(order);
    });
    const url = await listening(t, await serverOf(hooks));
    const post = (path, body, headers) => fetch(url + path, { method: "POST", body, headers });
    const spaced = '{ "id": 7, "name": "Zoë" }';
    const long = `"${"x".repeat(10_000)}"`;

    const answers = [
      await post("/hooks", spaced, signed(spaced)),
      await post("/hooks", spaced, { ...signed(spaced), "webhook-id": "msg_forged" }),
      await post("/hooks", '{"id":0}', signed('{"id":0}')),
      await post("/hooks", long, signed(long)),
      await post("/hooks", "", signed("")),
      await post("/json", '{"a":1}', { "Content-Type": "application/json" }),
    ];

    assert.deepEqual(answers.map(({ status }) => status), [204, 401, 409, 413, 422, 200]);
    assert.equal(answers[2].headers.get("Retry-After"), "3");
    assert.deepEqual(await answers[5].json(), { a: 1 });
    assert.deepEqual(orders, [{ id: 7, name: "Zoë" }]);
  });
}

test("express: a body over the limit is refused by its length, unread", async (t) => {
  const url = await listening(t, await FRAMEWORKS.express(hooksOf({ maxBodyBytes: 10_000 })));
  const body = "x".repeat(3_000_000);

  const { status, headers } = await fetch(`${url}/hooks`, { method: "POST", body, headers: signed(body) });

  assert.deepEqual([status, headers.get("Hookstation-Retry")], [413, "never"]);
});

test("Express with a parsed body explains how to register", async (t) => {
  const said = [];
  const logger = { warn() {}, error: (_, error) => said.push(error.message) };
  const app = express();
  app.use(express.json());
  app.post("/hooks", hooksOf({ logger }).on("*", () => {}).express());
  const url = await listening(t, createServer(app));

  const { status } = await fetch(`${url}/hooks`, { method: "POST", body: ORDER, headers: signed(ORDER) });

  assert.equal(status, 500);
  assert.match(said[0], /before express\.json\(\)/);
});

test("a route handler of Next.js takes a Request and returns a Response", async () => {
  const POST = hooksOf().on("*", () => {}).next();
  const request = (headers, body) => new Request("http://shop/hooks", { method: "POST", headers, body });

  assert.equal((await POST(request(signed(ORDER), ORDER))).status, 204);
  const refused = await POST(request(signed(ORDER), "{}"));
  assert.equal(refused.status, 401);
  assert.deepEqual(await refused.json(), { detail: "No signature matches." });
});

test("a body without a length is read up to the limit", async () => {
  const POST = hooksOf({ maxBodyBytes: 10 }).on("*", () => {}).next();
  const stream = new ReadableStream({
    pull: (controller) => controller.enqueue(Buffer.from("123456")),
  });
  const request = new Request("http://shop/hooks", { method: "POST", body: stream, duplex: "half" });

  assert.equal((await POST(request)).status, 413);
});
