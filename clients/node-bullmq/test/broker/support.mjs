// A queue for each test, on the broker that HOOKSTATION_URL and HOOKSTATION_KEY name.

import { randomUUID } from "node:crypto";

import { FlowProducer, Queue, QueueEvents, Worker } from "../../dist/esm/index.js";

export const PATIENCE_MS = Number(process.env.PATIENCE_MS ?? 60_000);
/** What an application gives; the broker does not use it. */
export const connection = { host: "localhost", port: 6379 };

/** What a test makes, closed when it ends. */
export class Stage {
  constructor(test) {
    this.name = `q-${randomUUID()}`;
    this.open = [];
    test.after(() => Promise.all(this.open.map((one) => one.close())));
  }

  keep(one) {
    one.on("error", (error) => console.error(error));
    this.open.unshift(one);
    return one;
  }

  queue(options = {}, name = this.name) {
    return this.keep(new Queue(name, { connection, ...options }));
  }

  worker(processor, options = {}) {
    return this.keep(new Worker(this.name, processor, { connection, drainDelay: 1, ...options }));
  }

  async events() {
    const events = this.keep(new QueueEvents(this.name, { connection, blockingTimeout: 1_000 }));
    await events.waitUntilReady();
    return events;
  }

  flows() {
    return this.keep(new FlowProducer({ connection }));
  }
}

/** Resolves when `emitter` has emitted `event` so many times; with the arguments of each. */
export function emitted(emitter, event, count = 1) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`no ${event}`)), PATIENCE_MS);
    const seen = [];
    emitter.on(event, (...values) => {
      seen.push(values);
      if (seen.length < count) return;
      clearTimeout(timer);
      resolve(seen);
    });
  });
}

/** Waits until `done` resolves to true. */
export async function until(done, otherwise) {
  const end = Date.now() + PATIENCE_MS;
  while (!(await done())) {
    if (Date.now() > end) throw new Error(otherwise);
    await new Promise((resolve) => setTimeout(resolve, 30));
  }
}
