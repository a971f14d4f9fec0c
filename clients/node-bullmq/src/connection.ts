/** The broker that a queue's `connection` names. */

import { setTimeout as sleep } from "node:timers/promises";

import { Hookstation } from "hookstation-client";

/** Requests of one process to one broker at a time, beside those that wait for jobs. */
const REQUESTS = 32;
/** Seconds until an answer; the broker may hold one back as long as a long poll lasts. */
const TIMEOUT_S = 60;

/** How to reach the broker; `HOOKSTATION_URL` and `HOOKSTATION_KEY` unless given. */
export interface BrokerOptions {
  /** Its address, or several of one broker. */
  url?: string | readonly string[];
  /** The API key, with the scopes that docs/clients/bullmq.md lists. */
  key?: string;
}

/** What makes requests: the same one for all queues of a process that use the same broker. */
export class Connection {
  readonly hooks: Hookstation;
  private readonly options: BrokerOptions;
  private free = REQUESTS;
  private readonly queue: (() => void)[] = [];

  constructor(options: BrokerOptions) {
    this.options = options;
    this.hooks = new Hookstation(options.url, {
      key: options.key,
      timeout: TIMEOUT_S,
      fetch: (...request) => this.inTurn(() => fetch(...request)),
    });
  }

  /** A client for long polls, which `signal` breaks off. It repeats nothing. */
  poller(signal: () => AbortSignal): Hookstation {
    return new Hookstation(this.options.url, {
      key: this.options.key,
      timeout: TIMEOUT_S,
      retries: 0,
      fetch: async (input, init) => {
        const abort = new AbortController();
        const stop = (): void => abort.abort();
        const signals = [signal(), init?.signal].filter((one) => one instanceof AbortSignal);
        if (signals.some(({ aborted }) => aborted)) stop();
        for (const one of signals) one.addEventListener("abort", stop);
        try {
          return await fetch(input, { ...init, signal: abort.signal });
        } finally {
          for (const one of signals) one.removeEventListener("abort", stop);
        }
      },
    });
  }

  private async inTurn<T>(call: () => Promise<T>): Promise<T> {
    if (this.free > 0) this.free -= 1;
    else await new Promise<void>((resolve) => this.queue.push(resolve));
    try {
      return await call();
    } finally {
      const next = this.queue.shift();
      if (next) next();
      else this.free += 1;
    }
  }
}

const known = new Map<string, Connection>();

/** The connection of these options. */
export function connect(options: BrokerOptions): Connection {
  const name = JSON.stringify([options.url ?? process.env.HOOKSTATION_URL, options.key]);
  const connection = known.get(name) ?? new Connection(options);
  known.set(name, connection);
  return connection;
}

/**
 * The options that a program gives as `connection`: an address, or an object with `url` and `key`.
 *
 * Anything else is a connection to Redis, which is not used.
 */
export function optionsOf(connection: unknown): BrokerOptions {
  if (typeof connection === "string" && /^https?:/.test(connection)) return { url: connection };
  if (typeof connection !== "object" || connection === null) return {};
  const { url, key } = connection as Record<string, unknown>;
  const isAddress = (one: unknown): boolean => typeof one === "string" && /^https?:/.test(one);
  const isOurs = isAddress(url) || (Array.isArray(url) && url.every(isAddress));
  return {
    ...(isOurs ? { url: url as string } : {}),
    ...(typeof key === "string" ? { key } : {}),
  };
}

/** Wait, or until the signal; never rejects. */
export async function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  await sleep(milliseconds, undefined, { signal }).catch(() => undefined);
}
