/** BullMQ on Hookstation: what `bullmq` exports, with classes whose jobs are in the broker. */

import {
  type BackendFactory,
  type IQueueBackend,
  type QueueBaseOptions,
  setDefaultBackendFactory,
} from "bullmq";

import { BrokerBackend } from "./backend.js";
import { connect, type BrokerOptions } from "./connection.js";

export * from "bullmq";
export { BrokerBackend } from "./backend.js";
export type { BrokerOptions } from "./connection.js";
export { NotSupported } from "./errors.js";

/**
 * Make the backend that keeps jobs in a broker, for `setDefaultBackendFactory` or the last
 * argument of `Queue`, `Worker`, `QueueEvents` and `FlowProducer`.
 *
 * Without `options`, address and key are those of the `connection` that a class is given, or
 * `HOOKSTATION_URL` and `HOOKSTATION_KEY`.
 */
export function createBrokerBackend(options?: BrokerOptions): BackendFactory<IQueueBackend, any> {
  return (name: string, given: QueueBaseOptions<any>, { blocking = false } = {}) =>
    new BrokerBackend(name, given, options && connect(options), blocking);
}

// Importing this package instead of `bullmq` is the one line that changes.
setDefaultBackendFactory(createBrokerBackend());
