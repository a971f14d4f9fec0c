/**
 * A worker's `limiter`: at most `max` jobs begin in each `duration`, of all workers together.
 *
 * A job that begins takes a number in the log of the window. The log gives each number once, so
 * nobody gets more than `max` of them, however many processes ask.
 */

import { NotSupported } from "./errors.js";
import type { BrokerQueue } from "./queue.js";

/** The limit of the workers of one queue. */
export class Limiter {
  private window = 0;
  /** Whether a number of this window is taken and not used. */
  private hasNumber = false;
  private isFull = false;

  constructor(
    private readonly queue: BrokerQueue,
    private readonly limit: { max: number; duration: number },
  ) {
    if (!(limit.max > 0 && limit.duration > 0)) {
      throw new NotSupported("this limiter", "max and duration have to be positive.");
    }
  }

  /** Take a number for the next job; returns 0, or the milliseconds to wait before. */
  async take(): Promise<number> {
    const now = Date.now();
    const { max, duration } = this.limit;
    const window = Math.floor(now / duration);
    if (window !== this.window) {
      this.window = window;
      this.hasNumber = false;
      this.isFull = false;
    }
    if (this.hasNumber) return 0;
    if (!this.isFull) {
      await this.queue.ready();
      const number = await this.queue.logs.append(`limit:${duration}:${window}`, {});
      if (number <= max) {
        this.hasNumber = true;
        return 0;
      }
      this.isFull = true;
    }
    return Math.max(1, (window + 1) * duration - Date.now());
  }

  /** The number that was taken belongs to a job. */
  use(): void {
    this.hasNumber = false;
  }

  /** Milliseconds until the window ends, if so many jobs have begun in it; else 0. */
  async ttl(max = this.limit.max): Promise<number> {
    const window = Math.floor(Date.now() / this.limit.duration);
    const taken = await this.queue.logs.last(`limit:${this.limit.duration}:${window}`);
    return taken >= max ? Math.max(1, (window + 1) * this.limit.duration - Date.now()) : 0;
  }
}
