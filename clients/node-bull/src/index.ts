/** The API of Bull, version 4, on Hookstation: BullMQ's classes do the work. */

import { EventEmitter } from "node:events";

import {
  type JobsOptions,
  type JobType,
  NotSupported,
  Queue as BullMQ,
  QueueEvents,
  UnrecoverableError,
  Worker,
} from "@hookstation/bullmq";

import { idOf, Job, type Owner } from "./job.js";

/** Bull's name of a job that is added without one. */
const UNNAMED = "__default__";
const ANY = "*";
/** Bull's names of states. */
type Status = "waiting" | "active" | "completed" | "failed" | "delayed" | "paused" | "wait";

const QUEUE_OPTIONS = ["redis", "prefix", "defaultJobOptions", "limiter", "settings"];
const LIMITER_OPTIONS = ["max", "duration"];
const WORKER_SETTINGS = [
  ...["lockDuration", "lockRenewTime", "stalledInterval", "maxStalledCount", "drainDelay"],
];
const JOB_OPTIONS = [
  ...["attempts", "backoff", "delay", "jobId", "priority", "removeOnComplete", "removeOnFail"],
  ...["repeat", "stackTraceLimit", "timeout", "timestamp"],
];
const REPEAT_OPTIONS = ["cron", "every", "tz", "limit", "startDate", "endDate", "key"];
/** Events that a worker of this process emits, and those of all processes. */
const GLOBAL = [
  ...["active", "completed", "delayed", "drained", "failed", "paused", "progress", "removed"],
  ...["resumed", "stalled", "waiting"],
];

namespace Queue {
  /** Options of `add`. */
  export interface JobOptions {
    priority?: number;
    delay?: number;
    attempts?: number;
    backoff?: number | { type: string; delay?: number };
    /** Milliseconds after which an attempt fails. */
    timeout?: number;
    jobId?: string | number;
    removeOnComplete?: JobsOptions["removeOnComplete"];
    removeOnFail?: JobsOptions["removeOnFail"];
    stackTraceLimit?: number;
    lifo?: boolean;
    repeat?: {
      cron?: string;
      every?: number;
      tz?: string;
      limit?: number;
      startDate?: Date | string | number;
      endDate?: Date | string | number;
      key?: string;
    };
  }

  /** Options of a queue. */
  export interface QueueOptions {
    /** Address and key of the broker; a connection to Redis is not used. */
    redis?: unknown;
    prefix?: string;
    defaultJobOptions?: JobOptions;
    limiter?: { max: number; duration: number };
    settings?: {
      lockDuration?: number;
      lockRenewTime?: number;
      stalledInterval?: number;
      maxStalledCount?: number;
      drainDelay?: number;
      backoffStrategies?: Record<string, (attemptsMade: number, error: Error, options?: any) => number>;
    };
  }

  export type DoneCallback = (error?: Error | null, value?: any) => void;
  export type Processor = (job: Job, done: DoneCallback) => any;
}

/** A queue of Bull. */
class Queue extends EventEmitter implements Owner {
  readonly queue: BullMQ;
  private readonly connection: unknown;
  private readonly handlers = new Map<string, Queue.Processor>();
  private readonly options: Queue.QueueOptions;
  private worker: Worker | undefined;
  private concurrency = 0;
  private listening: QueueEvents | undefined;

  constructor(
    readonly name: string,
    first?: string | Queue.QueueOptions,
    second?: Queue.QueueOptions,
  ) {
    super();
    const options = (typeof first === "string" ? second : first) ?? {};
    this.options = options;
    known("the option", options, QUEUE_OPTIONS);
    known("limiter.", options.limiter, LIMITER_OPTIONS);
    known("settings.", options.settings, [...WORKER_SETTINGS, "backoffStrategies"]);
    this.connection = (typeof first === "string" ? first : options.redis) ?? {};
    const { prefix } = options;
    this.queue = new BullMQ(name, { connection: this.connection as any, prefix });
    this.queue.on("error", (error) => this.emit("error", error));
    this.queue.on("waiting", ({ id }) => this.emit("waiting", id));
    this.on("newListener", (event: string | symbol) => {
      if (String(event).startsWith("global:")) void this.listener();
    });
  }

  /** Whether the broker is reached. */
  async isReady(): Promise<this> {
    await this.queue.waitUntilReady();
    return this;
  }

  // -- Adding ------------------------------------------------------------------------------------

  /** Add a job. */
  add(data: any, options?: Queue.JobOptions): Promise<Job>;
  add(name: string, data: any, options?: Queue.JobOptions): Promise<Job>;
  async add(...given: any[]): Promise<Job> {
    const [name, data, options] = typeof given[0] === "string" ? given : [UNNAMED, ...given];
    const merged = { ...this.options.defaultJobOptions, ...options } as Queue.JobOptions;
    if (merged.repeat) return this.schedule(name, data, merged);
    return this.jobOf(await this.queue.add(name, data ?? {}, optionsOf(merged)));
  }

  /** Add several jobs, all or none of them. */
  async addBulk(
    jobs: { name?: string; data: any; opts?: Queue.JobOptions }[],
  ): Promise<Job[]> {
    const added = await this.queue.addBulk(
      jobs.map(({ name, data, opts }) => ({
        name: name ?? UNNAMED,
        data,
        opts: optionsOf({ ...this.options.defaultJobOptions, ...opts }),
      })),
    );
    return added.map((job) => this.jobOf(job));
  }

  private async schedule(name: string, data: any, options: Queue.JobOptions): Promise<Job> {
    known("repeat.", options.repeat, REPEAT_OPTIONS);
    const { repeat = {}, ...left } = options;
    const { cron, every, key, ...rest } = repeat;
    const id = key ?? scheduleOf(name, options);
    const template = { name, data: data ?? {}, opts: optionsOf(left) };
    const said = { ...rest, ...(cron ? { pattern: cron } : { every }) };
    return this.jobOf(await this.queue.upsertJobScheduler(id, said as any, template as any) as any);
  }

  /** The schedules of the queue. */
  async getRepeatableJobs(start = 0, end = -1, asc = false): Promise<object[]> {
    const all = await this.queue.getJobSchedulers(start, end, asc);
    return all.map(({ key, name, endDate, tz, pattern, every, next }) => ({
      key,
      name,
      endDate: endDate ?? null,
      tz: tz ?? null,
      cron: pattern ?? null,
      every: every ?? null,
      next,
    }));
  }

  /** Remove the schedule of a job that was added with these options. */
  async removeRepeatable(...given: any[]): Promise<void> {
    const [name, repeat] = typeof given[0] === "string" ? given : [UNNAMED, given[0]];
    await this.removeRepeatableByKey(repeat.key ?? scheduleOf(name, { ...repeat, repeat }));
  }

  /** Remove a schedule by the key that `getRepeatableJobs` says. */
  async removeRepeatableByKey(key: string): Promise<void> {
    await this.queue.removeJobScheduler(key);
  }

  // -- Processing --------------------------------------------------------------------------------

  /** Process jobs: all, or those of a name; so many at a time. */
  process(processor: Queue.Processor): Promise<void>;
  process(concurrency: number, processor: Queue.Processor): Promise<void>;
  process(name: string, processor: Queue.Processor): Promise<void>;
  process(name: string, concurrency: number, processor: Queue.Processor): Promise<void>;
  async process(...given: any[]): Promise<void> {
    const processor = given.pop();
    if (typeof processor !== "function") {
      throw new NotSupported("a processor in a file", "pass a function, or use @hookstation/bullmq.");
    }
    const name = typeof given[0] === "string" ? given.shift() : UNNAMED;
    const concurrency = typeof given[0] === "number" ? given[0] : 1;
    if (this.handlers.has(name)) throw new Error(`Cannot define the same handler twice ${name}`);
    this.handlers.set(name, processor);
    this.concurrency += concurrency;
    if (this.worker) this.worker.concurrency = this.concurrency;
    else this.worker = this.work();
  }

  private work(): Worker {
    const { settings = {}, limiter, prefix } = this.options;
    const { backoffStrategies } = settings;
    const worker = new Worker(
      this.name,
      async (job) => this.handle(this.jobOf(job)),
      {
        connection: this.connection as any,
        prefix,
        concurrency: this.concurrency,
        ...(limiter ? { limiter: { max: limiter.max, duration: limiter.duration } } : {}),
        ...given(settings, WORKER_SETTINGS),
        ...(backoffStrategies
          ? { settings: { backoffStrategy: strategyOf(backoffStrategies) } }
          : {}),
      },
    );
    worker.on("error", (error) => this.emit("error", error));
    worker.on("active", (job) => this.emit("active", this.jobOf(job)));
    worker.on("completed", (job, result) => this.emit("completed", this.jobOf(job), result));
    worker.on("failed", (job, error) => this.emit("failed", job && this.jobOf(job), error));
    worker.on("progress", (job, progress) => this.emit("progress", this.jobOf(job), progress));
    worker.on("stalled", (id) => this.emit("stalled", id));
    worker.on("drained", () => this.emit("drained"));
    return worker;
  }

  private async handle(job: Job): Promise<any> {
    const processor = this.handlers.get(job.name) ?? this.handlers.get(ANY);
    if (!processor) throw new Error(`Missing process handler for job type ${job.name}`);
    try {
      return await within((job.opts as any).timeout, () => called(processor, job));
    } catch (error) {
      if (!job.discarded) throw error;
      throw Object.assign(new UnrecoverableError((error as Error).message), { cause: error });
    }
  }

  /** Wait for the jobs that run in this process. */
  async whenCurrentJobsFinished(): Promise<void> {
    await this.worker?.pause();
    this.worker?.resume();
  }

  // -- Events ------------------------------------------------------------------------------------

  /** What tells of jobs of all processes: for `global:` events and `Job.finished`. */
  async listener(): Promise<QueueEvents> {
    if (!this.listening) {
      const { prefix } = this.options;
      this.listening = new QueueEvents(this.name, { connection: this.connection as any, prefix });
      this.listening.on("error", (error) => this.emit("error", error));
      for (const event of GLOBAL) {
        this.listening.on(event as any, (said: any) => this.emit(`global:${event}`, ...globalOf(event, said)));
      }
    }
    await this.listening.waitUntilReady();
    return this.listening;
  }

  // -- The queue ---------------------------------------------------------------------------------

  /** Pause all processes, or only this one. */
  async pause(isLocal = false, doNotWaitActive = false): Promise<void> {
    if (isLocal) await this.worker?.pause(doNotWaitActive);
    else await this.queue.pause();
    this.emit("paused");
  }

  /** Go on after `pause`. */
  async resume(isLocal = false): Promise<void> {
    if (isLocal) this.worker?.resume();
    else await this.queue.resume();
    this.emit("resumed");
  }

  async isPaused(isLocal = false): Promise<boolean> {
    return isLocal ? (this.worker?.isPaused() ?? false) : this.queue.isPaused();
  }

  /** Jobs that wait or are delayed. */
  count(): Promise<number> {
    return this.queue.count();
  }

  /** Remove the jobs that wait. */
  empty(): Promise<void> {
    return this.queue.drain(true);
  }

  /** Remove finished or waiting jobs older than so many milliseconds. */
  async clean(grace: number, status: Status = "completed", limit = 0): Promise<string[]> {
    const removed = await this.queue.clean(grace, limit, status as any);
    this.emit("cleaned", removed, status);
    return removed;
  }

  /** Remove everything. */
  obliterate(options: { force?: boolean } = {}): Promise<void> {
    return this.queue.obliterate(options);
  }

  async getJob(id: string | number): Promise<Job | null> {
    const job = await this.queue.getJob(idOf(id));
    return job ? this.jobOf(job) : null;
  }

  async getJobs(types: Status[], start = 0, end = -1, asc = false): Promise<Job[]> {
    const jobs = await this.queue.getJobs(types.flatMap(typesOf), start, end, asc);
    return jobs.map((job) => this.jobOf(job));
  }

  async getJobCounts(): Promise<Record<"waiting" | "active" | "completed" | "failed" | "delayed", number>> {
    const counts = await this.queue.getJobCounts();
    const { waiting = 0, prioritized = 0, active = 0, completed = 0, failed = 0, delayed = 0 } = counts;
    return { waiting: waiting + prioritized, active, completed, failed, delayed };
  }

  getJobLogs(id: string, start = 0, end = -1): Promise<{ logs: string[]; count: number }> {
    return this.queue.getJobLogs(id, start, end);
  }

  getWaiting(start = 0, end = -1): Promise<Job[]> {
    return this.getJobs(["waiting"], start, end, true);
  }

  getActive(start = 0, end = -1): Promise<Job[]> {
    return this.getJobs(["active"], start, end, true);
  }

  getDelayed(start = 0, end = -1): Promise<Job[]> {
    return this.getJobs(["delayed"], start, end, true);
  }

  getCompleted(start = 0, end = -1): Promise<Job[]> {
    return this.getJobs(["completed"], start, end);
  }

  getFailed(start = 0, end = -1): Promise<Job[]> {
    return this.getJobs(["failed"], start, end);
  }

  async getWaitingCount(): Promise<number> {
    return (await this.getJobCounts()).waiting;
  }

  getActiveCount(): Promise<number> {
    return this.queue.getActiveCount();
  }

  getDelayedCount(): Promise<number> {
    return this.queue.getDelayedCount();
  }

  getCompletedCount(): Promise<number> {
    return this.queue.getCompletedCount();
  }

  getFailedCount(): Promise<number> {
    return this.queue.getFailedCount();
  }

  /** End, after the jobs that run in this process. */
  async close(doNotWaitJobs = false): Promise<void> {
    await this.worker?.close(doNotWaitJobs);
    await this.listening?.close();
    await this.queue.close();
  }

  private jobOf(job: any): Job {
    return new Job(this, job);
  }
}

/** Options of Bull as those of BullMQ. Throws `NotSupported`. */
function optionsOf(said: Queue.JobOptions): JobsOptions {
  known("the job option", said, JOB_OPTIONS);
  known("repeat.", said.repeat, REPEAT_OPTIONS);
  const { jobId, repeat: _, ...options } = said;
  return { ...options, ...(jobId === undefined ? {} : { jobId: idOf(jobId) }) } as JobsOptions;
}

/** Throws `NotSupported` for an option that is not among the names. */
function known(what: string, options: object | undefined, names: string[]): void {
  for (const [name, value] of Object.entries(options ?? {})) {
    if (names.includes(name) || value === undefined) continue;
    const feature = what.endsWith(".") ? `${what}${name}` : `${what} ${name}`;
    throw new NotSupported(feature, `supported are ${names.join(", ")}.`);
  }
}

function scheduleOf(name: string, { jobId = "", repeat = {} }: Queue.JobOptions): string {
  const { cron, every, tz = "" } = repeat;
  return [name, jobId, tz, cron ?? every].filter((part) => part !== "").join(" ");
}

function typesOf(status: Status): JobType[] {
  if (status === "waiting" || status === "wait" || status === "paused") return ["waiting", "prioritized"];
  return [status];
}

function globalOf(event: string, said: any): any[] {
  if (event === "completed") return [said.jobId, JSON.stringify(said.returnvalue)];
  if (event === "failed") return [said.jobId, said.failedReason];
  if (event === "progress") return [said.jobId, said.data];
  return said?.jobId === undefined ? [] : [said.jobId];
}

function given<T extends object>(values: T, names: string[]): Partial<T> {
  const kept = Object.entries(values).filter(([name, value]) => names.includes(name) && value !== undefined);
  return Object.fromEntries(kept) as Partial<T>;
}

function strategyOf(
  strategies: Record<string, (attemptsMade: number, error: Error, options?: any) => number>,
): (attemptsMade: number, type?: string, error?: Error, job?: any) => number {
  return (attemptsMade, type = "", error = new Error(), job) => {
    const strategy = strategies[type];
    if (!strategy) throw new Error(`Unknown backoff strategy ${type}.`);
    return strategy(attemptsMade, error, job?.opts?.backoff?.options);
  };
}

/** Call a processor; one with two parameters says by a callback when it has ended. */
function called(processor: Queue.Processor, job: Job): any {
  if (processor.length < 2) return processor(job, () => undefined);
  return new Promise((resolve, reject) => {
    const done: Queue.DoneCallback = (error, value) => (error ? reject(error) : resolve(value));
    // What it throws before it has called back is its failure, too.
    Promise.resolve(processor(job, done)).catch(reject);
  });
}

async function within(milliseconds: number | undefined, call: () => any): Promise<any> {
  if (!milliseconds) return call();
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise((_, reject) => {
    const error = new Error(`Promise timed out after ${milliseconds} milliseconds`);
    timer = setTimeout(() => reject(error), milliseconds);
  });
  try {
    return await Promise.race([call(), late]);
  } finally {
    clearTimeout(timer);
  }
}

export = Queue;
