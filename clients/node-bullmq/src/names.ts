/** Names of BullMQ as names of the broker. */

import { createHash } from "node:crypto";

import { NotSupported } from "./errors.js";

/** The pull consumer from which all workers of a queue receive. */
export const WORKERS = "workers";
/** BullMQ's prefix unless given. */
export const PREFIX = "bull";
/** The broker has ten priorities. */
export const MAX_PRIORITY = 9;
const MAX_NAME = 90;
const MAX_ID = 200;
const MAX_EVENT_TYPE = 128;
const NAME = /^[a-z0-9][a-z0-9._-]*$/;
const PRINTABLE = /^[\x21-\x7e]+$/;
const EVENT_TYPE = /^\w+(\.\w+)*$/;

/** A name that the broker allows; another name's hash keeps it apart from its neighbours. */
export function slugOf(name: string): string {
  if (NAME.test(name) && name.length <= MAX_NAME) return name;
  const hash = createHash("sha256").update(name).digest("hex").slice(0, 8);
  const plain = name.toLowerCase().replace(/[^a-z0-9._-]+/g, "-").replace(/^[^a-z0-9]+/, "");
  return `${plain.slice(0, MAX_NAME - 9) || "queue"}-${hash}`;
}

/** The channel of a queue's jobs. */
export function channelOf(prefix: string, queue: string): string {
  return slugOf(prefix === PREFIX ? queue : `${prefix}.${queue}`);
}

/** The event type of a job: its name, where the broker allows that. */
export function eventTypeOf(name: string): string | undefined {
  return EVENT_TYPE.test(name) && name.length <= MAX_EVENT_TYPE ? name : undefined;
}

/** The broker's priority: its highest is 9, BullMQ's is 0. From 9 on they share the broker's 0. */
export function priorityOf(priority: number): number {
  return Math.max(0, MAX_PRIORITY - priority);
}

/**
 * BullMQ's priority of a message: the one that was `asked` for, unless it has been moved since to
 * another one of the broker's.
 */
export function jobPriorityOf(priority: number, asked: number | undefined): number {
  if (asked !== undefined && priorityOf(asked) === priority) return asked;
  return MAX_PRIORITY - priority;
}

/** Check a job id that the program chose. Throws `NotSupported`. */
export function checkId(id: string): void {
  if (!PRINTABLE.test(id) || id.length > MAX_ID) {
    throw new NotSupported(
      `jobId ${JSON.stringify(id.slice(0, MAX_ID))}`,
      `a job id has 1 to ${MAX_ID} printable ASCII characters without spaces.`,
    );
  }
}
