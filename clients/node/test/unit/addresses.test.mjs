import assert from "node:assert/strict";
import { test } from "node:test";

import { Addresses, AWAY_S } from "../../dist/cjs/addresses.js";

const [A, B, C] = ["http://127.0.0.1:1", "http://127.0.0.2:1", "http://127.0.0.3:1"];

test("the address that works is kept", () => {
  const addresses = new Addresses([A, B, C]);

  assert.deepEqual(addresses.ordered(), [A, B, C]);
  addresses.works(B);
  assert.deepEqual(addresses.ordered(), [B, C, A]);
});

test("failed addresses come last for some seconds, oldest failure first", () => {
  let now = 0;
  const addresses = new Addresses([A, B, C], () => now);

  addresses.failed(A);
  now = 1;
  addresses.failed(B);
  assert.deepEqual(addresses.ordered(), [C, A, B]);
  now = AWAY_S + 0.5;
  assert.deepEqual(addresses.ordered(), [A, C, B]);
  now = AWAY_S + 2;
  assert.deepEqual(addresses.ordered(), [A, B, C]);
});

test("an address that responds again is available", () => {
  const addresses = new Addresses([A, B]);

  addresses.failed(A);
  addresses.works(A);
  assert.deepEqual(addresses.ordered(), [A, B]);
});
