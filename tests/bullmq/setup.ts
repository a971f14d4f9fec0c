/** Before each file of BullMQ's tests: the broker's backend, and a connection that is no Redis. */

import { createRequire } from "node:module";
import { Readable } from "node:stream";

import { setConnectionFactory } from "./tests/utils/connection-factory";

// The CommonJS build: the tests import the one of BullMQ.
const require = createRequire(import.meta.url);
const { BrokerBackend } = require("@hookstation/bullmq");
const { list: commands } = require("@ioredis/commands");
const { Redis } = require("ioredis");

const own: Record<string, unknown> = {
  status: "ready",
  options: {},
  isCluster: false,
  connect: async () => undefined,
  disconnect: () => undefined,
  duplicate: () => connection,
  emit: () => false,
};
for (const name of ["on", "once", "off", "removeListener"]) own[name] = () => connection;

/** What the tests pass as `connection`; a test that sends a command of Redis is left out. */
const connection: Record<string, unknown> = {};
for (const command of commands) {
  connection[command] = () => {
    throw new Error(`NEEDS REDIS: ${command}`);
  };
}
Object.assign(connection, own, { quit: async () => "OK" });

setConnectionFactory(() => connection as never);
for (const name of ["client", "blockingClient"]) {
  Object.defineProperty(BrokerBackend.prototype, name, { get: async () => connection });
}

// Connections that tests make themselves reach nothing, and find nothing to clean up.
Object.assign(Redis.prototype, {
  connect: async () => undefined,
  scanStream: () => Readable.from([]),
  sendCommand: async ({ name }: { name: string }) => {
    if (name !== "quit") throw new Error(`NEEDS REDIS: ${name}`);
    return "OK";
  },
});
