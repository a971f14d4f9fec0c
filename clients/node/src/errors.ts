/** The errors of the client: one class for each kind of refusal, all with the broker's `code`. */

/** What an error carries beside its detail. */
export interface ErrorFields {
  /** The broker's stable name of the error: the table in docs/api.md. */
  code?: string;
  /** The HTTP status, 0 where there was no response. */
  status?: number;
  /** The fields or headers at fault, each with what is wrong with it. */
  fields?: Record<string, string>;
  /** Seconds to wait before the next try, where the broker names them. */
  retryAfter?: number;
  /** The error that led to this one. */
  cause?: unknown;
}

/** A request that the broker refused, or that did not reach it. */
export class HookstationError extends Error {
  /** A sentence for people. */
  readonly detail: string;
  /** The broker's stable name of the error: the table in docs/api.md. */
  readonly code: string;
  /** The HTTP status, 0 where there was no response. */
  readonly status: number;
  /** The fields or headers at fault, each with what is wrong with it. */
  readonly fields: Record<string, string>;
  /** Seconds to wait before the next try, where the broker names them. */
  readonly retryAfter: number | undefined;

  constructor(detail: string, fields: ErrorFields = {}) {
    const names = Object.keys(fields.fields ?? {});
    // The detail of several faults names their fields, that of a single one does not.
    const parts = [fields.code, names.length === 1 ? names[0] : "", detail];
    super(
      parts.filter(Boolean).join(": "),
      fields.cause === undefined ? undefined : { cause: fields.cause },
    );
    this.name = new.target.name;
    this.detail = detail;
    this.code = fields.code ?? "";
    this.status = fields.status ?? 0;
    this.fields = fields.fields ?? {};
    this.retryAfter = fields.retryAfter;
  }
}

/** The request cannot be used as it is (400, 405, 411, 413, 415, 422). */
export class BadRequest extends HookstationError {}

/** There is no valid key (401). */
export class Unauthorized extends HookstationError {}

/** The key is valid and may not do this (403). */
export class Forbidden extends HookstationError {}

/** There is no such object for this key (404). */
export class NotFound extends HookstationError {}

/** The state of the object forbids it, or another client changed it first (409, 412). */
export class Conflict extends HookstationError {}

/** A rate or a quota is used up (429); `retryAfter` says for how many seconds. */
export class RateLimited extends HookstationError {}

/** The broker cannot do it now (5xx). Nothing was stored where `status` is 503 or 507. */
export class Unavailable extends HookstationError {}

/** There was no response: no connection, or it broke, or it took too long. */
export class ConnectionFailed extends HookstationError {}

/** A lease ended before the call: another worker may have the message by now. */
export class LeaseLost extends Conflict {}

/** A webhook that is not signed with the secret, or whose timestamp is too old or too new. */
export class SignatureError extends Error {
  constructor(detail: string) {
    super(detail);
    this.name = "SignatureError";
  }
}

/** What `new Retry` takes. */
export interface RetryOptions {
  /** Seconds to wait at least; 0 unless given. */
  after?: number;
  /** For people, beside the attempt. */
  reason?: string;
  /**
   * Of `Hooks`: the broker sends this consumer nothing else meanwhile, up to a minute. For a
   * handler whose own database is down.
   */
  pause?: boolean;
}

/**
 * Thrown by a handler: the message is to come again, after so many seconds at least.
 *
 * A push consumer's own retry policy may wait longer. A worker's messages come again after exactly
 * that time.
 */
export class Retry extends Error {
  /** Seconds to wait at least. */
  readonly after: number;
  /** Whether the broker is to pause the whole consumer meanwhile. */
  readonly pause: boolean;

  constructor({ after = 0, reason, pause = false }: RetryOptions = {}) {
    super(reason ?? `retry after ${after} s`);
    this.name = "Retry";
    this.after = after;
    this.pause = pause;
  }
}

/** Thrown by a handler: it can never handle this message, which is a dead letter at once. */
export class Reject extends Error {
  constructor(reason = "rejected") {
    super(reason);
    this.name = "Reject";
  }
}

const CLASSES: Record<number, typeof HookstationError> = {
  401: Unauthorized,
  403: Forbidden,
  404: NotFound,
  409: Conflict,
  412: Conflict,
  429: RateLimited,
};

interface Fault {
  field?: unknown;
  detail?: unknown;
}

/** The error that a response stands for: an RFC 9457 problem, or what a proxy answered. */
export function errorOf(status: number, retryAfter: string | null, body: string): HookstationError {
  const problem = problemOf(body);
  const faults = Array.isArray(problem.errors) ? (problem.errors as Fault[]) : [problem as Fault];
  const fields: Record<string, string> = {};
  for (const { field, detail } of faults) {
    if (field) fields[String(field)] = String(detail ?? "");
  }
  const Kind = CLASSES[status] ?? (status >= 500 ? Unavailable : BadRequest);
  return new Kind(String(problem.detail || `HTTP status ${status}`), {
    code: String(problem.code ?? ""),
    status,
    fields,
    retryAfter: secondsOf(retryAfter),
  });
}

/** Seconds that a `Retry-After` header names, as a number or a date (RFC 9110, 10.2.3). */
export function secondsOf(retryAfter: string | null | undefined): number | undefined {
  if (retryAfter === null || retryAfter === undefined || !retryAfter.trim()) return undefined;
  const seconds = Number(retryAfter);
  if (Number.isFinite(seconds)) return Math.max(0, seconds);
  const at = Date.parse(retryAfter);
  return Number.isNaN(at) ? undefined : Math.max(0, (at - Date.now()) / 1000);
}

function problemOf(body: string): Record<string, unknown> {
  try {
    const found: unknown = JSON.parse(body);
    return typeof found === "object" && found !== null && !Array.isArray(found)
      ? (found as Record<string, unknown>)
      : {};
  } catch {
    return {};
  }
}
