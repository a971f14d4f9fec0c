/** Receive a pull consumer's messages over one gRPC stream, and settle them on it. */

import { NO_RESPONSE, NOT_SENT } from "./calls.js";
import { type Hookstation, type Lease, lineOf, namesOf } from "./client.js";
import { Delivery, type NackOptions, type ReleaseOptions } from "./delivery.js";
import { ConnectionFailed, type HookstationError } from "./errors.js";
import {
  type Action,
  type Call,
  receive,
  type ReceiveResponse,
  type Settlement,
  type StreamedDelivery,
  type Timestamp,
} from "./grpc.js";
import type { ReceivedMessage, Settled } from "./models.js";

/** Most credits that the broker has for a stream at a time. */
export const MAX_CREDITS = 10_000;
/** Leases of one settlement. */
const MAX_LEASES = 1_000;
/** Settlements of one request. */
const MAX_SETTLEMENTS = 1_000;
/** Seconds for the broker to accept a stream. */
const OPEN_TIMEOUT_S = 10;
/** Seconds for the broker to confirm the last settlements, and then to end the stream. */
const CLOSE_TIMEOUT_S = 5;

/** Options of `Stream.open`. */
export interface StreamOptions {
  /** How many messages the broker may send before `grant` is called; by default 0. */
  credits?: number;
  /** Seconds until another worker may receive a message; by default 30. */
  lease?: number;
  workerId?: string;
  /** `sticky`: messages of an ordering key go to the same worker. */
  keys?: "sticky";
  /** Whether to first receive the messages that this `workerId` has already leased. */
  resume?: boolean;
  /** Whether the broker acknowledges each message before it sends it. */
  autoAck?: boolean;
}

/** Settlements that are alike travel as one. */
interface Pending {
  action: Action;
  leases: string[];
  options: Pick<Settlement, "delayS" | "error" | "final" | "leaseS">;
  calls: SettleCall[];
}

interface SettleCall {
  leases: string[];
  resolve(settled: Settled): void;
  reject(error: HookstationError): void;
}

/**
 * One stream of the broker's gRPC server. `Worker` uses it; use it yourself to control each credit.
 *
 * Iterate over the messages that it receives. The iteration ends when the broker sends no more
 * messages, because the stream is closed or the broker stops, and throws if the stream breaks.
 * Messages that are not settled by then may be settled by the methods of `Hookstation`. A
 * settlement that the broker did not confirm rejects.
 */
export class Stream {
  private call!: Call;
  private isOpen = false;
  private isStopping = false;
  private isEnded = false;
  private failure: HookstationError | undefined;
  private readonly received: Delivery[] = [];
  private credits = 0;
  private readonly outgoing: Pending[] = [];
  /** What was sent and not confirmed, by the number of the settlement. */
  private readonly unconfirmed = new Map<number, Pending>();
  private readonly settling = new Set<Promise<Settled>>();
  private lastId = 0;
  private willFlush = false;
  /** Whether the connection takes no more requests now. */
  private isFull = false;
  /** Whether this side is closed. */
  private isClosed = false;
  private closing: Promise<void> | undefined;
  /** Called after each change. */
  private readonly waiting = new Set<() => void>();

  private constructor(private readonly hooks: Hookstation) {}

  /**
   * Begin to receive, at the address `grpc` of the client. Returns when the broker has accepted it.
   *
   * Rejects with the broker's refusal, with `ConnectionFailed`, or with an `Error` if
   * `@grpc/grpc-js` or `@grpc/proto-loader` is not installed.
   */
  static async open(
    hooks: Hookstation,
    channel: string,
    consumer: string,
    options: StreamOptions = {},
  ): Promise<Stream> {
    const stream = new Stream(hooks);
    const { credits = 0, lease: leaseS, keys, ...rest } = options;
    const subscription = { channel, consumer, leaseS, sticky: keys === "sticky", ...rest };
    stream.call = receive(hooks.grpc, hooks.key, { subscription, credits }, {
      onResponse: (response) => stream.take(response),
      onDrain: () => {
        stream.isFull = false;
        stream.flush();
      },
      onEnd: (error) => stream.end(error),
    });
    if (!(await stream.until(() => stream.isOpen || stream.isEnded, OPEN_TIMEOUT_S))) {
      stream.call.cancel();
      const said = `gRPC: no response within ${OPEN_TIMEOUT_S} s`;
      throw new ConnectionFailed(said, { code: NO_RESPONSE });
    }
    if (!stream.isOpen) throw stream.failure ?? notConfirmed();
    return stream;
  }

  /** Return the next message; `done` if no more come. Throws if the stream broke. */
  async next(): Promise<IteratorResult<Delivery, undefined>> {
    while (!(this.received.length || this.isStopping || this.isEnded)) {
      await this.until(() => this.received.length > 0 || this.isStopping || this.isEnded);
    }
    const value = this.received.shift();
    if (value !== undefined) return { done: false, value };
    if (this.failure !== undefined) throw this.failure;
    return { done: true, value: undefined };
  }

  /** Iterate over the messages. Leaving the loop does not close the stream. */
  [Symbol.asyncIterator](): AsyncIterator<Delivery, undefined> {
    return { next: () => this.next() };
  }

  /** Let the broker send that many more messages. */
  grant(credits: number): void {
    this.credits += credits;
    this.flushSoon();
  }

  /** Acknowledge up to 1,000 messages. Returns when the broker has stored it. */
  ack(leases: Lease | Iterable<Lease>): Promise<Settled> {
    return this.settle("ACK", leases, {});
  }

  /** Report failed attempts, see `Hookstation.nack`. */
  nack(leases: Lease | Iterable<Lease>, options: NackOptions = {}): Promise<Settled> {
    const { delay: delayS, error, final } = options;
    return this.settle("NACK", leases, { delayS, error: error && lineOf(error), final });
  }

  /** Make leases end `lease` seconds from now. */
  extend(leases: Lease | Iterable<Lease>, lease: number): Promise<Settled> {
    return this.settle("EXTEND", leases, { leaseS: lease });
  }

  /** Return messages without counting a failure, due at once or after `delay` seconds. */
  release(leases: Lease | Iterable<Lease>, options: ReleaseOptions = {}): Promise<Settled> {
    return this.settle("RELEASE", leases, { delayS: options.delay });
  }

  /**
   * Close the stream. Returns when it has ended, which takes at most ten seconds.
   *
   * The broker settles what was settled before. Messages that were received and not settled stay
   * leased. Messages that were on their way can still be received.
   */
  close(): Promise<void> {
    this.closing ??= this.finish();
    return this.closing;
  }

  private async finish(): Promise<void> {
    // First, because a stream may end before its last results are read.
    let isSettled = false;
    void Promise.allSettled(this.settling).then(() => {
      isSettled = true;
      this.changed();
    });
    await this.until(() => isSettled || this.isEnded, CLOSE_TIMEOUT_S);
    this.flush();
    this.isClosed = true;
    this.call.end();
    if (!(await this.until(() => this.isEnded, CLOSE_TIMEOUT_S))) {
      this.call.cancel();
      await this.until(() => this.isEnded);
    }
  }

  private async settle(
    action: Action,
    leases: Lease | Iterable<Lease>,
    options: Pending["options"],
  ): Promise<Settled> {
    const names = namesOf(leases, MAX_LEASES);
    if (this.isClosed || this.isEnded) {
      throw new ConnectionFailed("The stream is closed.", { code: NOT_SENT });
    }
    const settled = new Promise<Settled>((resolve, reject) => {
      const call = { leases: names, resolve, reject };
      const last = this.outgoing.at(-1);
      if (last && isAlike(last, action, options) && last.leases.length + names.length <= MAX_LEASES) {
        last.leases.push(...names);
        last.calls.push(call);
      } else {
        this.outgoing.push({ action, options, leases: [...names], calls: [call] });
      }
    });
    this.settling.add(settled);
    this.flushSoon();
    try {
      return await settled;
    } finally {
      this.settling.delete(settled);
    }
  }

  /** Send together what is said until the event loop turns. */
  private flushSoon(): void {
    if (this.willFlush) return;
    this.willFlush = true;
    setImmediate(() => {
      this.willFlush = false;
      this.flush();
    });
  }

  private flush(): void {
    while (this.credits || this.outgoing.length) {
      if (this.isFull || this.isClosed || this.isEnded) return;
      const settlements = this.outgoing.splice(0, MAX_SETTLEMENTS).map((pending) => {
        const id = (this.lastId += 1);
        this.unconfirmed.set(id, pending);
        return { id, action: pending.action, leases: pending.leases, ...pending.options };
      });
      this.isFull = !this.call.write({ credits: this.credits, settlements });
      this.credits = 0;
    }
  }

  private take({ deliveries, results, stopping }: ReceiveResponse): void {
    this.isOpen = true;
    for (const one of deliveries) this.received.push(new Delivery(this.hooks, receivedOf(one)));
    for (const { id, failed } of results) this.confirm(id, failed);
    this.isStopping ||= stopping;
    this.changed();
  }

  private confirm(id: number, failures: ReceiveResponse["results"][number]["failed"]): void {
    const reasons = new Map(failures.map(({ lease, error }) => [lease, error]));
    for (const { leases, resolve } of this.unconfirmed.get(id)?.calls ?? []) {
      const failed = leases.filter((lease) => reasons.has(lease));
      resolve({
        done: leases.filter((lease) => !reasons.has(lease)),
        failed: Object.fromEntries(failed.map((lease) => [lease, reasons.get(lease)!])),
      });
    }
    this.unconfirmed.delete(id);
  }

  private end(error: HookstationError | undefined): void {
    this.isEnded = true;
    this.failure = error;
    const reason = error ?? notConfirmed();
    for (const { calls } of [...this.unconfirmed.values(), ...this.outgoing]) {
      for (const { reject } of calls) reject(reason);
    }
    this.unconfirmed.clear();
    this.outgoing.length = 0;
    this.changed();
  }

  private changed(): void {
    for (const check of [...this.waiting]) check();
  }

  /** Wait until something is so; false after this many seconds. */
  private async until(isSo: () => boolean, seconds?: number): Promise<boolean> {
    if (isSo()) return true;
    return new Promise((resolve) => {
      const end = (result: boolean): void => {
        clearTimeout(timer);
        this.waiting.delete(check);
        resolve(result);
      };
      const check = (): void => {
        if (isSo()) end(true);
      };
      const timer = seconds && setTimeout(() => end(false), seconds * 1000);
      this.waiting.add(check);
    });
  }
}

function isAlike(
  { action, options }: Pending,
  otherAction: Action,
  other: Pending["options"],
): boolean {
  return (
    action === otherAction &&
    options.delayS === other.delayS &&
    options.error === other.error &&
    options.final === other.final &&
    options.leaseS === other.leaseS
  );
}

function notConfirmed(): ConnectionFailed {
  const said = "The stream ended before the broker confirmed everything.";
  return new ConnectionFailed(said, { code: NO_RESPONSE });
}

function receivedOf(found: StreamedDelivery): ReceivedMessage {
  const { leaseExpiresAt, acceptedAt, replay, ...fields } = found;
  return {
    ...fields,
    leaseExpiresAt: leaseExpiresAt ? dateOf(leaseExpiresAt) : undefined,
    acceptedAt: acceptedAt ? dateOf(acceptedAt) : undefined,
    isReplay: replay,
  };
}

function dateOf({ seconds, nanos }: Timestamp): Date {
  return new Date(seconds * 1000 + Math.floor(nanos / 1_000_000));
}
