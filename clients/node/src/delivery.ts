/** A received message together with the client that settles it. */

import type { Hookstation } from "./client.js";
import { LeaseLost } from "./errors.js";
import type { ReceivedMessage, Settled } from "./models.js";

/** The fields of a received message. */
export interface Delivery extends ReceivedMessage {}

/** A message that a pull consumer has received. Settle it: `ack`, `nack` or `release`. */
// The fields are those of `ReceivedMessage`, which the constructor copies.
export class Delivery {
  readonly #client: Hookstation;

  constructor(client: Hookstation, received: ReceivedMessage) {
    this.#client = client;
    Object.assign(this, received);
  }

  /** The body, read as JSON. */
  // Whoever calls it knows the type of the body.
  json<T = any>(): T {
    return JSON.parse(this.body.toString()) as T;
  }

  /** The body as text. */
  text(): string {
    return this.body.toString();
  }

  /** Acknowledge it: it is delivered. Throws `LeaseLost` when the lease ended before. */
  async ack(): Promise<void> {
    this.check(await this.#client.ack(this.lease));
  }

  /** Report a failed attempt, as `Hookstation.nack`. */
  async nack(options: NackOptions = {}): Promise<void> {
    this.check(await this.#client.nack(this.lease, options));
  }

  /** Let the lease end `lease` seconds from now. */
  async extend(lease: number): Promise<void> {
    this.check(await this.#client.extend(this.lease, lease));
  }

  /** Give it back, to come again at once or after `delay` seconds, uncharged. */
  async release(options: ReleaseOptions = {}): Promise<void> {
    this.check(await this.#client.release(this.lease, options));
  }

  private check(settled: Settled): void {
    const [code] = Object.values(settled.failed);
    if (code) throw new LeaseLost(`The lease of ${this.id} is lost.`, { code, status: 200 });
  }
}

/** What `nack` takes. */
export interface NackOptions {
  /** Whole seconds; without it the consumer's retry policy decides. */
  delay?: number;
  /** For people; 300 characters are kept. */
  error?: string;
  /** Whether it is dead at once. */
  final?: boolean;
}

/** What `release` takes. */
export interface ReleaseOptions {
  /** Whole seconds; at once unless given. */
  delay?: number;
}
