/**
 * How many finished jobs stay: `removeOnComplete` and `removeOnFail` with a count or an age.
 *
 * A job that ends with such an option gets the next number of a log. The last entry says which
 * jobs have gone: those that finished before the entry of a certain number was stored, and those
 * that finished before a certain time. So ending a job takes one request more, however many stay.
 */

import type { Logs } from "./log.js";
import { thisWeek, WeeklyLog } from "./weekly.js";

/** Weeks that the first number of a log may be old before the broker forgets it. */
const WEEKS = 3;

interface Entry {
  /** How many jobs have ended so. */
  total: number;
  /** So many of them have gone. */
  gone: number;
  /** Milliseconds since 1970: what finished before has gone, too. */
  before: number;
  /** How many had ended before each week began. */
  weeks: [week: number, total: number][];
}

/** How many jobs stay, and for how many seconds. */
export interface Bounds {
  count?: number;
  age?: number;
}

const NONE: Entry = { total: 0, gone: 0, before: 0, weeks: [] };

/** The jobs of one queue that ended with one outcome. */
export class Kept {
  private readonly log: WeeklyLog<Entry>;
  private known = { gone: 0, at: 0 };

  constructor(logs: Logs, outcome: "completed" | "failed") {
    this.log = new WeeklyLog(logs, `kept:${outcome}`, WEEKS);
  }

  /** A job has ended; so many stay. */
  add(bounds: Bounds): Promise<void> {
    return this.log.inTurn(async () => {
      while (!(await this.log.write(next(this.log.entry ?? NONE, bounds))));
    });
  }

  /** Jobs that finished at or before this time have gone; in milliseconds since 1970. */
  async before(): Promise<number> {
    await this.log.refresh();
    const { gone, before, weeks } = this.log.entry ?? NONE;
    if (gone !== this.known.gone) {
      const [week, earlier] = weeks.filter(([, total]) => total < gone).at(-1) ?? [0, 0];
      const at = await this.log.storedAt({ week, number: gone - earlier });
      this.known = { gone, at };
    }
    return Math.max(before, this.known.at);
  }
}

function next(last: Entry, { count, age }: Bounds): Entry {
  const week = thisWeek();
  const total = last.total + 1;
  const weeks = last.weeks.filter(([past]) => past >= week - WEEKS);
  if (!weeks.some(([past]) => past === week)) weeks.push([week, last.total]);
  return {
    total,
    gone: count === undefined ? last.gone : Math.max(last.gone, total - count),
    before: age === undefined ? last.before : Math.max(last.before, Date.now() - age * 1000),
    weeks,
  };
}
