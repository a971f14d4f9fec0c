/** The errors of the client: one class for each kind, all with the broker's `code`. */

/** The properties of an error besides its detail. */
export interface ErrorFields {
  /** The broker's stable name of the error, see the table in docs/api.md. */
  code?: string;
  /** The HTTP status, 0 without a response. */
  status?: number;
  /** The invalid fields or headers, each with what is wrong with it. */
  fields?: Record<string, string>;
  /** Seconds to wait before the next try, if the broker sent `Retry-After`. */
  retryAfter?: number;
  /** The error that caused this one. */
  cause?: unknown;
}

/** A request failed: the broker refused it, or did not respond. */
export class HookstationError extends Error {
  /** A sentence for people. */
  readonly detail: string;
  /** The broker's stable name of the error, see the table in docs/api.md. */
  readonly code: string;
  /** The HTTP status, 0 without a response. */
  readonly status: number;
  /** The invalid fields or headers, each with what is wrong with it. */
  readonly fields: Record<string, string>;
  /** Seconds to wait before the next try, if the broker sent `Retry-After`. */
  readonly retryAfter: number | undefined;

  constructor(detail: string, fields: ErrorFields = {}) {
    const names = Object.keys(fields.fields ?? {});
    // The detail names the fields only if several are invalid.
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

/** The request is invalid (400, 405, 411, 413, 415, 422). */
export class BadRequest extends HookstationError {}

/** The API key is missing or invalid (401). */
export class Unauthorized extends HookstationError {}

/** The API key does not permit this (403). */
export class Forbidden extends HookstationError {}

/** The object does not exist, or the API key may not see it (404). */
export class NotFound extends HookstationError {}

/** The object's state does not allow it, or the object was changed meanwhile (409, 412). */
export class Conflict extends HookstationError {}

/** A rate limit or quota is exceeded (429); `retryAfter` has the seconds to wait. */
export class RateLimited extends HookstationError {}

/** The broker cannot do it now (5xx). If `status` is 503 or 507, nothing was stored. */
export class Unavailable extends HookstationError {}

/** There was no response: connecting failed, the connection broke, or a timeout ended. */
export class ConnectionFailed extends HookstationError {}

/** The lease ended before the call; another worker may have received the message. */
export class LeaseLost extends Conflict {}

/** The webhook is not signed with the secret, or its timestamp is too old or too new. */
export class SignatureError extends Error {
  constructor(detail: string) {
    super(detail);
    this.name = "SignatureError";
  }
}

/** Options of `new Retry`. */
export interface RetryOptions {
  /** Minimum seconds to wait; by default 0. */
  after?: number;
  /** Shown to people with the attempt. */
  reason?: string;
  /**
   * For `Hooks`: the broker sends this consumer nothing else until then, for up to a minute. Use it
   * if the handler's own database is down.
   */
  pause?: boolean;
}

/**
 * Throw it in a handler to have the message delivered again, after this time at the earliest.
 *
 * For a push consumer, its retry policy may set a longer time. A worker receives the message again
 * after exactly this time.
 */
export class Retry extends Error {
  /** Minimum seconds to wait. */
  readonly after: number;
  /** Whether the broker pauses the whole consumer until then. */
  readonly pause: boolean;

  constructor({ after = 0, reason, pause = false }: RetryOptions = {}) {
    super(reason ?? `retry after ${after} s`);
    this.name = "Retry";
    this.after = after;
    this.pause = pause;
  }
}

/** Throw it in a handler that can never handle the message: it becomes a dead letter at once. */
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

/** Return the error for a response: an RFC 9457 problem, or any response of a proxy. */
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

/** Return the seconds in a `Retry-After` header, a number or a date (RFC 9110, 10.2.3). */
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
