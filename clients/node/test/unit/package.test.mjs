import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";

import * as client from "hookstation-client";

const require = createRequire(import.meta.url);

test("require and import find the same names", () => {
  const required = require("hookstation-client");

  assert.deepEqual(Object.keys(required).sort(), Object.keys(client).sort());
  // One copy of the classes: a handler that imports may throw what another module required.
  assert.ok(new required.Retry() instanceof client.Retry);
});

test("the package has no dependencies", () => {
  assert.equal(require("hookstation-client/package.json").dependencies, undefined);
});
