/** Describe a call of the REST API as a value, and decide whether to retry it. */

import type { HookstationError } from "./errors.js";

const FIRST_BACKOFF_S = 0.2;
const MAX_BACKOFF_S = 20;
/**
 * Longest `Retry-After` that the client waits for, in seconds; else it throws the error at once.
 */
const MAX_RETRY_AFTER_S = 60;

/** The code of a failure before the request was sent. */
export const NOT_SENT = "not_sent";
/** The code of a failure after which the request may have taken effect. */
export const NO_RESPONSE = "no_response";

/** Statuses that, with a `code`, mean that the broker did nothing. */
const NOTHING_DONE = new Set([429, 503, 507]);
/** Statuses after which the request may have taken effect. */
const AMBIGUOUS = new Set([408, 500, 502, 504]);
/** Statuses after which the client tries another address. */
const ADDRESS_AWAY = new Set([502, 503, 504]);

/** A value of a query; undefined ones are omitted. */
export type Parameter = string | number | boolean | Date | undefined;

/** One request. */
export interface Call {
  method: string;
  /** Below `/api/v1`, percent-encoded. */
  path: string;
  params?: Record<string, Parameter>;
  headers?: Record<string, string>;
  content?: Uint8Array | string;
  /** Whether the call is idempotent; by default true. */
  isRepeatable?: boolean;
  /** Seconds for which the broker may delay the response (long poll). */
  wait?: number;
}

/** Return whether a failed call may be retried. */
export function mayRepeat(call: Call, error: HookstationError): boolean {
  const isUndone = NOTHING_DONE.has(error.status);
  // Without a code the status comes from a proxy, which may have forwarded the request before.
  if (error.code === NOT_SENT || (isUndone && error.code)) return true;
  const isAmbiguous = isUndone || error.code === NO_RESPONSE || AMBIGUOUS.has(error.status);
  return isAmbiguous && call.isRepeatable !== false;
}

/** Return whether the address is unavailable, so that another one should be tried. */
export function isAway(error: HookstationError): boolean {
  return error.code === NOT_SENT || error.code === NO_RESPONSE || ADDRESS_AWAY.has(error.status);
}

/**
 * Return the seconds to wait before retry number `retry` (from 0), or undefined if the error is
 * final.
 *
 * The waits double from 0.2 s to 20 s. Half of each is random, so that clients that failed at the
 * same time do not retry at the same time.
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

/** Return the path of an object, with each part percent-encoded. */
export function pathOf(...parts: string[]): string {
  return parts.map((part) => `/${encodeURIComponent(part)}`).join("");
}

/** Return the members that are neither undefined nor null. */
export function given<T extends object>(values: T): Partial<T> {
  const kept = Object.entries(values).filter(([, value]) => value !== undefined && value !== null);
  return Object.fromEntries(kept) as Partial<T>;
}

/** Convert seconds to milliseconds, which the API uses. */
export function milliseconds(seconds: number | undefined): number | undefined {
  return seconds === undefined ? undefined : Math.round(seconds * 1000);
}

/** Return a call with a JSON body. */
export function jsonCall(
  method: string,
  path: string,
  said: unknown,
  options: Partial<Call> = {},
): Call {
  const headers = { "Content-Type": "application/json", ...options.headers };
  return { ...options, method, path, headers, content: JSON.stringify(said) };
}
