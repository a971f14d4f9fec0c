import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";

import * as client from "hookstation-client";

const require = createRequire(import.meta.url);

test("require and import find the same names", () => {
  const required = require("hookstation-client");

  assert.deepEqual(Object.keys(required).sort(), Object.keys(client).sort());
  assert.equal(required.sign("whsec_MDEyMw==", "a", 1, "x"), client.sign("whsec_MDEyMw==", "a", 1, "x"));
});

test("there is no dependency", () => {
  assert.equal(require("hookstation-client/package.json").dependencies, undefined);
});
