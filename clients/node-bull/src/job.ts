/** A job with the methods of Bull. */

import type { Job as BullMQJob, JobState, QueueEvents } from "@hookstation/bullmq";

/** BullMQ refuses ids that are whole numbers; Bull allows them. */
const NUMBER = /^number-(\d+)$/;

/** BullMQ's id of a job of Bull. */
export function idOf(id: string | number): string {
  return /^\d+$/.test(`${id}`) ? `number-${id}` : `${id}`;
}

/** What a job needs of its queue. */
export interface Owner {
  readonly name: string;
  /** The listener by which `finished` waits. */
  listener(): Promise<QueueEvents>;
}

/** A job of a queue. */
export class Job<T = any> {
  private isDiscarded = false;

  constructor(
    readonly queue: Owner,
    /** BullMQ's own object. */
    readonly job: BullMQJob<T>,
  ) {}

  get id(): string {
    return (this.job.id as string).replace(NUMBER, "$1");
  }

  get name(): string {
    return this.job.name;
  }

  get data(): T {
    return this.job.data;
  }

  get opts(): BullMQJob["opts"] {
    return this.job.opts;
  }

  /** Failed attempts so far. */
  get attemptsMade(): number {
    return this.job.attemptsMade;
  }

  get returnvalue(): any {
    return this.job.returnvalue;
  }

  get failedReason(): string | undefined {
    return this.job.failedReason || undefined;
  }

  get stacktrace(): string[] {
    return this.job.stacktrace ?? [];
  }

  /** Milliseconds since 1970: when it was added, begun and finished. */
  get timestamp(): number {
    return this.job.timestamp;
  }

  get processedOn(): number | undefined {
    return this.job.processedOn;
  }

  get finishedOn(): number | undefined {
    return this.job.finishedOn;
  }

  /** The progress; or, with a value, report it. */
  progress(): any;
  progress(value: any): Promise<void>;
  progress(value?: any): any {
    if (value === undefined) return this.job.progress;
    return this.job.updateProgress(value);
  }

  /** Replace the data. */
  update(data: T): Promise<void> {
    return this.job.updateData(data);
  }

  /** Add a row to the job's log. */
  async log(row: string): Promise<void> {
    await this.job.log(row);
  }

  /** Do not try again, if this attempt fails. */
  discard(): void {
    this.isDiscarded = true;
  }

  /** Whether `discard` was called. */
  get discarded(): boolean {
    return this.isDiscarded;
  }

  /** Remove it. Throws while it is active. */
  remove(): Promise<void> {
    return this.job.remove();
  }

  /** Run a failed job again. */
  async retry(): Promise<void> {
    await this.job.retry();
  }

  /** Let a delayed job begin now. */
  promote(): Promise<void> {
    return this.job.promote();
  }

  /** The result, when it has ended; rejects with its failure. */
  async finished(): Promise<any> {
    return this.job.waitUntilFinished(await this.queue.listener());
  }

  /** Its state. Jobs with a priority are `waiting`, as in Bull. */
  async getState(): Promise<JobState | "unknown"> {
    const state = await this.job.getState();
    return state === "prioritized" ? "waiting" : state;
  }

  isCompleted(): Promise<boolean> {
    return this.job.isCompleted();
  }

  isFailed(): Promise<boolean> {
    return this.job.isFailed();
  }

  isDelayed(): Promise<boolean> {
    return this.job.isDelayed();
  }

  isActive(): Promise<boolean> {
    return this.job.isActive();
  }

  async isWaiting(): Promise<boolean> {
    return (await this.getState()) === "waiting";
  }

  toJSON(): object {
    const { id, name, data, opts, attemptsMade, returnvalue, failedReason, timestamp } = this;
    return { id, name, data, opts, attemptsMade, returnvalue, failedReason, timestamp };
  }
}
