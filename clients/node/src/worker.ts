/** A worker of a pull consumer: receive, call a handler, extend leases, settle. */

import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

import { type Hookstation, MAX_LEASES } from "./client.js";
import type { Delivery, NackOptions } from "./delivery.js";
import {
  ConnectionFailed,
  RateLimited,
  Reject,
  Retry,
  Unavailable,
} from "./errors.js";
import type { Logger } from "./logging.js";

const CONCURRENCY = 8;
const LEASE_S = 30;
const WAIT_S = 5;
const SHUTDOWN_TIMEOUT_S = 30;
/** Maximum length in characters. */
const MAX_WORKER_ID = 64;
/** Pause after a receive call whose retries failed. */
const AFTER_FAILURE_S = 2;
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

/** Called for each message. */
export type Handler = (delivery: Delivery) => unknown;

/**
 * Runs `handler(delivery)` for each message of a pull consumer.
 *
 * When the handler returns, or the promise that it returned resolves, the worker acknowledges the
 * message. After `Retry` it is delivered again after that time; after `Reject` it is a dead letter
 * at once; any other error is a failed attempt. A handler that blocks the event loop for longer
 * than a lease loses the lease.
 */
export class Worker {
  /** The id of this worker at the broker. */
  readonly workerId: string;
  private readonly options: Required<Omit<WorkerOptions, "workerId">>;
  private readonly held = new Map<string, Delivery>();
  private readonly running = new Set<Promise<void>>();
  private readonly stopping = new AbortController();
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
      while (!this.stopping.signal.aborted) await this.receive();
    } finally {
      await this.finish();
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
      if (received.length) await this.settle(() => this.hooks.release(received));
      return;
    }
    for (const delivery of received) {
      this.held.set(delivery.lease, delivery);
      const handling = this.handle(delivery).finally(() => {
        this.running.delete(handling);
        this.wake();
      });
      this.running.add(handling);
    }
  }

  private async handle(delivery: Delivery): Promise<void> {
    let settle = (): Promise<unknown> => delivery.ack();
    try {
      await this.handler(delivery);
    } catch (error) {
      const refused = this.refusal(delivery, error);
      settle = () => delivery.nack(refused);
    }
    this.held.delete(delivery.lease);
    await this.settle(settle);
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

  private async settle(call: () => Promise<unknown>): Promise<void> {
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
        const { failed } = await this.hooks.extend(some, this.options.lease);
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
