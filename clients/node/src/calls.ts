/** A call of the REST API as a value, and the rules of repeating it. */

import type { HookstationError } from "./errors.js";

const FIRST_BACKOFF_S = 0.2;
const MAX_BACKOFF_S = 20;
/** A longer `Retry-After` is the caller's to wait for: the error is thrown at once. */
const MAX_RETRY_AFTER_S = 60;

/** The code of a failure before the request left this process. */
export const NOT_SENT = "not_sent";
/** The code of a failure after which the request may have had its effect. */
export const NO_RESPONSE = "no_response";

/** Statuses with which the broker says, with a `code`, that it did nothing. */
const NOTHING_DONE = new Set([429, 503, 507]);
/** Statuses after which the request may have had its effect. */
const AMBIGUOUS = new Set([408, 500, 502, 504]);
/** Statuses after which another address may answer. */
const ADDRESS_AWAY = new Set([502, 503, 504]);

/** A value of a query: left out where it is undefined. */
export type Parameter = string | number | boolean | Date | undefined;

/** One request. */
export interface Call {
  method: string;
  /** Below `/api/v1`, percent-encoded. */
  path: string;
  params?: Record<string, Parameter>;
  headers?: Record<string, string>;
  content?: Uint8Array | string;
  /** Whether sending it twice has the effect of sending it once; true unless given. */
  isRepeatable?: boolean;
  /** Seconds for which the broker may hold the response back. */
  wait?: number;
}

/** Whether a failed call may be sent again. */
export function mayRepeat(call: Call, error: HookstationError): boolean {
  const isUndone = NOTHING_DONE.has(error.status);
  // A proxy answers such a status without a code, and may have passed the request on before.
  if (error.code === NOT_SENT || (isUndone && error.code)) return true;
  const isAmbiguous = isUndone || error.code === NO_RESPONSE || AMBIGUOUS.has(error.status);
  return isAmbiguous && call.isRepeatable !== false;
}

/** Whether an error says that this address is away; another one may answer. */
export function isAway(error: HookstationError): boolean {
  return error.code === NOT_SENT || error.code === NO_RESPONSE || ADDRESS_AWAY.has(error.status);
}

/**
 * Seconds to wait before retry number `retry` (from 0), undefined when the error is final.
 *
 * The waits double from 0.2 s to 20 s, with up to half of each by chance, so that clients that
 * failed together do not return together.
 */
export function waitBeforeRetry(
  call: Call,
  error: HookstationError,
  retry: number,
  retries: number,
): number | undefined {
  if (retry >= retries || !mayRepeat(call, error)) return undefined;
  const asked = error.retryAfter ?? 0;
  if (asked > MAX_RETRY_AFTER_S) return undefined;
  const backoff = Math.min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** retry);
  return Math.max(asked, backoff / 2) + (Math.random() * backoff) / 2;
}

/** The path of an object, each part percent-encoded. */
export function pathOf(...parts: string[]): string {
  return parts.map((part) => `/${encodeURIComponent(part)}`).join("");
}

/** The members that are neither undefined nor null. */
export function given<T extends object>(values: T): Partial<T> {
  const kept = Object.entries(values).filter(([, value]) => value !== undefined && value !== null);
  return Object.fromEntries(kept) as Partial<T>;
}

/** Seconds of the client are milliseconds of the API. */
export function milliseconds(seconds: number | undefined): number | undefined {
  return seconds === undefined ? undefined : Math.round(seconds * 1000);
}

/** A call with a JSON body. */
export function jsonCall(
  method: string,
  path: string,
  said: unknown,
  options: Partial<Call> = {},
): Call {
  const headers = { "Content-Type": "application/json", ...options.headers };
  return { ...options, method, path, headers, content: JSON.stringify(said) };
}
