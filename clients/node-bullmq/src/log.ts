/**
 * Numbered entries in a channel, of which each number is written once.
 *
 * The idempotency key of a message holds the name of the log and the number. The broker stores one
 * message for a key, so two writers that both want number 7 cannot both have it: this is the
 * compare-and-set with which many workers change the state of one job.
 */

import { randomUUID } from "node:crypto";

import { Conflict, type Hookstation, type Resource } from "hookstation-client";

/** Seconds after which nobody is given an entry as an event any more. */
const EVENT_LIFE_S = 3_600;
/** Names whose last number is remembered. */
const REMEMBERED = 10_000;
const CONFLICT = "idempotency_conflict";

/** What an entry holds. */
export type Entry = Record<string, unknown>;

/** All logs of a channel. */
export class Logs {
  private readonly tails = new Map<string, number>();

  constructor(
    private readonly hooks: Hookstation,
    readonly channel: string,
  ) {}

  /** Write number `number`; false if another writer has it. */
  async write(log: string, number: number, entry: Entry, eventType?: string): Promise<boolean> {
    try {
      await this.publish(entry, `${log}:${number}`, eventType);
    } catch (error) {
      if (error instanceof Conflict && error.code === CONFLICT) return false;
      throw error;
    }
    this.remember(log, number);
    return true;
  }

  /** Write after the last number; returns the number that it got. */
  async append(log: string, entry: Entry, eventType?: string): Promise<number> {
    let number = (this.tails.get(log) ?? 0) + 1;
    while (!(await this.write(log, number, entry, eventType))) number = (await this.last(log)) + 1;
    return number;
  }

  /** Publish without a number. */
  async publish(entry: Entry, key?: string, eventType?: string): Promise<void> {
    const expiresAt = new Date(Date.now() + EVENT_LIFE_S * 1000);
    // What differs between two writers, and not between the repeats of one of them.
    const body = { ...entry, nonce: randomUUID() };
    await this.hooks.publish(this.channel, body, { id: key, eventType, expiresAt });
  }

  /** Read an entry. */
  async read(log: string, number: number): Promise<Entry | undefined> {
    const found = await this.find(log, number);
    if (!found) return undefined;
    return JSON.parse((await this.hooks.body(found.id)).toString()) as Entry;
  }

  /** When the broker stored an entry, in milliseconds since 1970; 0 if it does not know it. */
  async storedAt(log: string, number: number): Promise<number> {
    const found = await this.find(log, number);
    return found ? Date.parse(found.accepted_at) : 0;
  }

  /** The last number; 0 if there is none. Takes a logarithmic number of look-ups. */
  async last(log: string): Promise<number> {
    let low = this.tails.get(log) ?? 0;
    let step = 1;
    while ((await this.find(log, low + step)) !== undefined) {
      low += step;
      step *= 2;
    }
    let high = low + step;
    while (high - low > 1) {
      const middle = Math.floor((low + high) / 2);
      if ((await this.find(log, middle)) === undefined) high = middle;
      else low = middle;
    }
    if (low) this.remember(log, low);
    return low;
  }

  private async find(log: string, number: number): Promise<Resource | undefined> {
    const found = this.hooks.messages(this.channel, { id: `${log}:${number}` });
    for await (const message of found) return message;
    return undefined;
  }

  private remember(log: string, number: number): void {
    this.tails.delete(log);
    this.tails.set(log, number);
    if (this.tails.size <= REMEMBERED) return;
    const [oldest] = this.tails.keys();
    if (oldest !== undefined) this.tails.delete(oldest);
  }
}
