/** Standard Webhooks 1.0.0: sign and verify with a shared secret (scheme `v1`, HMAC-SHA256). */

import { createHmac, timingSafeEqual } from "node:crypto";

import { SignatureError } from "./errors.js";

/** How far a timestamp may be off, in seconds, as Standard Webhooks recommends. */
export const TOLERANCE_S = 300;

const PREFIX = "whsec_";

/** Headers as Node.js, `fetch` or a plain object holds them. */
export type HeadersLike =
  | { readonly get: (name: string) => string | null }
  | { readonly [name: string]: string | readonly string[] | undefined };

/** What `verify` takes beside the request. */
export interface VerifyOptions {
  /** Seconds that the timestamp may be off; 300 unless given. */
  tolerance?: number;
  /** Unix seconds to compare the timestamp with; the clock's unless given. */
  now?: number;
}

/**
 * The signature of a body, as it stands in `webhook-signature`: `v1,` and base64.
 *
 * `secret` is `whsec_` and base64, `timestamp` is Unix seconds.
 */
export function sign(
  secret: string,
  messageId: string,
  timestamp: number,
  body: Uint8Array | string,
): string {
  return signature(keyOf(secret), messageId, String(Math.trunc(timestamp)), body);
}

/**
 * Check that a webhook was signed with the secret, lately; returns its `webhook-id`.
 *
 * `secret` may be several, while one replaces another. `body` is the exact bytes of the request.
 * Throws `SignatureError` when no signature matches, or the timestamp is too far off.
 */
export function verify(
  secret: string | readonly string[],
  headers: HeadersLike,
  body: Uint8Array | string,
  { tolerance = TOLERANCE_S, now = Date.now() / 1000 }: VerifyOptions = {},
): string {
  const found = lowerCased(headers, ["webhook-id", "webhook-timestamp", "webhook-signature"]);
  const [messageId, timestamp, given] = ["id", "timestamp", "signature"].map((part) => {
    const value = found[`webhook-${part}`];
    if (value === undefined) throw new SignatureError(`The header webhook-${part} is missing.`);
    return value;
  }) as [string, string, string];
  if (!/^[0-9]{1,15}$/.test(timestamp)) {
    throw new SignatureError("webhook-timestamp is no whole number of seconds.");
  }
  const distance = now - Number(timestamp);
  if (Math.abs(distance) > tolerance) {
    throw new SignatureError(
      `The timestamp is ${distance.toFixed(0)} s off; ${tolerance} s are allowed.`,
    );
  }
  const signatures = given.split(" ").map((one) => Buffer.from(one));
  for (const one of typeof secret === "string" ? [secret] : secret) {
    const expected = Buffer.from(signature(keyOf(one), messageId, timestamp, body));
    if (signatures.some((it) => it.length === expected.length && timingSafeEqual(it, expected))) {
      return messageId;
    }
  }
  throw new SignatureError("No signature matches.");
}

/** Headers as an object with lower-case names; of a `Headers` object only those that are asked. */
export function lowerCased(headers: HeadersLike, names: readonly string[]): Record<string, string> {
  const found: Record<string, string> = {};
  if (typeof headers.get === "function") {
    for (const name of names) {
      const value = headers.get(name);
      if (value !== null) found[name] = value;
    }
    return found;
  }
  for (const [name, value] of Object.entries(headers as Record<string, string | string[]>)) {
    if (value !== undefined) found[name.toLowerCase()] = String(value);
  }
  return found;
}

function signature(
  key: Buffer,
  messageId: string,
  timestamp: string,
  body: Uint8Array | string,
): string {
  const digest = createHmac("sha256", key).update(`${messageId}.${timestamp}.`).update(body);
  return `v1,${digest.digest("base64")}`;
}

function keyOf(secret: string): Buffer {
  const encoded = secret.startsWith(PREFIX) ? secret.slice(PREFIX.length) : secret;
  // `Buffer.from` skips what is no base64; anybody could sign with an empty key.
  if (!/^[A-Za-z0-9+/]+={0,2}$/.test(encoded)) {
    throw new Error(
      encoded ? "The secret is no base64 behind `whsec_`." : "The secret is empty.",
    );
  }
  return Buffer.from(encoded, "base64");
}
