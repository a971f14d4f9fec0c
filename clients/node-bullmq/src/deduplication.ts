/**
 * Deduplication ids: which job has one, until when, and the job that follows it.
 *
 * The last entry of a log says so. A job that ends looks for the one that shall follow it before it
 * is acknowledged, so a worker that is killed in between loses none.
 */

import { setTimeout as sleep } from "node:timers/promises";

import type { JobJson } from "bullmq";

import type { BrokerQueue } from "./queue.js";
import { WeeklyLog } from "./weekly.js";

/** A claim without a job is free again after this time: its program has died. */
const CLAIM_MS = 60_000;
/** Milliseconds between two looks at what another process does. */
const AGAIN_MS = 50;
/** Weeks without a change after which an id is forgotten, and free. */
const WEEKS = 3;

/** How a job was deduplicated. */
export interface Options {
  id: string;
  /** Milliseconds. */
  ttl?: number;
  extend?: boolean;
  replace?: boolean;
  keepLastIfActive?: boolean;
}

/** A job that is added when the one that has its deduplication id ends. */
export interface Next {
  job: JobJson;
  id?: string;
}

interface Owned {
  /** The id of the job that has it; undefined between the claim and the publish. */
  job?: string;
  /** Milliseconds since 1970; without it, until the job ends. */
  until?: number | null;
  claimedUntil?: number;
  next?: Next;
  free?: boolean;
}

/** What became of a claim. */
export interface Claimed {
  /** The job that has the id already, so the new one is not added. */
  owner?: string;
  /** The delayed job that the new one replaced. */
  replaced?: string;
  /** Give the id to the job that was added. */
  settle: (job: string) => Promise<void>;
}

/** The deduplication ids of one queue. */
export class Deduplication {
  constructor(private readonly queue: BrokerQueue) {}

  /** The job that has an id. */
  async owner(id: string): Promise<string | undefined> {
    const { entry } = await this.log(id);
    return (await this.ownerOf(entry)) || undefined;
  }

  /** Free an id. */
  async free(id: string): Promise<void> {
    await settle(await this.log(id), { free: true });
  }

  /** Take the id of a job that is about to be added. */
  async claim(options: Options, next: Next): Promise<Claimed> {
    for (;;) {
      const log = await this.log(options.id);
      const { entry } = log;
      if (entry?.next && (entry.claimedUntil ?? 0) > Date.now()) {
        // Another process adds the next job at this moment.
        await sleep(AGAIN_MS);
        continue;
      }
      const owner = await this.ownerOf(entry);
      if (owner === undefined) {
        const until = untilOf(options);
        if (await log.write(claimUntil(until))) return claimOf(log, until);
        continue;
      }
      if (!owner) {
        // Its job is being added at this moment.
        await sleep(AGAIN_MS);
        continue;
      }
      const had = entry as Owned;
      const isAsked = options.replace || options.keepLastIfActive;
      const found = isAsked ? await this.stateOf(owner) : undefined;
      if (options.replace && found?.shown === "delayed" && (await this.cancel(found.message))) {
        const isKept = !options.extend && !options.keepLastIfActive && options.ttl;
        const until = isKept ? (had.until ?? undefined) : untilOf(options);
        if (await log.write(claimUntil(until))) {
          return { ...claimOf(log, until), replaced: owner };
        }
        continue;
      }
      let said: Owned | undefined;
      if (options.keepLastIfActive && (found?.shown === "active" || had.next)) {
        said = { job: owner, next };
      } else if (options.extend && options.ttl && !options.replace) {
        said = { job: owner, until: untilOf(options), next: had.next };
      }
      if (!said || (await log.write(said))) {
        return { owner, settle: async () => undefined };
      }
    }
  }

  /** Add the job that follows one that has ended, if there is one. */
  async follow(id: string, owner: string, add: (next: Next) => Promise<string>): Promise<void> {
    for (;;) {
      const log = await this.log(id);
      const { entry } = log;
      if (!entry?.next || entry.job !== owner || (entry.claimedUntil ?? 0) > Date.now()) return;
      const claim = { ...entry, claimedUntil: Date.now() + CLAIM_MS };
      if (!(await log.write(claim))) continue;
      const options = entry.next.job.opts.deduplication as Options;
      const job = await add(entry.next);
      await settle(log, { job, until: untilOf(options) });
      return;
    }
  }

  /** Whether a job of this id has ended, or is not there. */
  async hasEnded(id: string): Promise<boolean> {
    const shown = (await this.stateOf(id))?.shown;
    return shown === undefined || shown === "completed" || shown === "failed";
  }

  private async stateOf(id: string): Promise<{ shown: string; message: string } | undefined> {
    const known = id ? await this.queue.job(id) : undefined;
    return known && { shown: known.shown, message: known.found.message.id as string };
  }

  /** Cancel a delayed job; false if a worker was faster. */
  private async cancel(message: string): Promise<boolean> {
    const path = "/messages/cancel";
    const options = { json: { messages: [{ id: message }] }, isRepeatable: true };
    const { items } = await this.queue.hooks.request("POST", path, options);
    return items[0].status < 300;
  }

  /** The job that has the id; "" while it is being added, undefined if there is none. */
  private async ownerOf(entry: Owned | undefined): Promise<string | undefined> {
    if (!entry || entry.free) return undefined;
    const { job, until, claimedUntil = 0, next } = entry;
    if (next) return job;
    if (job === undefined) return claimedUntil > Date.now() ? "" : undefined;
    if (until !== undefined && until !== null) return until > Date.now() ? job : undefined;
    return (await this.hasEnded(job)) ? undefined : job;
  }

  private async log(id: string): Promise<WeeklyLog<Owned>> {
    const log = new WeeklyLog<Owned>(this.queue.logs, `deduplication:${id}`, WEEKS);
    await log.refresh();
    return log;
  }
}

/** Write an entry, whatever others write at the same time. */
async function settle(log: WeeklyLog<Owned>, entry: Owned): Promise<void> {
  while (!(await log.write(entry)));
}

function claimOf(log: WeeklyLog<Owned>, until: number | undefined): Claimed {
  return { settle: (job) => settle(log, { job, until }) };
}

function claimUntil(until: number | undefined): Owned {
  return { claimedUntil: Date.now() + CLAIM_MS, until };
}

/** Until when a job has its id; undefined: until it ends. */
function untilOf({ ttl, keepLastIfActive }: Options): number | undefined {
  return ttl && !keepLastIfActive ? Date.now() + ttl : undefined;
}
