/** The client: one method for each operation of the REST API. */

import { randomUUID } from "node:crypto";

import { Addresses } from "./addresses.js";
import { type Call, given, jsonCall, milliseconds, type Parameter, pathOf } from "./calls.js";
import { Delivery, type NackOptions, type ReleaseOptions } from "./delivery.js";
import { targetOf } from "./grpc.js";
import {
  type BatchResult,
  batchResultOf,
  contentOf,
  headersOf,
  itemOf,
  type Message,
  messageOf,
  type Outgoing,
  type PublishOptions,
  receivedOf,
  type Resource,
  type Settings,
  type Settled,
  settledOf,
} from "./models.js";
import { Schedules } from "./schedules.js";
import { Transport } from "./transport.js";

/** Most leases in one call. */
export const MAX_LEASES = 100;

/** Characters of an error that the broker keeps with an attempt. */
const MAX_ERROR = 300;
const TIMEOUT_S = 30;
const RETRIES = 6;
/** Seconds for which the broker may wait for the response of a tested consumer. */
const TEST_WAIT_S = 30;
/**
 * HTTP servers treat other bytes in headers differently, and strip spaces. JSON has no such
 * problem.
 */
const HEADER_VALUE = /^([\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?)?$/;

/** Options of a client. */
export interface ClientOptions {
  /** The API key; by default `HOOKSTATION_KEY`. */
  key?: string;
  /** Timeout of one request in seconds; by default 30. A long poll adds its own time. */
  timeout?: number;
  /** Maximum number of retries of a request, if retrying is safe; by default 6. */
  retries?: number;
  /**
   * Address of the broker's gRPC server, `grpc://host:port` or, for TLS, `grpcs://host:port`; by
   * default `HOOKSTATION_GRPC_URL`. Workers receive over it. Needs `@grpc/grpc-js` and
   * `@grpc/proto-loader`.
   */
  grpc?: string;
  /** Replaces the global `fetch`, for example for certificates or proxies. */
  fetch?: typeof fetch;
}

/** A lease, or the message with the lease. */
export type Lease = string | { readonly lease: string };

/** Options of `receiveBatch`. */
export interface ReceiveOptions {
  /** Maximum number of messages; by default 10. */
  max?: number;
  /** Seconds to wait for a message, 0 to 20. */
  wait?: number;
  /** Seconds until another worker may receive the messages; by default 30. */
  lease?: number;
  workerId?: string;
  /** `sticky`: messages of an ordering key go to the same worker. */
  keys?: "sticky";
  /** Whether to first receive the messages that this `workerId` has already leased. */
  resume?: boolean;
  /** Whether the broker acknowledges the messages when it returns them. */
  autoAck?: boolean;
}

/** Conditions of `messages`. */
export interface MessageFilter {
  state?: string;
  eventType?: string;
  /** The idempotency key of a message of this producer. */
  id?: string;
  /** Accepted at this time or later. */
  from?: Date;
  /** Accepted before this time. */
  to?: Date;
}

/** Conditions of `deliveries` and `deadLetters`. */
export interface DeliveryFilter {
  /** Only for `deliveries`. */
  state?: string;
  outcome?: string;
  eventType?: string;
  from?: Date;
  to?: Date;
}

/** Changes of `move`. */
export interface MoveOptions {
  deliverAt?: Date;
  /** Seconds. */
  deliverIn?: number;
  priority?: number;
  /** Written to the audit log. */
  reason?: string;
  /** Throw `Conflict` if the message has another version. */
  version?: number;
}

/** Fields of a consumer: those of docs/api.md, and these two. */
export interface ConsumerSettings extends Settings {
  /** The URL that the broker delivers to. A consumer without it is a pull consumer. */
  url?: string;
  /** Event types and patterns such as `order.*` (`event_types` of the API); none means all. */
  events?: string[];
}

/** Options of `request`. */
export interface RequestOptions {
  /** Sent as JSON. */
  json?: unknown;
  params?: Record<string, Parameter>;
  headers?: Record<string, string>;
  /** Whether the call is idempotent; by default true for all methods except POST. */
  isRepeatable?: boolean;
}

/**
 * The client of a broker.
 *
 * `url` is the broker's address, or several of one broker: the client uses the first one until it
 * fails, then the next one. The default is `HOOKSTATION_URL`, which may have several, separated by
 * commas.
 */
export class Hookstation {
  /** The addresses, without a trailing slash. */
  readonly urls: readonly string[];
  /** The API key. */
  readonly key: string;
  /** The address of the broker's gRPC server; empty without one. */
  readonly grpc: string;
  private readonly transport: Transport;

  constructor(options?: ClientOptions);
  constructor(url: string | readonly string[] | undefined, options?: ClientOptions);
  constructor(
    first?: string | readonly string[] | ClientOptions,
    second: ClientOptions = {},
  ) {
    const isUrl = typeof first === "string" || Array.isArray(first);
    const options = isUrl || first === undefined ? second : (first as ClientOptions);
    const named = isUrl ? (first as string | string[]) : process.env.HOOKSTATION_URL;
    const listed = typeof named === "string" ? named.split(",") : (named ?? []);
    const trimmed = listed.map((url) => url.trim().replace(/\/+$/, "")).filter(Boolean);
    this.urls = [...new Set(trimmed)];
    if (!this.urls.length) throw new Error("Pass the broker's address, or set HOOKSTATION_URL.");
    for (const url of this.urls) {
      if (!/^https?:$/.test(new URL(url).protocol)) throw new Error(`${url} is not an http or https URL.`);
    }
    const key = options.key ?? process.env.HOOKSTATION_KEY;
    if (!key) throw new Error("Pass the key, or set HOOKSTATION_KEY.");
    this.key = key;
    this.grpc = options.grpc ?? process.env.HOOKSTATION_GRPC_URL ?? "";
    if (this.grpc) targetOf(this.grpc);
    this.transport = new Transport({
      addresses: new Addresses(this.urls),
      key,
      timeout: options.timeout ?? TIMEOUT_S,
      retries: options.retries ?? RETRIES,
      fetch: options.fetch ?? ((...request) => fetch(...request)),
    });
  }

  // -- Publish -----------------------------------------------------------------------------------

  /**
   * Publish one message. When it returns, the broker has stored the message.
   *
   * The client sends strings and bytes as they are, and any other `body` as JSON.
   */
  async publish(channel: string, body: unknown, options: PublishOptions = {}): Promise<Message> {
    const said = { ...options, id: options.id ?? randomUUID() };
    const headers = headersOf(said);
    if (!Object.values(headers).every((value) => HEADER_VALUE.test(value))) {
      const [result] = await this.publishBatch(channel, [{ ...said, body }]);
      if (!result?.message) throw result?.error ?? new Error("The broker returned no result.");
      return result.message;
    }
    const [content, kind] = contentOf(body, options.contentType);
    const path = pathOf("channels", channel, "messages");
    const call = { method: "POST", path, headers: { "Content-Type": kind, ...headers }, content };
    return messageOf(await this.json(call));
  }

  /**
   * Publish up to 1,000 messages and 16 MiB in one request.
   *
   * The broker stores all valid messages in one transaction. The results are in the order of
   * `messages`; the result for a refused message has its error.
   */
  async publishBatch(channel: string, messages: Iterable<Outgoing>): Promise<BatchResult[]> {
    const path = pathOf("channels", channel, "messages", "batch");
    const found = await this.json(jsonCall("POST", path, Array.from(messages, itemOf)));
    return found.items.map(batchResultOf);
  }

  // -- Messages ----------------------------------------------------------------------------------

  /** Return a message with its deliveries. */
  message(id: string): Promise<Resource> {
    return this.json({ method: "GET", path: pathOf("messages", id) });
  }

  /** Return the exact bytes of a message's body. */
  async body(id: string): Promise<Buffer> {
    const call = { method: "GET", path: pathOf("messages", id, "body") };
    return (await this.transport.send(call)).body;
  }

  /** List the messages of a channel, newest first. */
  messages(channel: string, filter: MessageFilter = {}): AsyncGenerator<Resource, void> {
    const { eventType: event_type, id: idempotency_key, ...params } = filter;
    const path = pathOf("channels", channel, "messages");
    return this.pages(path, { ...params, event_type, idempotency_key });
  }

  /** Change the due time or priority of a waiting message. */
  move(id: string, options: MoveOptions): Promise<Resource> {
    const { deliverAt, deliverIn, priority, reason, version } = options;
    const delay_ms = milliseconds(deliverIn);
    const said = given({ due_at: deliverAt, delay_ms, priority, reason });
    return this.json(jsonCall("PATCH", pathOf("messages", id), said, ifMatch(version)));
  }

  /** Cancel the queued deliveries of a message. Idempotent. */
  cancel(id: string, options: { reason?: string; version?: number } = {}): Promise<Resource> {
    const { reason, version } = options;
    const path = pathOf("messages", id);
    return this.json({ method: "DELETE", path, params: { reason }, ...ifMatch(version) });
  }

  // -- Channels and consumers --------------------------------------------------------------------

  /** Create a channel or replace its settings. Idempotent. */
  createChannel(channel: string, settings: Settings = {}): Promise<Resource> {
    return this.json(jsonCall("PUT", pathOf("channels", channel), settings));
  }

  /** Return a channel. */
  channel(channel: string): Promise<Resource> {
    return this.json({ method: "GET", path: pathOf("channels", channel) });
  }

  /** List the channels that the key may use. */
  channels(): AsyncGenerator<Resource, void> {
    return this.pages(pathOf("channels"));
  }

  /**
   * Register a consumer or replace its settings. Idempotent: call it when a service starts.
   *
   * Only the result that creates the consumer contains the signing secret, as `secret`.
   */
  register(channel: string, consumer: string, settings: ConsumerSettings = {}): Promise<Resource> {
    const { events = [], ...fields } = settings;
    const mode = fields.url === undefined ? { mode: "pull" } : {};
    const said = { event_types: events, ...mode, ...fields };
    return this.json(jsonCall("PUT", pathOf("channels", channel, "consumers", consumer), said));
  }

  /** Change the given fields of a consumer. */
  updateConsumer(channel: string, consumer: string, fields: Settings): Promise<Resource> {
    const path = pathOf("channels", channel, "consumers", consumer);
    return this.json(jsonCall("PATCH", path, fields));
  }

  /** Return a consumer. */
  consumer(channel: string, consumer: string): Promise<Resource> {
    return this.json({ method: "GET", path: pathOf("channels", channel, "consumers", consumer) });
  }

  /** List the consumers of a channel; without `state` all except retired ones. */
  consumers(channel: string, filter: { state?: string } = {}): AsyncGenerator<Resource, void> {
    return this.pages(pathOf("channels", channel, "consumers"), { ...filter });
  }

  /** Retire a consumer: cancel its queued deliveries and keep its history. */
  async retireConsumer(channel: string, consumer: string): Promise<void> {
    const path = pathOf("channels", channel, "consumers", consumer);
    await this.transport.send({ method: "DELETE", path });
  }

  /** Stop deliveries to a consumer. After it returns, no new request begins. */
  pauseConsumer(channel: string, consumer: string): Promise<Resource> {
    const path = pathOf("channels", channel, "consumers", consumer, "pause");
    return this.json({ method: "POST", path });
  }

  /** Resume deliveries after a pause, or after the broker disabled the consumer. */
  resumeConsumer(channel: string, consumer: string): Promise<Resource> {
    const path = pathOf("channels", channel, "consumers", consumer, "resume");
    return this.json({ method: "POST", path });
  }

  /** Create a signing secret (`secret`). Old ones keep signing for `overlap` seconds. */
  rotateSecret(channel: string, consumer: string, overlap = 86_400): Promise<Resource> {
    const path = pathOf("channels", channel, "consumers", consumer, "secrets");
    return this.json(jsonCall("POST", path, { overlap_s: overlap }, { isRepeatable: false }));
  }

  /** Send one signed sample now, and return the consumer's response. */
  testConsumer(channel: string, consumer: string): Promise<Resource> {
    const path = pathOf("channels", channel, "consumers", consumer, "test");
    return this.json(jsonCall("POST", path, {}, { wait: TEST_WAIT_S }));
  }

  // -- Pull --------------------------------------------------------------------------------------

  /** Receive messages for a pull consumer, in one call. */
  async receiveBatch(
    channel: string,
    consumer: string,
    options: ReceiveOptions = {},
  ): Promise<Delivery[]> {
    const { max = 10, wait = 0, lease = 30, workerId, keys, resume, autoAck } = options;
    const said = given({
      max,
      wait_s: wait,
      lease_s: lease,
      worker_id: workerId,
      keys,
      resume: resume || undefined,
      auto_ack: autoAck || undefined,
    });
    const path = pathOf("channels", channel, "consumers", consumer, "receive");
    const found = await this.json(jsonCall("POST", path, said, { wait }));
    const messages: Resource[] = found.messages;
    try {
      return await Promise.all(messages.map((one) => this.deliveryOf(one)));
    } catch (error) {
      // The caller does not get them, so release them. With autoAck there are no leases.
      const leases = messages.map(({ lease }) => lease).filter(Boolean);
      if (leases.length) await this.release(leases).catch(() => undefined);
      throw error;
    }
  }

  /**
   * Iterate endlessly over the messages of a pull consumer.
   *
   * Each call waits up to 20 seconds; with `wait: 0` the iterator ends when there is nothing to
   * receive. Settle each message before you take the next one, with `ack`, `nack` or `release`.
   */
  async *receive(
    channel: string,
    consumer: string,
    options: ReceiveOptions = {},
  ): AsyncGenerator<Delivery, void> {
    const { wait = 20 } = options;
    for (let resume = options.resume; ; resume = false) {
      const batch = await this.receiveBatch(channel, consumer, { ...options, wait, resume });
      yield* batch;
      if (!batch.length && !wait) return;
    }
  }

  /** Acknowledge up to 100 messages by their leases, as delivered. */
  ack(leases: Lease | Iterable<Lease>): Promise<Settled> {
    return this.settle("ack", leases);
  }

  /** Report failed attempts: the broker retries the messages, or they are dead. */
  nack(leases: Lease | Iterable<Lease>, options: NackOptions = {}): Promise<Settled> {
    const { delay, error, final } = options;
    const said = { delay_s: delay, error: error && lineOf(error), final: final || undefined };
    return this.settle("nack", leases, said);
  }

  /** Make leases end `lease` seconds from now. */
  extend(leases: Lease | Iterable<Lease>, lease: number): Promise<Settled> {
    return this.settle("extend", leases, { lease_s: lease });
  }

  /** Return messages without counting a failure, due at once or after `delay` seconds. */
  release(leases: Lease | Iterable<Lease>, options: ReleaseOptions = {}): Promise<Settled> {
    return this.settle("release", leases, { delay_s: options.delay });
  }

  // -- Deliveries --------------------------------------------------------------------------------

  /** Return a delivery with its attempts. */
  delivery(id: string): Promise<Resource> {
    return this.json({ method: "GET", path: pathOf("deliveries", id) });
  }

  /** List the deliveries of a consumer, newest first. */
  deliveries(
    channel: string,
    consumer: string,
    filter: DeliveryFilter = {},
  ): AsyncGenerator<Resource, void> {
    const { eventType: event_type, ...params } = filter;
    const path = pathOf("channels", channel, "consumers", consumer, "deliveries");
    return this.pages(path, { ...params, event_type });
  }

  /** List the dead letters of a consumer, newest first. */
  deadLetters(
    channel: string,
    consumer: string,
    filter: Omit<DeliveryFilter, "state"> = {},
  ): AsyncGenerator<Resource, void> {
    const { eventType: event_type, ...params } = filter;
    const path = pathOf("channels", channel, "consumers", consumer, "dead-letters");
    return this.pages(path, { ...params, event_type });
  }

  /** Send a finished delivery again now, with a new budget of attempts. */
  replayDelivery(id: string, options: { reason?: string } = {}): Promise<Resource> {
    const path = pathOf("deliveries", id, "replay");
    return this.json(jsonCall("POST", path, given(options), { isRepeatable: false }));
  }

  /** Cancel a queued delivery. */
  cancelDelivery(id: string, options: { reason?: string } = {}): Promise<Resource> {
    const path = pathOf("deliveries", id, "cancel");
    return this.json(jsonCall("POST", path, given(options), { isRepeatable: false }));
  }

  // -- Other calls -------------------------------------------------------------------------------

  /** Return the schedules of a channel. */
  schedules(channel: string): Schedules {
    return new Schedules(this, channel);
  }

  /**
   * Make any other call of the REST API, with the same retries and errors.
   *
   * `path` is below `/api/v1`, as in docs/api.md. Returns the JSON of the response, or null if it
   * has no body.
   */
  async request(method: string, path: string, options: RequestOptions = {}): Promise<Resource> {
    const { json, isRepeatable = method.toUpperCase() !== "POST", ...rest } = options;
    const call =
      json === undefined
        ? { ...rest, method, path, isRepeatable }
        : jsonCall(method, path, json, { ...rest, isRepeatable });
    return this.json(call);
  }

  /** Iterate over a list of the API, reading page by page. */
  async *pages(
    path: string,
    params: Record<string, Parameter> = {},
  ): AsyncGenerator<Resource, void> {
    let cursor: string | undefined;
    do {
      const page = await this.json({ method: "GET", path, params: { ...params, cursor } });
      yield* page.items;
      cursor = page.next ?? undefined;
    } while (cursor !== undefined);
  }

  private async deliveryOf(one: Resource): Promise<Delivery> {
    const received = receivedOf(one);
    // The response does not contain large bodies.
    if (received.bodyUrl) {
      received.body = await this.body(received.id);
      received.bodyUrl = "";
    }
    return new Delivery(this, received);
  }

  private async json(call: Call): Promise<Resource> {
    const { body } = await this.transport.send(call);
    return JSON.parse(body.toString() || "null");
  }

  private async settle(
    what: string,
    leases: Lease | Iterable<Lease>,
    fields: Settings = {},
  ): Promise<Settled> {
    const said = { leases: namesOf(leases, MAX_LEASES), ...given(fields) };
    return settledOf(await this.json(jsonCall("POST", pathOf("leases", what), said)));
  }
}

/** Return the leases of one call. Throws RangeError if there are more than `most`. */
export function namesOf(leases: Lease | Iterable<Lease>, most: number): string[] {
  const listed =
    typeof leases === "string" || !(Symbol.iterator in leases) ? [leases] : [...leases];
  if (listed.length > most) {
    throw new RangeError(`${listed.length} leases in one call; the limit is ${most}.`);
  }
  return listed.map((one) => (typeof one === "string" ? one : one.lease));
}

/** An error's text as the broker takes it: 300 characters, no control characters or half pairs. */
export function lineOf(error: string): string {
  return [...error.replace(/[\p{Cc}\p{Cs}]+/gu, " ")].slice(0, MAX_ERROR).join("");
}

function ifMatch(version: number | undefined): Partial<Call> {
  if (version === undefined) return {};
  // If the write took effect, a retry would conflict with the new version.
  return { headers: { "If-Match": `"${version}"` }, isRepeatable: false };
}
