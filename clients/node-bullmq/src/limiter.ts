/**
 * The rate limit of a queue: at most `max` jobs begin in each `duration`, of all workers together.
 *
 * A window opens when a job begins and none is open. The log of the limit holds the window and how
 * many jobs began in it; each job that begins writes the next number. The log stores each number
 * once, so no two workers count the same job, however many processes ask.
 */

import type { Logs } from "./log.js";
import { WeeklyLog } from "./weekly.js";

/** How many jobs may begin in so many milliseconds. */
export interface Rate {
  max: number;
  duration: number;
}

interface Window {
  /** Milliseconds since 1970. */
  until: number;
  /** How many jobs have begun in it. */
  taken: number;
}

const CLOSED: Window = { until: 0, taken: 0 };
/** More jobs than any `max`: nothing begins until the window ends. */
const FULL = Number.MAX_SAFE_INTEGER;

/** The limit of one queue, for all workers and queue objects of this process. */
export class Limiter {
  private readonly log: WeeklyLog<Window>;

  constructor(logs: Logs) {
    this.log = new WeeklyLog(logs, "limit", 1);
  }

  /** Count a job that begins; returns 0, or the milliseconds to wait before. */
  take({ max, duration }: Rate): Promise<number> {
    return this.log.inTurn(async () => {
      for (;;) {
        const left = await this.left(max);
        if (left) return left;
        const now = Date.now();
        const { until, taken } = this.window;
        const next = until > now ? { until, taken: taken + 1 } : { until: now + duration, taken: 1 };
        if (await this.log.write(next)) return 0;
      }
    });
  }

  /** Take back the count of a job that did not begin. */
  async untake(): Promise<void> {
    await this.log.inTurn(async () => {
      for (;;) {
        const { until, taken } = this.window;
        // The window has ended, or somebody has filled or cleared it.
        if (until <= Date.now() || taken < 1 || taken === FULL) return;
        if (await this.log.write(taken === 1 ? CLOSED : { until, taken: taken - 1 })) return;
      }
    });
  }

  /** Milliseconds until a job may begin; counts none. */
  wait({ max }: Rate): Promise<number> {
    return this.log.inTurn(() => this.left(max));
  }

  /** Let no job begin for so many milliseconds. */
  async fill(milliseconds: number): Promise<void> {
    await this.log.inTurn(async () => {
      while (!(await this.log.write({ until: Date.now() + milliseconds, taken: FULL })));
    });
  }

  /** End the window; whether there was one. */
  clear(): Promise<boolean> {
    return this.log.inTurn(async () => {
      await this.log.refresh();
      for (;;) {
        if (this.window.until <= Date.now()) return false;
        if (await this.log.write(CLOSED)) return true;
      }
    });
  }

  /**
   * Milliseconds until the window ends, or -2 without one. With `max`: 0 unless so many jobs have
   * begun in it.
   */
  ttl(max?: number): Promise<number> {
    return this.log.inTurn(async () => {
      await this.log.refresh();
      const left = this.window.until - Date.now();
      if (max) return left > 0 && this.window.taken >= max ? left : 0;
      return left > 0 ? left : -2;
    });
  }

  private async left(max: number): Promise<number> {
    for (;;) {
      const { until, taken } = this.window;
      const left = until - Date.now();
      if (left <= 0 || taken < max) return 0;
      // Another process may have cleared it.
      if (!(await this.log.refresh())) return left;
    }
  }

  private get window(): Window {
    return this.log.entry ?? CLOSED;
  }
}
