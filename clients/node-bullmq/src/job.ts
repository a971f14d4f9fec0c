/** A job as it is stored: a message that never changes, and a state that does. */

import type { JobJson, JobProgress, JobsOptions } from "bullmq";
import type { Delivery, Resource } from "hookstation-client";

import { eventTypeOf, jobPriorityOf, MAX_PRIORITY } from "./names.js";

/** Bumped when the format of the body changes. */
const FORMAT = 1;

/** The body of a job's message. */
export interface Posted {
  bullmq: typeof FORMAT;
  name: string;
  data: unknown;
  opts: JobsOptions;
  /** Milliseconds since 1970. */
  timestamp: number;
  /** The id that the program chose; else it is the message's id. */
  id?: string;
  /** How often a job of this id was added and removed before, from 1. */
  generation?: number;
  parent?: JobJson["parent"];
  parentKey?: string;
  deduplicationId?: string;
  repeatJobKey?: string;
  /** Keys of the children of a flow that the job waits for. */
  children?: string[];
}

/** What changes while a job exists. */
export interface State {
  attemptsMade: number;
  attemptsStarted: number;
  stalledCounter: number;
  /** The broker's number of the receive that began last, and of the one that was settled last. */
  started: number;
  settled: number;
  data?: unknown;
  progress?: JobProgress;
  processedOn?: number;
  processedBy?: string;
  finishedOn?: number;
  outcome?: "completed" | "failed";
  /** JSON. */
  returnvalue?: string;
  failedReason?: string;
  /** JSON. */
  stacktrace?: string;
  /** Milliseconds, of the last move to `delayed`. */
  delay?: number;
  deferredFailure?: string;
  /** BullMQ's, of the last change to one that the broker does not have. */
  priority?: number;
  /** Children that were added while the job ran. */
  children?: string[];
  /** What became of the children, by their keys. */
  processed?: Record<string, string>;
  ignored?: Record<string, string>;
  failed?: string[];
  /** Children for which it no longer waits. */
  forgotten?: string[];
  /** The parent of a later flow that has the same child. */
  parent?: JobJson["parent"];
  parentKey?: string;
  /** Whether its parent no longer waits for it. */
  isOrphan?: boolean;
  /** Whether it begins although children have not ended. */
  goesOn?: boolean;
}

/** The state of a job that nobody has received. */
export const NEW: State = {
  attemptsMade: 0,
  attemptsStarted: 0,
  stalledCounter: 0,
  started: 0,
  settled: 0,
};

/** A job of BullMQ as the body of a message. */
export function postedOf(job: JobJson, extra: Partial<Posted>): Posted {
  return {
    bullmq: FORMAT,
    name: job.name,
    data: JSON.parse(job.data ?? "{}"),
    opts: job.opts,
    timestamp: job.timestamp,
    ...(job.parent ? { parent: job.parent } : {}),
    ...(job.parentKey ? { parentKey: job.parentKey } : {}),
    ...(job.deduplicationId ? { deduplicationId: job.deduplicationId } : {}),
    ...(job.repeatJobKey ? { repeatJobKey: job.repeatJobKey } : {}),
    ...extra,
  };
}

/** Read the body of a message. One that another producer published is a job, too. */
export function readPosted(body: Buffer, eventType: string, acceptedAt: number): Posted {
  const text = body.toString();
  let data: unknown = text;
  try {
    data = JSON.parse(text);
  } catch {
    // A text is the data of its job.
  }
  if (typeof data === "object" && data !== null && (data as Posted).bullmq === FORMAT) {
    return data as Posted;
  }
  const name = eventType || "message";
  return { bullmq: FORMAT, name, data, opts: { attempts: 0 }, timestamp: acceptedAt };
}

/** A job as BullMQ reads it. */
export function jsonOf(id: string, posted: Posted, state: State, priority: number): JobJson {
  const json: JobJson = {
    id,
    name: posted.name,
    data: JSON.stringify(state.data === undefined ? posted.data : state.data),
    opts: posted.opts,
    progress: state.progress ?? 0,
    attemptsMade: state.attemptsMade,
    attemptsStarted: state.attemptsStarted,
    stalledCounter: state.stalledCounter,
    timestamp: posted.timestamp,
    delay: state.delay ?? posted.opts.delay ?? 0,
    priority: jobPriorityOf(priority, state.priority ?? posted.opts.priority),
    failedReason: state.failedReason as string,
    stacktrace: state.stacktrace ?? "[]",
    returnvalue: state.returnvalue as string,
    finishedOn: state.finishedOn,
    processedOn: state.processedOn,
    processedBy: state.processedBy,
    deferredFailure: state.deferredFailure,
    parent: state.isOrphan ? undefined : (state.parent ?? posted.parent),
    parentKey: parentOf(posted, state),
    deduplicationId: posted.deduplicationId,
    repeatJobKey: posted.repeatJobKey,
  };
  return Object.fromEntries(
    Object.entries(json).filter(([, value]) => value !== undefined),
  ) as unknown as JobJson;
}

/** The key of a job's parent. */
export function parentOf(posted: Posted, state: State): string | undefined {
  return state.isOrphan ? undefined : (state.parentKey ?? posted.parentKey);
}

/** The event type with which a job is published. */
export function typeOf(posted: Posted): string | undefined {
  return eventTypeOf(posted.name);
}

/**
 * What names a job in lists of the broker, where bodies are not, if it has an id of its own or a
 * priority that the broker does not have.
 */
export function markOf(
  id: string | undefined,
  generation: number,
  priority = 0,
): string | undefined {
  const isOdd = priority > MAX_PRIORITY;
  if (id === undefined && !isOdd) return undefined;
  return `${generation}${isOdd ? `@${priority}` : ""}:${id ?? ""}`;
}

/** What a mark says; without one, the message's id is the job's. */
export function readMark(
  mark: string,
  message: string,
): { id: string; generation: number; priority?: number } {
  const found = /^(\d+)(?:@(\d+))?:(.*)$/.exec(mark);
  if (!found) return { id: message, generation: 0 };
  const [, generation, priority, id] = found;
  return {
    id: id || message,
    generation: Number(generation),
    ...(priority === undefined ? {} : { priority: Number(priority) }),
  };
}

/** A job that a worker has received. */
export interface Held {
  id: string;
  /** The name of the log of its state. */
  log: string;
  lease: string;
  token: string;
  /** The broker's number of this receive. */
  attempt: number;
  /** Milliseconds since 1970. */
  expiresAt: number;
  message: string;
  posted: Posted;
  priority: number;
}

/** When a delivery was accepted, in milliseconds since 1970. */
export function acceptedOf(delivery: Delivery): number {
  return delivery.acceptedAt?.getTime() ?? Date.now();
}

/** The one delivery of a job's message, if it has one yet. */
export function deliveryOf(message: Resource): Resource | undefined {
  return (message.deliveries as Resource[] | undefined)?.[0];
}
