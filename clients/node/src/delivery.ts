/** A received message, with methods that settle it. */

import type { Hookstation } from "./client.js";
import { LeaseLost } from "./errors.js";
import type { ReceivedMessage, Settled } from "./models.js";

/** The fields of a received message. */
export interface Delivery extends ReceivedMessage {}

/** A message that a pull consumer received. Settle it with `ack`, `nack` or `release`. */
// The fields are those of `ReceivedMessage`, which the constructor copies.
export class Delivery {
  readonly #client: Hookstation;

  constructor(client: Hookstation, received: ReceivedMessage) {
    this.#client = client;
    Object.assign(this, received);
  }

  /** Parse the body as JSON. */
  // The caller knows the type of the body.
  json<T = any>(): T {
    return JSON.parse(this.body.toString()) as T;
  }

  /** Return the body as text. */
  text(): string {
    return this.body.toString();
  }

  /** Acknowledge the message: it is delivered. Throws `LeaseLost` if the lease has ended. */
  async ack(): Promise<void> {
    this.check(await this.#client.ack(this.lease));
  }

  /** Report a failed attempt, see `Hookstation.nack`. */
  async nack(options: NackOptions = {}): Promise<void> {
    this.check(await this.#client.nack(this.lease, options));
  }

  /** Make the lease end `lease` seconds from now. */
  async extend(lease: number): Promise<void> {
    this.check(await this.#client.extend(this.lease, lease));
  }

  /** Return the message without counting a failure, due at once or after `delay` seconds. */
  async release(options: ReleaseOptions = {}): Promise<void> {
    this.check(await this.#client.release(this.lease, options));
  }

  private check(settled: Settled): void {
    const [code] = Object.values(settled.failed);
    if (code) throw new LeaseLost(`The lease of ${this.id} is lost.`, { code, status: 200 });
  }
}

/** Options of `nack`. */
export interface NackOptions {
  /** Seconds until the retry, a whole number; by default the consumer's retry policy sets it. */
  delay?: number;
  /** Shown to people; the first 300 characters are kept. */
  error?: string;
  /** Whether the delivery is dead at once. */
  final?: boolean;
}

/** Options of `release`. */
export interface ReleaseOptions {
  /** Seconds until the message is due again, a whole number; by default 0. */
  delay?: number;
}
