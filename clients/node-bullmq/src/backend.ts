/** The backend: what BullMQ's classes ask for, as calls of the broker's REST API. */

import { EventEmitter } from "node:events";
import { hostname } from "node:os";

import {
  ErrorCode,
  type DependenciesOpts,
  type IQueueBackend,
  type JobJson,
  type JobProgress,
  type JobsOptions,
  type JobState,
  type JobType,
  type KeepJobs,
  type MinimalJob,
  type MoveToDelayedOpts,
  type ParentKeyOpts,
  type QueueBaseOptions,
  type RepeatableOptions,
  type RetryJobOpts,
  type RetryOptions,
  type StreamReadRaw,
} from "bullmq";
import { Conflict, NotFound } from "hookstation-client";

import { connect, type Connection, optionsOf } from "./connection.js";
import { Deduplication, type Options as Deduplicated } from "./deduplication.js";
import { jobError, NotSupported, tolerant } from "./errors.js";
import { Feed } from "./feed.js";
import { Flows, keyOf as nodeKeyOf, parseKey, prefixOf, qualified } from "./flows.js";
import { type Held, parentOf, postedOf, type State } from "./job.js";
import type { Bounds } from "./kept.js";
import type { Rate } from "./limiter.js";
import { checkId, MAX_PRIORITY, PREFIX, priorityOf, WORKERS } from "./names.js";
import { BrokerQueue, type Event, type Listed, PARKED_MS, type Shown } from "./queue.js";
import { Receiver } from "./receiver.js";
import { Schedulers } from "./schedulers.js";

/** The broker's longest delay of a rejection; a longer one is moved afterwards. */
const MAX_DELAY_S = 86_400;
/** Milliseconds between two looks whether a job may begin, while as many as allowed are active. */
const FULL_MS = 400;
/** Deliveries are handed out a thousand times at most. */
const MAX_JOB_ATTEMPTS = 1_000;
/** Events of one message. */
const MAX_EVENTS = 200;
const MAX_JOB_DELAY_MS = 1_825 * 86_400_000;
/** Options of a job that the broker cannot keep, with the reason. */
const REFUSED: Partial<Record<keyof JobsOptions | "repeat", string>> = {
  lifo: "the broker hands out jobs of one priority in the order of their due times.",
  repeat: "use Queue.upsertJobScheduler.",
};

interface Options extends QueueBaseOptions<any> {
  prefix?: string;
  name?: string;
  lockDuration?: number;
  maxStalledCount?: number;
  limiter?: { max: number; duration: number };
  metrics?: unknown;
  settings?: { repeatStrategy?: unknown };
  removeOnComplete?: KeepJobs;
  removeOnFail?: KeepJobs;
}

type Keep = boolean | number | KeepJobs | undefined;
type Moved = { result: void | any[]; finishedOn: number };
type Next = [JobJson | null, string, number, number];

/** Of one queue, worker, flow producer or listener. */
export class BrokerBackend extends EventEmitter implements IQueueBackend {
  closing: Promise<void> | undefined;
  readonly minimumBlockTimeout = 0.001;
  readonly maximumBlockTimeout = 20;
  readonly keys: Record<string, string> = {};
  private readonly prefix: string;
  private readonly connection: Connection;
  private readonly queue: BrokerQueue;
  private readonly receiver: Receiver;
  private readonly schedulers: Schedulers;
  private readonly flows: Flows;
  private readonly feed: Feed;
  private readonly stalled: string[] = [];

  constructor(
    private readonly queueName: string,
    private readonly options: Options,
    connection?: Connection,
    /** Whether it is that of `QueueEvents`. */
    private readonly isListener = false,
  ) {
    super();
    if (options.metrics) {
      throw new NotSupported("the worker's option metrics", "use the broker's own metrics.");
    }
    this.prefix = options.prefix ?? PREFIX;
    this.connection = connection ?? connect(optionsOf(options.connection));
    this.queue = this.made(this.prefix, queueName);
    const lease = Math.max(1, (options.lockDuration ?? 30_000) / 1000);
    const worker = `${hostname()}-${process.pid}`.slice(-64);
    this.receiver = new Receiver(this.queue, lease, worker);
    this.schedulers = new Schedulers(this.queue);
    this.flows = new Flows((prefix, name) => this.queueOf(prefix, name));
    this.feed = new Feed(this.queue);
    const { max, duration } = options.limiter ?? { max: 1, duration: 1 };
    if (!(max > 0 && duration > 0)) {
      throw new NotSupported("this limiter", "max and duration have to be positive.");
    }
  }

  // -- Life --------------------------------------------------------------------------------------

  async waitUntilReady(): Promise<void> {
    if (this.isListener) await this.feed.open();
    else if (this.queueName) await this.queue.ready();
  }

  close(): Promise<void> {
    this.closing ??= (async () => {
      await this.receiver.close();
      await this.feed.close();
      await this.queue.flush();
      this.emit("close");
    })();
    return this.closing;
  }

  async disconnect(): Promise<void> {
    await this.receiver.interrupt();
    this.feed.interrupt();
  }

  async setName(): Promise<void> {
    // The broker shows workers by host and process.
    if (this.queueName) await this.queue.ready();
  }

  disconnectBlocking(): Promise<void> {
    return this.receiver.interrupt();
  }

  async reconnectBlocking(): Promise<void> {
    this.receiver.resume();
  }

  // -- Names -------------------------------------------------------------------------------------

  forQueue(queueName: string, prefix?: string): IQueueBackend {
    const options = { connection: this.options.connection, prefix: prefix ?? this.prefix };
    return new BrokerBackend(queueName, options, this.connection);
  }

  get qualifiedName(): string {
    return qualified(this.prefix, this.queueName);
  }

  toKey(type: string): string {
    return `${this.qualifiedName}:${type}`;
  }

  parseNodeKey(key: string): { prefix: string; queueName: string; id: string } {
    return parseKey(key);
  }

  clientName(suffix = ""): string {
    return `${this.qualifiedName}${suffix}`;
  }

  private queueOf(prefix: string, name: string): BrokerQueue {
    if (prefix === this.prefix && name === this.queueName) return this.queue;
    return this.made(prefix, name);
  }

  private made(prefix: string, name: string): BrokerQueue {
    return new BrokerQueue(this.connection, prefix, name, (error) => {
      // Siblings for flows have no listeners.
      if (this.listenerCount("error")) this.emit("error", error);
      else console.error(error);
    });
  }

  // -- Adding ------------------------------------------------------------------------------------

  async addJob(job: JobJson, jobId: string, parent: ParentKeyOpts = {}): Promise<string> {
    await this.queue.ready();
    return this.post(this.queue, job, jobId || job.id, parent);
  }

  async addJobs(
    entries: { job: JobJson; jobId: string; parentKeyOpts?: ParentKeyOpts }[],
  ): Promise<string[]> {
    await this.queue.ready();
    // All or none: what is refused is refused before the first is published.
    for (const { job, jobId } of entries) this.check(job, jobId || job.id);
    const isPlain = entries.every(
      ({ job, jobId }) => !jobId && !job.id && !job.parentKey && !job.opts.deduplication,
    );
    if (isPlain) return this.postAll(entries.map(({ job }) => job));
    const ids: string[] = [];
    // One after the other: the broker hands them out in this order.
    for (const { job, jobId, parentKeyOpts } of entries) {
      ids.push(await this.post(this.queue, job, jobId || job.id, parentKeyOpts ?? {}));
    }
    return ids;
  }

  async addFlow(
    entries: {
      jobData: JobJson;
      jobId: string;
      parentKeyOpts: ParentKeyOpts;
      prefix: string;
      queueName: string;
    }[],
  ): Promise<[Error | null, string | number][]> {
    for (const { jobData, jobId } of entries) this.check(jobData, jobId);
    const children = new Map<string, string[]>();
    for (const { jobId, parentKeyOpts, prefix, queueName } of entries) {
      const { parentKey } = parentKeyOpts as { parentKey?: string };
      if (!parentKey) continue;
      const listed = children.get(parentKey) ?? [];
      children.set(parentKey, [...listed, nodeKeyOf(prefixOf(prefix), queueName, jobId)]);
    }
    const results: [Error | null, string | number][] = [];
    // A parent before its children, so that none of them ends before there is a parent.
    for (const { jobData, jobId, parentKeyOpts, prefix, queueName } of entries) {
      const queue = this.queueOf(prefixOf(prefix), queueName);
      await queue.ready();
      const waitsFor = children.get(nodeKeyOf(prefixOf(prefix), queueName, jobId));
      const isKnown = results.length > 0;
      results.push([null, await this.post(queue, jobData, jobId, parentKeyOpts, waitsFor, isKnown)]);
    }
    return results;
  }

  /** Throws `NotSupported` for what the broker cannot keep. */
  private check({ opts = {} }: JobJson, id: string | undefined): void {
    for (const [option, sentence] of Object.entries(REFUSED)) {
      if (opts[option as keyof JobsOptions]) throw new NotSupported(`the job option ${option}`, sentence);
    }
    if ((opts.attempts ?? 0) > MAX_JOB_ATTEMPTS) {
      const sentence = `the broker hands out a job ${MAX_JOB_ATTEMPTS} times at most.`;
      throw new NotSupported(`attempts ${opts.attempts}`, sentence);
    }
    if ((opts.delay ?? 0) > MAX_JOB_DELAY_MS) {
      throw new NotSupported(`a delay of ${opts.delay} ms`, "five years are the most.");
    }
    if (id) checkId(id);
  }

  private async postAll(jobs: JobJson[]): Promise<string[]> {
    const all = jobs.map((job) => ({
      posted: postedOf(job, {}),
      delay: job.delay ?? job.opts.delay ?? 0,
      priority: priorityOf(job.opts.priority ?? 0),
    }));
    const ids = await this.queue.publishAll(all);
    const events = ids.flatMap((jobId, index) => [
      { event: "added", jobId, name: jobs[index]?.name },
      waitingEvent(jobId, all[index]?.delay ?? 0),
    ]);
    for (let start = 0; start < events.length; start += MAX_EVENTS) {
      this.queue.tell(...events.slice(start, start + MAX_EVENTS));
    }
    return ids;
  }

  private async post(
    queue: BrokerQueue,
    job: JobJson,
    id: string | undefined,
    { parentKey }: ParentKeyOpts,
    children?: string[],
    isParentKnown = false,
  ): Promise<string> {
    this.check(job, id);
    const { opts } = job;
    const isChild = parentKey !== undefined && !isParentKnown;
    if (isChild) await this.flows.checkParent(parentKey);
    const options = opts.deduplication as Deduplicated | undefined;
    const ids = new Deduplication(queue);
    const claimed = options && (await ids.claim(options, { job, ...(id ? { id } : {}) }));
    if (options && claimed?.owner !== undefined) {
      const { owner } = claimed;
      const event = { event: "deduplicated", jobId: owner, deduplicationId: options.id };
      queue.tell({ ...event, deduplicatedJobId: id ?? "" });
      // It may have ended while the next one was stored.
      if (options.keepLastIfActive && (await ids.hasEnded(owner))) {
        await this.follow(queue, options.id, owner);
      }
      return owner;
    }
    const made = await this.publish(queue, job, id, parentKey, isChild, children);
    await claimed?.settle(made);
    if (claimed?.replaced !== undefined) {
      const deduplicatedJobId = claimed.replaced;
      queue.tell(
        { event: "removed", jobId: deduplicatedJobId, prev: "delayed" },
        { event: "deduplicated", jobId: made, deduplicationId: options?.id, deduplicatedJobId },
      );
    }
    return made;
  }

  /** Add the job that waits until the one that has its deduplication id has ended. */
  private follow(queue: BrokerQueue, id: string, owner: string): Promise<void> {
    return new Deduplication(queue).follow(id, owner, ({ job, id: own }) =>
      this.publish(queue, job, own, job.parentKey, job.parentKey !== undefined),
    );
  }

  private async publish(
    queue: BrokerQueue,
    job: JobJson,
    id: string | undefined,
    parentKey: string | undefined,
    isChild: boolean,
    children?: string[],
  ): Promise<string> {
    const { opts } = job;
    const posted = postedOf(job, { ...(id ? { id } : {}), ...(children ? { children } : {}) });
    const delay = job.delay ?? opts.delay ?? 0;
    const due = children ? PARKED_MS : delay;
    const [made, isDuplicate] = await queue.publish(posted, due, priorityOf(opts.priority ?? 0));
    // Before its parent waits for it: a job that has another parent is refused.
    if (isDuplicate && parentKey) await this.flows.adopt(queue, made, job.parent, parentKey);
    if (isChild && parentKey !== undefined) {
      const child = nodeKeyOf(queue.prefix, queue.name, made);
      await this.flows.addChild(parentKey, child);
    }
    if (isDuplicate) {
      queue.tell({ event: "duplicated", jobId: made });
      return made;
    }
    queue.tell({ event: "added", jobId: made, name: job.name }, waitingEvent(made, delay, children));
    return made;
  }

  // -- Schedulers --------------------------------------------------------------------------------

  async addJobScheduler(
    id: string,
    nextMillis: number,
    data: string,
    templateOpts: JobsOptions,
    repeat: RepeatableOptions,
    delayedJobOpts: JobsOptions,
  ): Promise<[string, number]> {
    if (this.options.settings?.repeatStrategy) {
      throw new NotSupported("settings.repeatStrategy", "the broker computes the occurrences.");
    }
    await this.queue.ready();
    this.check({ opts: { ...templateOpts, delay: 0 } } as JobJson, undefined);
    return this.schedulers.put(id, nextMillis, data, templateOpts, repeat, delayedJobOpts);
  }

  async updateJobSchedulerNextMillis(): Promise<string | null> {
    // The broker publishes the next occurrence by itself.
    return null;
  }

  removeJobScheduler(id: string): Promise<number> {
    return this.schedulers.remove(id);
  }

  getJobScheduler(id: string): Promise<[any, string | null]> {
    return this.schedulers.read(id);
  }

  async isJobScheduler(id: string): Promise<boolean> {
    const [data] = await this.schedulers.read(id);
    return data !== null;
  }

  getJobSchedulerData(id: string): Promise<Record<string, string>> {
    return this.schedulers.data(id);
  }

  getJobSchedulersRange(start: number, end: number, asc: boolean): Promise<string[]> {
    return this.schedulers.range(start, end, asc);
  }

  getJobSchedulersCount(): Promise<number> {
    return this.schedulers.count();
  }

  // -- Working -----------------------------------------------------------------------------------

  moveToActive(token: string, name?: string): Promise<any[]> {
    return tolerant(() => this.next(token, name));
  }

  private async next(token: string, name = this.options.name): Promise<Next> {
    for (;;) {
      const { rate, concurrency } = await this.limits();
      // A job that a long poll has received is counted when it begins.
      const isFull =
        concurrency !== undefined &&
        !this.receiver.hasJob &&
        (await this.queue.isFull(concurrency));
      const wait = !isFull && rate ? await this.queue.limiter.take(rate) : 0;
      if (isFull || wait) {
        // A long poll received it before anybody knew.
        await this.receiver.putBackAll();
        return [null, "", wait, 0];
      }
      const received = await this.receiver.take();
      const begun = received && (await this.beginAlone(received, token, name, concurrency));
      if (begun) return [begun, (received as Held).id, 0, 0];
      if (rate) await this.queue.limiter.untake();
      if (!received || begun === null) return [null, "", 0, 0];
    }
  }

  /** Begin a job unless so many others are active; null if they are. */
  private async beginAlone(
    job: Held,
    token: string,
    name?: string,
    concurrency?: number,
  ): Promise<JobJson | undefined | null> {
    // Of all jobs that were received at the same time, the last one finds the others: whoever finds
    // too many gives its own job back, so there are never more than allowed.
    if (concurrency !== undefined && (await this.queue.isFull(concurrency + 1))) {
      await this.receiver.putBack(job);
      return null;
    }
    return this.begin(job, token, name);
  }

  /** The limits of all workers of the queue; those set for the queue go before the worker's own. */
  private async limits(): Promise<{ rate?: Rate; concurrency?: number }> {
    const { rate = this.options.limiter, concurrency } = await this.queue.limits();
    return { rate, concurrency };
  }

  /** Begin a job that was received; undefined if it had ended before and is settled now. */
  private async begin(job: Held, token: string, name?: string): Promise<JobJson | undefined> {
    job.token = token;
    const now = Date.now();
    let ended: State | undefined;
    let stalled = 0;
    const state = await this.queue.change(job.log, (last) => {
      // Of a replay, which somebody asked the broker for, the receives count from one again.
      const isReplay = last.finishedOn !== undefined && job.attempt <= last.settled;
      ended = last.finishedOn !== undefined && !isReplay ? last : undefined;
      if (ended) return undefined;
      const before = isReplay ? reopened(last) : last;
      stalled = Math.max(0, job.attempt - before.settled - 1);
      const stalledCounter = before.stalledCounter + stalled;
      const isTooMany = stalledCounter > (this.options.maxStalledCount ?? 1);
      const events: Event[] = [{ event: "active", jobId: job.id, prev: "waiting" }];
      if (stalled) events.push({ event: "stalled", jobId: job.id });
      const deferredFailure = isTooMany
        ? "job stalled more than allowable limit"
        : before.deferredFailure;
      return {
        state: {
          ...before,
          // One for each receive since the last one that is known.
          attemptsStarted:
            before.attemptsStarted + job.attempt - Math.max(before.started, before.settled),
          stalledCounter,
          started: job.attempt,
          settled: job.attempt - 1,
          processedOn: now,
          delay: 0,
          ...(name ? { processedBy: name } : {}),
          ...(deferredFailure ? { deferredFailure } : {}),
        },
        events,
      };
    });
    if (ended) {
      // Its worker died after it had stored the result and before it acknowledged.
      await this.settle(job, ended.outcome === "failed" ? "failed" : "completed", ended);
      return undefined;
    }
    if (stalled) this.stalled.push(job.id);
    this.queue.hold(job);
    if (this.flows.isEarly(job, state)) {
      const events = [{ event: "waiting-children", jobId: job.id, prev: "active" }];
      await this.giveBack(job.id, token, "moveToActive", PARKED_MS, false, {}, events);
      return undefined;
    }
    return this.receiver.json(job, state);
  }

  async moveToCompleted<T = any, R = any, N extends string = string>(
    job: MinimalJob<T, R, N>,
    returnValue: R,
    keep: Keep,
    token: string,
    fetchNext: boolean,
  ): Promise<Moved> {
    const id = job.id as string;
    const returnvalue = JSON.stringify(returnValue ?? null);
    const events = [{ event: "completed", jobId: id, returnvalue, prev: "active" }];
    const asked = keep ?? this.options.removeOnComplete;
    return this.finish(id, token, fetchNext, "completed", asked, events, (held, state) => {
      this.flows.checkDone(held, state);
      return { returnvalue };
    });
  }

  async moveToFailed<T = any, R = any, N extends string = string>(
    job: MinimalJob<T, R, N>,
    failedReason: string,
    keep: Keep,
    token: string,
    fetchNext: boolean,
    fields: Record<string, any> = {},
  ): Promise<Moved> {
    const id = job.id as string;
    const events: Event[] = [{ event: "failed", jobId: id, failedReason, prev: "active" }];
    const attemptsMade = job.attemptsMade + 1;
    if (attemptsMade >= (job.opts.attempts ?? 1)) {
      events.push({ event: "retries-exhausted", jobId: id, attemptsMade: String(attemptsMade) });
    }
    const asked = keep ?? this.options.removeOnFail;
    return this.finish(id, token, fetchNext, "failed", asked, events, () => ({
      failedReason,
      ...(fields.stacktrace ? { stacktrace: fields.stacktrace } : {}),
    }));
  }

  private finish(
    id: string,
    token: string,
    fetchNext: boolean,
    outcome: "completed" | "failed",
    keep: Keep,
    events: Event[],
    fields: (held: Held, state: State) => Partial<State>,
  ): Promise<Moved> {
    return tolerant(async () => {
      const held = await this.held(id, token, "moveToFinished");
      const finishedOn = Date.now();
      const state = await this.queue.change(held.log, (before) => {
        checkOwner(held, before, "moveToFinished");
        const attemptsMade = before.attemptsMade + 1;
        const changed = { finishedOn, outcome, attemptsMade, settled: held.attempt };
        const { deferredFailure: _, ...kept } = before;
        return { state: { ...kept, ...changed, ...fields(held, before) }, events };
      });
      await this.settle(held, outcome, state, keep);
      if (!fetchNext || this.closing) return { result: undefined, finishedOn };
      const result = await this.next(token);
      if (!result[0] && !(await this.queue.hasActive())) this.queue.tell({ event: "drained" });
      return { result, finishedOn };
    });
  }

  /** Settle the lease of a job whose outcome is stored, and let its parent go on. */
  private async settle(
    held: Held,
    outcome: "completed" | "failed",
    state: State,
    keep: Keep = keepOf(held.posted.opts, outcome),
  ): Promise<void> {
    await this.flows.resolve(this.queue, held, outcome, state, isRemoved(keep));
    const { deduplicationId } = held.posted;
    if (deduplicationId !== undefined) await this.follow(this.queue, deduplicationId, held.id);
    const { hooks } = this.queue;
    if (isRemoved(keep)) {
      await this.settled(held, hooks.nack(held.lease, { delay: MAX_DELAY_S }));
      await hooks.cancel(held.message).catch(ignoreConflict);
    } else if (outcome === "completed") {
      await this.settled(held, hooks.ack(held.lease));
    } else {
      const error = state.failedReason;
      await this.settled(held, hooks.nack(held.lease, { final: true, error }));
    }
    this.queue.drop(held);
    const bounds = boundsOf(keep);
    if (bounds) await this.queue.kept[outcome].add(bounds);
  }

  async moveToDelayed(
    jobId: string,
    timestamp: number,
    delay: number,
    token?: string,
    { skipAttempt = false, fieldsToUpdate = {}, fetchNext = false }: MoveToDelayedOpts = {},
  ): Promise<void | any[]> {
    const due = timestamp + delay;
    const events = [{ event: "delayed", jobId, delay: String(due) }];
    const fields = { ...kept(fieldsToUpdate), delay };
    await this.giveBack(jobId, token, "moveToDelayed", delay, !skipAttempt, fields, events);
    if (!fetchNext || this.closing || !token) return [];
    const next = await this.moveToActive(token, this.options.name);
    return next[0] ? next : [];
  }

  async retryJob(
    jobId: string,
    lifo: boolean,
    token?: string,
    { fieldsToUpdate = {} }: RetryJobOpts = {},
  ): Promise<void> {
    if (lifo) throw new NotSupported("lifo", REFUSED.lifo as string);
    const events = [{ event: "waiting", jobId, prev: "active" }];
    const fields = { ...kept(fieldsToUpdate), delay: 0 };
    await this.giveBack(jobId, token, "retryJob", 0, true, fields, events);
  }

  async moveJobFromActiveToWait(jobId: string, token?: string): Promise<number> {
    const events = [{ event: "waiting", jobId, prev: "active" }];
    await this.giveBack(jobId, token, "moveJobFromActiveToWait", 0, false, {}, events);
    return this.queue.limiter.ttl();
  }

  async moveToWaitingChildren(jobId: string, token: string): Promise<boolean> {
    return tolerant(async () => {
      const held = await this.held(jobId, token, "moveToWaitingChildren");
      const { state } = await this.queue.latest(held.log);
      if (state.failed?.length) {
        throw jobError(ErrorCode.JobHasFailedChildren, jobId, "moveToWaitingChildren");
      }
      if (!this.flows.pending(held.posted, state).length) return false;
      const events = [{ event: "waiting-children", jobId, prev: "active" }];
      const command = "moveToWaitingChildren";
      await this.giveBack(jobId, token, command, PARKED_MS, false, {}, events);
      // The last child may have ended while the job was still in flight.
      await this.flows.release(this.queue, held.log, held.posted, held.message);
      return true;
    });
  }

  /** Store a new state of an active job and give it back to the broker. */
  private giveBack(
    id: string,
    token: string | undefined,
    command: string,
    delay: number,
    isAttempt: boolean,
    fields: Partial<State>,
    events: Event[],
  ): Promise<void> {
    return tolerant(async () => {
      const held = await this.held(id, token, command);
      await this.queue.change(held.log, (before) => {
        checkOwner(held, before, command);
        const attemptsMade = before.attemptsMade + (isAttempt ? 1 : 0);
        const state = { ...before, attemptsMade, settled: held.attempt, ...fields };
        return { state, events };
      });
      const seconds = Math.min(delay / 1000, MAX_DELAY_S);
      const { hooks } = this.queue;
      const call = isAttempt
        ? hooks.nack(held.lease, { delay: seconds, error: fields.failedReason })
        : hooks.release(held.lease, { delay: seconds });
      await this.settled(held, call);
      if (delay / 1000 > seconds) await hooks.move(held.message, { deliverIn: delay / 1000 });
      this.queue.drop(held);
    });
  }

  private async held(id: string, token: string | undefined, command: string): Promise<Held> {
    const held = this.queue.holding(id);
    if (!held) {
      const shown = (await this.queue.job(id))?.shown;
      if (shown === undefined) throw jobError(ErrorCode.JobNotExist, id, command);
      const isElsewhere = shown !== "active" && command === "moveToWaitingChildren";
      throw jobError(isElsewhere ? ErrorCode.JobNotInState : ErrorCode.JobLockNotExist, id, command);
    }
    if (token !== undefined && token !== "0" && held.token !== token) {
      throw jobError(ErrorCode.JobLockMismatch, id, command);
    }
    return held;
  }

  private async settled(held: Held, call: Promise<{ failed: Record<string, string> }>): Promise<void> {
    const { failed } = await call;
    if (!failed[held.lease]) return;
    this.queue.drop(held);
    throw jobError(ErrorCode.JobLockNotExist, held.id, "moveToFinished");
  }

  async moveStalledJobsToWait(): Promise<string[]> {
    // The broker hands out a job again when its lease has ended; these were received since.
    return this.stalled.splice(0);
  }

  async extendLock(jobId: string, token: string, duration: number): Promise<number> {
    const [failed] = await this.extendLocks([jobId], [token], duration);
    if (failed === undefined) return 1;
    throw jobError(ErrorCode.JobLockNotExist, jobId, "extendLock");
  }

  async extendLocks(ids: string[], tokens: string[], duration: number): Promise<string[]> {
    const lost: string[] = [];
    const leases = new Map<string, Held>();
    ids.forEach((id, index) => {
      const held = this.queue.holding(id);
      if (held && held.token === tokens[index]) leases.set(held.lease, held);
      else lost.push(id);
    });
    const all = [...leases.keys()];
    for (let start = 0; start < all.length; start += 100) {
      const some = all.slice(start, start + 100);
      const { failed } = await this.queue.hooks.extend(some, Math.max(1, duration / 1000));
      for (const lease of some) {
        const held = leases.get(lease) as Held;
        if (failed[lease] === undefined) held.expiresAt = Date.now() + duration;
        else lost.push(held.id);
      }
    }
    return lost;
  }

  async waitForJob(timeout: number): Promise<{ member: string; score: number } | null> {
    await tolerant(() => this.queue.ready());
    const { rate, concurrency } = await this.limits();
    if (concurrency !== undefined && (await this.queue.isFull(concurrency))) {
      const patience = Math.min(timeout * 1000, FULL_MS * (0.5 + Math.random()));
      await Promise.race([this.receiver.pause(patience), this.queue.dropped()]);
      return null;
    }
    // `moveToActive` says how long.
    if (rate && (await this.queue.limiter.wait(rate))) return null;
    const isReceived = await this.receiver.wait(Math.min(timeout, this.maximumBlockTimeout));
    return isReceived ? { member: "job", score: 0 } : null;
  }

  // -- Changing single jobs ----------------------------------------------------------------------

  async retryFinishedJob<T = any, R = any, N extends string = string>(
    job: MinimalJob<T, R, N>,
    outcome: "failed" | "completed",
    { resetAttemptsMade, resetAttemptsStarted }: RetryOptions = {},
  ): Promise<void> {
    const id = job.id as string;
    const known = await this.queue.job(id);
    if (!known) throw jobError(ErrorCode.JobNotExist, id, "reprocessJob", outcome);
    if (known.shown !== outcome || !known.found.delivery) {
      throw jobError(ErrorCode.JobNotInState, id, "reprocessJob", outcome);
    }
    const posted = await this.queue.posted(known.found);
    await this.flows.rejoin(this.queue, id, posted, known.state);
    await this.queue.change(known.found.log, (before) => {
      return {
        state: {
          ...reopened(before),
          ...(resetAttemptsMade ? { attemptsMade: 0 } : {}),
          ...(resetAttemptsStarted ? { attemptsStarted: 0 } : {}),
        },
        events: [{ event: "waiting", jobId: id, prev: outcome }],
      };
    });
    await this.queue.hooks.replayDelivery(known.found.delivery.id, { reason: "Job.retry" });
  }

  async promote(jobId: string): Promise<void> {
    await this.move(jobId, "promote", { deliverIn: 0 });
    this.queue.tell({ event: "waiting", jobId, prev: "delayed" });
  }

  async changeDelay(jobId: string, delay: number): Promise<void> {
    const log = await this.move(jobId, "changeDelay", { deliverIn: delay / 1000 });
    const events = [{ event: "delayed", jobId, delay: String(Date.now() + delay) }];
    await this.queue.change(log, (before) => ({ state: { ...before, delay }, events }));
  }

  private async move(id: string, command: string, to: { deliverIn: number }): Promise<string> {
    const known = await this.queue.job(id);
    if (!known) throw jobError(ErrorCode.JobNotExist, id, command, "delayed");
    const refusal = jobError(ErrorCode.JobNotInState, id, command, "delayed");
    if (known.shown !== "delayed") throw refusal;
    try {
      await this.queue.hooks.move(known.found.message.id, to);
    } catch (error) {
      throw error instanceof Conflict ? refusal : error;
    }
    return known.found.log;
  }

  async changePriority(jobId: string, priority = 0, lifo = false): Promise<void> {
    if (lifo) throw new NotSupported("lifo", REFUSED.lifo as string);
    const known = await this.queue.job(jobId);
    if (!known) throw jobError(ErrorCode.JobNotExist, jobId, "changePriority");
    await this.queue.hooks.move(known.found.message.id, { priority: priorityOf(priority) });
    if (priority < MAX_PRIORITY && known.state.priority === undefined) return;
    await this.queue.change(known.found.log, (before) => ({ state: { ...before, priority } }));
  }

  async updateData<T = any, R = any, N extends string = string>(
    job: MinimalJob<T, R, N>,
    data: T,
  ): Promise<void> {
    await this.update(job.id as string, "updateData", () => ({ data: data ?? {} }));
  }

  async updateProgress(jobId: string, progress: JobProgress): Promise<void> {
    const events = [{ event: "progress", jobId, data: JSON.stringify(progress) }];
    await this.update(jobId, "updateProgress", () => ({ progress }), events);
  }

  private async update(
    id: string,
    command: string,
    fields: () => Partial<State>,
    events: Event[] = [],
  ): Promise<void> {
    await tolerant(async () => {
      const log = this.queue.holding(id)?.log ?? (await this.queue.job(id))?.found.log;
      if (log === undefined) throw jobError(ErrorCode.JobNotExist, id, command);
      await this.queue.change(log, (before) => ({ state: { ...before, ...fields() }, events }));
    });
  }

  async addLog(jobId: string, row: string, keepLogs?: number): Promise<number> {
    if (!(await this.queue.job(jobId))) throw jobError(ErrorCode.JobNotExist, jobId, "addLog");
    const number = await this.queue.logs.append(`rows:${jobId}`, { row: String(row) });
    const { cleared = 0 } = await this.clearedRows(jobId);
    const count = number - cleared;
    return keepLogs ? Math.min(count, keepLogs) : count;
  }

  async clearLogs(jobId: string, keepLogs = 0): Promise<void> {
    const last = await this.queue.logs.last(`rows:${jobId}`);
    const cleared = Math.max(0, last - keepLogs);
    await this.queue.logs.append(`cleared:${jobId}`, { cleared });
  }

  private async clearedRows(jobId: string): Promise<{ cleared?: number }> {
    const last = await this.queue.logs.last(`cleared:${jobId}`);
    return last ? ((await this.queue.logs.read(`cleared:${jobId}`, last)) ?? {}) : {};
  }

  async getJobLogs(
    jobId: string,
    start: number,
    end: number,
    asc: boolean,
  ): Promise<{ logs: string[]; count: number }> {
    const last = await this.queue.logs.last(`rows:${jobId}`);
    const { cleared = 0 } = await this.clearedRows(jobId);
    const job = await this.json(jobId);
    if (!job) return { logs: [], count: 0 };
    const first = Math.max(cleared, last - (job.opts.keepLogs ?? last));
    const numbers = Array.from({ length: last - first }, (_, index) => first + index + 1);
    const wanted = slice(asc ? numbers : numbers.reverse(), start, end);
    const entries = await Promise.all(
      wanted.map((number) => this.queue.logs.read(`rows:${jobId}`, number)),
    );
    return { logs: entries.map((entry) => String(entry?.row ?? "")), count: last - first };
  }

  async remove(jobId: string, removeChildren: boolean): Promise<number> {
    const known = await this.queue.job(jobId);
    if (!known) return 1;
    const { found, shown } = known;
    if (shown === "active") return 0;
    const posted = await this.queue.posted(found);
    if (removeChildren && !(await this.flows.removeChildren(posted, known.state))) return 0;
    if (shown === "completed" || shown === "failed") {
      await this.queue.hide([found.message.id]);
    } else {
      try {
        await this.queue.hooks.cancel(found.message.id);
      } catch (error) {
        // A worker received it a moment ago.
        if (error instanceof Conflict) return 0;
        throw error;
      }
    }
    const parentKey = parentOf(posted, known.state);
    if (parentKey) await this.flows.forget(parentKey, this.toKey(jobId)).catch(ignoreGone);
    const { deduplicationId } = posted;
    if (deduplicationId !== undefined) await this.removeDeduplicationKey(deduplicationId, jobId);
    this.queue.tell({ event: "removed", jobId, prev: shown });
    return 1;
  }

  // -- Flows -------------------------------------------------------------------------------------

  async removeUnprocessedChildren(jobId: string): Promise<void> {
    const known = await this.queue.job(jobId);
    if (!known) return;
    await this.flows.removeChildren(await this.queue.posted(known.found), known.state, true);
  }

  async removeChildDependency(jobId: string, parentKey: string): Promise<boolean> {
    if (!(await this.queue.job(jobId))) {
      throw jobError(ErrorCode.JobNotExist, jobId, "removeChildDependency");
    }
    const isForgotten = await this.flows.forget(parentKey, this.toKey(jobId));
    const known = isForgotten && (await this.queue.job(jobId));
    if (known) {
      const orphan = (state: State) => ({ state: { ...state, isOrphan: true } });
      await this.queue.change(known.found.log, orphan);
    }
    return isForgotten;
  }

  async getDependencyCounts(jobId: string, types: string[]): Promise<number[]> {
    const family = await this.family(jobId);
    return types.map((type) => {
      const of = family[type as keyof typeof family];
      return Array.isArray(of) ? of.length : Object.keys(of ?? {}).length;
    });
  }

  async getDependencies(jobId: string, opts: DependenciesOpts): Promise<any> {
    const family = await this.family(jobId);
    const all = { processed: {}, unprocessed: {}, ignored: {}, failed: {} };
    const asked = Object.keys(opts).length ? opts : all;
    const result: Record<string, unknown> = {};
    for (const type of Object.keys(asked)) {
      result[type] = family[type as keyof typeof family];
      // All of them are in the first page.
      if (asked === opts) result[`next${type[0]?.toUpperCase()}${type.slice(1)}Cursor`] = 0;
    }
    if (family.processed) {
      const values = Object.entries(family.processed);
      if (result.processed) {
        result.processed = Object.fromEntries(values.map(([key, value]) => [key, JSON.parse(value)]));
      }
    }
    return result;
  }

  async getProcessedChildrenValues(jobId: string): Promise<Record<string, string>> {
    return (await this.family(jobId)).processed;
  }

  async getIgnoredChildrenFailures(jobId: string): Promise<Record<string, string>> {
    return (await this.family(jobId)).ignored;
  }

  async paginate(
    key: string,
    { start, end, fetchJobs }: { start: number; end: number; fetchJobs?: boolean },
  ): Promise<any> {
    const found = /^(.+):(processed|dependencies)$/.exec(key.slice(this.qualifiedName.length + 1));
    if (!found) throw new NotSupported(`paginate ${key}`, "only children can be listed.");
    const family = await this.family(found[1] as string);
    const items =
      found[2] === "processed"
        ? Object.entries(family.processed).map(([id, v]) => ({ id, v: JSON.parse(v) }))
        : family.unprocessed.map((id) => ({ id }));
    const page = slice(items, start, end);
    const jobs = fetchJobs
      ? await Promise.all(page.map(({ id }) => this.flows.jobOf(id)))
      : undefined;
    return { cursor: "0", items: page, total: items.length, jobs: jobs?.filter(Boolean) };
  }

  private async family(jobId: string): Promise<ReturnType<Flows["family"]>> {
    const known = await this.queue.job(jobId);
    if (!known) return { processed: {}, ignored: {}, failed: [], unprocessed: [] };
    return this.flows.family(await this.queue.posted(known.found), known.state);
  }

  // -- Many jobs ---------------------------------------------------------------------------------

  async retryFinishedJobs(
    outcome: "completed" | "failed" = "failed",
    _count = 1_000,
    timestamp = Date.now(),
  ): Promise<number> {
    const all = await this.queue.list([outcome]);
    // All in one call: in the next one, those that have ended again would be retried again.
    for (const { id, at } of all) {
      if (at > timestamp) continue;
      await this.retryFinishedJob({ id } as MinimalJob, outcome).catch(ignoreGone);
    }
    return 0;
  }

  async promoteJobs(count = 1_000): Promise<number> {
    const due = (await this.queue.list(["delayed"])).slice(0, count);
    for (const { id } of due) await this.promote(id).catch(ignoreGone);
    return due.length === count ? 1 : 0;
  }

  async pause(isPaused: boolean): Promise<void> {
    await this.queue.ready();
    const { hooks, channel } = this.queue;
    if (isPaused) await hooks.pauseConsumer(channel, WORKERS);
    else await hooks.resumeConsumer(channel, WORKERS);
    this.queue.tell({ event: isPaused ? "paused" : "resumed" });
  }

  async drain(delayed: boolean): Promise<void> {
    await this.queue.ready();
    const states: Shown[] = ["waiting", "prioritized"];
    if (delayed) states.push("delayed");
    // A parent in this queue waits for nothing after its children, and is removed, too.
    while (await this.flows.leave(this.queue, await this.queue.cancel(await this.queue.list(states))));
  }

  async cleanJobsByState(state: string, timestamp: number, limit = 0): Promise<string[]> {
    await this.queue.ready();
    if (state === "active") {
      throw new NotSupported("Queue.clean of active jobs", "a lease ends by itself.");
    }
    const shown = (state === "wait" || state === "paused" ? "waiting" : state) as Shown;
    const isFinished = shown === "completed" || shown === "failed";
    const listed = (await this.queue.list([shown])).filter(
      ({ at, added }) => (isFinished ? at : added) <= timestamp,
    );
    const some = limit > 0 ? listed.slice(0, limit) : listed;
    if (!isFinished) {
      const removed = await this.queue.cancel(some);
      await this.flows.leave(this.queue, removed);
      return removed.map(({ id }) => id);
    }
    await this.queue.hide(some.map(({ message }) => message));
    this.queue.tell({ event: "cleaned", count: String(some.length) });
    return some.map(({ id }) => id);
  }

  async obliterate({ force }: { force: boolean; count: number }): Promise<number> {
    await this.queue.ready();
    if (!(await this.hasQueueMetaField("paused"))) {
      throw new Error("Cannot obliterate non-paused queue");
    }
    const active = await this.queue.list(["active"]);
    if (active.length && !force) throw new Error("Cannot obliterate queue with active jobs");
    for (const { id } of active) {
      const held = this.queue.holding(id);
      // A job of another process ends there; its result is hidden.
      if (!held) continue;
      await this.queue.hooks.nack(held.lease, { delay: MAX_DELAY_S });
      await this.queue.hooks.cancel(held.message).catch(ignoreConflict);
      this.queue.drop(held);
    }
    const all: Shown[] = ["waiting", "prioritized", "delayed", "waiting-children"];
    await this.flows.leave(this.queue, await this.queue.cancel(await this.queue.list(all)));
    await this.schedulers.removeAll();
    await this.queue.hideAll();
    await this.pause(false);
    return 0;
  }

  async removeOrphanedJobs(): Promise<number> {
    // A job is one row of the broker: there are no orphans.
    return 0;
  }

  // -- Reading -----------------------------------------------------------------------------------

  async getState(jobId: string): Promise<JobState | "unknown"> {
    await this.queue.ready();
    return (await this.queue.job(jobId))?.shown ?? "unknown";
  }

  async isFinished(jobId: string, returnValue = false): Promise<number | [number, string]> {
    const known = await this.queue.job(jobId);
    const value = known?.state.returnvalue ?? known?.state.failedReason ?? "";
    const outcome = known?.state.outcome;
    if (!known) return returnValue ? [-1, `Missing key for job ${jobId}. isFinished`] : -1;
    const status = outcome === "completed" ? 1 : outcome === "failed" ? 2 : 0;
    return returnValue ? [status, value] : status;
  }

  async isMaxed(): Promise<boolean> {
    await this.queue.ready();
    const { concurrency } = await this.queue.limits(true);
    return concurrency !== undefined && this.queue.isFull(concurrency);
  }

  async isJobInState(state: string, jobId: string): Promise<boolean> {
    const shown = await this.getState(jobId);
    return shown === (state === "wait" ? "waiting" : state);
  }

  async getJobData(jobId: string): Promise<JobJson | undefined> {
    await this.queue.ready();
    return this.json(jobId);
  }

  private json(jobId: string): Promise<JobJson | undefined> {
    return this.queue.json(jobId);
  }

  async getDeduplicationJobId(deduplicationId: string): Promise<string | null> {
    return (await new Deduplication(this.queue).owner(deduplicationId)) ?? null;
  }

  async removeDeduplicationKey(deduplicationId: string, jobId: string): Promise<number> {
    if ((await this.getDeduplicationJobId(deduplicationId)) !== jobId) return 0;
    return this.deleteDeduplicationKey(deduplicationId);
  }

  async deleteDeduplicationKey(deduplicationId: string): Promise<number> {
    if ((await this.getDeduplicationJobId(deduplicationId)) === null) return 0;
    await new Deduplication(this.queue).free(deduplicationId);
    return 1;
  }

  async getCounts(types: JobType[], delayedTimestamp?: number): Promise<number[]> {
    await this.queue.ready();
    const states = types.map(shownOfType);
    const listed = await this.queue.list(states);
    return states.map((state) => {
      const of = listed.filter((job) => job.state === state);
      if (state !== "delayed" || delayedTimestamp === undefined) return of.length;
      return of.filter(({ at }) => at < delayedTimestamp).length;
    });
  }

  async getCountsPerPriority(priorities: number[]): Promise<number[]> {
    await this.queue.ready();
    const listed = await this.queue.list(["waiting", "prioritized"]);
    return priorities.map(
      (wanted) => listed.filter(({ asked }) => asked === wanted).length,
    );
  }

  async getRanges(types: JobType[], start = 0, end = -1, asc = false): Promise<[string][]> {
    await this.queue.ready();
    const states = types.map(shownOfType);
    const listed = await this.queue.list(states);
    return states.map((state) => {
      const jobs = listed.filter((job) => job.state === state).sort(ORDERS[state]);
      if (!asc) jobs.reverse();
      const ids = slice(jobs, start, end).map(({ id }) => id);
      // BullMQ itself reverses the lists among the states.
      return (asc && LISTS.has(state) ? ids.reverse() : ids) as [string];
    });
  }

  async getMetrics(): Promise<[string[], string[], number]> {
    // As in BullMQ if no worker has the option `metrics`, which is refused.
    return [[], [], 0];
  }

  async getClientList(): Promise<string[]> {
    throw new NotSupported(
      "Queue.getWorkers and getQueueEvents",
      "the broker does not list connections.",
    );
  }

  // -- The queue itself --------------------------------------------------------------------------

  async setQueueMeta(values: Record<string, string | number>): Promise<number> {
    const { concurrency, max, duration } = values;
    if (concurrency !== undefined) await this.queue.setConcurrency(Number(concurrency));
    if (max !== undefined) {
      await this.queue.setRate({ max: Number(max), duration: Number(duration) });
    }
    return Object.keys(values).length;
  }

  async getQueueMetaField(field: string): Promise<string | null> {
    const meta = await this.getQueueMeta();
    return meta[field] ?? null;
  }

  async getQueueMetaFields(fields: string[]): Promise<(string | null)[]> {
    const meta = await this.getQueueMeta();
    return fields.map((field) => meta[field] ?? null);
  }

  async getQueueMeta(): Promise<Record<string, string>> {
    await this.queue.ready();
    const { state, concurrency, rate } = await this.queue.limits(true);
    return {
      "opts.maxLenEvents": "10000",
      version: `bullmq:${BULLMQ_VERSION}`,
      ...(state === "paused" ? { paused: "1" } : {}),
      ...(concurrency === undefined ? {} : { concurrency: String(concurrency) }),
      ...(rate ? { max: String(rate.max), duration: String(rate.duration) } : {}),
    };
  }

  async removeQueueMetaFields(fields: string[]): Promise<number> {
    const meta = await this.getQueueMeta();
    if (fields.includes("concurrency")) await this.queue.setConcurrency(undefined);
    if (fields.includes("max")) await this.queue.setRate(undefined);
    return fields.filter((field) => field in meta).length;
  }

  async hasQueueMetaField(field: string): Promise<boolean> {
    return (await this.getQueueMetaField(field)) !== null;
  }

  async getRateLimitTtl(maxJobs?: number): Promise<number> {
    await this.queue.ready();
    return this.queue.limiter.ttl(maxJobs);
  }

  async setRateLimit(expireTimeMs: number): Promise<void> {
    await this.queue.ready();
    await this.queue.limiter.fill(expireTimeMs);
  }

  async removeRateLimitKey(): Promise<number> {
    await this.queue.ready();
    return (await this.queue.limiter.clear()) ? 1 : 0;
  }

  async removeDeprecatedPriorityKey(): Promise<number> {
    return 0;
  }

  // -- Events ------------------------------------------------------------------------------------

  async trimEvents(): Promise<number> {
    throw new NotSupported("Queue.trimEvents", "events end with the channel's retention.");
  }

  async publishEvent(fields: Record<string, string | number>): Promise<string> {
    await this.queue.ready();
    await this.queue.logs.publish({ events: [fields] });
    return "";
  }

  async readEvents(id: string, blockTimeout: number): Promise<StreamReadRaw> {
    return this.feed.read(id, blockTimeout);
  }
}

const BULLMQ_VERSION: string = (require("bullmq/package.json") as { version: string }).version;

/** Lists among the states; the others are sorted sets. */
const LISTS = new Set<Shown>(["waiting", "active"]);
const byMessage = (one: Listed, other: Listed): number => (one.message < other.message ? -1 : 1);
const byTime = (one: Listed, other: Listed): number => one.at - other.at || byMessage(one, other);
const ORDERS: Partial<Record<Shown, (one: Listed, other: Listed) => number>> = {
  waiting: byTime,
  active: byMessage,
  delayed: byTime,
  completed: byTime,
  failed: byTime,
  prioritized: (one, other) => other.priority - one.priority || byTime(one, other),
  "waiting-children": byMessage,
};

function shownOfType(type: JobType): Shown {
  if (type === "wait") return "waiting";
  if (type === "repeat") throw new NotSupported("the type repeat", "use getJobSchedulers.");
  return type;
}

function slice<T>(all: T[], start = 0, end = -1): T[] {
  const from = start < 0 ? all.length + start : start;
  const to = end < 0 ? all.length + end : end;
  return all.slice(Math.max(0, from), to + 1);
}

function keepOf(opts: JobsOptions, outcome: "completed" | "failed"): Keep {
  return outcome === "completed" ? opts.removeOnComplete : opts.removeOnFail;
}

/** The state of a finished job that runs again. */
function reopened(state: State): State {
  const { finishedOn, processedOn, returnvalue, failedReason, outcome, ...left } = state;
  return { ...left, started: 0, settled: 0 };
}

/** Whether a job that ends is removed at once. */
function isRemoved(keep: Keep): boolean {
  if (typeof keep === "object" && keep !== null) return (keep as { count?: number }).count === 0;
  return keep === true || keep === 0;
}

/** How many finished jobs stay, and for how many seconds, if there is such a bound. */
function boundsOf(keep: Keep): Bounds | undefined {
  if (isRemoved(keep)) return undefined;
  if (typeof keep === "number") return keep > 0 ? { count: keep } : undefined;
  if (typeof keep !== "object" || keep === null) return undefined;
  const { count, age } = keep as { count?: number; age?: number };
  // BullMQ's -1 keeps all.
  const bounds = {
    ...(count !== undefined && count > 0 ? { count } : {}),
    ...(age !== undefined ? { age } : {}),
  };
  return Object.keys(bounds).length ? bounds : undefined;
}

function kept(fields: Record<string, any>): Partial<State> {
  const { failedReason, stacktrace } = fields;
  return { ...(failedReason ? { failedReason } : {}), ...(stacktrace ? { stacktrace } : {}) };
}

/** Throws if another worker has the job by now, or it has ended. */
function checkOwner(held: Held, state: State, command: string): void {
  if (state.started === held.attempt && state.finishedOn === undefined) return;
  throw jobError(ErrorCode.JobLockNotExist, held.id, command);
}

function ignoreConflict(error: unknown): void {
  if (!(error instanceof Conflict) && !(error instanceof NotFound)) throw error;
}

function ignoreGone(error: unknown): void {
  if (typeof (error as { code?: unknown }).code !== "number") throw error;
}

function waitingEvent(jobId: string, delay: number, children?: string[]): Event {
  if (children) return { event: "waiting-children", jobId };
  if (delay > 0) return { event: "delayed", jobId, delay: String(Date.now() + delay) };
  return { event: "waiting", jobId };
}
