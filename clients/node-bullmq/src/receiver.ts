/** Receives a worker's jobs: at once, or by a long poll that can be broken off. */

import type { JobJson } from "bullmq";
import type { Delivery, Hookstation } from "hookstation-client";

import { pause } from "./connection.js";
import { isPassing } from "./errors.js";
import { acceptedOf, type Held, jsonOf, readMark, readPosted, type State } from "./job.js";
import { WORKERS } from "./names.js";
import type { BrokerQueue } from "./queue.js";

/** Pause after a long poll that the broker refused, in milliseconds. */
const AFTER_REFUSAL_MS = 1_000;

/** The jobs of one worker. */
export class Receiver {
  private abort = new AbortController();
  private readonly poller: Hookstation;
  /** Received by a long poll, and not taken by the worker yet. */
  private readonly stash: Held[] = [];
  private polling: Promise<boolean> | undefined;

  constructor(
    private readonly queue: BrokerQueue,
    /** Seconds of a lease. */
    private readonly lease: number,
    private readonly workerId: string,
  ) {
    this.poller = queue.connection.poller(() => this.abort.signal);
  }

  /** Whether a long poll has received a job that no worker has taken. */
  get hasJob(): boolean {
    return this.stash.length > 0;
  }

  /** The next job that is due; undefined if there is none. */
  async take(): Promise<Held | undefined> {
    const waiting = this.stash.shift();
    if (waiting) return waiting;
    await this.queue.ready();
    return this.receive(this.queue.hooks, 0);
  }

  /** Wait up to `seconds` for a job; false if there was none, or after `interrupt`. */
  wait(seconds: number): Promise<boolean> {
    if (this.abort.signal.aborted) return Promise.resolve(false);
    this.polling = this.poll(seconds);
    return this.polling;
  }

  private async poll(seconds: number): Promise<boolean> {
    try {
      const received = await this.receive(this.poller, Math.max(0, seconds));
      if (!received) return false;
      this.stash.push(received);
      return true;
    } catch (error) {
      if (this.abort.signal.aborted) return false;
      if (!isPassing(error)) throw error;
      await this.pause(AFTER_REFUSAL_MS);
      return false;
    }
  }

  /** Wait so many milliseconds, or until `interrupt`. */
  pause(milliseconds: number): Promise<void> {
    return pause(milliseconds, this.abort.signal);
  }

  /** Break off the wait, and give back what it had received. */
  async interrupt(): Promise<void> {
    this.abort.abort();
    await this.polling?.catch(() => undefined);
    await this.putBackAll();
  }

  /** Give the jobs back that no worker has taken. */
  async putBackAll(): Promise<void> {
    for (const job of this.stash.splice(0)) await this.putBack(job);
  }

  /** Give a job back that has not begun. */
  async putBack({ log, attempt, lease }: Held): Promise<void> {
    // Without this, the next worker would take this receive for one that stalled.
    await this.queue.change(log, (state) => ({ state: { ...state, settled: attempt } }));
    await this.queue.hooks.release(lease);
  }

  /** Allow to wait again. */
  resume(): void {
    this.abort = new AbortController();
  }

  close(): Promise<void> {
    return this.interrupt();
  }

  /** A received job as BullMQ reads it. */
  json(job: Held, state: State): JobJson {
    return jsonOf(job.id, job.posted, state, job.priority);
  }

  private async receive(hooks: Hookstation, wait: number): Promise<Held | undefined> {
    const { channel } = this.queue;
    const options = { max: 1, wait, lease: this.lease, workerId: this.workerId };
    const [delivery] = await hooks.receiveBatch(channel, WORKERS, options);
    return delivery && this.heldOf(delivery);
  }

  private heldOf(delivery: Delivery): Held {
    const posted = readPosted(delivery.body, delivery.eventType, acceptedOf(delivery));
    const { generation } = readMark(delivery.orderingKey, delivery.id);
    const id = posted.id ?? delivery.id;
    return {
      id,
      posted,
      log: this.queue.logOf(id, posted.id === undefined ? 0 : generation),
      lease: delivery.lease,
      token: "",
      attempt: delivery.attempt,
      expiresAt: delivery.leaseExpiresAt?.getTime() ?? Date.now() + this.lease * 1000,
      message: delivery.id,
      priority: delivery.priority,
    };
  }
}
