import assert from "node:assert/strict";
import { test } from "node:test";

import { mayRepeat, waitBeforeRetry } from "../../dist/cjs/calls.js";
import { errorOf, secondsOf } from "../../dist/cjs/errors.js";
import * as client from "../../dist/esm/index.js";

const CALL = { method: "POST", path: "/x" };
const ONCE = { ...CALL, isRepeatable: false };
const failed = (code) => new client.ConnectionFailed("x", { code });

test("waits double up to 20 seconds, and half of each is random", () => {
  for (const [retry, backoff] of [[0, 0.2], [1, 0.4], [5, 6.4], [9, 20]]) {
    const waits = Array.from({ length: 200 }, () =>
      waitBeforeRetry(CALL, failed("no_response"), retry, 10),
    );
    assert.ok(Math.min(...waits) >= backoff / 2, `${retry}: ${Math.min(...waits)}`);
    assert.ok(Math.max(...waits) <= backoff, `${retry}: ${Math.max(...waits)}`);
    assert.ok(new Set(waits).size > 100);
  }
});

test("Retry-After is the minimum wait, and a long one throws", () => {
  const busy = (seconds) => errorOf(503, String(seconds), "{}");

  assert.ok(waitBeforeRetry(CALL, busy(7), 0, 6) >= 7);
  assert.equal(waitBeforeRetry(CALL, busy(61), 0, 6), undefined);
  assert.equal(waitBeforeRetry(CALL, busy(1), 6, 6), undefined);
});

test("ambiguous failures are retried if the call is idempotent", () => {
  // A proxy gives no code, so that 429, 503 and 507 may be about a request that it passed on.
  for (const status of [408, 429, 500, 502, 503, 504, 507]) {
    assert.equal(mayRepeat(CALL, errorOf(status, null, "")), true);
    assert.equal(mayRepeat(ONCE, errorOf(status, null, "")), false);
  }
  for (const status of [429, 503, 507]) {
    assert.equal(mayRepeat(ONCE, errorOf(status, null, '{"code": "busy"}')), true);
  }
  for (const status of [400, 401, 409, 422]) assert.equal(mayRepeat(CALL, errorOf(status, null, "")), false);
  assert.equal(mayRepeat(ONCE, failed("not_sent")), true);
  assert.equal(mayRepeat(ONCE, failed("no_response")), false);
  assert.equal(mayRepeat(CALL, failed("no_response")), true);
});

test("errors are classes by their status", () => {
  const names = { 400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound" };
  Object.assign(names, { 409: "Conflict", 412: "Conflict", 413: "BadRequest" });
  Object.assign(names, { 429: "RateLimited", 500: "Unavailable", 507: "Unavailable" });
  for (const [status, name] of Object.entries(names)) {
    const error = errorOf(Number(status), null, "no JSON");
    assert.ok(error instanceof client[name] && error instanceof client.HookstationError);
    assert.deepEqual([error.name, error.status, error.detail], [name, Number(status), `HTTP status ${status}`]);
  }
});

test("an error names the invalid fields", () => {
  const one = { code: "invalid_fields", detail: "Not 0 to 9.", field: "priority" };
  const several = { code: "invalid_fields", detail: "Two.", errors: [{ field: "a", detail: "x" }, { field: "b" }] };

  const single = errorOf(422, null, JSON.stringify(one));
  assert.equal(single.message, "invalid_fields: priority: Not 0 to 9.");
  assert.deepEqual(single.fields, { priority: "Not 0 to 9." });
  assert.deepEqual(errorOf(422, null, JSON.stringify(several)).fields, { a: "x", b: "" });
});

test("Retry-After is a number or a date", () => {
  const soon = new Date(Date.now() + 90_000).toUTCString();

  assert.equal(secondsOf("1.5"), 1.5);
  assert.equal(secondsOf("-3"), 0);
  assert.ok(Math.abs(secondsOf(soon) - 90) < 2);
  for (const none of [null, undefined, "", " ", "soon"]) assert.equal(secondsOf(none), undefined);
});
