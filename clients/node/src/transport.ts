/** Send calls, retry them, and change the address. The only module that uses `fetch`. */

import { setTimeout as sleep } from "node:timers/promises";

import type { Addresses } from "./addresses.js";
import { type Call, isAway, mayRepeat, NO_RESPONSE, NOT_SENT, waitBeforeRetry } from "./calls.js";
import { ConnectionFailed, errorOf, HookstationError } from "./errors.js";

/** A complete response. */
export interface Reply {
  status: number;
  body: Buffer;
}

/** Options of a `Transport`. */
export interface TransportSettings {
  addresses: Addresses;
  key: string;
  /** Timeout of one request in seconds, without the time of a long poll. */
  timeout: number;
  retries: number;
  fetch: typeof fetch;
}

/** Sends calls to the broker. */
export class Transport {
  constructor(private readonly settings: TransportSettings) {}

  /**
   * Send a call and return the response; throw the error for a refusal.
   *
   * If the call may be retried, it tries each address once before it waits.
   */
  async send(call: Call): Promise<Reply> {
    for (let retry = 0; ; retry += 1) {
      const error = await this.round(call);
      if (!(error instanceof HookstationError)) return error;
      const wait = waitBeforeRetry(call, error, retry, this.settings.retries);
      if (wait === undefined) throw error;
      await sleep(wait * 1000);
    }
  }

  private async round(call: Call): Promise<Reply | HookstationError> {
    const { addresses } = this.settings;
    let last: HookstationError = new ConnectionFailed("There is no address.", { code: NOT_SENT });
    for (const address of addresses.ordered()) {
      try {
        const reply = await this.once(address, call);
        addresses.works(address);
        return reply;
      } catch (error) {
        if (!(error instanceof HookstationError)) throw error;
        last = error;
        if (!isAway(error)) {
          addresses.works(address);
          return error;
        }
        addresses.failed(address);
        if (!mayRepeat(call, error)) return error;
      }
    }
    return last;
  }

  private async once(address: string, call: Call): Promise<Reply> {
    const { key, timeout, fetch: send } = this.settings;
    const headers = new Headers({ ...call.headers, Authorization: `Bearer ${key}` });
    const url = `${address}/api/v1${call.path}${queryOf(call)}`;
    const abort = new AbortController();
    const seconds = timeout + (call.wait ?? 0);
    const timer = setTimeout(() => abort.abort(), seconds * 1000);
    try {
      const response = await send(url, {
        method: call.method,
        headers,
        body: call.content ?? null,
        // A redirect would send the key to another address.
        redirect: "manual",
        signal: abort.signal,
      });
      const body = Buffer.from(await response.arrayBuffer());
      if (response.ok) return { status: response.status, body };
      throw errorOf(response.status, response.headers.get("Retry-After"), body.toString());
    } catch (error) {
      if (error instanceof HookstationError) throw error;
      const said = abort.signal.aborted ? `no response within ${seconds} s` : reasonOf(error);
      throw new ConnectionFailed(`${call.method} ${call.path}: ${said}`, {
        code: wasSent(error) ? NO_RESPONSE : NOT_SENT,
        cause: error,
      });
    } finally {
      clearTimeout(timer);
    }
  }
}

interface SystemError {
  code?: string;
  syscall?: string;
  message?: string;
  errors?: SystemError[];
}

/** Return whether the request may have reached the broker, by the error of `fetch`. */
function wasSent(error: unknown): boolean {
  const { cause } = error as { cause?: SystemError };
  if (cause === undefined || cause === null) return true;
  if (cause.code === "UND_ERR_CONNECT_TIMEOUT") return false;
  // The host name has several records, and connecting to each of them failed.
  const causes = cause.errors?.length ? cause.errors : [cause];
  return !causes.every(({ syscall }) => syscall === "connect" || syscall === "getaddrinfo");
}

function reasonOf(error: unknown): string {
  const { cause, message } = error as { cause?: SystemError; message?: string };
  return cause?.message || cause?.code || message || String(error);
}

function queryOf({ params = {} }: Call): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== undefined) query.set(name, value instanceof Date ? value.toISOString() : `${value}`);
  }
  const text = query.toString();
  return text && `?${text}`;
}
