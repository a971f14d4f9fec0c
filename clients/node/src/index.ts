/**
 * The client of Hookstation, the webhook broker: publish and receive messages, run workers, verify
 * webhooks.
 */

export {
  BadRequest,
  Conflict,
  ConnectionFailed,
  Forbidden,
  HookstationError,
  LeaseLost,
  NotFound,
  RateLimited,
  Reject,
  Retry,
  SignatureError,
  Unauthorized,
  Unavailable,
  type RetryOptions,
} from "./errors.js";
export { sign, TOLERANCE_S, verify, type HeadersLike, type VerifyOptions } from "./signing.js";
export {
  Hookstation,
  type ClientOptions,
  type ConsumerSettings,
  type DeliveryFilter,
  type Lease,
  type MessageFilter,
  type MoveOptions,
  type ReceiveOptions,
  type RequestOptions,
} from "./client.js";
export { Delivery, type NackOptions, type ReleaseOptions } from "./delivery.js";
export type {
  BatchResult,
  Message,
  Outgoing,
  PublishOptions,
  ReceivedMessage,
  Resource,
  Settings,
  Settled,
} from "./models.js";
export { Stream, type StreamOptions } from "./stream.js";
export { Schedules, type ScheduleSettings } from "./schedules.js";
export { Worker, type Handler, type WorkerOptions } from "./worker.js";
export {
  Hooks,
  type HandlerOptions,
  type HookEvent,
  type HookHandler,
  type HookResponse,
  type HooksOptions,
  type Secrets,
} from "./receiving.js";
export {
  type Claim,
  MemoryStore,
  once,
  SQLiteStore,
  type SQLiteDatabase,
  type Store,
  type StoreOptions,
} from "./stores.js";
export type { Logger } from "./logging.js";
