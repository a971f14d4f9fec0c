/** Standard Webhooks 1.0.0: sign and verify with a shared secret (scheme `v1`, HMAC-SHA256). */

import { createHmac, timingSafeEqual } from "node:crypto";

import { SignatureError } from "./errors.js";

/** Largest difference of a timestamp in seconds, as Standard Webhooks recommends. */
export const TOLERANCE_S = 300;

const PREFIX = "whsec_";

/** Headers of Node.js, of `fetch`, or in a plain object. */
export type HeadersLike =
  | { readonly get: (name: string) => string | null }
  | { readonly [name: string]: string | readonly string[] | undefined };

/** Options of `verify`. */
export interface VerifyOptions {
  /** Largest difference of the timestamp in seconds; by default 300. */
  tolerance?: number;
  /** Unix seconds to compare the timestamp with; by default the current time. */
  now?: number;
}

/**
 * Return the signature of a body for `webhook-signature`: `v1,` and base64.
 *
 * `secret` is `whsec_` and base64, `timestamp` is in Unix seconds.
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
 * Check the signature and the timestamp of a webhook; return its `webhook-id`.
 *
 * `secret` may be several secrets, during a rotation. `body` is the exact bytes of the request.
 * Throws `SignatureError` if no signature matches, or if the timestamp differs too much.
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
    throw new SignatureError("webhook-timestamp is not a whole number of seconds.");
  }
  const distance = now - Number(timestamp);
  if (Math.abs(distance) > tolerance) {
    throw new SignatureError(
      `The timestamp is ${distance.toFixed(0)} s off; the limit is ${tolerance} s.`,
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

/** Return headers as an object with lower-case names; from a `Headers` object only `names`. */
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
  // `Buffer.from` ignores invalid base64, and anybody could sign with an empty key.
  if (!/^[A-Za-z0-9+/]+={0,2}$/.test(encoded)) {
    throw new Error(
      encoded ? "The secret is not base64 after `whsec_`." : "The secret is empty.",
    );
  }
  return Buffer.from(encoded, "base64");
}
