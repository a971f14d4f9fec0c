/**
 * A log that goes on for longer than the broker remembers its numbers: a new one begins every week.
 */

import type { Entry, Logs } from "./log.js";

const WEEK_MS = 7 * 86_400_000;

/** Where an entry is. */
export interface Place {
  /** Weeks since 1970. */
  week: number;
  /** From 1; 0: the log of this week is empty. */
  number: number;
}

/** The last entry of a log, which each new one replaces. */
export class WeeklyLog<T extends object> {
  /** Undefined before the first one. */
  entry: T | undefined;
  place: Place = { week: 0, number: 0 };
  private turn: Promise<unknown> = Promise.resolve();

  constructor(
    private readonly logs: Logs,
    private readonly name: string,
    /** How many weeks before this one may hold the last entry, three at most. */
    private readonly weeks: number,
  ) {}

  /** Read the last entry; whether it was another one than the one known. */
  async refresh(): Promise<boolean> {
    const week = thisWeek();
    const number = await this.logs.last(this.nameOf(week));
    if (week === this.place.week && number === this.place.number) return false;
    this.entry = number
      ? await this.read({ week, number })
      : await this.before(week);
    this.place = { week, number };
    return true;
  }

  /** Write the next entry; false, and the last one is read, if another process was faster. */
  async write(entry: T): Promise<boolean> {
    const week = thisWeek();
    if (this.place.week !== week && (await this.refresh())) return false;
    const number = this.place.number + 1;
    if (await this.logs.write(this.nameOf(week), number, entry as Entry)) {
      this.place = { week, number };
      this.entry = entry;
      return true;
    }
    await this.refresh();
    return false;
  }

  /** One call after the other: concurrent ones of a process would want the same number. */
  inTurn<R>(call: () => Promise<R>): Promise<R> {
    const done = this.turn.then(call);
    this.turn = done.catch(() => undefined);
    return done;
  }

  /** When the broker stored an entry, in milliseconds since 1970; 0 if it has forgotten it. */
  storedAt({ week, number }: Place): Promise<number> {
    return this.logs.storedAt(this.nameOf(week), number);
  }

  private async before(week: number): Promise<T | undefined> {
    const past = Array.from({ length: this.weeks }, (_, index) => week - 1 - index);
    const numbers = await Promise.all(past.map((one) => this.logs.last(this.nameOf(one))));
    const newest = numbers.findIndex((number) => number > 0);
    if (newest < 0) return undefined;
    return this.read({ week: past[newest] as number, number: numbers[newest] as number });
  }

  private async read({ week, number }: Place): Promise<T | undefined> {
    return (await this.logs.read(this.nameOf(week), number)) as T | undefined;
  }

  private nameOf(week: number): string {
    return `${this.name}:${week}`;
  }
}

/** Weeks since 1970. */
export function thisWeek(): number {
  return Math.floor(Date.now() / WEEK_MS);
}
