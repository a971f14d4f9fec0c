/** A worker of a pull consumer: receive, call a handler, extend leases, settle. */

import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

import { type Hookstation, MAX_LEASES } from "./client.js";
import type { Delivery, NackOptions, ReleaseOptions } from "./delivery.js";
import {
  ConnectionFailed,
  RateLimited,
  Reject,
  Retry,
  Unavailable,
} from "./errors.js";
import { loadLibrary } from "./grpc.js";
import type { Logger } from "./logging.js";
import type { Settled } from "./models.js";
import { MAX_CREDITS, Stream } from "./stream.js";

const CONCURRENCY = 8;
const LEASE_S = 30;
const WAIT_S = 5;
const SHUTDOWN_TIMEOUT_S = 30;
/** Maximum length in characters. */
const MAX_WORKER_ID = 64;
/** Pause after a receive call whose retries failed. */
const AFTER_FAILURE_S = 2;
/** Seconds for which a worker uses the REST API after its stream has ended. */
const STREAM_RETRY_S = 10;
const SIGNALS = ["SIGTERM", "SIGINT"] as const;

/** Options of a worker. */
export interface WorkerOptions {
  /** Maximum number of messages at a time; by default 8. */
  concurrency?: number;
  /** Duration of a lease in seconds, extended while the handler runs; by default 30. */
  lease?: number;
  /** Seconds for which one call waits for messages; by default 5. Stopping may take as long. */
  wait?: number;
  /** Seconds to wait for running handlers when it stops; by default 30. */
  shutdownTimeout?: number;
  /** Identifies the worker in console and API; by default host and process id. */
  workerId?: string;
  /** Whether to first receive the messages that a killed worker with this `workerId` had leased. */
  resume?: boolean;
  /** Whether messages of an ordering key go to the same worker. */
  sticky?: boolean;
  /** Whether SIGTERM and SIGINT stop the worker; by default true. */
  handleSignals?: boolean;
  /** The logger; by default `console`. */
  logger?: Logger;
}

/** What a worker does with a message that it has received. */
interface Settlement {
  action: "ack" | "nack" | "release";
  options: NackOptions & ReleaseOptions;
}

const ACK: Settlement = { action: "ack", options: {} };

/** Called for each message. */
export type Handler = (delivery: Delivery) => unknown;

/**
 * Runs `handler(delivery)` for each message of a pull consumer.
 *
 * When the handler returns, or the promise that it returned resolves, the worker acknowledges the
 * message. After `Retry` it is delivered again after that time; after `Reject` it is a dead letter
 * at once; any other error is a failed attempt. A handler that blocks the event loop for longer
 * than a lease loses the lease.
 *
 * If the client has the address of a gRPC server, and the gRPC libraries are installed, the worker
 * receives and settles messages over one stream. While it cannot reach that server, it uses the
 * REST API.
 */
export class Worker {
  /** The id of this worker at the broker. */
  readonly workerId: string;
  private readonly options: Required<Omit<WorkerOptions, "workerId">>;
  private readonly held = new Map<string, Delivery>();
  private readonly running = new Set<Promise<void>>();
  private readonly stopping = new AbortController();
  private stream: Stream | undefined;
  /** Reads the stream; resolves with the error that ended it. */
  private reading: Promise<unknown> = Promise.resolve();
  /** How many messages the broker may still send on the stream. */
  private credits = 0;
  /** When a stream may be opened, by `performance.now()`. */
  private streamAt = 0;
  /** Settlements that the stream has not confirmed yet. */
  private readonly settling = new Set<Promise<void>>();
  /** Settlements that the stream did not confirm before it ended, and their leases. */
  private readonly unconfirmed = new Map<string, Settlement & { leases: string[] }>();
  /** Wakes a worker that waits for a free place. */
  private wake = (): void => undefined;

  constructor(
    private readonly hooks: Hookstation,
    readonly channel: string,
    readonly consumer: string,
    private readonly handler: Handler,
    { workerId, ...options }: WorkerOptions = {},
  ) {
    this.workerId = workerId ?? `${hostname()}-${process.pid}`.slice(-MAX_WORKER_ID);
    this.options = {
      concurrency: options.concurrency ?? CONCURRENCY,
      lease: options.lease ?? LEASE_S,
      wait: options.wait ?? WAIT_S,
      shutdownTimeout: options.shutdownTimeout ?? SHUTDOWN_TIMEOUT_S,
      resume: options.resume ?? false,
      sticky: options.sticky ?? false,
      handleSignals: options.handleSignals ?? true,
      logger: options.logger ?? console,
    };
  }

  /**
   * Run until `stop`, SIGTERM or SIGINT. Rejects with an error that is not temporary.
   *
   * Then it receives no more, and waits for running handlers. Messages of handlers that do not end
   * in time are delivered again when their leases end. A second signal has its default effect.
   */
  async run(): Promise<void> {
    const restore = this.options.handleSignals ? this.listen() : () => undefined;
    const heartbeat = setInterval(() => void this.extendLeases(), (this.options.lease / 3) * 1000);
    try {
      const hasStreams = this.hasStreams();
      while (!this.stopping.signal.aborted) {
        const isDue = hasStreams && performance.now() >= this.streamAt;
        await (isDue ? this.receiveStream() : this.receive());
      }
    } finally {
      await this.finish();
      await this.endStream();
      clearInterval(heartbeat);
      restore();
    }
  }

  /** Stop receiving; `run` ends when the handlers have ended. */
  stop(): void {
    this.stopping.abort();
    this.wake();
  }

  private async receive(): Promise<void> {
    const free = this.options.concurrency - this.running.size;
    if (free <= 0) {
      await new Promise<void>((resolve) => (this.wake = resolve));
      return;
    }
    const { wait, lease, resume, sticky, logger } = this.options;
    let received: Delivery[];
    try {
      received = await this.hooks.receiveBatch(this.channel, this.consumer, {
        max: Math.min(free, MAX_LEASES),
        wait,
        lease,
        workerId: this.workerId,
        resume,
        keys: sticky ? "sticky" : undefined,
      });
      this.options.resume = false;
    } catch (error) {
      if (!isPassing(error)) throw error;
      logger.warn(`cannot receive: ${error}`);
      await this.pause(AFTER_FAILURE_S);
      return;
    }
    if (this.stopping.signal.aborted) {
      if (received.length) await this.say(() => this.hooks.release(received));
      return;
    }
    for (const delivery of received) this.start(delivery);
  }

  private hasStreams(): boolean {
    if (!this.hooks.grpc) return false;
    try {
      loadLibrary();
      return true;
    } catch (error) {
      this.options.logger.warn(`using the REST API: ${error}`);
      return false;
    }
  }

  /** Receive over a stream until it ends, the broker stops or this worker does. */
  private async receiveStream(): Promise<void> {
    const { lease, resume, sticky } = this.options;
    const credits = this.free();
    let stream: Stream;
    try {
      stream = await Stream.open(this.hooks, this.channel, this.consumer, {
        credits,
        lease,
        workerId: this.workerId,
        resume,
        keys: sticky ? "sticky" : undefined,
      });
    } catch (error) {
      if (!isPassing(error)) throw error;
      this.leaveStream(error);
      return;
    }
    this.options.resume = false;
    this.stream = stream;
    this.credits = credits;
    this.grant();
    this.reading = this.read(stream);
    const stopped = new Promise<void>((resolve) => (this.wake = resolve));
    if (!this.stopping.signal.aborted) await Promise.race([this.reading, stopped]);
    if (this.stopping.signal.aborted) return;
    await this.endStream();
    this.leaveStream(await this.reading);
  }

  private async read(stream: Stream): Promise<unknown> {
    try {
      for await (const delivery of stream) {
        this.credits -= 1;
        if (this.stopping.signal.aborted) void this.settle(delivery, { ...ACK, action: "release" });
        else this.start(delivery);
      }
      return undefined;
    } catch (error) {
      return error;
    }
  }

  /**
   * Use the REST API for a while. Its errors end the worker if they are not temporary; an open
   * stream also ends because of one invalid settlement, such as an overlong delay.
   */
  private leaveStream(error: unknown): void {
    this.streamAt = performance.now() + STREAM_RETRY_S * 1000;
    const why = error === undefined ? "the broker stops" : error;
    this.options.logger.warn(`the stream ended, using the REST API: ${why}`);
  }

  /** End the stream, and settle over the REST API what it has not settled. */
  private async endStream(): Promise<void> {
    await this.stream?.close();
    await this.reading;
    this.stream = undefined;
    await Promise.all(this.settling);
    const unconfirmed = [...this.unconfirmed.values()];
    this.unconfirmed.clear();
    for (const { action, options, leases } of unconfirmed) {
      for (let start = 0; start < leases.length; start += MAX_LEASES) {
        await this.say(() => this.hooks[action](leases.slice(start, start + MAX_LEASES), options));
      }
    }
  }

  /** Let the broker send as many messages as this worker can take. */
  private grant(): void {
    const more = this.free() - this.credits;
    if (!this.stream || this.stopping.signal.aborted || more <= 0) return;
    this.credits += more;
    this.stream.grant(more);
  }

  private free(): number {
    return Math.min(this.options.concurrency - this.running.size, MAX_CREDITS);
  }

  private start(delivery: Delivery): void {
    this.held.set(delivery.lease, delivery);
    const handling = this.handle(delivery).finally(() => {
      this.running.delete(handling);
      if (this.stream) this.grant();
      else this.wake();
    });
    this.running.add(handling);
  }

  private async handle(delivery: Delivery): Promise<void> {
    const settlement = await this.call(delivery);
    this.held.delete(delivery.lease);
    await this.settle(delivery, settlement);
  }

  private async call(delivery: Delivery): Promise<Settlement> {
    if (delivery.bodyUrl) {
      try {
        delivery.body = await this.hooks.body(delivery.id);
        delivery.bodyUrl = "";
      } catch (error) {
        this.options.logger.warn(`cannot get the body of ${delivery.id}: ${error}`);
        return { action: "release", options: { delay: AFTER_FAILURE_S } };
      }
    }
    try {
      await this.handler(delivery);
      return ACK;
    } catch (error) {
      return { action: "nack", options: this.refusal(delivery, error) };
    }
  }

  private refusal(delivery: Delivery, error: unknown): NackOptions {
    if (error instanceof Retry) return { delay: Math.ceil(error.after), error: error.message };
    if (error instanceof Reject) {
      this.options.logger.warn(`${delivery.id} is rejected: ${error.message}`);
      return { error: error.message, final: true };
    }
    this.options.logger.error(`the handler of ${delivery.id} failed:`, error);
    return { error: String(error) };
  }

  /** Settle a message. Over a stream, the broker's confirmation is not awaited. */
  private async settle(delivery: Delivery, settlement: Settlement): Promise<void> {
    const { action, options } = settlement;
    if (!this.stream) {
      await this.say(() => delivery[action](options));
      return;
    }
    const settling = this.stream[action](delivery, options).then(
      ({ failed }) => {
        const [reason] = Object.values(failed);
        if (reason) this.options.logger.warn(`the lease of ${delivery.id} is lost: ${reason}`);
      },
      () => {
        const key = JSON.stringify(settlement);
        const alike = this.unconfirmed.get(key) ?? { ...settlement, leases: [] };
        alike.leases.push(delivery.lease);
        this.unconfirmed.set(key, alike);
      },
    );
    this.settling.add(settling);
    void settling.then(() => this.settling.delete(settling));
  }

  private async say(call: () => Promise<unknown>): Promise<void> {
    try {
      await call();
    } catch (error) {
      // After any error the broker delivers the message again, and the worker continues.
      this.options.logger.warn(`cannot settle, the message will be delivered again: ${error}`);
    }
  }

  private async extendLeases(): Promise<void> {
    const leases = [...this.held.keys()];
    for (let start = 0; start < leases.length; start += MAX_LEASES) {
      try {
        const some = leases.slice(start, start + MAX_LEASES);
        const { failed } = await this.extend(some);
        for (const [lease, reason] of Object.entries(failed)) {
          const lost = this.held.get(lease);
          this.held.delete(lease);
          if (lost) this.options.logger.warn(`the lease of ${lost.id} is lost: ${reason}`);
        }
      } catch (error) {
        this.options.logger.warn(`cannot extend leases: ${error}`);
      }
    }
  }

  private async extend(leases: string[]): Promise<Settled> {
    const { stream } = this;
    if (stream) {
      try {
        return await stream.extend(leases, this.options.lease);
      } catch {
        // The stream has ended.
      }
    }
    return this.hooks.extend(leases, this.options.lease);
  }

  private async finish(): Promise<void> {
    const timeout = new AbortController();
    const late = sleep(this.options.shutdownTimeout * 1000, "late", { signal: timeout.signal });
    const done = Promise.all(this.running).then(() => "done");
    const result = await Promise.race([done, late]);
    if (result === "late") {
      this.options.logger.warn(`${this.running.size} handlers did not end in time`);
    }
    late.catch(() => undefined);
    timeout.abort();
  }

  /** Stop at the first signal; a second one has its default effect. */
  private listen(): () => void {
    const restore = (): void => {
      for (const name of SIGNALS) process.removeListener(name, stop);
    };
    const stop = (): void => {
      restore();
      this.stop();
    };
    for (const name of SIGNALS) process.on(name, stop);
    return restore;
  }

  private async pause(seconds: number): Promise<void> {
    try {
      await sleep(seconds * 1000, undefined, { signal: this.stopping.signal });
    } catch {
      // The worker is stopping.
    }
  }
}

/** Return whether an error is temporary; any other error ends the worker. */
function isPassing(error: unknown): boolean {
  return (
    error instanceof ConnectionFailed ||
    error instanceof RateLimited ||
    error instanceof Unavailable
  );
}
