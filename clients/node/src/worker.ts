/** A worker of a pull consumer: receives, calls a handler, settles; extends leases meanwhile. */

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
/** Characters that the broker allows. */
const MAX_WORKER_ID = 64;
/** Pause after a call that failed in spite of its repeats. */
const AFTER_FAILURE_S = 2;
const SIGNALS = ["SIGTERM", "SIGINT"] as const;

/** How a worker works. */
export interface WorkerOptions {
  /** Messages that are handled at a time; 8 unless given. */
  concurrency?: number;
  /** Seconds of a lease, extended as long as the handler runs; 30 unless given. */
  lease?: number;
  /** Seconds that one call waits for messages; 5 unless given. `stop` takes as long. */
  wait?: number;
  /** Seconds to wait at the end for handlers that run; 30 unless given. */
  shutdownTimeout?: number;
  /** Names the worker in console and API; host and process id unless given. */
  workerId?: string;
  /** Whether to begin with what a former worker of this `workerId` held when it died. */
  resume?: boolean;
  /** Whether messages of an ordering key go to the same worker. */
  sticky?: boolean;
  /** Whether SIGTERM and SIGINT stop the worker; true unless given. */
  handleSignals?: boolean;
  /** Where failures are reported; `console` unless given. */
  logger?: Logger;
}

/** Called for each message. */
export type Handler = (delivery: Delivery) => unknown;

/**
 * Runs `handler(delivery)` for each message of a pull consumer.
 *
 * When the handler returns, or what it returned resolves, the message is acknowledged. `Retry` lets
 * it come again after its time, `Reject` makes it a dead letter at once, any other error is a
 * failed attempt. A handler that blocks the event loop for longer than a lease loses it.
 */
export class Worker {
  /** The name by which the broker knows this worker. */
  readonly workerId: string;
  private readonly options: Required<Omit<WorkerOptions, "workerId">>;
  private readonly held = new Map<string, Delivery>();
  private readonly running = new Set<Promise<void>>();
  private readonly stopping = new AbortController();
  /** Ends the wait of a worker that is full. */
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
   * Work until `stop`, SIGTERM or SIGINT. Rejects with an error that does not end by itself.
   *
   * At the end it receives no more, and waits for the handlers that run. The messages of those that
   * do not end in time come back when their leases end. A second signal acts as if there were no
   * worker.
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

  /** Receive no more; `run` ends when the handlers have ended. */
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
      // Whatever it is: the message comes again, and the worker goes on.
      this.options.logger.warn(`cannot settle, the message comes again: ${error}`);
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

  /** Stop at the first signal; a second one does what it does without a worker. */
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
      // The worker is told to end.
    }
  }
}

/** Whether an error ends by itself; any other ends the worker. */
function isPassing(error: unknown): boolean {
  return (
    error instanceof ConnectionFailed ||
    error instanceof RateLimited ||
    error instanceof Unavailable
  );
}
