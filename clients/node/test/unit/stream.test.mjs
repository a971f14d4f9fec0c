// What a stream sends, and what it makes of a server's responses.

import assert from "node:assert/strict";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

import {
  BadRequest,
  ConnectionFailed,
  Hookstation,
  RateLimited,
  Stream,
  Unavailable,
} from "../../dist/esm/index.js";

const PROTO = fileURLToPath(new URL("../../dist/hookstation.proto", import.meta.url));
const definitions = loader.loadSync(PROTO, { longs: Number, enums: String, defaults: true });
const { Hookstation: service } = grpc.loadPackageDefinition(definitions).hookstation.v1;

/** A client of a server that handles `Receive` in this way until the test ends. */
async function serving(t, receive) {
  const server = new grpc.Server();
  const refuse = (call, done) => done({ code: grpc.status.UNIMPLEMENTED });
  server.addService(service.service, { receive, publish: refuse, publishStream: () => {} });
  const secrets = grpc.ServerCredentials.createInsecure();
  const port = await new Promise((resolve, reject) => {
    server.bindAsync("127.0.0.1:0", secrets, (error, bound) => (error ? reject(error) : resolve(bound)));
  });
  t.after(() => server.forceShutdown());
  return new Hookstation("http://127.0.0.1:9", { key: "hsk_1", grpc: `grpc://127.0.0.1:${port}` });
}

/** Accepts each stream and calls `answer` with each further request. */
function accepting(requests, answer = () => {}) {
  return (call) => {
    call.on("data", (request) => {
      requests.push(request);
      if (requests.length === 1) call.write({});
      else answer(call, request);
    });
    call.on("end", () => call.end());
  };
}

test("what is said at the same time leaves in one request, joined", async (t) => {
  const requests = [];
  const confirm = (call, { settlements }) => {
    const results = settlements.map(({ id, leases }) => {
      const failed = leases.includes("b") ? [{ lease: "b", error: "expired" }] : [];
      return { id, failed };
    });
    call.write({ results });
  };
  const hooks = await serving(t, accepting(requests, confirm));
  const options = { credits: 3, lease: 60, workerId: "one", keys: "sticky", resume: true };
  const stream = await Stream.open(hooks, "orders", "billing", options);

  stream.grant(2);
  const settled = [
    stream.ack("a"),
    stream.ack(["b", "c"]),
    stream.nack("d", { delay: 5, error: "no\npaper" }),
    stream.nack("e", { delay: 6, final: true }),
    stream.extend("f", 30),
    stream.release("g"),
  ];
  stream.grant(1);
  const [first, second] = await Promise.all(settled);
  await stream.close();

  const [{ subscription, credits }, together, ...others] = requests;
  assert.deepEqual(
    [subscription.channel, subscription.consumer, subscription.leaseS, subscription.workerId, credits],
    ["orders", "billing", 60, "one", 3],
  );
  assert.deepEqual([subscription.sticky, subscription.resume, subscription.autoAck], [true, true, false]);
  assert.deepEqual(others, []);
  assert.equal(together.credits, 3);
  const said = together.settlements.map(({ id, action, leases }) => `${id} ${action} ${leases}`);
  assert.deepEqual(said, ["1 ACK a,b,c", "2 NACK d", "3 NACK e", "4 EXTEND f", "5 RELEASE g"]);
  const [, nack, final] = together.settlements;
  assert.deepEqual([nack.delayS, nack.error, final.final], [5, "no paper", true]);
  assert.deepEqual(first, { done: ["a"], failed: {} });
  assert.deepEqual(second, { done: ["c"], failed: { b: "expired" } });
});

test("a settlement that is not confirmed rejects", async (t) => {
  const hooks = await serving(t, accepting([], (call) => call.end()));
  const stream = await Stream.open(hooks, "orders", "billing");

  await assert.rejects(stream.ack("a"), ConnectionFailed);
  await assert.rejects(stream.ack("b"), /closed/);
  await assert.rejects(stream.ack(Array(1001).fill("x")), RangeError);
});

test("messages end when the broker stops, settlements do not", async (t) => {
  const requests = [];
  const hooks = await serving(t, (call) => {
    call.on("data", (request) => {
      requests.push(request);
      if (requests.length > 1) call.write({ results: [{ id: request.settlements[0].id }] });
      else call.write({ deliveries: [{ id: "m", lease: "l", body: Buffer.from("x") }], stopping: true });
    });
    call.on("end", () => call.end());
  });
  const stream = await Stream.open(hooks, "orders", "billing", { credits: 2 });
  const ids = [];
  for await (const { id } of stream) ids.push(id);

  assert.deepEqual(ids, ["m"]);
  assert.deepEqual(await stream.ack("l"), { done: ["l"], failed: {} });
  await stream.close();
});

const { status } = grpc;
for (const [code, problem, Kind, fields] of [
  [status.INVALID_ARGUMENT, { status: 422, code: "invalid_fields", field: "credits" }, BadRequest, ["credits"]],
  [status.UNAVAILABLE, { status: 503, code: "busy", retryAfterS: 2 }, Unavailable, []],
  [status.RESOURCE_EXHAUSTED, undefined, RateLimited, []],
  [status.UNIMPLEMENTED, undefined, ConnectionFailed, []],
  [status.INTERNAL, Buffer.from("ffff", "hex"), ConnectionFailed, []],
]) {
  const name = problem instanceof Buffer ? "a broken problem" : JSON.stringify(problem ?? "no problem");
  test(`${status[code]} with ${name} is ${Kind.name}`, async (t) => {
    const metadata = new grpc.Metadata();
    const type = definitions["hookstation.v1.Problem"];
    if (problem) {
      const content = problem instanceof Buffer ? problem : type.serialize(problem);
      metadata.set("hookstation-problem-bin", content);
    }
    const hooks = await serving(t, (call) => call.emit("error", { code, details: "no", metadata }));

    await assert.rejects(Stream.open(hooks, "orders", "billing"), (error) => {
      assert.equal(error.constructor, Kind);
      assert.deepEqual(Object.keys(error.fields), fields);
      if (problem?.code) assert.equal(error.code, problem.code);
      assert.equal(error.retryAfter, problem?.retryAfterS);
      return true;
    });
  });
}

test("an address that is not one of a gRPC server is refused", () => {
  for (const url of ["127.0.0.1:9090", "http://127.0.0.1:9090", "grpc://", "grpc://a/b", "grpcs:a:1"]) {
    const make = () => new Hookstation("http://127.0.0.1:9", { key: "hsk_1", grpc: url });
    assert.throws(make, /is not grpc:\/\/host:port/);
  }
});
