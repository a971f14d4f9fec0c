/** The values that the client takes and returns. */

import { randomUUID } from "node:crypto";

import { given, milliseconds } from "./calls.js";
import { errorOf, type HookstationError } from "./errors.js";

/** An object in a response of the API; docs/api.md describes its fields. */
// Each resource has other fields; docs/api.md and the OpenAPI document describe them.
export type Resource = Record<string, any>;

/** Fields of the API, by their names in docs/api.md. */
export type Settings = Record<string, unknown>;

/** Options of a message. */
export interface PublishOptions {
  eventType?: string;
  /**
   * The idempotency key: the broker does not store a second message with the same one. Without it
   * the client generates one, so that its own retries store nothing twice.
   */
  id?: string;
  orderingKey?: string;
  /** 0 to 9. */
  priority?: number;
  deliverAt?: Date;
  /** Seconds. */
  deliverIn?: number;
  /** Seconds. */
  spread?: number;
  expiresAt?: Date;
  producerSeq?: number;
  /** The broker forwards these headers to the consumers. */
  headers?: Record<string, string>;
  contentType?: string;
}

/** One message of `publishBatch`. */
export interface Outgoing extends PublishOptions {
  /** The client sends strings and bytes as they are, anything else as JSON. */
  body: unknown;
}

/** A message that the broker has stored. */
export interface Message {
  id: string;
  /** Whether an earlier request with the same idempotency key stored it. */
  isDuplicate: boolean;
  matchedConsumers: number;
  dueAt: Date | undefined;
  url: string;
}

/** The result for one message of a batch: the stored message, or the error. */
export interface BatchResult {
  message?: Message;
  error?: HookstationError;
}

/** The leases that a call settled, and those that it did not settle, with the reasons. */
export interface Settled {
  done: string[];
  /** By lease: `expired`, `unknown` or `too_long` (docs/api.md, "Pull consumers"). */
  failed: Record<string, string>;
}

/** A message that a pull consumer received, without the methods that settle it. */
export interface ReceivedMessage {
  /** The id of the message, the same each time it is received. Deduplicate by it. */
  id: string;
  deliveryId: string;
  /** Identifies the lease in `ack`, `nack`, `extend` and `release`. Empty with `autoAck`. */
  lease: string;
  leaseExpiresAt: Date | undefined;
  attempt: number;
  maxAttempts: number;
  eventType: string;
  priority: number;
  orderingKey: string;
  isReplay: boolean;
  acceptedAt: Date | undefined;
  contentType: string;
  headers: Record<string, string>;
  body: Buffer;
  /**
   * Where the body is, if a `Stream` did not bring it because it is large; `Hookstation.body`
   * returns it. Empty otherwise.
   */
  bodyUrl: string;
}

/** Return the bytes of a body and their content type. */
export function contentOf(body: unknown, contentType?: string): [Uint8Array | string, string] {
  if (body instanceof Uint8Array) return [body, contentType ?? "application/octet-stream"];
  if (typeof body === "string") return [body, contentType ?? "text/plain; charset=utf-8"];
  const text = JSON.stringify(body);
  if (text === undefined) throw new TypeError(`${typeof body} cannot be sent as JSON.`);
  return [text, contentType ?? "application/json"];
}

/** Return `body` or `body_base64`, and `content_type`, for an item of a batch or a schedule. */
export function bodyFields(body: unknown, contentType?: string): Settings {
  const [content, kind] = contentOf(body, contentType);
  return { ...encoded(content), content_type: kind };
}

/** Return the headers of a single publish (docs/api.md, "Publish"). */
export function headersOf(options: PublishOptions): Record<string, string> {
  const said = given({
    "Idempotency-Key": options.id,
    "Hookstation-Event-Type": options.eventType,
    "Hookstation-Ordering-Key": options.orderingKey,
    "Hookstation-Priority": options.priority,
    "Hookstation-Deliver-At": options.deliverAt?.toISOString(),
    "Hookstation-Delay": milliseconds(options.deliverIn),
    "Hookstation-Spread": milliseconds(options.spread),
    "Hookstation-Expires-At": options.expiresAt?.toISOString(),
    "Hookstation-Producer-Seq": options.producerSeq,
  });
  const headers: Record<string, string> = {};
  for (const [name, value] of Object.entries(said)) headers[name] = String(value);
  for (const [name, value] of Object.entries(options.headers ?? {})) {
    headers[`Hookstation-Header-${name}`] = value;
  }
  return headers;
}

/** Return the item for a batch (docs/api.md, "Publish many at once"). */
export function itemOf({ body, ...options }: Outgoing): Settings {
  return given({
    ...bodyFields(body, options.contentType),
    idempotency_key: options.id ?? randomUUID(),
    event_type: options.eventType,
    ordering_key: options.orderingKey,
    priority: options.priority,
    deliver_at: options.deliverAt,
    delay_ms: milliseconds(options.deliverIn),
    spread_ms: milliseconds(options.spread),
    expires_at: options.expiresAt,
    producer_seq: options.producerSeq,
    headers: options.headers,
  });
}

/** Parse the broker's response to a publish. */
export function messageOf(found: Resource): Message {
  return {
    id: found.id,
    isDuplicate: found.duplicate,
    matchedConsumers: found.matched_consumers,
    dueAt: dateOf(found.due_at),
    url: found.url,
  };
}

/** Parse one item of the broker's response to a batch. */
export function batchResultOf(found: Resource): BatchResult {
  if (found.status >= 300) return { error: errorOf(found.status, null, JSON.stringify(found)) };
  return { message: messageOf(found) };
}

/** Parse the broker's response to an `ack`, `nack`, `extend` or `release`. */
export function settledOf(found: Resource): Settled {
  const failed: Record<string, string> = {};
  for (const { lease, error } of found.failed) failed[lease] = error;
  return { done: found.done, failed };
}

/** Parse one message of the broker's response to a receive call. */
export function receivedOf(found: Resource): ReceivedMessage {
  return {
    id: found.id,
    deliveryId: found.delivery_id,
    lease: found.lease ?? "",
    leaseExpiresAt: dateOf(found.lease_expires_at),
    attempt: found.attempt,
    maxAttempts: found.max_attempts,
    eventType: found.event_type ?? "",
    priority: found.priority,
    orderingKey: found.ordering_key ?? "",
    isReplay: found.replay,
    acceptedAt: dateOf(found.accepted_at),
    contentType: found.content_type,
    headers: found.headers ?? {},
    body:
      typeof found.body_base64 === "string"
        ? Buffer.from(found.body_base64, "base64")
        : Buffer.from(found.body ?? ""),
    bodyUrl: found.body_url ?? "",
  };
}

/** Parse an instant from a response. */
export function dateOf(value: string | null | undefined): Date | undefined {
  return value ? new Date(value) : undefined;
}

function encoded(content: Uint8Array | string): Settings {
  if (typeof content === "string") return { body: content };
  try {
    return { body: new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(content) };
  } catch {
    return { body_base64: Buffer.from(content).toString("base64") };
  }
}
