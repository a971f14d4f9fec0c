// A channel for each test, on the broker that HOOKSTATION_URL and HOOKSTATION_KEY name.

import { randomUUID } from "node:crypto";

import { Hookstation } from "../../dist/esm/index.js";

export const hooks = new Hookstation({ timeout: 60 });
export const PATIENCE_MS = Number(process.env.PATIENCE_MS ?? 120_000);
export const SILENT = { warn() {}, error() {} };

/** A new channel. */
export async function channelOf() {
  const channel = `node-${randomUUID()}`;
  await hooks.createChannel(channel);
  return channel;
}

/** The items of a list. */
export async function listed(items) {
  const found = [];
  for await (const item of items) found.push(item);
  return found;
}

/** The states of all deliveries of a consumer, in order. */
export async function statesOf(channel, consumer = "all") {
  return (await listed(hooks.deliveries(channel, consumer))).map(({ state }) => state).sort();
}

/** Waits until `done` resolves to true. */
export async function until(done, otherwise) {
  const end = Date.now() + PATIENCE_MS;
  while (!(await done())) {
    if (Date.now() > end) throw new Error(otherwise);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
