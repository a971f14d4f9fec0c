import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import Database from "libsql";

import { MemoryStore, once, Retry, SQLiteStore } from "../../dist/esm/index.js";

const file = () => join(mkdtempSync(join(tmpdir(), "hookstation-")), "handled.db");
const STORES = {
  MemoryStore: (options) => new MemoryStore(options),
  SQLiteStore: (options) => new SQLiteStore(new Database(file()), options),
};

for (const [name, storeOf] of Object.entries(STORES)) {
  test(`${name}: a key is new, then running, then done`, () => {
    const store = storeOf();

    assert.deepEqual(store.claim("a"), { state: "new" });
    const running = store.claim("a");
    assert.equal(running.state, "running");
    assert.ok(running.seconds > 110 && running.seconds <= 120);
    store.done("a");
    assert.deepEqual(store.claim("a"), { state: "done" });
    assert.deepEqual(store.claim("b"), { state: "new" });
  });

  test(`${name}: what failed is new again`, () => {
    const store = storeOf();

    store.claim("a");
    store.forget("a");
    assert.deepEqual(store.claim("a"), { state: "new" });
  });

  test(`${name}: a handler that outlived its claim forgets nothing that was handled since`, () => {
    const store = storeOf();

    store.claim("a");
    store.done("a");
    store.forget("a");
    assert.deepEqual(store.claim("a"), { state: "done" });
  });

  test(`${name}: claims and memories end`, async () => {
    const store = storeOf({ claim: 0.05, keep: 0.05 });
    const lasting = storeOf({});

    store.claim("claimed");
    for (const one of [store, lasting]) {
      one.claim("handled");
      one.done("handled");
    }
    assert.equal(lasting.claim("handled").state, "done");
    await new Promise((resolve) => setTimeout(resolve, 100));
    assert.equal(store.claim("claimed").state, "new");
    assert.equal(store.claim("handled").state, "new");
  });
}

test("SQLiteStore: processes share handled messages, and claims of dead processes end", () => {
  const path = file();
  const store = new SQLiteStore(new Database(path));
  store.claim("handled");
  store.done("handled");
  store.claim("running here");
  const script = `
    import Database from "libsql";
    import { SQLiteStore } from ${JSON.stringify(new URL("../../dist/esm/index.js", import.meta.url))};
    const store = new SQLiteStore(new Database(${JSON.stringify(path)}));
    const keys = ["handled", "running here", "claimed there"];
    console.log(keys.map((key) => store.claim(key).state).join());
    process.kill(process.pid, "SIGKILL");
  `;

  const cwd = new URL(".", import.meta.url);
  const other = spawnSync(process.execPath, ["--input-type=module", "-e", script], { cwd });

  assert.equal(other.stdout.toString().trim(), "done,running,new", other.stderr.toString());
  assert.equal(other.signal, "SIGKILL");
  assert.equal(store.claim("claimed there").state, "new");
});

test("SQLiteStore: a process on another host is considered alive", () => {
  const database = new Database(file());
  const store = new SQLiteStore(database);
  // No process of this machine has such an id.
  const claim = "INSERT INTO hookstation_handled VALUES ('a', '4194305:elsewhere:x', ?)";
  database.prepare(claim).run(Date.now() / 1000 + 60);

  assert.equal(store.claim("a").state, "running");
  store.forget("a");
  assert.equal(store.claim("a").state, "running");
});

test("once calls a handler once for each message, by name", async () => {
  const store = new MemoryStore();
  const calls = [];
  const handle = (name) => once(store, name, ({ id }) => void calls.push(`${name} ${id}`));

  for (const id of ["1", "1", "2"]) await handle("pack")({ id });
  await handle("bill")({ id: "1" });

  assert.deepEqual(calls, ["pack 1", "pack 2", "bill 1"]);
});

test("once throws Retry while the same message is handled", async () => {
  let end;
  const handle = once(new MemoryStore(), "pack", () => new Promise((done) => (end = done)));

  const first = handle({ id: "1" });
  await assert.rejects(handle({ id: "1" }), (error) => error instanceof Retry && error.after > 100);
  end();
  await first;
});
