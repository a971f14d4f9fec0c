/** One queue of BullMQ in the broker: its two channels, its jobs and their states. */

import { Conflict, Forbidden, type Hookstation, NotFound, type Resource } from "hookstation-client";
import type { JobJson, JobState } from "bullmq";

import type { Connection } from "./connection.js";
import { NotSupported } from "./errors.js";
import {
  deliveryOf,
  type Held,
  jsonOf,
  markOf,
  NEW,
  type Posted,
  readMark,
  readPosted,
  type State,
} from "./job.js";
import { Kept } from "./kept.js";
import { Limiter, type Rate } from "./limiter.js";
import { type Entry, Logs } from "./log.js";
import { channelOf, eventTypeOf, jobPriorityOf, slugOf, WORKERS } from "./names.js";
import { thisWeek } from "./weekly.js";

/** The longest time for which the broker remembers idempotency keys, in seconds: 31 days. */
const REMEMBERED_S = 2_678_400;
const RETENTION_DAYS = 31;
/** Weeks before this one in which a job that is still stored can have been removed. */
const WEEKS_OF_REMOVED = 4;
/** Rejections until a delivery is dead: the broker's most. BullMQ's workers count themselves. */
const MAX_ATTEMPTS = 1_000;
const PAGE = 200;
/** Messages of one request. */
const BATCH = 500;
/** Jobs that are listed to be counted or sorted. */
const MAX_LISTED = 50_000;
/** For how long a process uses the limits that it has read, in milliseconds. */
const LIMITS_MS = 1_000;
const MAX_CONCURRENCY = 1_000;
/** The broker's bounds of a rate, in jobs per second and in jobs. */
const RATES = { least: 0.001, most: 100_000 };
const DAY_MS = 86_400_000;
/** A job that waits for its children is due in nine years; ten are the broker's limit. */
export const PARKED_MS = 3_285 * DAY_MS;
/** A job that is due later than this waits for its children. */
const FAR_MS = 1_825 * DAY_MS;
/** States whose jobs are worked on; what is in them cannot be removed. */
export type Shown = JobState | "unknown";

/** What happened, for `QueueEvents`. */
export type Event = { event: string } & Record<string, unknown>;

/** A job and where it stands. */
export interface Found {
  id: string;
  log: string;
  /** 0: its id is its message's, and it cannot be added again. */
  generation: number;
  message: Resource;
  delivery: Resource | undefined;
}

/** What is set for all workers of a queue: in the broker, the settings of their consumer. */
export interface Limits {
  /** `active` or `paused`. */
  state: string;
  concurrency?: number;
  rate?: Rate;
}

/** A job in a list. */
export interface Listed {
  id: string;
  message: string;
  delivery: string | undefined;
  state: Shown;
  /** Milliseconds since 1970: when it is due, was finished, or was accepted. */
  at: number;
  /** Milliseconds since 1970: when it was accepted. */
  added: number;
  /** The broker's. */
  priority: number;
  /** BullMQ's. */
  asked: number;
}

/** Jobs that workers of this process hold, by channel and id. */
const held = new Map<string, Held>();
/** What all objects of a process that use the same queue know together. */
interface Shared {
  logs: Logs;
  limiter: Limiter;
  kept: { completed: Kept; failed: Kept };
}

const shared = new WeakMap<Connection, Map<string, Shared>>();

function sharedOf(connection: Connection, events: string): Shared {
  const all = shared.get(connection) ?? new Map<string, Shared>();
  shared.set(connection, all);
  let found = all.get(events);
  if (!found) {
    const logs = new Logs(connection.hooks, events);
    const kept = { completed: new Kept(logs, "completed"), failed: new Kept(logs, "failed") };
    found = { logs, limiter: new Limiter(logs), kept };
    all.set(events, found);
  }
  return found;
}

/** Who waits until a job of a channel is not held any more. */
const waiting = new Map<string, (() => void)[]>();
/** The limits of channels, and when they were read. */
const limits = new Map<string, { at: number; read: Promise<Limits> }>();
/** Channels that this process has seen to exist. */
const seen = new Map<string, Promise<void>>();

/** A queue. */
export class BrokerQueue {
  readonly channel: string;
  readonly events: string;
  readonly hooks: Hookstation;
  readonly logs: Logs;
  private readonly generations = new Map<string, number>();
  private readonly states = new Map<string, { number: number; state: State }>();
  private readonly removed = {
    /** The last number that was read, by week. */
    tails: new Map<number, number>(),
    messages: new Set<string>(),
    before: 0,
  };
  /** Which finished jobs have gone because of later ones. */
  readonly kept: Shared["kept"];
  readonly limiter: Limiter;
  private readonly published = new Set<Promise<void>>();

  constructor(
    readonly connection: Connection,
    readonly prefix: string,
    readonly name: string,
    private readonly onError: (error: unknown) => void,
  ) {
    this.channel = channelOf(prefix, name);
    this.events = slugOf(`${this.channel}.events`);
    this.hooks = connection.hooks;
    const { logs, limiter, kept } = sharedOf(connection, this.events);
    this.logs = logs;
    this.limiter = limiter;
    this.kept = kept;
  }

  /** Create the channels and the consumer that do not exist yet. */
  ready(): Promise<void> {
    let made = seen.get(this.place);
    if (!made) {
      made = this.create();
      seen.set(this.place, made);
      made.catch(() => seen.delete(this.place));
    }
    return made;
  }

  /** What names the queue in this process, which may use several brokers. */
  private get place(): string {
    return `${this.hooks.urls.join()} ${this.channel}`;
  }

  private async create(): Promise<void> {
    const shared = {
      idempotency_scope: "channel",
      idempotency_window_s: REMEMBERED_S,
      retention_days: RETENTION_DAYS,
    };
    await this.channelOnce(this.channel, { ...shared, kind: "queue" });
    await this.channelOnce(this.events, shared);
    try {
      await this.hooks.consumer(this.channel, WORKERS);
    } catch (error) {
      if (!(error instanceof NotFound)) throw error;
      await this.hooks.register(this.channel, WORKERS, { max_attempts: MAX_ATTEMPTS, retry: [1] });
    }
  }

  private async channelOnce(channel: string, settings: Resource): Promise<void> {
    try {
      await this.hooks.channel(channel);
    } catch (error) {
      if (!(error instanceof NotFound)) throw error;
      const options = { json: settings, headers: { "If-None-Match": "*" } };
      try {
        await this.hooks.request("PUT", `/channels/${channel}`, options);
      } catch (failure) {
        // Another process was faster, or this key may not create it and somebody has to.
        if (failure instanceof Conflict) return;
        if (!(failure instanceof Forbidden)) throw failure;
        throw new Error(`${failure.message} Create the channel ${channel} first.`);
      }
    }
  }

  // -- Jobs --------------------------------------------------------------------------------------

  /** The name of the log of a job's state. */
  logOf(id: string, generation: number): string {
    return `state:${generation}:${id}`;
  }

  /** The idempotency key of a job with an id of its own. */
  keyOf(id: string, generation: number): string {
    return `job:${generation}:${id}`;
  }

  /** Find a job, also one that was cancelled; undefined if it never was. */
  async find(id: string): Promise<Found | undefined> {
    if (/^msg_[0-9a-z]+$/.test(id)) return this.found(id, id, 0);
    const repeated = /^repeat:(.+):(\d+)$/.exec(id);
    if (repeated) {
      const key = `schedule:${slugOf(repeated[1] as string)}:${repeated[2]}`;
      const message = await this.messageOf(key);
      return message === undefined ? undefined : this.found(message, message, 0);
    }
    let generation = this.generations.get(id) ?? 1;
    let message = await this.messageOf(this.keyOf(id, generation));
    if (message === undefined) return undefined;
    for (;;) {
      const found = await this.found(message, id, generation);
      // A later generation exists only if this one has gone.
      if (found && !(await this.isGone(found))) return found;
      const next = await this.messageOf(this.keyOf(id, generation + 1));
      if (next === undefined) return found;
      message = next;
      generation += 1;
      this.generations.set(id, generation);
    }
  }

  private async found(message: string, id: string, generation: number): Promise<Found | undefined> {
    let read: Resource;
    try {
      read = await this.hooks.message(message);
    } catch (error) {
      if (error instanceof NotFound) return undefined;
      throw error;
    }
    if (read.channel !== this.channel) return undefined;
    return {
      id,
      generation,
      message: read,
      delivery: deliveryOf(read),
      log: this.logOf(id, generation),
    };
  }

  private async messageOf(key: string): Promise<string | undefined> {
    for await (const { id } of this.hooks.messages(this.channel, { id: key })) return id as string;
    return undefined;
  }

  /** Whether it was removed. */
  async isGone(found: Found): Promise<boolean> {
    const state = found.delivery?.state ?? found.message.state;
    if (state === "Cancelled") return true;
    if (state !== "Delivered" && state !== "Dead") return false;
    await this.readRemoved();
    if (this.wasRemoved(found.message.id, Date.parse(found.message.accepted_at))) return true;
    const outcome = state === "Dead" ? "failed" : "completed";
    return Date.parse(found.delivery?.finished_at) <= (await this.kept[outcome].before());
  }

  /** A job with its state; undefined if there is none, or not any more. */
  async job(id: string): Promise<{ found: Found; state: State; shown: Shown } | undefined> {
    const found = await this.find(id);
    if (!found || (await this.isGone(found))) return undefined;
    const { state } = await this.latest(found.log);
    const shown = shownOf(found, state);
    return shown === "unknown" ? undefined : { found, state, shown };
  }

  /** The body of a job's message. */
  async posted(found: Found): Promise<Posted> {
    const body = await this.hooks.body(found.message.id);
    return readPosted(body, found.message.event_type ?? "", Date.parse(found.message.accepted_at));
  }

  /** A job as BullMQ reads it. */
  async json(id: string): Promise<JobJson | undefined> {
    const job = await this.job(id);
    if (!job) return undefined;
    const posted = await this.posted(job.found);
    const own = posted.id ?? job.found.message.id;
    return jsonOf(own, posted, job.state, job.found.message.priority);
  }

  // -- Changing ----------------------------------------------------------------------------------

  /** Publish a job; returns its id, and whether there was one with this id. */
  async publish(posted: Posted, delay: number, priority: number): Promise<[string, boolean]> {
    const eventType = eventTypeOf(posted.name);
    const asked = posted.opts.priority;
    const options = {
      eventType,
      priority,
      orderingKey: markOf(undefined, 0, asked),
      ...(delay > 0 ? { deliverIn: delay / 1000 } : {}),
    };
    const { id } = posted;
    if (id === undefined) {
      return [(await this.hooks.publish(this.channel, posted, options)).id, false];
    }
    for (;;) {
      const generation = this.generations.get(id) ?? 1;
      const body = { ...posted, generation };
      const keys = { id: this.keyOf(id, generation), orderingKey: markOf(id, generation, asked) };
      try {
        await this.hooks.publish(this.channel, body, { ...options, ...keys });
        return [id, false];
      } catch (error) {
        if (!(error instanceof Conflict) || error.code !== "idempotency_conflict") throw error;
      }
      const found = await this.find(id);
      if (found && !(await this.isGone(found))) return [id, true];
      this.generations.set(id, (found?.generation ?? generation) + 1);
    }
  }

  /** Publish jobs whose ids are those of their messages, in this order. */
  async publishAll(
    jobs: { posted: Posted; delay: number; priority: number }[],
  ): Promise<string[]> {
    const ids: string[] = [];
    for (let start = 0; start < jobs.length; start += BATCH) {
      const some = jobs.slice(start, start + BATCH).map(({ posted, delay, priority }) => ({
        body: posted,
        eventType: eventTypeOf(posted.name),
        priority,
        orderingKey: markOf(undefined, 0, posted.opts.priority),
        ...(delay > 0 ? { deliverIn: delay / 1000 } : {}),
      }));
      for (const { message, error } of await this.hooks.publishBatch(this.channel, some)) {
        if (!message) throw error ?? new Error("The broker answered no result.");
        ids.push(message.id);
      }
    }
    return ids;
  }

  /** The state of a job, and its number in the log. */
  async latest(log: string): Promise<{ number: number; state: State }> {
    const number = await this.logs.last(log);
    const known = this.states.get(log);
    if (known?.number === number) return known;
    const entry = number ? await this.logs.read(log, number) : undefined;
    const latest = { number, state: (entry?.state as State | undefined) ?? NEW };
    this.keep(log, latest);
    return latest;
  }

  /**
   * Change the state of a job, with what happened. `decide` is called again if another process
   * changed it meanwhile; returning undefined changes nothing.
   */
  async change(
    log: string,
    decide: (state: State) => { state: State; events?: Event[] } | undefined,
  ): Promise<State> {
    let current = this.states.get(log) ?? { number: 0, state: NEW };
    for (;;) {
      const decided = decide(current.state);
      if (!decided) {
        const latest = await this.latest(log);
        if (latest.number === current.number) return current.state;
        current = latest;
        continue;
      }
      const { state, events = [] } = decided;
      const type = eventTypeOf(String(events[0]?.event ?? "state").replace(/-/g, "_"));
      if (await this.logs.write(log, current.number + 1, { events, state }, type)) {
        this.keep(log, { number: current.number + 1, state });
        return state;
      }
      current = await this.latest(log);
    }
  }

  private keep(log: string, latest: { number: number; state: State }): void {
    this.states.delete(log);
    this.states.set(log, latest);
    if (this.states.size <= 1_000) return;
    const [oldest] = this.states.keys();
    if (oldest !== undefined) this.states.delete(oldest);
  }

  /** Tell what happened to the queue or to a job, in the background. */
  tell(...events: Event[]): void {
    const type = eventTypeOf(String(events[0]?.event ?? "").replace(/-/g, "_"));
    const entry: Entry = { events };
    const told = this.logs
      .publish(entry, undefined, type)
      .catch(this.onError)
      .finally(() => this.published.delete(told));
    this.published.add(told);
  }

  /** Wait until all that was told is stored. */
  async flush(): Promise<void> {
    await Promise.all(this.published);
  }

  // -- Jobs that are worked on -------------------------------------------------------------------

  /** Remember that a worker of this process holds a job. */
  hold(job: Held): void {
    held.set(`${this.channel} ${job.id}`, job);
  }

  /** The lease of a job of this process. */
  holding(id: string): Held | undefined {
    return held.get(`${this.channel} ${id}`);
  }

  /** Forget a lease that has ended, unless the job was received again. */
  drop(job: Held): void {
    if (this.holding(job.id) === job) held.delete(`${this.channel} ${job.id}`);
    const all = waiting.get(this.channel) ?? [];
    waiting.delete(this.channel);
    for (const go of all) go();
  }

  /** Resolves when a worker of this process has settled a job. */
  dropped(): Promise<void> {
    return new Promise((resolve) => {
      waiting.set(this.channel, [...(waiting.get(this.channel) ?? []), resolve]);
    });
  }

  // -- Limits of all workers ---------------------------------------------------------------------

  /** The limits that are set for the queue: up to a second old, unless they have to be `fresh`. */
  limits(fresh = false): Promise<Limits> {
    const known = limits.get(this.place);
    if (known && !fresh && known.at > Date.now() - LIMITS_MS) return known.read;
    const read = this.ready().then(async () =>
      limitsOf(await this.hooks.consumer(this.channel, WORKERS)),
    );
    const mine = { at: Date.now(), read };
    limits.set(this.place, mine);
    read.catch(() => limits.get(this.place) === mine && limits.delete(this.place));
    return read;
  }

  /** Set how many jobs may be active. Throws `NotSupported` beyond 1 to 1,000. */
  async setConcurrency(concurrency: number | undefined): Promise<void> {
    if (concurrency !== undefined && !(concurrency >= 1 && concurrency <= MAX_CONCURRENCY)) {
      const sentence = `1 to ${MAX_CONCURRENCY} can be used.`;
      throw new NotSupported(`Queue.setGlobalConcurrency ${concurrency}`, sentence);
    }
    await this.set({ max_in_flight: concurrency ?? null });
  }

  /** Set how many jobs may begin in which time. Throws `NotSupported` for less than the broker's. */
  async setRate(rate: Rate | undefined): Promise<void> {
    if (!rate) return this.set({ rate_limit: null });
    const { max, duration } = rate;
    const perSecond = (max * 1000) / duration;
    const isKept = max >= 1 && max <= RATES.most;
    if (!isKept || !(perSecond >= RATES.least && perSecond <= RATES.most)) {
      const sentence = `${RATES.least} to ${RATES.most} jobs per second can be used.`;
      throw new NotSupported("Queue.setGlobalRateLimit", sentence);
    }
    return this.set({ rate_limit: { per_second: perSecond, burst: max } });
  }

  private async set(fields: Resource): Promise<void> {
    await this.ready();
    await this.hooks.updateConsumer(this.channel, WORKERS, fields);
    limits.delete(this.place);
  }

  /** Whether workers hold so many jobs. A lease that has lapsed does not count. */
  async isFull(count: number): Promise<boolean> {
    const path = `/channels/${this.channel}/consumers/${WORKERS}/deliveries`;
    const params = { state: "in_flight", limit: Math.min(count, PAGE) };
    let active = 0;
    for await (const { held_until } of this.hooks.pages(path, params)) {
      if (held_until === null || Date.parse(held_until) > Date.now()) active += 1;
      if (active >= count) return true;
    }
    return false;
  }

  // -- Lists -------------------------------------------------------------------------------------

  /** The jobs in the states, the oldest message first. Throws `NotSupported` for too many. */
  async list(states: readonly Shown[]): Promise<Listed[]> {
    const wanted = new Set(states);
    const stored = new Set(states.map((state) => STORED[state]).filter(Boolean));
    const jobs = new Map<string, Listed>();
    const now = Date.now();
    const add = (job: Listed): void => {
      if (jobs.size >= MAX_LISTED) {
        throw new NotSupported(
          `a list of more than ${MAX_LISTED} jobs`,
          "the broker has to read every job to count or sort them.",
        );
      }
      if (wanted.has(job.state)) jobs.set(job.message, job);
    };
    if (stored.has("queued")) {
      // Those that the broker has not given to the consumer yet, before those that it has.
      const params = { state: "accepted", limit: PAGE };
      for await (const one of this.hooks.pages(`/channels/${this.channel}/messages`, params)) {
        const due = Date.parse(one.due_at);
        add(listed(one.id, undefined, one.ordering_key, queuedState(due, one.priority, now), due, one));
      }
    }
    const path = `/channels/${this.channel}/consumers/${WORKERS}/deliveries`;
    if (stored.has("delivered") || stored.has("dead")) await this.readRemoved();
    for (const state of stored) {
      const outcome = state === "delivered" ? "completed" : state === "dead" ? "failed" : undefined;
      const before = outcome ? await this.kept[outcome].before() : 0;
      for await (const one of this.hooks.pages(path, { state, limit: PAGE })) {
        const accepted = Date.parse(one.accepted_at);
        const isFinished = outcome !== undefined;
        if (isFinished && this.wasRemoved(one.message_id, accepted)) continue;
        if (isFinished && Date.parse(one.finished_at) <= before) continue;
        const due = Date.parse(one.next_attempt_at ?? one.accepted_at);
        const shown = state === "queued" ? queuedState(due, one.priority, now) : SHOWN[state as string];
        const at = isFinished ? Date.parse(one.finished_at) : state === "queued" ? due : accepted;
        add(listed(one.message_id, one.id, one.ordering_key, shown as Shown, at, one));
      }
    }
    return [...jobs.values()].sort((one, other) => (one.message < other.message ? -1 : 1));
  }

  /** Whether a worker holds a job. */
  async hasActive(): Promise<boolean> {
    const path = `/channels/${this.channel}/consumers/${WORKERS}/deliveries`;
    const { items } = await this.hooks.request("GET", path, {
      params: { state: "in_flight", limit: 1 },
    });
    return items.length > 0;
  }

  // -- Removing ----------------------------------------------------------------------------------

  /** Cancel jobs that wait. Returns those that could be cancelled. */
  async cancel(jobs: readonly Listed[]): Promise<Listed[]> {
    const done: Listed[] = [];
    for (let start = 0; start < jobs.length; start += PAGE) {
      const some = jobs.slice(start, start + PAGE);
      const messages = some.map(({ message }) => ({ id: message }));
      const options = { json: { messages }, isRepeatable: true };
      const answer = await this.hooks.request("POST", "/messages/cancel", options);
      some.forEach((job, index) => {
        if (answer.items[index].status < 300) done.push(job);
      });
    }
    return done;
  }

  /** Hide finished jobs; the broker keeps their messages as long as others. */
  async hide(messages: readonly string[]): Promise<void> {
    if (!messages.length) return;
    await this.logs.append(removedIn(thisWeek()), { messages });
  }

  /** Hide all jobs that have finished so far. */
  async hideAll(): Promise<void> {
    await this.logs.append(removedIn(thisWeek()), { before: Date.now() });
  }

  private async readRemoved(): Promise<void> {
    const now = thisWeek();
    const weeks = Array.from({ length: WEEKS_OF_REMOVED + 1 }, (_, index) => now - index);
    // What was removed in an earlier week is complete.
    const unread = weeks.filter((week) => week === now || !this.removed.tails.has(week + 1));
    await Promise.all(unread.map((week) => this.readRemovedIn(week)));
  }

  private async readRemovedIn(week: number): Promise<void> {
    const { tails, messages } = this.removed;
    const tail = await this.logs.last(removedIn(week));
    for (let number = (tails.get(week) ?? 0) + 1; number <= tail; number += 1) {
      const entry = await this.logs.read(removedIn(week), number);
      for (const message of (entry?.messages as string[] | undefined) ?? []) messages.add(message);
      this.removed.before = Math.max(this.removed.before, Number(entry?.before ?? 0));
    }
    tails.set(week, Math.max(tail, tails.get(week) ?? 0));
  }

  private wasRemoved(message: string, acceptedAt: number): boolean {
    return acceptedAt <= this.removed.before || this.removed.messages.has(message);
  }
}

function removedIn(week: number): string {
  return `removed:${week}`;
}

function limitsOf({ state, max_in_flight, rate_limit }: Resource): Limits {
  return {
    state,
    ...(max_in_flight ? { concurrency: max_in_flight as number } : {}),
    ...(rate_limit
      ? {
          rate: {
            max: rate_limit.burst as number,
            duration: Math.round((rate_limit.burst * 1000) / rate_limit.per_second),
          },
        }
      : {}),
  };
}

/** The states of deliveries in which jobs of a state are. */
const STORED: Partial<Record<Shown, string>> = {
  waiting: "queued",
  prioritized: "queued",
  delayed: "queued",
  "waiting-children": "queued",
  active: "in_flight",
  completed: "delivered",
  failed: "dead",
};
const SHOWN: Record<string, Shown> = {
  in_flight: "active",
  delivered: "completed",
  dead: "failed",
};

function listed(
  message: string,
  delivery: string | undefined,
  mark: string,
  state: Shown,
  at: number,
  { priority, accepted_at }: Resource,
): Listed {
  const { id, priority: odd } = readMark(mark ?? "", message);
  const asked = jobPriorityOf(priority, odd);
  return { id, message, delivery, state, at, added: Date.parse(accepted_at), priority, asked };
}

function queuedState(due: number, priority: number, now: number): Shown {
  if (due > now + FAR_MS) return "waiting-children";
  if (due > now) return "delayed";
  return priority === 9 ? "waiting" : "prioritized";
}

/** The state of a job that BullMQ shows. */
export function shownOf({ message, delivery }: Found, state: State): Shown {
  const now = Date.now();
  switch (delivery?.state) {
    case undefined:
      if (message.state === "Cancelled") return "unknown";
      return queuedState(Date.parse(message.due_at), message.priority, now);
    case "Delivered":
      return "completed";
    case "Dead":
      return "failed";
    case "Cancelled":
      return "unknown";
    case "In-flight":
    case "Retry-In-flight":
      return state.outcome ?? "active";
    default:
      return queuedState(Date.parse(delivery?.next_attempt_at), message.priority, now);
  }
}
